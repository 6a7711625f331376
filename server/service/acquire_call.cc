#include "server/service/acquire_call.h"

#include "server/service/rate_limiter.h"

namespace sluice::service {

void AcquireCall::Reset(Form form, Utf8 utf8) {
  form_ = form;
  utf8_ = utf8;
  begun_ = 0;
  status_ = absl::OkStatus();
  items_.clear();
  asked_.clear();
  // Tables are let go now, so that an idle call does not keep old ones alive.
  for (size_t i = 0; i < attempts_used_; ++i) attempts_[i]->table.reset();
  attempts_used_ = 0;
  receipts_.clear();
  was_held_ = false;
}

void AcquireCall::Held::OnAnswer(engine::HeldOutcome outcome) {
  call_->limiter_->Answer(call_, outcome);
}

void AcquireCall::Attempt::Done() { call_->limiter_->Decided(call_); }

AcquisitionResult AcquireCall::result(size_t acquisition) const {
  const Item& item = items_[acquisition];
  AcquisitionResult result;
  result.status = item.status;
  if (!item.status.ok()) return result;
  const Attempt& attempt = AttemptOf(item);
  const store::Acquisition& decided = attempt.acquisition(item.in_work);
  result.granted = decided.outcome == store::Outcome::kGranted;
  result.source = decided.source;
  result.wait_ns = result.granted && !was_held_ ? decided.wait_ns : 0;
  result.retry_after_ns = result.granted ? 0 : decided.retry_after_ns;
  result.receipt = std::string_view(receipts_).substr(item.receipt, item.receipt_bytes);
  result.charges = attempt.charges(item.in_work);
  return result;
}

ChargeStatus AcquireCall::charge(size_t acquisition, size_t charge) const {
  const Item& item = items_[acquisition];
  const Attempt& attempt = AttemptOf(item);
  const store::ChargeResult& decided = attempt.charge(item.in_work, charge);
  ChargeStatus status;
  status.level = decided.level;
  status.reason = decided.reason;
  if (charge >= item.asked) status.limit = attempt.rule(item.in_work, charge).limit_name;
  return status;
}

}  // namespace sluice::service
