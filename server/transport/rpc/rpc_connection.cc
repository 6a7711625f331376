#include "server/transport/rpc/rpc_connection.h"

#include <algorithm>

#include "common/net/timer_wheel.h"
#include "common/strings.h"
#include "server/transport/rpc/rpc_call.h"

namespace sluice::transport {
namespace {

// Bytes that a session is given at once: those with the most expensive frames, 150 requests, take
// about 300 us.
constexpr size_t kPieceBytes = 2 << 10;

// Bytes that a session is asked for at once, and the units of work that show that more at once
// would not take long.
constexpr size_t kSmallPieceBytes = 16 << 10;
constexpr int64_t kFewUnits = 256;

// What the end of a call costs when its connection has ended, beside what its handler counts.
constexpr int64_t kEndUnits = 10;

// A call that was open for longer has lasted. Calls are rarely open for so long, unless they wait.
constexpr int64_t kLongNs = 100'000'000;

// An open call without its buffers: its object, its headers, the state of a small request.
constexpr size_t kCallBytes = sizeof(RpcCall) + 1024;

}  // namespace

RpcConnection::RpcConnection(RpcLoop& rpc_loop, net::Stream& stream)
    : PortConnection(rpc_loop, stream),
      rpc_loop_(rpc_loop),
      session_(rpc_loop.options().http2, *this, rpc_loop.loop().now_ns()) {
  Settle(memory());
}

RpcConnection::~RpcConnection() {
  busy_ = true;
  EndWork();
  while (!calls_.empty()) OnStreamClosed(*calls_.front());
}

// ---- net::StreamHandler

void RpcConnection::OnOpen() {
  if (rpc_loop_.draining()) {
    session_.Drain(rpc_loop_.loop().now_ns(), rpc_loop_.most_notice_ns());
  }
  Flush();  // our SETTINGS
  PlanWake();
}

void RpcConnection::OnData(absl::Span<const uint8_t> data) {
  if (closing()) return;
  const auto busy = BeginBusy();
  arrived_ns_ = stream().ready_since_ns();
  rpc_loop_.AdvanceTo(rpc_loop_.loop().now_ns());
  rpc_loop_.loop().work().Refill(*this);
  if (input_.empty() && !has_backlog_) data = Receive(data);
  input_.Append(data);
}

absl::Span<const uint8_t> RpcConnection::Receive(absl::Span<const uint8_t> data) {
  while (!data.empty() && has_credit()) {
    const absl::Span<const uint8_t> piece = data.first(std::min(data.size(), kPieceBytes));
    session_.Receive(piece, rpc_loop_.last_now_ns());
    Spend(static_cast<int64_t>(piece.size() / 64));
    data.remove_prefix(piece.size());
  }
  return data;
}

void RpcConnection::OnReadsDone() { Work(); }

void RpcConnection::OnEnd() {
  if (closing()) return;
  // A gRPC client that still wants responses keeps its side open. One that died does not.
  Flush();
  if (!closing()) Close();
}

void RpcConnection::OnWritable() { Work(); }

void RpcConnection::OnClosed(const absl::Status&) {
  EndWork();
  state_ = State::kClosed;
  EndCalls();
}

void RpcConnection::Close() {
  EndWork();
  stream().SetIdle(true);
  stream().CloseAfterWrite(rpc_loop_.linger_ns());
  EndCalls();
}

void RpcConnection::EndWork() {
  state_ = State::kClosing;
  session_.Abandon();
  LeaveQueue();
  while (!waits_for_large_.empty()) waits_for_large_.PopFront();
  rpc_loop_.CancelClaim(*this);
  ReleaseLarge();
  input_.Clear(0);
  if (!calls_.empty()) rpc_loop_.loop().work().Add(*this);
}

void RpcConnection::EndCalls() {
  rpc_loop_.loop().work().Refill(*this);
  while (!calls_.empty() && (has_credit() || rpc_loop_.loop().stopping())) {
    OnStreamClosed(*calls_.front());
    Spend(kEndUnits);
  }
  if (!calls_.empty()) {
    rpc_loop_.loop().work().Add(*this);
  } else if (state_ == State::kClosed) {
    rpc_loop_.Remove(*this);
  } else {
    Settle(memory());
  }
}

// ---- http2::ServerSession::Handler

http2::Stream& RpcConnection::OnRequest() {
  Spend(3);
  RpcCall& call = rpc_loop_.calls().New();
  call.Begin(*this);
  calls_.PushFront(call);
  ++open_calls_;
  rpc_loop_.counters().streams_accepted.Add(1);
  return call;
}

void RpcConnection::OnStreamClosed(http2::Stream& stream) {
  auto& call = static_cast<RpcCall&>(stream);
  call.Cancel();
  if (resuming_.Contains(call)) resuming_.Remove(call);
  if (ready_.Contains(call)) ready_.Remove(call);
  if (waits_for_large_.Contains(call)) {
    waits_for_large_.Remove(call);
    if (waits_for_large_.empty()) rpc_loop_.CancelClaim(*this);
  }
  if (large_call_ == &call) ReleaseLarge();
  calls_.Remove(call);
  --open_calls_;
  rpc_loop_.counters().streams_closed.Add(1);
  rpc_loop_.calls().Recycle(call, rpc_loop_.last_now_ns() - call.arrived_ns > kLongNs);
}

// ---- Turns of calls

void RpcConnection::QueueReady(RpcCall& call) {
  if (!IsReady(call)) ready_.PushBack(call);
}

void RpcConnection::QueueFirst(RpcCall& call) {
  if (ready_.Contains(call)) ready_.Remove(call);
  ready_.PushFront(call);
  MarkDirty();
}

void RpcConnection::Work() {
  if (closing()) return;
  rpc_loop_.loop().work().Refill(*this);
  ForgetSome();
  do {
    RunReady();
    Flush();
  } while (!closing() && RunsReady());
  if (closing()) return;
  PlanCallTimers();
  if (session_.next_wake_ns() < wake_armed_ns_) PlanWake();
  PlanTurn();
}

void RpcConnection::RunReady() {
  const auto busy = BeginBusy();
  // Some input goes before the calls that wait: it may reset them.
  if (has_backlog_) ReceiveInput(kPieceBytes);
  while (true) {
    // A connection that ends for what the peer sent takes no responses.
    while (session_.terminated() && !ready_.empty()) ready_.PopFront();
    while (RunsReady()) {
      // The wait for the connection's share was not for its turn.
      if (std::exchange(was_full_, false)) arrived_ns_ = rpc_loop_.loop().now_ns();
      RpcCall& call = ready_.PopFront();
      call.RunReady();
      if (large_call_ == &call && !call.unfinished()) ReleaseLarge();
    }
    was_full_ = !ready_.empty() && !may_run();
    // Calls that wait for the connection's share do not keep its input waiting, which may open a
    // window for the answers before them.
    if (input_.empty() || (!ready_.empty() && !was_full_) || !has_credit()) break;
    ReceiveInput(input_.size());
  }
  // The call that has it is gone, or has not begun and waits for the connection's share.
  while (large_call_ != nullptr &&
         (!ready_.Contains(*large_call_) || (full() && !large_call_->unfinished()))) {
    ReleaseLarge();
  }
}

bool RpcConnection::may_run() const { return !full() || ready_.front()->unfinished(); }

void RpcConnection::ReceiveInput(size_t most) {
  const absl::Span<const uint8_t> piece = input_.view().first(std::min(input_.size(), most));
  input_.Consume(piece.size() - Receive(piece).size());
  if (input_.empty()) input_.Clear(0);
}

void RpcConnection::PlanTurn() {
  has_backlog_ = (!ready_.empty() && may_run()) || !input_.empty() || has_frames_;
  if (has_backlog_) rpc_loop_.loop().work().Add(*this);
  const bool pause = !input_.empty() || has_frames_;
  if (pause == paused_) return;
  paused_ = pause;
  pause ? stream().PauseReading() : stream().ResumeReading();
}

// ---- Large messages

Decompressor* RpcConnection::ClaimLargeMessage(RpcCall& call) {
  if (large_call_ == nullptr) {
    large_ = rpc_loop_.ClaimLarge(*this);
    if (large_ != nullptr) large_call_ = &call;
  }
  if (large_call_ == &call) return large_;
  if (!waits_for_large_.Contains(call)) waits_for_large_.PushBack(call);
  return nullptr;
}

void RpcConnection::OnLargeMessage(Decompressor& decompressor) {
  RpcCall& call = waits_for_large_.PopFront();
  large_ = &decompressor;
  large_call_ = &call;
  QueueReady(call);
  rpc_loop_.loop().work().Add(*this);
}

void RpcConnection::ReleaseLarge() {
  large_call_ = nullptr;
  if (large_ != nullptr) rpc_loop_.ReleaseLarge(*std::exchange(large_, nullptr));
  if (waits_for_large_.empty()) return;
  Decompressor* const next = rpc_loop_.ClaimLarge(*this);
  if (next != nullptr) OnLargeMessage(*next);
}

void RpcConnection::QueueResume(ServerCall& server_call) {
  auto& call = static_cast<RpcCall&>(server_call);
  if (resuming_.Contains(call)) return;
  resuming_.PushFront(call);
  MarkDirty();
}

// ---- Output

void RpcConnection::Flush() {
  if (busy_ || closing()) return;
  Buffer& output = rpc_loop_.output();
  const size_t bound = rpc_loop_.options().output_bytes;
  bool wrote = false;
  {
    const auto busy = BeginBusy();
    session_.HoldConnectionWindow(was_full_);
    bool more = true;
    // The first piece shows whether frames are small, and many of them a lot of work.
    size_t piece_bytes = std::min(bound / 4, kSmallPieceBytes);
    // The answers of a turn are sent in it, if they cost no more than another turn.
    while (true) {
      while (more && stream().pending_output() <= bound && credit() > -net::WorkQueue::kTurnUnits) {
        const int64_t before = credit();
        output.Clear();
        more = session_.Send(piece_bytes, &output);
        if (output.empty()) break;
        wrote = true;
        stream().Write(output.view());
        if (before - credit() < kFewUnits) piece_bytes = bound / 4;
      }
      // Calls that are no longer congested may send more, and take their next requests.
      if (resuming_.empty()) break;
      while (!resuming_.empty()) resuming_.PopFront().RunResume();
      more = true;
    }
    has_frames_ = more && credit() <= -net::WorkQueue::kTurnUnits;
    output.Clear(4 * bound);
  }
  if (wrote || unsent_bytes_ > 0) PlanStallCheck();
  stream().SetIdle(open_calls_ == 0);
  Settle(memory());
  if (session_.finished()) Close();
}

// ---- Time

void RpcConnection::PlanCallTimers() {
  // Most calls are finished at once and gone by now. Older calls have their timers.
  for (RpcCall* call = calls_.front(); call != nullptr && !call->timer_planned();
       call = calls_.Next(*call)) {
    call->PlanTimer(rpc_loop_.last_now_ns());
  }
}

void RpcConnection::PlanWake() {
  wake_armed_ns_ = session_.next_wake_ns();
  if (wake_armed_ns_ == std::numeric_limits<int64_t>::max()) {
    wake_.Cancel();
  } else {
    rpc_loop_.loop().Arm(wake_, wake_armed_ns_);
  }
}

void RpcConnection::OnWake() {
  wake_armed_ns_ = std::numeric_limits<int64_t>::max();
  if (closing()) return;
  if (!session_.OnTime(rpc_loop_.loop().now_ns())) {
    EndWork();
    stream().Abort(absl::UnavailableError(common::ToAbsl(session_.abort_text())));
    return;
  }
  if (session_.draining()) DrainCalls();
  Work();
  PlanWake();
}

void RpcConnection::Drain() {
  if (closing()) return;
  session_.Drain(rpc_loop_.loop().now_ns(), rpc_loop_.most_notice_ns());
  DrainCalls();
  MarkDirty();
  PlanWake();
}

void RpcConnection::DrainCalls() {
  if (state_ != State::kOpen) return;
  state_ = State::kDraining;
  for (RpcCall* call = calls_.front(); call != nullptr; call = calls_.Next(*call)) call->Drain();
}

int64_t RpcConnection::CheckAnswers(const net::OutputProgress& output, int64_t next_ns) {
  // Then all that waits, waits for HTTP/2's windows.
  if (stream().pending_output() == 0 && unsent_bytes_ > 0) {
    next_ns = std::min(next_ns, EndStalledCalls(rpc_loop_.loop().now_ns()));
  }
  MarkDirty();
  return unsent_bytes_ > 0 || output.outstanding > 0 ? next_ns : net::TimerWheel::kNever;
}

int64_t RpcConnection::EndStalledCalls(int64_t now_ns) {
  const int64_t timeout_ns = rpc_loop_.options().stall_timeout_ns;
  int64_t next_ns = std::numeric_limits<int64_t>::max();
  bool any_stalled = false;
  for (RpcCall* call = calls_.front(); call != nullptr; call = calls_.Next(*call)) {
    const int64_t since_ns = call->unsent_since_ns();
    if (since_ns == ServerCall::kNoDeadline) continue;
    if (now_ns - since_ns >= timeout_ns) {
      any_stalled = true;
    } else {
      next_ns = std::min(next_ns, since_ns + timeout_ns);
    }
  }
  if (!any_stalled) return next_ns;
  rpc_loop_.CountStalled(stream());
  // Calls that wait for their turn behind stalled ones stall next: a peer that takes nothing at all
  // is ended as a whole.
  if (next_ns == std::numeric_limits<int64_t>::max() || now_ns - taken_ns_ >= timeout_ns) {
    session_.Terminate(http2::ErrorCode::kEnhanceYourCalm, "no answer was taken in time");
    return next_ns;
  }
  for (RpcCall* call = calls_.front(); call != nullptr; call = calls_.Next(*call)) {
    const int64_t since_ns = call->unsent_since_ns();
    if (since_ns != ServerCall::kNoDeadline && now_ns - since_ns >= timeout_ns) {
      session_.Reset(*call, http2::ErrorCode::kEnhanceYourCalm);
    }
  }
  return next_ns;
}

// ---- Accounting

bool RpcConnection::HasRoomFor(size_t bytes) const {
  const RpcServerOptions& options = rpc_loop_.options();
  const size_t mine = buffered_bytes_ + bytes;
  if (mine <= common::bounds::kMinConnectionRequestBytes) return true;
  return mine <= options.max_connection_buffered_bytes &&
         rpc_loop_.buffered_bytes() + bytes <= options.max_loop_buffered_bytes &&
         !rpc_loop_.over_memory();
}

size_t RpcConnection::memory() const {
  return rpc_loop_.options().connection_bytes + sizeof(*this) + session_.memory() +
         open_calls_ * kCallBytes + buffer_memory_ + pending_bytes_ + kept_memory() +
         input_.capacity() + (state_ == State::kClosed ? 0 : stream().buffer_memory());
}

const Method* RpcConnection::FindMethod(std::string_view path) {
  // Most connections call one method again and again.
  if (last_method_ != nullptr && last_method_->path == path) return last_method_;
  const Method* method = rpc_loop_.methods().Find(path);
  if (method == nullptr) return &rpc_loop_.unknown_method();
  last_method_ = method;
  return method;
}

}  // namespace sluice::transport
