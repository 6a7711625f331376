#include "server/transport/rpc/rpc_connection.h"

#include "common/strings.h"
#include "server/transport/rpc/rpc_call.h"

namespace sluice::transport {

RpcConnection::RpcConnection(RpcLoop& rpc_loop, net::Stream& stream)
    : rpc_loop_(rpc_loop),
      stream_(stream),
      session_(rpc_loop.environment(), *this, rpc_loop.loop().now_ns()) {
  rpc_loop_.CountOpened();
}

RpcConnection::~RpcConnection() {
  busy_ = true;
  CancelCalls();
  while (!calls_.empty()) OnStreamClosed(*calls_.front());
  rpc_loop_.CountClosed();
}

// ---- net::StreamHandler

void RpcConnection::OnOpen() {
  if (rpc_loop_.draining()) session_.Drain(rpc_loop_.loop().now_ns());
  Flush();  // our SETTINGS
  PlanWake();
}

void RpcConnection::OnData(absl::Span<const uint8_t> data) {
  if (closing()) return;
  const auto busy = BeginBusy();
  arrived_ns_ = stream_.ready_since_ns();
  rpc_loop_.AdvanceTo(rpc_loop_.loop().now_ns());
  session_.Receive(data, rpc_loop_.last_now_ns());
}

void RpcConnection::OnReadsDone() {
  if (closing()) return;
  RunReady();
  Flush();
  PlanCallTimers();
  if (session_.next_wake_ns() < wake_armed_ns_) PlanWake();
}

void RpcConnection::OnEnd() {
  if (closing()) return;
  // A gRPC client that still wants responses keeps its side open. One that died does not.
  CancelCalls();
  Flush();
  if (!closing()) Close();
}

void RpcConnection::OnWritable() {
  if (!closing()) Flush();
}

void RpcConnection::OnClosed(const absl::Status&) { rpc_loop_.Remove(*this); }

void RpcConnection::Close() {
  state_ = State::kClosing;
  stream_.CloseAfterWrite(rpc_loop_.options().linger_ns);
}

// ---- Http2Session::Handler

Http2Stream& RpcConnection::OnRequest() {
  RpcCall& call = rpc_loop_.NewCall();
  call.Begin(*this);
  calls_.PushFront(call);
  rpc_loop_.counters().streams_accepted.Add(1);
  return call;
}

void RpcConnection::OnStreamClosed(Http2Stream& stream) {
  auto& call = static_cast<RpcCall&>(stream);
  call.Cancel();
  if (resuming_.Contains(call)) resuming_.Remove(call);
  if (ready_.Contains(call)) ready_.Remove(call);
  calls_.Remove(call);
  rpc_loop_.counters().streams_closed.Add(1);
  rpc_loop_.Recycle(call);
}

// ---- Turns of calls

void RpcConnection::QueueReady(RpcCall& call) {
  if (!ready_.Contains(call)) ready_.PushBack(call);
}

void RpcConnection::RunReady() {
  if (ready_.empty()) return;
  const auto busy = BeginBusy();
  // A connection that ends for what the peer sent takes no responses.
  if (session_.terminated()) CancelCalls();
  while (!ready_.empty()) ready_.PopFront().RunReady();
}

void RpcConnection::QueueResume(ServerCall& server_call) {
  auto& call = static_cast<RpcCall&>(server_call);
  if (resuming_.Contains(call)) return;
  resuming_.PushFront(call);
  MarkDirty();
}

void RpcConnection::CancelCalls() {
  const auto busy = BeginBusy();
  for (RpcCall* call = calls_.front(); call != nullptr; call = calls_.Next(*call)) call->Cancel();
}

// ---- Output

void RpcConnection::Flush() {
  if (busy_ || closing()) return;
  Buffer& output = rpc_loop_.output();
  const size_t bound = rpc_loop_.options().output_bytes;
  {
    const auto busy = BeginBusy();
    while (true) {
      bool more = true;
      while (more && stream_.pending_output() <= bound) {
        output.Clear();
        more = session_.Send(bound / 4, &output);
        if (output.empty()) break;
        stream_.Write(output.view());
      }
      // Calls that are no longer congested take their next requests, whose responses are sent, too.
      if (resuming_.empty()) break;
      while (!resuming_.empty()) resuming_.PopFront().RunResume();
    }
    output.Clear(4 * bound);
  }
  if (session_.finished()) {
    CancelCalls();
    Close();
  }
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
    state_ = State::kClosing;
    stream_.Abort(absl::UnavailableError(common::ToAbsl(session_.error_text())));
    return;
  }
  if (session_.draining()) DrainCalls();
  Flush();
  PlanWake();
}

void RpcConnection::Drain() {
  if (closing()) return;
  session_.Drain(rpc_loop_.loop().now_ns());
  DrainCalls();
  MarkDirty();
  PlanWake();
}

void RpcConnection::DrainCalls() {
  if (state_ != State::kOpen) return;
  state_ = State::kDraining;
  for (RpcCall* call = calls_.front(); call != nullptr; call = calls_.Next(*call)) call->Drain();
}

// ---- Accounting

bool RpcConnection::HasRoomFor(size_t bytes) const {
  const RpcServerOptions& options = rpc_loop_.options();
  return buffered_bytes_ + bytes <= options.max_connection_buffered_bytes &&
         rpc_loop_.buffered_bytes() + bytes <= options.max_loop_buffered_bytes;
}

size_t RpcConnection::memory() const {
  size_t bytes = sizeof(RpcConnection);
  for (const RpcCall* call = calls_.front(); call != nullptr; call = calls_.Next(*call)) {
    bytes += call->memory();
  }
  return bytes;
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
