// RpcCall: a ServerCall as its connection drives it: the events of its stream, its handler's turns,
// and its deadline.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RPC_CALL_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RPC_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/http2/stream.h"
#include "common/intrusive_list.h"
#include "common/net/timer_wheel.h"
#include "server/transport/rpc/request_head.h"
#include "server/transport/rpc/server_call.h"

namespace sluice::transport {

using common::ListLink;

// The lists that a call can be in.
struct OpenCalls;      // of a connection; or the loop's free calls
struct ReadyCalls;     // whose requests await their turn
struct ResumingCalls;  // whose pause or congestion ended
struct LargeCalls;     // that wait for a decompressor

// Used on its loop only. All functions but the handler's are for RpcConnection and RpcLoop.
class RpcCall final : public ServerCall,
                      public ListLink<RpcCall, OpenCalls>,
                      public ListLink<RpcCall, ReadyCalls>,
                      public ListLink<RpcCall, ResumingCalls>,
                      public ListLink<RpcCall, LargeCalls> {
 public:
  RpcCall() = default;

  void Begin(RpcConnection& connection);
  // Makes it as new for the next Begin. REQUIRES: it is in no list.
  void Recycle();

  // ---- http2::Stream
  void OnHeader(const http2::HpackField& field) override;
  void OnHeadersDone(bool end) override;
  void OnHeadersTooLarge() override;
  void OnData(absl::Span<const uint8_t> data) override;
  void OnEnd() override;
  void OnSendHeaders(http2::HeaderWriter& to) override;
  http2::Body OnSendBody(size_t room) override;
  void OnBodySent() override;
  void OnSendTrailers(http2::HeaderWriter& to) override { writer_.AppendTrailers(to); }

  // ---- Turns.
  // Handles what the connection's input brought: a whole request, or messages of a stream.
  void RunReady();
  // Goes on with requests that were paused or congested: they await their turn.
  void RunResume();
  // Whether a step of its present message is left.
  bool unfinished() const { return !finished() && (continues_ || large_ != nullptr); }
  // The caller or the connection is gone.
  void Cancel();
  // The connection is being drained.
  void Drain();
  // Arms the timer for the deadline, or for the end of the request or message. Once; later calls do
  // nothing.
  void PlanTimer(int64_t now_ns);
  bool timer_planned() const { return timer_planned_; }
  // ServerCall::Refuse.
  void RefuseCaller(const absl::Status& status, bool wrong_token);

  // Since when the peer has taken none of the unsent answers; kNoDeadline: none are unsent.
  int64_t unsent_since_ns() const { return unsent_bytes() > 0 ? unsent_since_ns_ : kNoDeadline; }
  // Bytes of memory, for the pool.
  size_t memory() const { return sizeof(RpcCall) + buffer_memory(); }

 private:
  // DATA bytes after which the client's stream window is restored.
  static constexpr size_t kWindowBytes = 16 << 10;

  void TakePath(std::string_view path);
  // A header that the transport does not use: it may name the caller, or be for the handler.
  void TakeOther(const http2::HpackField& field);
  // Streams: whether the handler takes messages now.
  bool reading() const { return !paused_ && !congested_; }
  // Input of a call that has ended, or will without it.
  bool ignores_input() const { return phase_ >= Phase::kRefused; }
  // Whether the caller may call the method, within its bounds. False: the call was refused.
  bool Authorize();
  absl::Status CountForClient();
  // When a message is complete, before which the clients may have been reloaded: whether the caller
  // still may. False: the call was refused, or aborted.
  bool AuthorizeAgain();
  // Whether the call may start now. False: it was refused.
  bool Admit();
  // Whether the server holds too much to take the call, or the next message of a stream. Then it
  // was refused, or aborted.
  bool RefuseOverMemory();
  void StartUnary();
  void Deliver();
  // Takes the next message, in steps. nullopt: there is none now. The call waits for its next turn,
  // or for the rest of the message, or it was aborted.
  std::optional<MessageReader::Message> TakeMessage();
  // Whether the next message is taken in steps.
  bool next_is_large() const;
  // Whether the call may take a large message now; else it waits.
  bool BeginLarge();
  void DeliverAndRestoreWindow();
  // Streams: bounds the time until a message that has begun is complete. Called when its first byte
  // has arrived and the call takes messages; later calls for the same message do nothing.
  void WatchMessage();
  // If enough bytes were received since the last time.
  void RestoreWindow();
  void EndRequests();
  void AnswerFault();
  // Ends the call for the transport's reasons. Tells the handler, if it has the call.
  void Abort(absl::StatusCode code, std::string_view message);
  void Abort(const absl::Status& status);
  void NotifyCancelled();
  void ArmTimer(int64_t now_ns);
  void OnTimer();

  RequestHead head_;
  // Not null: a message is being taken that is too large for one step.
  Decompressor* large_ = nullptr;
  size_t unconsumed_ = 0;  // DATA bytes for which the stream window was not restored
  bool timer_planned_ = false;
  int64_t message_end_ns_ = kNoDeadline;  // when a stream's message that has begun must be complete
  net::Timer timer_{net::Timer::To<&RpcCall::OnTimer>, this};
  std::string unknown_method_;             // the error's text
  std::unique_ptr<absl::Status> refusal_;  // of a call that is kRefused
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_CALL_H_
