#include "server/transport/rpc/server_call.h"

#include <algorithm>

#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/transport/rpc/rpc_call.h"
#include "server/transport/rpc/rpc_connection.h"
#include "server/transport/rpc/rpc_loop.h"

namespace sluice::transport {
namespace {

// Units of work (net::WorkQueue) of an error's text, which is encoded twice.
constexpr int64_t kFailUnits = 8;

}  // namespace

net::PeerIdentity ServerCall::peer_identity() const {
  return connection_->stream().peer_identity();
}
std::string ServerCall::peer_address() const { return connection_->stream().peer_address(); }
net::EventLoop& ServerCall::loop() const { return connection_->rpc_loop().loop(); }
std::shared_ptr<ConnectionState>& ServerCall::connection_state() const {
  return connection_->service_state();
}

size_t ServerCall::loop_index() const { return connection_->rpc_loop().index(); }

std::optional<std::string_view> ServerCall::metadata(std::string_view name) const {
  for (const auto& [of, value] : metadata_) {
    if (of == name) return value;
  }
  return std::nullopt;
}

void ServerCall::KeepRequest(Buffer* into) {
  into->Clear();
  reader_.Swap(*into);
  UpdateHeldBytes();
}

absl::Span<const uint8_t> ServerCall::KeepMessage(absl::Span<const uint8_t> message, Buffer* into) {
  return reader_.Keep(message, into);
}

std::shared_ptr<void> ServerCall::HoldCancelledBytes(size_t bytes) {
  return connection_->HoldCancelled(pending_bytes_ + bytes);
}

void ServerCall::Spend(int64_t units) { connection_->Spend(units); }
bool ServerCall::turn_ended() const { return !connection_->has_credit(); }

void ServerCall::ContinueLater() {
  continues_ = true;
  connection_->QueueFirst(static_cast<RpcCall&>(*this));
}

void ServerCall::ResumeReading() {
  if (!paused_) return;
  paused_ = false;
  if (!delivering_ && !finished()) connection_->QueueResume(*this);
}

void ServerCall::SendInitialMetadata() {
  if (response_state_ != ResponseState::kNotSubmitted) return;
  response_state_ = ResponseState::kOpen;
  connection_->session().Submit(*this, /*has_body=*/true);
  connection_->MarkDirty();
}

void ServerCall::SubmitReady() {
  SendInitialMetadata();
  if (response_state_ == ResponseState::kStalled) {
    response_state_ = ResponseState::kOpen;
    connection_->session().ResumeBody(*this);
  }
  connection_->MarkDirty();
}

void ServerCall::Send() {
  if (finished()) return;
  connection_->rpc_loop().CountSent(*method_, writer_.FinishMessage());
  UpdateHeldBytes();
  SubmitReady();
  if (writer_.ready_bytes() > kCongestedBytes) congested_ = true;
}

void ServerCall::Finish(const absl::Status& status) {
  if (!finished() && common::errors::WasNotExecuted(status)) {
    AddTrailingMetadata(common::kExecutedMetadata, common::kNotExecuted);
  }
  Finish(status.code(), common::ToStd(status.message()));
}

void ServerCall::Finish(absl::StatusCode code, std::string_view message) {
  if (finished()) return;
  if (code != absl::StatusCode::kOk || method_->unary == nullptr) {
    Fail(code, message);
    return;
  }
  connection_->rpc_loop().CountSent(*method_, writer_.FinishMessage());
  End(code, message);
}

void ServerCall::Refuse(const absl::Status& status, bool wrong_token) {
  static_cast<RpcCall*>(this)->RefuseCaller(status, wrong_token);
}

void ServerCall::Fail(absl::StatusCode code, std::string_view message) {
  Spend(kFailUnits);
  if (phase_ == Phase::kReceiving) {
    // Other codes mean that the call would not be executed later either.
    if (code == absl::StatusCode::kResourceExhausted ||
        code == absl::StatusCode::kDeadlineExceeded) {
      AddTrailingMetadata(common::kExecutedMetadata, common::kNotExecuted);
    }
    reader_.Clear(kKeepBytes);
  }
  writer_.DropMessage(kKeepBytes);
  End(code, message);
}

void ServerCall::End(absl::StatusCode code, std::string_view message) {
  phase_ = Phase::kFinished;
  writer_.SetStatus(code, message);
  RecordFinish(code);
  UpdateHeldBytes();
  if (pending_bytes_ > 0) SetPendingBytes(0);
  if (response_state_ != ResponseState::kNotSubmitted || writer_.size() > 0) {
    SubmitReady();
    return;
  }
  response_state_ = ResponseState::kTrailersOnly;
  connection_->session().Submit(*this, /*has_body=*/false);
  connection_->MarkDirty();
}

void ServerCall::SetPendingBytes(size_t bytes) {
  bytes += writer_.size() - held_out_;
  connection_->HoldPending(bytes - pending_bytes_);
  pending_bytes_ = bytes;
}

bool ServerCall::TrySetLastingBytes(size_t bytes) {
  if (bytes > lasting_bytes_ && !connection_->HasRoomToLast(bytes - lasting_bytes_)) return false;
  connection_->AddLasting(bytes - lasting_bytes_);
  lasting_bytes_ = bytes;
  return true;
}

std::shared_ptr<void> ServerCall::HoldLastingBytes(size_t bytes) {
  return connection_->HoldLasting(bytes);
}

void ServerCall::RecordFinish(absl::StatusCode code) {
  stream_place_.Leave();
  RpcLoop& loop = connection_->rpc_loop();
  loop.CountersOf(*method_).Finish(
      static_cast<int>(GrpcCode(code)),
      static_cast<uint64_t>(std::max<int64_t>(0, loop.Now() - arrived_ns)));
}

void ServerCall::UpdateHeldBytes() {
  connection_->Hold(reader_.size() - held_in_, writer_.size() - held_out_);
  connection_->HoldBuffers(buffer_memory() - held_memory_);
  held_memory_ = buffer_memory();
  held_in_ = reader_.size();
  const bool taken = writer_.size() < held_out_;
  if (held_out_ == 0 || taken) unsent_since_ns_ = loop().now_ns();
  if (taken) connection_->OnAnswerTaken();
  held_out_ = writer_.size();
}

}  // namespace sluice::transport
