// SocketStream: a TCP or Unix socket as a Stream of an event loop.
//
// Costs an idle connection about 300 bytes: what is read lies in the loop's buffer, and the
// output's memory is given back as soon as it is sent.
//
// Reading: one recv(2) per readiness event, at most the loop's read buffer, so that no connection
// keeps the others waiting. Writing: one send(2) at the end of the iteration; what is so large that
// its copy would cost more than a call is sent at once, and only copied as far as the kernel does
// not take it.
//
// A stream belongs to its loop: it is destroyed after OnClosed has returned.
#ifndef SLUICE_COMMON_NET_SOCKET_STREAM_H_
#define SLUICE_COMMON_NET_SOCKET_STREAM_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/address.h"
#include "common/net/buffer_pool.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"

namespace sluice::net {

// Connections open at once, over all loops that share it. Thread-safe.
class ConnectionBudget {
 public:
  explicit ConnectionBudget(int64_t max) : max_(max) {}
  // False when there is no room.
  bool Take() {
    if (open_.fetch_add(1, std::memory_order_relaxed) < max_) return true;
    open_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  void GiveBack() { open_.fetch_sub(1, std::memory_order_relaxed); }
  int64_t open() const { return open_.load(std::memory_order_relaxed); }
  int64_t max() const { return max_; }

 private:
  const int64_t max_;
  // Relaxed: a count, nothing is published by it.
  std::atomic<int64_t> open_{0};
};

// What a stream that is not connected yet keeps until it is, or is given up.
class ConnectionAttempt {
 public:
  virtual ~ConnectionAttempt() = default;
};

class SocketStream final : public Stream,
                           private IoWatcher,
                           private IterationHook,
                           private LoopResident {
 public:
  // Takes over the connected, non-blocking `fd`. `budget`, if any, was taken and is given back
  // when the stream is gone. Follow with SetHandler and Open.
  static SocketStream* FromConnected(EventLoop& loop, int fd, const SocketAddress& peer,
                                     const StreamOptions& options, ConnectionBudget* budget);

  // A stream that is not connected yet: Write and Abort may be used. Follow with SetHandler and
  // then either Attach or Abort.
  static SocketStream* Unconnected(EventLoop& loop, const StreamOptions& options);

  // Destroyed by Attach and by whatever closes the stream. REQUIRES: unconnected.
  void SetAttempt(std::unique_ptr<ConnectionAttempt> attempt) { attempt_ = std::move(attempt); }
  void SetHandler(StreamHandler* handler) { handler_ = handler; }
  // Starts reading, and calls OnOpen from within.
  void Open();
  // The connection has come about: takes over `fd` and opens. Only of an unconnected stream that
  // was not aborted meanwhile (then: closes fd).
  void Attach(int fd, const SocketAddress& peer);
  bool closing() const { return state_ >= State::kAborted; }

  void Write(absl::Span<const uint8_t> data) override;
  size_t pending_output() const override { return output_.size(); }
  void PauseReading() override;
  void ResumeReading() override;
  void CloseAfterWrite(int64_t linger_ns) override;
  void Abort(absl::Status why) override;
  const PeerIdentity& peer() const override;
  std::string peer_address() const override;
  EventLoop& loop() override { return loop_; }
  int64_t ready_since_ns() const override;
  int64_t round_trip_ns() const override;

 private:
  enum class State : uint8_t {
    kUnconnected,
    kOpen,
    kFlushing,  // CloseAfterWrite: output remains
    kDraining,  // half-closed, reading and dropping until the peer's end
    kAborted,   // OnClosed will come at the end of the iteration
  };

  // A block of the pool, which is where a buffer would move to the heap; above a TLS record.
  static constexpr size_t kDirectBytes = BufferPool::kBlockBytes;

  SocketStream(EventLoop& loop, const StreamOptions& options);
  ~SocketStream() override;

  void OnIo(uint32_t events) override;
  void OnIterationEnd() override;
  void OnLoopStop() override;
  void OnLinger();

  void Read();
  void Drain();
  // What the kernel takes now, of data that is not empty. May end the stream.
  size_t Send(absl::Span<const uint8_t> data);
  void Flush();
  void HalfClose();
  void UpdateInterest();
  void EndWith(absl::Status why);
  void Finish();
  bool reading_wanted() const;
  bool reading_wanted_when_open() const;
  void SetPeer(int fd, const SocketAddress& peer);

  EventLoop& loop_;
  const StreamOptions options_;
  StreamHandler* handler_ = nullptr;
  ConnectionBudget* budget_ = nullptr;
  std::unique_ptr<ConnectionAttempt> attempt_;
  OutputBuffer output_;
  Timer linger_{Timer::To<&SocketStream::OnLinger>, this};
  int64_t linger_ns_ = 0;
  // Bytes that lay in the kernel at backlog_since_ns_, behind what had been read; 0: none known.
  int64_t backlog_bytes_ = 0;
  int64_t backlog_since_ns_ = 0;
  absl::Status why_;
  int fd_ = -1;
  uint32_t interest_ = 0;  // as epoll knows it
  State state_ = State::kUnconnected;
  bool watched_ = false;
  bool paused_ = false;  // by the handler
  bool above_high_water_ = false;
  bool peer_ended_ = false;
  bool is_unix_ = false;
  // The peer, small: an IPv4 address is stored as mapped into IPv6.
  uint16_t peer_port_ = 0;
  uint8_t peer_ip_[16] = {};
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_SOCKET_STREAM_H_
