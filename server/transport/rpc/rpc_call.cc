#include "server/transport/rpc/rpc_call.h"

#include <algorithm>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/execution_mark.h"
#include "common/http2/header_names.h"
#include "common/strings.h"
#include "server/access/caller.h"
#include "server/transport/rpc/rpc_connection.h"
#include "server/transport/rpc/rpc_loop.h"

namespace sluice::transport {
namespace {

// Of a header that is kept for the handler. What is longer is no credential that it knows.
constexpr size_t kMaxMetadataBytes = common::bounds::kMaxAuthorizationBytes + 1;

// A step of decompression of a large message.
constexpr size_t kInflateBytes = 16 << 10;

// Units of work (net::WorkQueue): a message and its call, beside what the handler counts; a step of
// decompression, and each part of it; a frame of a response.
constexpr int64_t kMessageUnits = 6;
constexpr int64_t kInflateUnits = kInflateBytes / 100;
constexpr int64_t kPartUnits = 20;
constexpr int64_t kSendUnits = 4;

// Bytes of an unknown method's path that its error has. The path itself may have 16 KB.
constexpr size_t kMaxUnknownBytes = 256;

std::string UnknownMethodText(const MethodTable& methods, std::string_view path) {
  const size_t slash = path.rfind('/');
  const bool service_known =
      slash != std::string_view::npos && slash > 0 && methods.HasService(path.substr(1, slash - 1));
  return absl::StrCat(service_known ? "unknown method " : "unknown service: ",
                      common::ToAbsl(path.substr(0, kMaxUnknownBytes)));
}

}  // namespace

void RpcCall::Begin(RpcConnection& connection) {
  connection_ = &connection;
  arrived_ns = connection.arrived_ns();
  method_ = &connection.rpc_loop().unknown_method();
}

void RpcCall::Recycle() {
  timer_.Cancel();
  reader_.Clear(kKeepBytes);
  writer_.Clear(kKeepBytes);
  UpdateHeldBytes();
  connection_->HoldBuffers(-std::exchange(held_memory_, 0));
  if (pending_bytes_ > 0) SetPendingBytes(0);
  if (lasting_bytes_ > 0) TrySetLastingBytes(0);
  if (!metadata_.empty()) metadata_ = {};
  if (!unknown_method_.empty()) unknown_method_ = std::string();
  if (caller_ != nullptr) caller_ = nullptr;
  stream_place_.Leave();
  if (refusal_ != nullptr) refusal_ = nullptr;
  connection_ = nullptr;
  phase_ = Phase::kReceiving;
  request_state_ = RequestState::kHeaders;
  response_state_ = ResponseState::kNotSubmitted;
  deadline_passed_ = paused_ = congested_ = delivering_ = continues_ = timer_planned_ = false;
  deadline_ns_ = message_end_ns_ = kNoDeadline;
  state_ = nullptr;
  large_ = nullptr;
  head_ = RequestHead();
  unconsumed_ = 0;
}

// ---- The request's headers.

void RpcCall::OnHeader(const http2::HpackField& field) {
  connection_->Spend(1 + static_cast<int64_t>(field.value.size() >> 8));
  if (request_state_ != RequestState::kHeaders) return;  // gRPC has no trailers of requests
  const http2::HeaderName name = http2::NameOf(field);
  if (name == http2::HeaderName::kPath) {
    TakePath(field.value);
  } else if (!head_.Take(name, field.value) &&
             (connection_->recognises_callers() || !method_->options.metadata.empty())) {
    TakeOther(field);
  }
}

// Apart, so that calls without such headers do not pay for it.
ABSL_ATTRIBUTE_NOINLINE void RpcCall::TakeOther(const http2::HpackField& field) {
  // The first of them counts: a byte of HPACK can stand for each further one.
  if (caller_ == nullptr && method_->options.call.has_value() &&
      connection_->recognises_callers() && common::SameBytes(field.name, "authorization")) {
    caller_ = connection_->CallerOf(field.value);
  }
  for (const std::string_view kept : method_->options.metadata) {
    if (kept != field.name || metadata(kept).has_value()) continue;
    metadata_.emplace_back(kept, field.value.substr(0, kMaxMetadataBytes));
  }
}

void RpcCall::TakePath(std::string_view path) {
  method_ = connection_->FindMethod(path);
  if (!method_->known()) {
    unknown_method_ = UnknownMethodText(connection_->rpc_loop().methods(), path);
  }
}

void RpcCall::OnHeadersDone(bool end) {
  request_state_ = end ? RequestState::kEnded : RequestState::kBody;
  if (finished()) return;  // the headers were too large
  if (head_.timeout_ns() < kNoDeadline - arrived_ns) {
    deadline_ns_ = arrived_ns + head_.timeout_ns();
  }
  if (const RequestHead::Fault* fault = head_.CheckComplete(); fault != nullptr) {
    // A plain HTTP response follows the request, which may turn out to be malformed.
    if (fault->is_grpc() || end) AnswerFault();
    return;
  }
  reader_.Begin(head_.encoding(), method_->options.max_request_bytes);
  if (!method_->known()) {
    Fail(absl::StatusCode::kUnimplemented, unknown_method_);
  } else if (!Authorize()) {
    return;
  } else if (method_->unary != nullptr) {
    if (end) OnEnd();
  } else if (Admit()) {
    phase_ = Phase::kStarted;
    method_->streaming->OnStart(*this);
    if (end && !finished()) connection_->QueueReady(*this);
  }
}

void RpcCall::OnHeadersTooLarge() {
  if (phase_ == Phase::kStarted || phase_ == Phase::kRefused) {
    Cancel();  // trailers of a request, and a client that means harm
  } else if (!finished()) {
    Fail(absl::StatusCode::kResourceExhausted, "the request's headers are too large");
  }
}

void RpcCall::AnswerFault() {
  const RequestHead::Fault& fault = *head_.fault();
  if (fault.is_grpc()) {
    if (head_.encoding() == MessageReader::Encoding::kUnsupported) {
      AddTrailingMetadata("grpc-accept-encoding", "identity,gzip");
    }
    Fail(fault.code, fault.text);
    return;
  }
  phase_ = Phase::kFinished;
  response_state_ = ResponseState::kPlain;
  RecordFinish(fault.code);
  writer_.WriteText(fault.text);
  UpdateHeldBytes();
  connection_->session().Submit(*this, /*has_body=*/true);
  connection_->MarkDirty();
}

// ---- The request's messages.

void RpcCall::OnData(absl::Span<const uint8_t> data) {
  // Data after the response is dropped. The window is not restored, which stops the client.
  if (ignores_input()) return;
  unconsumed_ += data.size();
  if (head_.fault() == nullptr) {
    if (!connection_->HasRoomFor(data.size())) {
      Abort(absl::StatusCode::kResourceExhausted, "too many bytes of unfinished requests are held");
      return;
    }
    reader_.Append(data);
    UpdateHeldBytes();
    if (method_->streaming != nullptr) {
      if (reading()) {
        connection_->QueueReady(*this);
        WatchMessage();
      }
      return;
    }
    if (const absl::Status checked = reader_.CheckSingle(); !checked.ok()) {
      Abort(checked);
      return;
    }
  }
  RestoreWindow();
}

void RpcCall::OnEnd() {
  request_state_ = RequestState::kEnded;
  if (ignores_input()) return;
  if (head_.fault() != nullptr) {
    AnswerFault();
  } else {
    connection_->QueueReady(*this);
  }
}

void RpcCall::RunReady() {
  if (finished()) return;
  if (std::exchange(continues_, false)) {
    method_->unary != nullptr ? method_->unary->OnTurn(*this) : method_->streaming->OnTurn(*this);
  } else if (method_->unary != nullptr) {
    StartUnary();
  } else if (reading()) {
    DeliverAndRestoreWindow();
  }
}

bool RpcCall::Authorize() {
  if (!connection_->recognises_callers() || !method_->options.call.has_value()) return true;
  if (caller_ == nullptr) caller_ = connection_->CallerOf("");
  if (!caller_->May(*method_->options.call)) {
    RefuseCaller(caller_->Check(*method_->options.call), caller_->has_wrong_token());
    return false;
  }
  const absl::Status counted = CountForClient();
  if (counted.ok()) return true;
  Fail(counted.code(), common::ToStd(counted.message()));
  return false;
}

absl::Status RpcCall::CountForClient() {
  const int64_t now_ns = connection_->rpc_loop().last_now_ns();
  absl::Status counted = caller_->CountCall(now_ns);
  if (counted.ok() && method_->streaming != nullptr) {
    counted = caller_->Enter(access::ClientBound::kStreams, now_ns, &stream_place_);
  }
  return counted;
}

void RpcCall::RefuseCaller(const absl::Status& status, bool wrong_token) {
  const RpcServerOptions& options = connection_->rpc_loop().options();
  const std::string peer = peer_address();
  if (options.refusals != nullptr && method_->options.call.has_value() &&
      access::IsAdmin(*method_->options.call)) {
    access::AuditRecord record;
    if (caller_ != nullptr && caller_->client() != nullptr) record.client = caller_->client()->name;
    record.actor = access::ActorOf(peer_identity());
    record.peer = peer;
    record.call = method_->path.substr(method_->path.rfind('/') + 1);
    record.outcome = status;
    options.refusals->Add(std::move(record));
  }
  const int64_t now_ns = loop().now_ns();
  const auto at_ns = wrong_token && options.guesses != nullptr
                         ? options.guesses->RefuseAt(peer, now_ns)
                         : std::optional(now_ns);
  if (at_ns.has_value() && *at_ns <= now_ns) {
    Fail(status.code(), common::ToStd(status.message()));
    return;
  }
  phase_ = Phase::kRefused;
  reader_.Clear(kKeepBytes);
  UpdateHeldBytes();
  if (!at_ns.has_value()) {
    // The call ends with its connection.
    connection_->session().Terminate(http2::ErrorCode::kEnhanceYourCalm, "too many wrong tokens");
    connection_->MarkDirty();
    return;
  }
  refusal_ = std::make_unique<absl::Status>(status);
  deadline_ns_ = *at_ns;
  loop().Arm(timer_, deadline_ns_);
}

bool RpcCall::AuthorizeAgain() {
  if (caller_ == nullptr || !method_->options.call.has_value()) return true;
  caller_ = access::Clients::Current(std::move(caller_));
  const absl::Status checked = caller_->Check(*method_->options.call);
  if (checked.ok()) return true;
  phase_ == Phase::kStarted ? Abort(checked) : RefuseCaller(checked, /*wrong_token=*/false);
  return false;
}

bool RpcCall::Admit() {
  RpcLoop& loop = connection_->rpc_loop();
  const int64_t now_ns = loop.Now();
  // The queue holds the input that completed the request. The time that a client takes to send its
  // request does not count.
  const int64_t queued_ns = now_ns - connection_->arrived_ns();
  if (!method_->options.exempt_from_shedding && loop.Sheds(queued_ns)) {
    Fail(absl::StatusCode::kResourceExhausted, kShed);
    return false;
  }
  if (now_ns >= deadline_ns_) {
    Fail(absl::StatusCode::kDeadlineExceeded, "the deadline passed before the call's turn");
    return false;
  }
  return !RefuseOverMemory();
}

bool RpcCall::RefuseOverMemory() {
  RpcLoop& loop = connection_->rpc_loop();
  if (!loop.over_memory() || method_->options.exempt_from_shedding) return false;
  // What a compressed message has is not known. A large one is handled in steps.
  const size_t request_bytes =
      reader_.next_is_compressed() ? RpcLoop::kLargeMessageBytes : reader_.next_bytes();
  if (!connection_->RefusesCall(request_bytes)) return false;
  loop.counters().calls_refused_over_memory.Add(1);
  Abort(common::errors::NotExecuted(absl::ResourceExhaustedError(
      "the server holds as much for its callers as --memory_limit allows; nothing was done")));
  return true;
}

std::optional<MessageReader::Message> RpcCall::TakeMessage() {
  using State = MessageReader::Step::State;
  RpcLoop& loop = connection_->rpc_loop();
  while (true) {
    if (large_ == nullptr && next_is_large() && !BeginLarge()) return std::nullopt;
    Decompressor& decompressor = large_ != nullptr ? *large_ : loop.decompressor();
    const size_t step_bytes = large_ != nullptr ? kInflateBytes : RpcLoop::kLargeMessageBytes;
    const auto step = method_->unary != nullptr ? reader_.TakeSingle(decompressor, step_bytes)
                                                : reader_.Next(decompressor, step_bytes);
    Spend(kPartUnits * static_cast<int64_t>(decompressor.inflater.TakeParts()));
    if (!step.ok()) {
      large_ = nullptr;
      Abort(step.status());
      return std::nullopt;
    }
    switch (step->state) {
      case State::kIncomplete:
        large_ = nullptr;
        return std::nullopt;
      case State::kMessage:
        large_ = nullptr;
        Spend(kMessageUnits + static_cast<int64_t>(step->message.size() >> 8));
        loop.CountReceived(*method_, step->message.size());
        return step->message;
      case State::kUnfinished:
        break;
    }
    Spend(kInflateUnits);
    if (large_ == nullptr) {
      decompressor.inflater.Cancel();
      if (!BeginLarge()) return std::nullopt;
    } else if (turn_ended()) {
      connection_->QueueFirst(*this);
      return std::nullopt;
    }
  }
}

bool RpcCall::next_is_large() const {
  return reader_.next_bytes() > (reader_.next_is_compressed() ? RpcLoop::kLargeMessageBytes
                                                              : RpcLoop::kLargePlainMessageBytes);
}

bool RpcCall::BeginLarge() {
  large_ = connection_->ClaimLargeMessage(*this);
  return large_ != nullptr;
}

void RpcCall::StartUnary() {
  if (large_ == nullptr && !Admit()) return;
  const auto message = TakeMessage();
  if (!message.has_value() || !AuthorizeAgain()) return;
  if (reader_.size() != held_in_) UpdateHeldBytes();  // it was decompressed
  phase_ = Phase::kStarted;
  method_->unary->OnCall(*this, *message);
}

void RpcCall::Deliver() {
  delivering_ = true;
  while (!finished() && reading()) {
    if (turn_ended()) {
      connection_->QueueFirst(*this);
      break;
    }
    if (large_ == nullptr && connection_->full()) {
      connection_->QueueReady(*this);
      break;
    }
    if (large_ == nullptr && reader_.next_bytes() > 0 && RefuseOverMemory()) break;
    const auto message = TakeMessage();
    if (!message.has_value() || !AuthorizeAgain()) break;
    message_end_ns_ = kNoDeadline;
    method_->streaming->OnMessage(*this, *message);
  }
  delivering_ = false;
}

void RpcCall::DeliverAndRestoreWindow() {
  Deliver();
  reader_.Trim(kIdleKeepBytes);
  UpdateHeldBytes();
  if (finished() || !reading()) return;
  WatchMessage();
  if (connection_->IsReady(*this)) return;
  if (request_state_ == RequestState::kEnded) {
    EndRequests();
  } else if (request_state_ == RequestState::kBody) {
    RestoreWindow();
  }
}

void RpcCall::WatchMessage() {
  if (message_end_ns_ != kNoDeadline || !reader_.awaits_rest()) return;
  const int64_t now_ns = loop().now_ns();
  message_end_ns_ = now_ns + connection_->rpc_loop().options().request_timeout_ns;
  ArmTimer(now_ns);
}

void RpcCall::RestoreWindow() {
  if (unconsumed_ < kWindowBytes) return;
  connection_->session().ConsumeStream(*this, unconsumed_);
  unconsumed_ = 0;
}

void RpcCall::EndRequests() {
  if (reader_.size() > 0) {
    Abort(absl::StatusCode::kInternal, "the request ended within a message");
    return;
  }
  request_state_ = RequestState::kDelivered;
  method_->streaming->OnRequestsDone(*this);
}

void RpcCall::RunResume() {
  if (finished()) return;
  if (congested_ && unsent_bytes() <= kFlowingBytes) {
    congested_ = false;
    method_->streaming->OnWritable(*this);
    if (finished()) return;
  }
  connection_->QueueReady(*this);
}

// ---- The response.

void RpcCall::OnSendHeaders(http2::HeaderWriter& to) {
  if (response_state_ == ResponseState::kTrailersOnly) {
    writer_.AppendTrailersOnly(to);
    return;
  }
  if (response_state_ != ResponseState::kPlain) {
    writer_.AppendHeaders(to);
    return;
  }
  const std::string_view http_status = head_.fault()->http_status;
  to.Append(":status", http_status);
  to.Append("content-type", "text/plain");
  if (http_status == "405") to.Append("allow", "POST");
}

http2::Body RpcCall::OnSendBody(size_t room) {
  using Then = http2::Body::Then;
  http2::Body body;
  body.bytes = writer_.TakeBody(room);
  Spend(kSendUnits + static_cast<int64_t>(body.bytes.size() >> 9));
  if (congested_ && unsent_bytes() <= kFlowingBytes) connection_->QueueResume(*this);
  if (finished() && writer_.size() == 0) {
    body.then = response_state_ == ResponseState::kPlain ? Then::kEnd : Then::kTrailers;
  } else if (body.bytes.empty()) {
    response_state_ = ResponseState::kStalled;
  }
  return body;
}

void RpcCall::OnBodySent() {
  writer_.Trim(method_->streaming != nullptr ? kIdleKeepBytes : kKeepBytes);
  UpdateHeldBytes();
}

// ---- Ends that the handler did not choose.

void RpcCall::NotifyCancelled() {
  if (method_->streaming != nullptr) {
    method_->streaming->OnCancelled(*this);
  } else {
    method_->unary->OnCancelled(*this);
  }
}

void RpcCall::Cancel() {
  if (finished()) return;
  const bool started = phase_ == Phase::kStarted;
  phase_ = Phase::kFinished;
  RecordFinish(absl::StatusCode::kCancelled);
  if (started) NotifyCancelled();
}

void RpcCall::Abort(const absl::Status& status) {
  // Of a call that was not started, Fail says so.
  if (phase_ == Phase::kStarted && common::errors::WasNotExecuted(status)) {
    AddTrailingMetadata(common::kExecutedMetadata, common::kNotExecuted);
  }
  Abort(status.code(), common::ToStd(status.message()));
}

void RpcCall::Abort(absl::StatusCode code, std::string_view message) {
  if (phase_ == Phase::kStarted) {
    phase_ = Phase::kAborting;
    NotifyCancelled();
    if (finished()) return;
    // Its answers may wait for the peer for long.
    if (method_->streaming != nullptr) reader_.Clear(kKeepBytes);
  }
  Fail(code, message);
}

void RpcCall::Drain() {
  if (phase_ == Phase::kStarted && method_->streaming != nullptr) {
    method_->streaming->OnDrain(*this);
  }
}

void RpcCall::PlanTimer(int64_t now_ns) {
  if (timer_planned_) return;
  timer_planned_ = true;
  if (!finished()) ArmTimer(now_ns);
}

void RpcCall::ArmTimer(int64_t now_ns) {
  int64_t at_ns = std::min(deadline_ns_, message_end_ns_);
  if (phase_ == Phase::kReceiving) {
    at_ns = std::min(at_ns, now_ns + connection_->rpc_loop().options().request_timeout_ns);
  }
  if (at_ns != kNoDeadline) loop().Arm(timer_, at_ns);
}

void RpcCall::OnTimer() {
  if (finished()) return;
  RpcLoop& loop = connection_->rpc_loop();
  loop.ReadClock();
  const int64_t now_ns = loop.Now();
  deadline_passed_ = now_ns >= deadline_ns_;
  if (phase_ == Phase::kRefused) {
    if (refusal_ != nullptr) Fail(refusal_->code(), common::ToStd(refusal_->message()));
    return;
  }
  const bool message_late = now_ns >= message_end_ns_ && reader_.awaits_rest();
  if (message_late && !deadline_passed_ && connection_->HoldsBack(*this)) {
    message_end_ns_ = now_ns + connection_->rpc_loop().options().request_timeout_ns;
    ArmTimer(now_ns);
    return;
  }
  if (phase_ == Phase::kStarted && !deadline_passed_ && !message_late) {
    // A message that is complete may wait for its turn.
    if (now_ns >= message_end_ns_) message_end_ns_ = kNoDeadline;
    ArmTimer(now_ns);
    return;
  }
  std::string_view why = "the request did not end in time";
  if (message_late) why = "the rest of a message did not arrive in time";
  if (deadline_passed_) why = "the deadline passed";
  Abort(absl::StatusCode::kDeadlineExceeded, why);
}

}  // namespace sluice::transport
