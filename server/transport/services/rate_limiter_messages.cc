#include "server/transport/services/rate_limiter_messages.h"

#include <string_view>

#include "common/errors.h"

namespace sluice::transport::wire {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

v1::Source ToWire(store::Source source) {
  switch (source) {
    case store::Source::kStore:
      return v1::SOURCE_STORE;
    case store::Source::kLease:
      return v1::SOURCE_LEASE;
    case store::Source::kStoreUnavailable:
      return v1::SOURCE_STORE_AWAY;
    case store::Source::kOverflow:
      return v1::SOURCE_OVERFLOW;
    case store::Source::kLocal:
      return v1::SOURCE_LOCAL;
  }
  return v1::SOURCE_UNSPECIFIED;
}

v1::Reason ToWire(store::Reason reason) {
  switch (reason) {
    case store::Reason::kNone:
      return v1::REASON_UNSPECIFIED;
    case store::Reason::kNotEnough:
      return v1::REASON_NOT_ENOUGH;
    case store::Reason::kWaitingBound:
      return v1::REASON_WAITING_BOUND;
    case store::Reason::kStoreUnavailable:
      return v1::REASON_STORE_AWAY;
    case store::Reason::kOverflow:
      return v1::REASON_OVERFLOW;
    case store::Reason::kShadowDenied:
      return v1::REASON_SHADOW_DENIED;
    case store::Reason::kDeadlineTooShort:
      return v1::REASON_DEADLINE_TOO_SHORT;
    case store::Reason::kShareTooSmall:
      return v1::REASON_SHARE_TOO_SMALL;
  }
  return v1::REASON_UNSPECIFIED;
}

v1::RefundOutcome ToWire(store::RefundOutcome outcome) {
  switch (outcome) {
    case store::RefundOutcome::kRefunded:
      return v1::REFUND_OUTCOME_REFUNDED;
    case store::RefundOutcome::kAlreadyRefunded:
      return v1::REFUND_OUTCOME_ALREADY_REFUNDED;
    case store::RefundOutcome::kExpired:
      return v1::REFUND_OUTCOME_EXPIRED;
    default:
      return v1::REFUND_OUTCOME_UNSPECIFIED;
  }
}

void SetString(std::string_view value, std::string* out) { out->assign(value); }

void AddTo(const v1::AcquireRequest& request, service::AcquireCall* call) {
  service::AcquisitionOptions options;
  if (request.has_max_wait()) {
    options.max_wait = {request.max_wait().seconds(), request.max_wait().nanos()};
  }
  options.hold = request.hold();
  options.want_receipt = request.want_receipt();
  call->BeginAcquisition(options);
  for (const v1::Charge& charge : request.charges()) {
    call->AddCharge(charge.limit(), charge.key(), charge.has_permits() ? charge.permits() : 1);
  }
}

void WriteOne(const service::AcquireCall& call, size_t i, const service::AcquisitionResult& result,
              v1::AcquireResponse* response) {
  response->set_granted(result.granted);
  if (result.wait_ns > 0) SetDuration(result.wait_ns, response->mutable_wait());
  if (!result.granted) SetDuration(result.retry_after_ns, response->mutable_retry_after());
  response->mutable_charges()->Reserve(static_cast<int>(result.charges));
  for (size_t c = 0; c < result.charges; ++c) {
    const service::ChargeStatus charge = call.charge(i, c);
    v1::ChargeStatus* const status = response->add_charges();
    status->set_remaining(charge.level.remaining);
    status->set_capacity(charge.level.capacity);
    SetDuration(charge.level.reset_after_ns, status->mutable_reset_after());
    status->set_reason(ToWire(charge.reason));
    if (!charge.limit.empty()) SetString(charge.limit, status->mutable_limit());
  }
  response->set_source(ToWire(result.source));
  if (!result.receipt.empty()) SetString(result.receipt, response->mutable_receipt());
}

void WriteBucket(const service::BucketStatus& bucket, v1::BucketStatus* out) {
  SetString(bucket.limit, out->mutable_limit());
  SetString(bucket.key, out->mutable_key());
  if (!bucket.error.ok()) {
    out->mutable_error()->set_code(static_cast<int>(bucket.error.code()));
    SetString({bucket.error.message().data(), bucket.error.message().size()},
              out->mutable_error()->mutable_message());
    if (bucket.source == store::Source::kStoreUnavailable) out->set_source(ToWire(bucket.source));
    return;
  }
  out->set_remaining(bucket.level.remaining);
  out->set_capacity(bucket.level.capacity);
  SetDuration(bucket.level.reset_after_ns, out->mutable_reset_after());
  if (bucket.level.next_permit_after_ns > 0) {
    SetDuration(bucket.level.next_permit_after_ns, out->mutable_next_permit_after());
  }
  out->set_exists(bucket.exists);
  out->set_waiting(bucket.waiting);
  if (bucket.next_grant_after_ns > 0) {
    SetDuration(bucket.next_grant_after_ns, out->mutable_next_grant_after());
  }
  out->set_source(ToWire(bucket.source));
}

}  // namespace

