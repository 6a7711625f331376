// RpcConnection: one client's connection: a net::Stream, an HTTP/2 session on it, and the calls.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RPC_CONNECTION_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RPC_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/http2/server_session.h"
#include "common/intrusive_list.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/transport/port/port_connection.h"
#include "server/transport/rpc/method.h"
#include "server/transport/rpc/rpc_loop.h"

namespace sluice::transport {

class ServerCall;
struct ReadyCalls;
struct ResumingCalls;
struct LargeCalls;

// Used on its loop only. Destroys itself when the stream is closed and all its calls have ended.
class RpcConnection final : public PortConnection,
                            public ListLink<RpcConnection, WaitingConnections>,
                            private http2::ServerSession::Handler {
 public:
  RpcConnection(RpcLoop& rpc_loop, net::Stream& stream);
  ~RpcConnection() override;

  // net::StreamHandler
  void OnOpen() override;
  void OnData(absl::Span<const uint8_t> data) override;
  void OnReadsDone() override;
  void OnEnd() override;
  void OnWritable() override;
  void OnClosed(const absl::Status& why) override;

  // PortConnection
  void Drain() override;
  void Work() override;
  // Includes what the handlers keep for the calls.
  size_t memory() const override;

  // For RpcLoop: the connection may take its next large message now.
  void OnLargeMessage(Decompressor& decompressor);

  // ---- For its calls.
  RpcLoop& rpc_loop() { return rpc_loop_; }
  http2::ServerSession& session() { return session_; }
  // When the input that is being handled arrived, at the earliest.
  int64_t arrived_ns() const { return arrived_ns_; }
  const Method* FindMethod(std::string_view path);

  // A response was submitted. It is sent when the input was handled, or when the iteration ends.
  void MarkDirty() {
    if (!busy_) rpc_loop_.MarkDirty(*this);
  }
  // A call with a complete request, or a stream with messages or its end, has its turn when all
  // input of one readiness event was parsed: a reset further back in the same bytes is in time.
  void QueueReady(RpcCall& call);
  // As QueueReady, before the others: the call has begun.
  void QueueFirst(RpcCall& call);
  // Whether a turn of the call follows.
  bool IsReady(const RpcCall& call) const {
    return ready_.Contains(call) || waits_for_large_.Contains(call);
  }
  // Null: the call waits, and others go on.
  Decompressor* ClaimLargeMessage(RpcCall& call);
  // A call whose pause or congestion ended goes on when output is flushed.
  void QueueResume(ServerCall& call);

  // Adds to the bytes of requests and responses that calls hold. Negative numbers wrap around.
  void Hold(size_t request_bytes, size_t response_bytes) {
    buffered_bytes_ += request_bytes;
    rpc_loop_.AddBufferedBytes(request_bytes);
    unsent_bytes_ += response_bytes;
    rpc_loop_.AddUnsentBytes(response_bytes);
  }
  // The same for the memory of their buffers, which may be more.
  void HoldBuffers(size_t bytes) { buffer_memory_ += bytes; }
  // The same for what handlers keep for their calls until the decision.
  void HoldPending(size_t bytes) { pending_bytes_ += bytes; }
  // The peer takes a part of an answer.
  void OnAnswerTaken() { taken_ns_ = rpc_loop_.loop().now_ns(); }
  // Whether `bytes` more of unfinished requests are within the bounds.
  bool HasRoomFor(size_t bytes) const;
  // Whether the connection has used its share: no call begins, and no message of a stream is
  // handled, until decisions are made or the peer takes answers.
  bool full() const {
    const RpcServerOptions& options = rpc_loop_.options();
    return unsent_bytes_ > options.max_connection_unsent_bytes ||
           (unsent_bytes_ > common::bounds::kMinConnectionUnsentBytes && rpc_loop_.over_unsent()) ||
           pending_bytes_ + cancelled_bytes() > options.max_connection_pending_bytes;
  }
  // Whether the call takes no more of its request since others of its connection have its share,
  // which is allowed to last while the port holds little of such requests.
  bool HoldsBack(const RpcCall& call) const {
    return (IsReady(call) || full()) &&
           rpc_loop_.buffered_bytes() <= rpc_loop_.options().max_loop_buffered_bytes / 2;
  }

 private:
  enum class State : uint8_t {
    kOpen,
    kDraining,  // the handlers of streams were notified
    kClosing,   // CloseAfterWrite or Abort was called; its calls end, some in each turn
    kClosed,    // as kClosing, and there is no stream
  };

  // http2::ServerSession::Handler
  http2::Stream& OnRequest() override;
  void OnStreamClosed(http2::Stream& stream) override;

  // While the result lives, MarkDirty does nothing: a Flush follows, or is running.
  auto BeginBusy() {
    return absl::MakeCleanup([this, before = std::exchange(busy_, true)] { busy_ = before; });
  }
  bool closing() const override { return state_ >= State::kClosing; }
  bool closed() const override { return state_ == State::kClosed; }
  // net::Worker
  void OnTurn() override { closing() ? EndCalls() : Work(); }
  // Gives bytes to the session, in pieces, while there is credit. Returns the rest.
  absl::Span<const uint8_t> Receive(absl::Span<const uint8_t> data);
  // Gives the session up to `most` bytes of input_.
  void ReceiveInput(size_t most);
  // Whether the next of the ready calls may go on, as far as the connection's share is concerned.
  bool may_run() const;
  bool RunsReady() const { return !ready_.empty() && has_credit() && may_run(); }
  void RunReady();
  void ReleaseLarge();
  void Flush();
  // Arms the timers of the calls that are still open.
  void PlanCallTimers();
  void PlanTurn();
  void DrainCalls();
  // Closes the stream after its output.
  void Close();
  void EndWork() override;
  // Ends some of the calls of a connection that has ended. May destroy this.
  void EndCalls();
  void PlanWake();
  void OnWake();
  int64_t CheckAnswers(const net::OutputProgress& output, int64_t next_ns) override;
  // Resets the calls whose answers the peer did not take in time, or ends the connection if those
  // are all that wait. Returns when the next call will have waited for too long.
  int64_t EndStalledCalls(int64_t now_ns);

  RpcLoop& rpc_loop_;
  http2::ServerSession session_;
  const Method* last_method_ = nullptr;
  IntrusiveList<RpcCall, OpenCalls> calls_;  // newest first
  IntrusiveList<RpcCall, ReadyCalls> ready_;
  IntrusiveList<RpcCall, ResumingCalls> resuming_;
  Buffer input_;  // not given to the session yet: the turn had ended
  IntrusiveList<RpcCall, LargeCalls> waits_for_large_;  // first come, first served
  // The decompressor that this connection holds, and the call that has it: both or none.
  Decompressor* large_ = nullptr;
  const RpcCall* large_call_ = nullptr;
  int64_t arrived_ns_ = 0;
  size_t buffered_bytes_ = 0;
  size_t unsent_bytes_ = 0;
  size_t buffer_memory_ = 0;
  int64_t taken_ns_ = 0;  // when the peer last took a part of an answer
  size_t pending_bytes_ = 0;
  size_t open_calls_ = 0;
  State state_ = State::kOpen;
  bool busy_ = false;         // handles input or flushes; Flush follows
  bool has_frames_ = false;   // that were not sent, since the turn had ended
  bool has_backlog_ = false;  // it waits for another turn
  bool was_full_ = false;     // calls wait in ready_ for the connection's share
  bool paused_ = false;       // not read, until input_ was received
  int64_t wake_armed_ns_ = std::numeric_limits<int64_t>::max();
  net::Timer wake_{net::Timer::To<&RpcConnection::OnWake>, this};
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_CONNECTION_H_
