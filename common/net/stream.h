// Stream: a connected byte stream of an event loop (TCP, Unix socket, or TLS over either).
#ifndef SLUICE_COMMON_NET_STREAM_H_
#define SLUICE_COMMON_NET_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace sluice::net {

class EventLoop;

// What Stream::peer_address says before there is a peer.
inline constexpr std::string_view kNotConnected = "not connected";

// Who is at the other end, as far as TLS proved it.
struct PeerIdentity {
  bool authenticated = false;      // a client certificate was verified
  std::string subject;             // RFC 2253
  std::vector<std::string> names;  // DNS and URI names of the certificate
  std::string alpn;                // "h2", or empty
};

// Bounds of a stream's output.
struct StreamOptions {
  // From high_water_bytes of pending output on the peer is held to be stalled: nothing is read from
  // it (see pause_when_high) until no more than low_water_bytes are pending; then OnWritable.
  size_t high_water_bytes = size_t{256} << 10;
  size_t low_water_bytes = size_t{64} << 10;
  // Above this the stream is aborted, RESOURCE_EXHAUSTED: its handler does not heed the marks.
  size_t max_output_bytes = size_t{16} << 20;
  // Off for clients, which must read answers to make the peer read on.
  bool pause_when_high = true;
};

// Told about a stream, on the stream's loop. The handler outlives the stream's last callback, and
// may be destroyed from within OnClosed. A handler may call any method of the stream from any
// callback; after CloseAfterWrite or Abort only OnClosed follows.
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

  // Pending output fell to the low-water mark after it had reached the high one.
  virtual void OnWritable() {}

  // The last callback; the stream is destroyed when it returns. OK after an orderly close by
  // either side, DEADLINE_EXCEEDED when the peer did not end in time after CloseAfterWrite,
  // UNAVAILABLE when the connection broke or never came about, CANCELLED when the loop stops,
  // UNAUTHENTICATED when TLS found no trust; otherwise what was given to Abort.
  virtual void OnClosed(const absl::Status& why) = 0;
};

// Used on its loop's thread only. Never blocks.
class Stream {
 public:
  virtual ~Stream() = default;

  // Appends to the output; it is sent before the loop waits again, in one system call with all
  // else that was written meanwhile (much at a time: at once). Copies what is not sent at once.
  virtual void Write(absl::Span<const uint8_t> data) = 0;

  // Bytes accepted by Write and not yet by the kernel.
  virtual size_t pending_output() const = 0;

  // Stops and starts reading. Beside that, a stream does not read while its output is above the
  // high-water mark (StreamOptions), so a peer that does not read is not served on.
  virtual void PauseReading() = 0;
  virtual void ResumeReading() = 0;

  // After the pending output: half-close, then wait for the peer's end (at most linger_ns, while
  // reading and dropping what still comes, so that the peer does not lose our last bytes to a
  // reset), then OnClosed. A peer that takes none of the output for linger_ns is given up.
  virtual void CloseAfterWrite(int64_t linger_ns) = 0;

  // At once, dropping pending output (TCP: with a reset); OnClosed(why) follows from the loop, not
  // from within this call.
  virtual void Abort(absl::Status why) = 0;

  // The earliest moment at which the bytes that are handed to OnData now can have been ready to be
  // read, on the loop's clock: for shedding by time in queue. When the peer sends more than is
  // read, it follows what lies in the kernel, lagging (up to twice too young, never too old by
  // more than the loop's own EventLoop::ready_since_ns).
  virtual int64_t ready_since_ns() const = 0;

  // The fastest way there and back that the kernel has seen, whatever the peer's program did
  // meanwhile. 0: none that takes time, or not known.
  virtual int64_t round_trip_ns() const = 0;

  virtual const PeerIdentity& peer() const = 0;
  // "127.0.0.1:50312", "unix:/path"; kNotConnected.
  virtual std::string peer_address() const = 0;
  virtual EventLoop& loop() = 0;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_STREAM_H_
