// Stream: a connected byte stream of an event loop (TCP, Unix socket, or TLS over either).
#ifndef SLUICE_COMMON_NET_STREAM_H_
#define SLUICE_COMMON_NET_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/peer_identity.h"

namespace sluice::net {

class EventLoop;

// How far the peer has taken a stream's output.
struct OutputProgress {
  // Bytes that the peer's system has acknowledged. Grows while the peer takes output.
  uint64_t acknowledged = 0;
  // Bytes that were written and not acknowledged, also those that the kernel holds.
  size_t outstanding = 0;
};

// Stream::peer_address before there is a peer.
inline constexpr std::string_view kNotConnected = "not connected";

// Bounds of a stream's output.
struct StreamOptions {
  // With high_water_bytes of pending output the peer counts as stalled: the stream stops reading
  // (see pause_when_high) until at most low_water_bytes are pending, and then calls OnWritable.
  size_t high_water_bytes = size_t{256} << 10;
  size_t low_water_bytes = size_t{64} << 10;
  // Above this the stream is aborted with RESOURCE_EXHAUSTED: its handler ignores the marks.
  size_t max_output_bytes = size_t{16} << 20;
  // False for clients, which must read responses to make the peer read.
  bool pause_when_high = true;
};

// Receives the events of a stream, on the stream's loop. The handler outlives the stream's last
// callback, and may be destroyed from within OnClosed. A handler may call any method of the stream
// from any callback; after CloseAfterWrite or Abort only OnClosed follows.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;

  // The stream is connected; with TLS: the handshake is complete. Called once, before any OnData.
  virtual void OnOpen() {}

  // Bytes arrived; they are valid until this returns. Not called while the stream is paused.
  virtual void OnData(absl::Span<const uint8_t> data) = 0;

  // OnData has had all bytes of one readiness event: write the responses to all of them now.
  virtual void OnReadsDone() {}

  // The peer will send no more (half-close).
  virtual void OnEnd() = 0;

  // Pending output fell to the low-water mark after it had reached the high one.
  virtual void OnWritable() {}

  // The last callback; the stream is destroyed when it returns. OK: an orderly close by either
  // side. DEADLINE_EXCEEDED: the peer did not close in time after CloseAfterWrite. UNAVAILABLE: the
  // connection broke or was never established. CANCELLED: the loop stops. UNAUTHENTICATED: TLS does
  // not trust the peer. Otherwise the status that was given to Abort.
  virtual void OnClosed(const absl::Status& why) = 0;
};

// Used on its loop's thread only. Never blocks.
class Stream {
 public:
  virtual ~Stream() = default;

  // Appends to the output. It is sent before the loop waits again, in one system call with other
  // writes; large writes are sent at once. Copies the bytes that are not sent at once.
  virtual void Write(absl::Span<const uint8_t> data) = 0;

  // Bytes that Write accepted and the kernel did not yet.
  virtual size_t pending_output() const = 0;
  // Bytes of memory that its buffers take.
  virtual size_t buffer_memory() const { return pending_output(); }

  // Costs a system call. What the kernel accepted says nothing of the peer: its buffers grow to
  // megabytes.
  virtual OutputProgress output_progress() const {
    return {.acknowledged = 0, .outstanding = pending_output()};
  }

  // Stops and starts reading. A stream also stops while its output is above the high-water mark
  // (StreamOptions), so that a peer that does not read is not served.
  virtual void PauseReading() = 0;
  virtual void ResumeReading() = 0;

  // Sends the pending output, half-closes, waits at most linger_ns for the peer's end, and calls
  // OnClosed. Meanwhile it reads and drops data, since unread data would cause a reset, to which
  // the peer could lose our last bytes. Resets the connection if the peer acknowledges no output
  // for linger_ns.
  virtual void CloseAfterWrite(int64_t linger_ns) = 0;

  // Closes at once and drops pending output (TCP: with a reset). The loop calls OnClosed(why) after
  // this call has returned.
  virtual void Abort(absl::Status why) = 0;

  // Whether the peer waits for nothing. Of the connections of one peer, idle ones are the first
  // that are closed to make room for others (ConnectionBudget). A new stream is idle, and none is
  // while output is pending.
  virtual void SetIdle(bool) {}

  // The earliest time, on the loop's clock, at which the bytes of the current OnData can have been
  // ready to be read. For shedding by time in queue. While the kernel holds unread bytes, their age
  // is an estimate: it may be half of the true age, and exceeds it by no more than
  // EventLoop::ready_since_ns does.
  virtual int64_t ready_since_ns() const = 0;

  // The shortest round-trip time that the kernel has measured. It does not include the peer's
  // program. 0: none (Unix sockets), or not known.
  virtual int64_t round_trip_ns() const = 0;

  // "127.0.0.1:50312", "unix:/path"; kNotConnected.
  virtual std::string peer_address() const = 0;
  // The peer, as ConnectionBudget knows it (PeerOf).
  virtual uint64_t peer() const { return 0; }
  virtual bool encrypted() const { return false; }
  // What the connection proves about its peer. Costs a system call, or reads the certificate.
  virtual PeerIdentity peer_identity() const { return {}; }
  virtual EventLoop& loop() = 0;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_STREAM_H_
