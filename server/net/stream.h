// Stream: a connected byte stream of an event loop (TCP, Unix socket, or TLS over either).
#ifndef SLUICE_SERVER_NET_STREAM_H_
#define SLUICE_SERVER_NET_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace sluice::net {

class EventLoop;

// Who is at the other end, as far as TLS proved it.
struct PeerIdentity {
  bool authenticated = false;       // a client certificate was verified
  std::string subject;              // RFC 2253
  std::vector<std::string> names;   // DNS and URI names of the certificate
  std::string alpn;                 // "h2", or empty
};

// Told about a stream, on the stream's loop. The handler outlives the stream's last callback.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;

  // Connected; with TLS: the handshake is done. Called once, before any OnData.
  virtual void OnOpen() {}

  // Bytes arrived, valid until return. Called again as long as the stream is not paused.
  virtual void OnData(absl::Span<const uint8_t> data) = 0;

  // All that one readiness event brought was handed to OnData: the time to write, once, all the
  // answers that it produced.
  virtual void OnReadsDone() {}

  // The peer sent all it will send (half-close).
  virtual void OnEnd() = 0;

  // Pending output fell below the low-water mark after it had been above the high one.
  virtual void OnWritable() {}

  // The stream is gone; the last callback. OK after an orderly close by either side.
  virtual void OnClosed(const absl::Status& why) = 0;
};

// Used on its loop's thread only. Never blocks.
class Stream {
 public:
  virtual ~Stream() = default;

  // Appends to the output; it is sent before the loop waits again, in one system call with all
  // else that was written meanwhile. Copies what the kernel does not take at once.
  virtual void Write(absl::Span<const uint8_t> data) = 0;

  // Bytes accepted by Write and not yet by the kernel.
  virtual size_t pending_output() const = 0;

  // Stops and starts reading (back-pressure).
  virtual void PauseReading() = 0;
  virtual void ResumeReading() = 0;

  // After the pending output: half-close, then wait for the peer's end (at most linger_ns, while
  // reading and dropping what still comes, so that the peer does not lose our last bytes to a
  // reset), then OnClosed.
  virtual void CloseAfterWrite(int64_t linger_ns) = 0;

  // At once; OnClosed(why) follows from the loop, not from within this call.
  virtual void Abort(absl::Status why) = 0;

  virtual const PeerIdentity& peer() const = 0;
  // "127.0.0.1:50312", "unix:/path".
  virtual std::string peer_address() const = 0;
  virtual EventLoop& loop() = 0;
};

}  // namespace sluice::net

#endif  // SLUICE_SERVER_NET_STREAM_H_
