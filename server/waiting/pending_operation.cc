#include "server/waiting/pending_operation.h"

#include <string_view>

#include "server/waiting/held_callers.h"

namespace sluice::waiting {

PendingOperation::PendingOperation(HeldCallers& owner, HeldCaller& of, Purpose why)
    : purpose(why),
      caller(&of),
      receipt_id(of.acquisition->receipt_id),
      grant_time_ns(of.grant_time_ns()),
      until_ns(of.until_ns),
      settle_within_ns(of.acquisition->settle_within_ns),
      charges(of.acquisition->charges.begin(), of.acquisition->charges.end()),
      owner_(owner),
      rules_(of.rules) {
  reserving_.maker = of.Maker();
  size_t key_bytes = 0;
  for (const store::Charge& charge : charges) key_bytes += charge.key.size();
  keys_.reserve(key_bytes);  // the views below stay valid
  for (store::Charge& charge : charges) {
    const size_t at = keys_.size();
    keys_ += charge.key;
    charge.key = std::string_view(keys_).substr(at);
  }
}

void PendingOperation::SetRules(absl::Span<const store::Charge> from,
                                std::shared_ptr<const void> keep) {
  for (size_t i = 0; i < charges.size(); ++i) charges[i].rule = from[i].rule;
  rules_ = std::move(keep);
}

void PendingOperation::Refund(int64_t most_work) {
  refunded_.resize(charges.size());
  refunding_.receipt_id = receipt_id;
  refunding_.grant_time_ns = grant_time_ns;
  refunding_.charges = charges;
  refunding_.refunded = refunded_.data();
  refunding_.place = place.node == 0 ? nullptr : &place;
  refunding_.outcome = store::RefundOutcome::kPending;
  refunding_.most_work = most_work;
  owner_.store_.Refund(&refunding_);
}

void PendingOperation::Move() {
  moving_.receipt_id = receipt_id;
  moving_.charges = charges;
  moving_.grant_time_ns = grant_time_ns;
  owner_.store_.Move(&moving_);
}

void PendingOperation::Reserve(int64_t max_wait_ns) {
  results.resize(charges.size());
  reserved_ = {};
  reserved_.charges = charges;
  reserved_.results = results.data();
  reserved_.max_wait_ns = max_wait_ns;
  reserved_.want_receipt = true;
  reserved_.settle_within_ns = settle_within_ns;
  reserved_.place = place.node == 0 ? nullptr : &place;
  reserving_.acquisitions = absl::MakeSpan(&reserved_, 1);
  owner_.store_.Acquire(&reserving_);
}

bool PendingOperation::RetryWithCurrentRules(bool stale) {
  // Each retry means that limits changed between the refresh and the store's decision.
  constexpr int kMaxRetries = 8;
  if (!stale || retries_ == kMaxRetries) {
    retries_ = 0;
    return false;
  }
  ++retries_;
  owner_.rules_.Refresh(absl::MakeSpan(charges), &rules_);
  return true;
}

void PendingOperation::Answered(const store::RefundOperation& refunding) {
  if (refunding.undecided > 0) return owner_.OnRefundUndecided(this);
  if (RetryWithCurrentRules(refunding.outcome == store::RefundOutcome::kStaleRule)) {
    return Refund(refunding.most_work);
  }
  owner_.OnRefunded(this);
}

void PendingOperation::Answered(const store::MoveOperation&) { owner_.OnMoved(this); }

void PendingOperation::Answered(const store::AcquireOperation&) {
  if (RetryWithCurrentRules(reserved_.outcome == store::Outcome::kStaleRule)) {
    return Reserve(reserved_.max_wait_ns);
  }
  owner_.OnReserved(this);
}

}  // namespace sluice::waiting
