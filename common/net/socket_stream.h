// SocketStream: a TCP or Unix socket as a Stream of an event loop.
//
// An idle connection costs about 400 bytes: input is read into the loop's buffer, and output
// returns its memory as soon as it is sent.
//
// Reading: one recv(2) per readiness event, at most the loop's read buffer, so that no connection
// delays the others for long. Writing: one send(2) at the end of the iteration. A write so large
// that its copy would cost more than a system call is sent at once; only the rest is copied.
//
// Ends: a stream whose peer has ended its side, or that is to be closed, leaves epoll at once and
// waits for its turn (EventLoop::EndInTurn), so that others are served while thousands end.
//
// A stream belongs to its loop: it is destroyed after OnClosed has returned.
#ifndef SLUICE_COMMON_NET_SOCKET_STREAM_H_
#define SLUICE_COMMON_NET_SOCKET_STREAM_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/address.h"
#include "common/net/buffer_pool.h"
#include "common/net/connection_budget.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"

namespace sluice::net {

class SocketStream final : public Stream,
                           private IoWatcher,
                           private EndingHook,
                           private LoopResident {
 public:
  // Takes over the connected, non-blocking `fd`. `admission`: null if no budget counts it. Follow
  // with SetHandler and Open.
  static SocketStream* FromConnected(EventLoop& loop, int fd, const SocketAddress& peer,
                                     const StreamOptions& options,
                                     std::unique_ptr<Admission> admission);

  // A stream that is not connected yet; Write and Abort may be used. Follow with SetHandler, then
  // with Attach or Abort.
  static SocketStream* Unconnected(EventLoop& loop, const StreamOptions& options);

  // The attempt to connect the stream, which gives it up in Attach or when it ends. REQUIRES:
  // unconnected.
  void SetAttempt(std::shared_ptr<void> attempt) { attempt_ = std::move(attempt); }
  void SetHandler(StreamHandler* handler) { handler_ = handler; }
  // Starts reading, and calls OnOpen.
  void Open();
  // Takes over the connected `fd` and opens; if the stream was aborted meanwhile, closes `fd`.
  // REQUIRES: the stream was unconnected.
  void Attach(int fd, const SocketAddress& peer);
  bool closing() const { return state_ >= State::kAborted; }

  void Write(absl::Span<const uint8_t> data) override;
  size_t pending_output() const override { return output_.size(); }
  size_t buffer_memory() const override { return output_.memory(); }
  OutputProgress output_progress() const override;
  void PauseReading() override;
  void ResumeReading() override;
  void CloseAfterWrite(int64_t linger_ns) override;
  void Abort(absl::Status why) override;
  void SetIdle(bool idle) override;
  std::string peer_address() const override;
  uint64_t peer() const override;
  PeerIdentity peer_identity() const override;
  EventLoop& loop() override { return loop_; }
  int64_t ready_since_ns() const override;
  int64_t round_trip_ns() const override;

 private:
  enum class State : uint8_t {
    kUnconnected,
    kOpen,
    kFlushing,  // CloseAfterWrite: output remains
    kDraining,  // half-closed, reading and dropping until the peer's end
    kAborted,   // OnClosed follows in the stream's turn
  };

  // Larger writes are sent at once: they would not fit a block of the pool. Above a TLS record.
  static constexpr size_t kDirectBytes = BufferPool::kBlockBytes;

  SocketStream(EventLoop& loop, const StreamOptions& options);
  ~SocketStream() override;

  void OnIo(uint32_t events) override;
  void OnIterationEnd() override;
  void OnTurnToEnd() override;
  void OnLoopStop() override;
  void OnLinger();

  void Read();
  void Drain();
  // Returns the bytes that the kernel took. May end the stream. REQUIRES: data is not empty.
  size_t Send(absl::Span<const uint8_t> data);
  void Flush();
  void HalfClose();
  void UpdateInterest();
  void Unwatch();
  void UpdateIdle();
  void EndWith(absl::Status why);
  bool reading_wanted() const;
  bool reading_wanted_when_open() const;

  EventLoop& loop_;
  const StreamOptions options_;
  StreamHandler* handler_ = nullptr;
  std::unique_ptr<Admission> admission_;
  std::shared_ptr<void> attempt_;
  OutputBuffer output_;
  Timer linger_{Timer::To<&SocketStream::OnLinger>, this};
  int64_t linger_ns_ = 0;
  uint64_t sent_bytes_ = 0;          // accepted by the kernel
  uint64_t acknowledged_bytes_ = 0;  // of them, when linger_ was armed
  // Unread bytes in the kernel at backlog_since_ns_; 0: none known.
  int64_t backlog_bytes_ = 0;
  int64_t backlog_since_ns_ = 0;
  absl::Status why_;
  int fd_ = -1;
  uint32_t interest_ = 0;  // as epoll knows it
  State state_ = State::kUnconnected;
  bool watched_ = false;
  bool hung_up_ = false;  // epoll would report it for ever: watched only if something is wanted
  bool paused_ = false;   // by the handler
  bool idle_ = true;      // but for output that is pending
  bool above_high_water_ = false;
  bool peer_ended_ = false;
  mutable std::optional<uint64_t> peer_number_;  // peer(), once it was asked for
  SocketAddress peer_;                           // its length is 0 until the stream is connected
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_SOCKET_STREAM_H_
