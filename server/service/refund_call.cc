#include "server/service/refund_call.h"

#include <algorithm>

#include "common/bounds.h"
#include "common/errors.h"
#include "server/service/permission.h"
#include "server/service/validation.h"

namespace sluice::service {

namespace errors = common::errors;

void RefundCall::Reset(std::string_view receipt) {
  // One byte over the bound is enough for Open to refuse it.
  receipt_.assign(receipt.substr(0, common::bounds::kMaxReceiptBytes + 1));
  decoded_.charges.clear();
  charges_.clear();
  refunded_.clear();
  table_.reset();
  connection_ = nullptr;
  if (caller_ != nullptr) caller_ = nullptr;
  bookings_.reset();
  status_ = absl::OkStatus();
  operation_.outcome = store::RefundOutcome::kPending;
  operation_.ResetWork();
  attempts_ = 0;
}

void RefundCall::Start(const Collaborators& with, int64_t deadline_ns, DoneFn done, void* context) {
  with_ = &with;
  done_ = done;
  context_ = context;
  status_ = with.signer.Open(receipt_, &decoded_);
  if (!status_.ok()) decoded_.charges.clear();
  refunded_.assign(decoded_.charges.size(), 0);
  given_.resize(decoded_.charges.size());
  if (status_.ok() && deadline_ns != store::kNoDeadline && with.clock.NowNs() >= deadline_ns) {
    status_ = errors::PastDeadline();
  }
  if (!status_.ok()) {
    Finish();
    return;
  }
  if (decoded_.grant_time_ns != 0 && connection_ != nullptr) {
    bookings_ = connection_->shared_from_this();
  }
  operation_.deadline_ns = deadline_ns;
  operation_.receipt_id = decoded_.id;
  operation_.request_id = decoded_.request_id.has_value() ? &*decoded_.request_id : nullptr;
  operation_.grant_time_ns = decoded_.grant_time_ns;
  operation_.refunded = given_.data();
  Try();
}

void RefundCall::Try() {
  ++attempts_;
  table_ = with_->registry.Local();
  charges_.clear();
  place_.clear();
  status_ = CheckMayRedeem(caller_.get(), "receipt", decoded_.charges, *table_);
  if (!status_.ok()) return Finish();
  for (size_t i = 0; i < decoded_.charges.size(); ++i) {
    const ReceiptCharge& charge = decoded_.charges[i];
    const limits::Limit* limit = table_->Find(charge.limit);
    // The limit was deleted, and its buckets with it.
    if (limit == nullptr) continue;
    charges_.push_back({&limit->RuleFor(charge.key), charge.key, charge.permits});
    place_.push_back(i);
  }
  if (charges_.empty()) {
    operation_.outcome = store::RefundOutcome::kExpired;
    return Finish();
  }
  operation_.charges = charges_;
  operation_.outcome = store::RefundOutcome::kPending;
  with_->store.Refund(&operation_);
}

void RefundCall::Decided() {
  if (more()) {
    done_(context_, this);
    return;
  }
  switch (operation_.outcome) {
    case store::RefundOutcome::kRefunded: {
      if (bookings_ != nullptr) bookings_->Remove(decoded_.grant_time_ns);
      common::Metrics::Shard& shard = with_->metrics.Local();
      for (size_t i = 0; i < charges_.size(); ++i) {
        shard.OfLimit(charges_[i].rule->limit_id).refunded_permits.Add(given_[i]);
        refunded_[place_[i]] = given_[i];
      }
      if (SlotsOf(charges_) != nullptr && with_->held_callers != nullptr) {
        with_->held_callers->SlotsFreed(charges_);
      }
      break;
    }
    case store::RefundOutcome::kAlreadyRefunded:
    case store::RefundOutcome::kExpired:
      break;
    case store::RefundOutcome::kSettled:
      status_ = errors::SettledBefore();
      break;
    case store::RefundOutcome::kStaleRule:
      if (attempts_ < kMaxAttempts) {
        Try();
        return;
      }
      status_ = errors::LimitsKeepChanging();
      break;
    case store::RefundOutcome::kPending:
    case store::RefundOutcome::kUnavailable:
      status_ = errors::RefundUnanswered();
      break;
  }
  Finish();
}

}  // namespace sluice::service