void SetDuration(int64_t ns, google::protobuf::Duration* out) {
  out->set_seconds(ns / kSecond);
  out->set_nanos(static_cast<int32_t>(ns % kSecond));
}

void SetTimestamp(int64_t wall_ns, google::protobuf::Timestamp* out) {
  out->set_seconds(wall_ns / kSecond);
  out->set_nanos(static_cast<int32_t>(wall_ns % kSecond));
}

void Read(const v1::AcquireRequest& request, service::AcquireCall* call) {
  call->Reset(service::AcquireCall::Form::kUnary);
  AddTo(request, call);
}

void Read(const v1::AcquireBatchRequest& request, service::AcquireCall* call) {
  call->Reset(service::AcquireCall::Form::kBatch);
  for (const v1::AcquireRequest& acquisition : request.acquisitions()) AddTo(acquisition, call);
}

void Read(const v1::QueryRequest& request, service::QueryCall* call) {
  call->Reset();
  for (const auto& bucket : request.buckets()) call->AddBucket(bucket.limit(), bucket.key());
}

void Read(const v1::RefundRequest& request, service::RefundCall* call) {
  call->Reset(request.receipt());
}

service::WatchOptions Read(const v1::WatchRequest& request) {
  service::WatchOptions options;
  options.has_min_interval = request.has_min_interval();
  if (options.has_min_interval) {
    options.min_interval = {request.min_interval().seconds(), request.min_interval().nanos()};
  }
  options.buckets.reserve(static_cast<size_t>(request.buckets_size()));
  for (const auto& bucket : request.buckets()) {
    options.buckets.push_back({bucket.limit(), bucket.key()});
  }
  return options;
}

void Write(const service::AcquireCall& call, v1::AcquireResponse* response) {
  WriteOne(call, 0, call.result(0), response);
}

void Write(const service::AcquireCall& call, v1::AcquireBatchResponse* response) {
  response->mutable_results()->Reserve(static_cast<int>(call.size()));
  for (size_t i = 0; i < call.size(); ++i) {
    const service::AcquisitionResult result = call.result(i);
    v1::AcquireResult* const out = response->add_results();
    if (result.status.ok()) {
      WriteOne(call, i, result, out->mutable_response());
    } else {
      out->mutable_error()->set_code(static_cast<int>(result.status.code()));
      SetString({result.status.message().data(), result.status.message().size()},
                out->mutable_error()->mutable_message());
      out->mutable_error()->set_nothing_taken(common::errors::WasNotExecuted(result.status));
    }
  }
}

void Write(const service::QueryCall& call, v1::QueryResponse* response) {
  for (size_t i = 0; i < call.size(); ++i) WriteBucket(call.bucket(i), response->add_buckets());
  SetTimestamp(call.wall_ns(), response->mutable_at());
}

void Write(const service::RefundCall& call, v1::RefundResponse* response) {
  response->set_outcome(ToWire(call.outcome()));
  for (size_t i = 0; i < call.size(); ++i) {
    const service::RefundedCharge charge = call.charge(i);
    v1::RefundedCharge* const out = response->add_charges();
    SetString(charge.limit, out->mutable_limit());
    SetString(charge.key, out->mutable_key());
    out->set_permits(charge.permits);
  }
}

void Write(absl::Span<const service::BucketStatus> buckets, int64_t wall_ns,
           v1::QueryResponse* response) {
  for (const service::BucketStatus& bucket : buckets) WriteBucket(bucket, response->add_buckets());
  SetTimestamp(wall_ns, response->mutable_at());
}

}  // namespace sluice::transport::wire
