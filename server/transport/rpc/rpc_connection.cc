#include "server/transport/rpc/rpc_connection.h"

#include <algorithm>
#include <limits>

namespace sluice::transport {

RpcConnection::RpcConnection(GrpcLoop& grpc, net::Stream& stream)
    : grpc_(grpc),
      stream_(stream),
      session_(grpc.environment(), *this, grpc.loop().now_ns()),
      wake_armed_ns_(std::numeric_limits<int64_t>::max()),
      wake_(net::Timer::To<&RpcConnection::OnWake>, this) {
  grpc_.connections_opened_.Add(1);
  grpc_.counters().connections_accepted.Add(1);
}

RpcConnection::~RpcConnection() {
  busy_ = true;
  CancelCalls();
  while (calls_ != nullptr) {
    ServerCall* call = calls_;
    calls_ = call->next_;
    grpc_.counters().streams_closed.Add(1);
    grpc_.Recycle(call);
  }
  grpc_.counters().connections_closed.Add(1);
  grpc_.connections_closed_.Add(1);
}

// ---- net::StreamHandler

void RpcConnection::OnOpen() {
  const std::string& alpn = stream_.peer().alpn;
  if (!alpn.empty() && alpn != "h2") {
    closing_ = true;
    stream_.Abort(absl::FailedPreconditionError("ALPN did not choose h2"));
    return;
  }
  if (grpc_.draining_) session_.Drain(grpc_.loop().now_ns());
  Flush();  // our SETTINGS
  PlanWake();
}

void RpcConnection::OnData(absl::Span<const uint8_t> data) {
  if (closing_) return;
  busy_ = true;
  arrived_ns_ = stream_.ready_since_ns();
  grpc_.AdvanceTo(grpc_.loop().now_ns());
  session_.Receive(data, grpc_.now_ns_);
  busy_ = false;
}

void RpcConnection::OnReadsDone() {
  if (closing_) return;
  RunReady();
  Flush();
  ConsiderTimers();
  if (session_.next_wake_ns() < wake_armed_ns_) PlanWake();
}

void RpcConnection::OnEnd() {
  if (closing_) return;
  // A gRPC client that is still interested in answers keeps its side open; one that died does
  // not.
  busy_ = true;
  CancelCalls();
  busy_ = false;
  Flush();
  if (!closing_) {
    closing_ = true;
    stream_.CloseAfterWrite(grpc_.options().linger_ns);
  }
}

void RpcConnection::OnWritable() {
  if (!closing_) Flush();
}

void RpcConnection::OnClosed(const absl::Status&) { grpc_.Remove(this); }

// ---- Http2Session::Handler

void* RpcConnection::OnRequest(int32_t stream_id) {
  ServerCall* call = grpc_.NewCall();
  call->Begin(this, stream_id, arrived_ns_);
  call->next_ = calls_;
  call->previous_ = &calls_;
  if (calls_ != nullptr) calls_->previous_ = &call->next_;
  calls_ = call;
  grpc_.counters().streams_accepted.Add(1);
  return call;
}

bool RpcConnection::OnHeader(void* stream, std::string_view name, std::string_view value) {
  static_cast<ServerCall*>(stream)->OnHeader(name, value);
  return true;
}

void RpcConnection::OnHeadersDone(void* stream, bool end) {
  static_cast<ServerCall*>(stream)->OnHeadersDone(end);
}

void RpcConnection::OnHeadersTooLarge(void* stream) {
  auto* call = static_cast<ServerCall*>(stream);
  if (call->finished_) return;
  if (call->started_) {
    // Trailers of a request, larger than any need be.
    call->Cancel();
    return;
  }
  call->FailWithCode(absl::StatusCode::kResourceExhausted, "the request's headers are too large");
}

void RpcConnection::OnData(void* stream, absl::Span<const uint8_t> data) {
  static_cast<ServerCall*>(stream)->OnData(data);
}

void RpcConnection::OnEnd(void* stream) { static_cast<ServerCall*>(stream)->OnEnd(); }

void RpcConnection::OnStreamClosed(void* stream, bool) {
  auto* call = static_cast<ServerCall*>(stream);
  call->Cancel();
  if (call->resume_queued_) {
    ServerCall** at = &resumes_;
    while (*at != call) at = &(*at)->next_resume_;
    *at = call->next_resume_;
  }
  if (call->previous_ready_ != nullptr) RemoveReady(call);
  *call->previous_ = call->next_;
  if (call->next_ != nullptr) call->next_->previous_ = call->previous_;
  grpc_.counters().streams_closed.Add(1);
  grpc_.Recycle(call);
}

Http2Session::Body RpcConnection::OnSendBody(void* stream, size_t room) {
  auto* call = static_cast<ServerCall*>(stream);
  Http2Session::Body body;
  body.bytes = call->TakeBody(room);
  if (call->finished_ && call->out_.empty()) {
    body.complete = true;
    if (!call->plain_answer_) {
      body.trailers = true;
      call->SubmitTrailers();
    } else if (!call->remote_ended_) {
      session_.EndsEarly();
    }
  } else if (body.bytes.empty()) {
    call->body_waits_ = true;
  }
  return body;
}

int64_t& RpcConnection::ContentLeft(void* stream) {
  return static_cast<ServerCall*>(stream)->content_left_;
}

int64_t RpcConnection::StartedNs(void* stream) const {
  return static_cast<ServerCall*>(stream)->arrived_ns_;
}

// ---- Decisions

void RpcConnection::QueueReady(ServerCall* call) {
  if (call->previous_ready_ != nullptr) return;
  call->next_ready_ = nullptr;
  call->previous_ready_ = ready_end_;
  *ready_end_ = call;
  ready_end_ = &call->next_ready_;
}

void RpcConnection::RemoveReady(ServerCall* call) {
  *call->previous_ready_ = call->next_ready_;
  if (call->next_ready_ != nullptr) {
    call->next_ready_->previous_ready_ = call->previous_ready_;
  } else {
    ready_end_ = call->previous_ready_;
  }
  call->previous_ready_ = nullptr;
}

void RpcConnection::RunReady() {
  if (ready_ == nullptr) return;
  busy_ = true;
  // A connection that is being ended for what it sent takes no answers.
  if (session_.terminated()) CancelCalls();
  while (ready_ != nullptr) {
    ServerCall* call = ready_;
    RemoveReady(call);
    call->Ready();
  }
  busy_ = false;
}

// ---- Output

void RpcConnection::Flush() {
  if (busy_ || closing_) return;
  busy_ = true;
  Buffer& output = grpc_.output_;
  const size_t bound = grpc_.options().output_bytes;
  while (true) {
    bool more = true;
    while (more && stream_.pending_output() <= bound) {
      output.Clear();
      more = session_.Send(bound / 4, &output);
      if (output.empty()) break;
      stream_.Write(output.view());
    }
    // Calls whose output has gone down take their next requests, which may make more.
    if (resumes_ == nullptr) break;
    RunResumes();
  }
  output.Clear(4 * bound);
  busy_ = false;
  if (session_.finished()) {
    closing_ = true;
    busy_ = true;
    CancelCalls();
    busy_ = false;
    stream_.CloseAfterWrite(grpc_.options().linger_ns);
  }
}

void RpcConnection::QueueResume(ServerCall* call) {
  if (call->resume_queued_) return;
  call->resume_queued_ = true;
  call->next_resume_ = resumes_;
  resumes_ = call;
  MarkDirty();
}

void RpcConnection::RunResumes() {
  while (resumes_ != nullptr) {
    ServerCall* call = resumes_;
    resumes_ = call->next_resume_;
    call->resume_queued_ = false;
    call->Resumed();
  }
}

// ---- Time

void RpcConnection::ConsiderTimers() {
  // Calls that are answered at once, which is nearly all, are gone by now.
  for (ServerCall* call = calls_; call != nullptr && !call->timer_considered_; call = call->next_) {
    call->ArmTimer(grpc_.now_ns_);
  }
}

void RpcConnection::PlanWake() {
  wake_armed_ns_ = session_.next_wake_ns();
  if (wake_armed_ns_ == std::numeric_limits<int64_t>::max()) {
    wake_.Cancel();
  } else {
    grpc_.loop().Arm(wake_, wake_armed_ns_);
  }
}

void RpcConnection::OnWake() {
  wake_armed_ns_ = std::numeric_limits<int64_t>::max();
  if (closing_) return;
  if (!session_.OnTime(grpc_.loop().now_ns())) {
    closing_ = true;
    stream_.Abort(absl::UnavailableError(
        absl::string_view(session_.error_text().data(), session_.error_text().size())));
    return;
  }
  if (session_.draining()) TellStreamsToDrain();
  Flush();
  PlanWake();
}

void RpcConnection::Drain() {
  if (closing_) return;
  session_.Drain(grpc_.loop().now_ns());
  TellStreamsToDrain();
  MarkDirty();
  PlanWake();
}

void RpcConnection::TellStreamsToDrain() {
  if (told_to_drain_) return;
  told_to_drain_ = true;
  for (ServerCall* call = calls_; call != nullptr; call = call->next_) {
    if (call->started_ && !call->finished_ && call->method_->streaming != nullptr) {
      call->method_->streaming->OnDrain(*call);
    }
  }
}

size_t RpcConnection::CallMemory() const {
  size_t bytes = 0;
  for (const ServerCall* call = calls_; call != nullptr; call = call->next_) {
    bytes += sizeof(ServerCall) + call->in_.capacity() + call->out_.capacity() +
             call->metadata_bytes_.capacity();
  }
  return bytes;
}

void RpcConnection::CancelCalls() {
  for (ServerCall* call = calls_; call != nullptr; call = call->next_) call->Cancel();
}

const Method* RpcConnection::FindMethod(std::string_view path) {
  // Most connections call one method again and again.
  if (last_method_ != nullptr && last_method_->path == path) return last_method_;
  const Method* method = grpc_.methods().Find(path);
  if (method == nullptr) return &grpc_.unknown_method_;
  last_method_ = method;
  return method;
}

}  // namespace sluice::transport
