#include "server/waiting/limit_change.h"

#include <algorithm>

#include "server/waiting/held_callers.h"

namespace sluice::waiting {

using store::Rebooking;

void LimitChange::Done() { owner_.OnRebooked(this); }

void LimitChange::Prepare() {
  std::sort(operations_.begin(), operations_.end(),
            [](const auto* a, const auto* b) { return a->receipt_id < b->receipt_id; });
  rebookings_.resize(operations_.size());
  left_ = operations_.size();
  for (size_t i = 0; i < operations_.size(); ++i) {
    PendingOperation& operation = *operations_[i];
    operation.number = i;
    operation.results.resize(operation.charges.size());
    rebookings_[i].receipt_id = operation.receipt_id;
    rebookings_[i].charges = operation.charges;
    rebookings_[i].results = operation.results.data();
    rebookings_[i].grant_time_ns = operation.grant_time_ns;
    rebookings_[i].until_ns = operation.until_ns;
  }
  items = absl::MakeSpan(rebookings_);
}

void LimitChange::SetAllUnknown() {
  for (Rebooking& rebooking : rebookings_) rebooking.outcome = Rebooking::Outcome::kPending;
}

PendingOperation* LimitChange::Next(size_t max_pending) {
  if (pending_ >= max_pending) return nullptr;
  if (step_ == Step::kRefund) {
    if (next_refund_ == operations_.size()) return nullptr;
    ++pending_;
    return operations_[next_refund_++];
  }
  while (!ready_.empty()) {
    std::deque<PendingOperation*>& waiting = sets_[ready_.front()];
    PendingOperation* const operation = waiting.front();
    waiting.pop_front();
    if (operation->caller == nullptr) {
      // The caller left, and its reservation is refunded already.
      operation->refund_after = false;
      --left_;
      if (waiting.empty()) ready_.pop_front();
      continue;
    }
    ready_.pop_front();
    ++pending_;
    return operation;
  }
  return nullptr;
}

void LimitChange::OnRefunded(PendingOperation* operation) {
  --pending_;
  --left_;
  // Bookings end with their algorithm, and give no slots.
  const bool of_slots = std::ranges::any_of(operation->charges, [](const store::Charge& charge) {
    return algorithm::IsConcurrency(charge.rule->parameters);
  });
  switch (operation->refund_outcome()) {
    case store::RefundOutcome::kExpired:
      if (!of_slots) {
        RebookingOf(*operation).outcome = Rebooking::Outcome::kGone;
        break;
      }
      [[fallthrough]];
    case store::RefundOutcome::kRefunded:
      sets_[BucketSetId(operation->charges)].push_back(operation);
      break;
    case store::RefundOutcome::kAlreadyRefunded:
    case store::RefundOutcome::kSettled:
      // The grant time came first.
      RebookingOf(*operation).outcome = Rebooking::Outcome::kGone;
      break;
    case store::RefundOutcome::kPending:
    case store::RefundOutcome::kStaleRule:
    case store::RefundOutcome::kUnavailable:
      RebookingOf(*operation).outcome = Rebooking::Outcome::kPending;
      break;
  }
  if (left_ > 0) return;
  step_ = Step::kReserve;
  for (auto& [set, waiting] : sets_) {
    std::sort(waiting.begin(), waiting.end(),
              [](const auto* a, const auto* b) { return a->number < b->number; });
    left_ += waiting.size();
    ready_.push_back(set);
  }
}

void LimitChange::OnReserved(PendingOperation* operation) {
  --pending_;
  --left_;
  const uint64_t set = BucketSetId(operation->charges);
  if (!sets_[set].empty()) ready_.push_back(set);
  const store::Acquisition& reserved = operation->reserved();
  Rebooking& rebooking = RebookingOf(*operation);
  rebooking.now_ns = reserved.now_ns;
  rebooking.outcome = Rebooking::Outcome::kPending;
  if (reserved.outcome == store::Outcome::kGranted) {
    rebooking.outcome = Rebooking::Outcome::kBooked;
    rebooking.receipt_id = reserved.receipt_id;
    rebooking.grant_time_ns = reserved.now_ns + reserved.wait_ns;
  } else if (reserved.outcome == store::Outcome::kDenied) {
    rebooking.outcome = Rebooking::Outcome::kDenied;
    rebooking.retry_after_ns = reserved.retry_after_ns;
  }
}

}  // namespace sluice::waiting
