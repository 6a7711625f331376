#include "tests/unit/client/protobuf_reference.h"

#include <utility>

namespace sluice::protobuf_reference {

std::chrono::nanoseconds FromWire(const google::protobuf::Duration& duration) {
  // Saturates at 292 years.
  constexpr int64_t kMostSeconds = INT64_MAX / 1'000'000'000 - 1;
  if (duration.seconds() > kMostSeconds) return std::chrono::nanoseconds::max();
  if (duration.seconds() < -kMostSeconds) return std::chrono::nanoseconds::min();
  return std::chrono::seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

void ToWire(std::chrono::nanoseconds time, google::protobuf::Duration* wire) {
  wire->set_seconds(time.count() / 1'000'000'000);
  wire->set_nanos(static_cast<int32_t>(time.count() % 1'000'000'000));
}

void ToWire(const Acquisition& acquisition, v1::AcquireRequest* wire) {
  for (const Charge& charge : acquisition.charges) {
    v1::Charge* out = wire->add_charges();
    out->set_limit(charge.limit);
    if (!charge.key.empty()) out->set_key(charge.key);
    if (charge.permits != 1) out->set_permits(charge.permits);
  }
  if (acquisition.want_receipt) wire->set_want_receipt(true);
  if (acquisition.force) wire->set_force(true);
  if (acquisition.max_wait.count() != 0) ToWire(acquisition.max_wait, wire->mutable_max_wait());
  if (acquisition.hold) wire->set_hold(true);
  if (acquisition.settle_within.count() != 0) {
    ToWire(acquisition.settle_within, wire->mutable_settle_within());
  }
  if (!acquisition.request_id.empty()) wire->set_request_id(acquisition.request_id);
}

void ToWire(std::span<const Acquisition> batch, v1::AcquireBatchRequest* wire) {
  wire->mutable_acquisitions()->Reserve(static_cast<int>(batch.size()));
  for (const Acquisition& acquisition : batch) ToWire(acquisition, wire->add_acquisitions());
}

Decision FromWire(v1::AcquireResponse* wire) {
  Decision decision;
  decision.granted = wire->granted();
  decision.source = static_cast<Source>(wire->source());
  if (wire->has_retry_after()) decision.retry_after = FromWire(wire->retry_after());
  if (wire->has_wait()) decision.wait = FromWire(wire->wait());
  decision.charges.reserve(static_cast<size_t>(wire->charges_size()));
  for (v1::ChargeStatus& charge : *wire->mutable_charges()) {
    ChargeStatus& out = decision.charges.emplace_back();
    out.remaining = charge.remaining();
    out.capacity = charge.capacity();
    if (charge.has_reset_after()) out.reset_after = FromWire(charge.reset_after());
    out.reason = static_cast<Reason>(charge.reason());
    if (!charge.limit().empty()) out.limit = std::move(*charge.mutable_limit());
    out.forgiven = charge.forgiven();
    out.held_for = FromWire(charge.held_for());
  }
  if (!wire->receipt().empty()) decision.receipt = std::move(*wire->mutable_receipt());
  decision.repeated = wire->repeated();
  return decision;
}

Status FromWire(const v1::Error& wire) {
  const auto code = static_cast<StatusCode>(wire.code());
  // In a batch each acquisition has its own error. Most codes mean that nothing was debited; with
  // these codes the server may not know.
  if (wire.nothing_taken()) return Status(code, wire.message());
  if (code == StatusCode::kUnavailable || code == StatusCode::kInternal ||
      code == StatusCode::kUnknown || code == StatusCode::kDeadlineExceeded) {
    return Status::MaybeExecuted(code, wire.message());
  }
  return Status(code == StatusCode::kOk ? StatusCode::kInternal : code, wire.message());
}

BatchDecisions FromWire(v1::AcquireBatchResponse* wire) {
  BatchDecisions decisions;
  decisions.reserve(static_cast<size_t>(wire->results_size()));
  for (v1::AcquireResult& result : *wire->mutable_results()) {
    if (result.has_response()) {
      decisions.emplace_back(FromWire(result.mutable_response()));
    } else if (result.has_error()) {
      decisions.emplace_back(FromWire(result.error()));
    } else {
      decisions.emplace_back(Status::MaybeExecuted(StatusCode::kInternal,
                                                   "the server sent a result without a decision"));
    }
  }
  return decisions;
}

std::vector<BucketStatus> FromWire(v1::QueryResponse* wire) {
  std::vector<BucketStatus> buckets;
  buckets.reserve(static_cast<size_t>(wire->buckets_size()));
  for (v1::BucketStatus& bucket : *wire->mutable_buckets()) {
    BucketStatus& out = buckets.emplace_back();
    out.limit = std::move(*bucket.mutable_limit());
    out.key = std::move(*bucket.mutable_key());
    out.remaining = bucket.remaining();
    out.capacity = bucket.capacity();
    out.reset_after = FromWire(bucket.reset_after());
    out.next_permit_after = FromWire(bucket.next_permit_after());
    out.exists = bucket.exists();
    out.waiting = bucket.waiting();
    out.next_grant_after = FromWire(bucket.next_grant_after());
    out.open_receipts = bucket.open_receipts();
    out.refundable = bucket.refundable();
    out.holds = bucket.holds();
    out.next_end_after = FromWire(bucket.next_end_after());
    out.source = static_cast<Source>(bucket.source());
    if (bucket.has_error()) out.status = FromWire(bucket.error());
  }
  return buckets;
}

RefundResult FromWire(v1::RefundResponse* wire) {
  RefundResult result;
  switch (wire->outcome()) {
    case v1::REFUND_OUTCOME_REFUNDED:
      result.outcome = RefundOutcome::kRefunded;
      break;
    case v1::REFUND_OUTCOME_ALREADY_REFUNDED:
      result.outcome = RefundOutcome::kAlreadyRefunded;
      break;
    default:
      result.outcome = RefundOutcome::kExpired;
      break;
  }
  for (v1::RefundedCharge& charge : *wire->mutable_charges()) {
    result.charges.push_back(
        {std::move(*charge.mutable_limit()), std::move(*charge.mutable_key()), charge.permits()});
  }
  return result;
}

std::vector<Renewal> FromWire(v1::RenewResponse* wire) {
  std::vector<Renewal> renewals;
  for (const v1::RenewResult& result : wire->results()) {
    Renewal& out = renewals.emplace_back();
    const bool renewed = result.outcome() == v1::RENEW_OUTCOME_RENEWED;
    out.outcome = renewed ? RenewOutcome::kRenewed : RenewOutcome::kGone;
    out.held_for = FromWire(result.held_for());
    if (result.has_error()) out.status = FromWire(result.error());
  }
  return renewals;
}

void ToWire(const Settlement& settlement, v1::SettleRequest* wire) {
  wire->set_receipt(settlement.receipt);
  for (const Charge& charge : settlement.actual) {
    v1::Charge* const to = wire->add_actual();
    to->set_limit(charge.limit);
    to->set_key(charge.key);
    if (charge.permits != 1) to->set_permits(charge.permits);
  }
  wire->set_more(settlement.more);
}

SettleResult FromWire(v1::SettleResponse* wire) {
  SettleResult result;
  switch (wire->outcome()) {
    case v1::SETTLE_OUTCOME_SETTLED:
      result.outcome = SettleOutcome::kSettled;
      break;
    case v1::SETTLE_OUTCOME_ALREADY_SETTLED:
      result.outcome = SettleOutcome::kAlreadySettled;
      break;
    case v1::SETTLE_OUTCOME_LATE:
      result.outcome = SettleOutcome::kLate;
      break;
    default:
      result.outcome = SettleOutcome::kUnknown;
      break;
  }
  for (v1::SettledCharge& charge : *wire->mutable_charges()) {
    result.charges.push_back({std::move(*charge.mutable_limit()), std::move(*charge.mutable_key()),
                              charge.given_back(), charge.charged(), charge.forgiven()});
  }
  return result;
}

BatchSettlements FromWire(v1::SettleBatchResponse* wire) {
  BatchSettlements results;
  for (v1::SettleResult& result : *wire->mutable_results()) {
    if (result.has_response()) {
      results.emplace_back(FromWire(result.mutable_response()));
    } else if (result.has_error()) {
      results.emplace_back(FromWire(result.error()));
    } else {
      results.emplace_back(Status::MaybeExecuted(StatusCode::kInternal,
                                                 "the server sent a result without an outcome"));
    }
  }
  return results;
}

}  // namespace sluice::protobuf_reference
