#include "server/service/renew_call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "server/service/permission.h"

namespace sluice::service {
namespace {

namespace bounds = common::bounds;
namespace errors = common::errors;

}  // namespace

void RenewCall::Reset() {
  receipts_.clear();
  results_.clear();
  error_bytes_ = 0;
  added_ = next_ = 0;
  again_.clear();
  sliced_ = false;
  slice_cost_ = 0;
  status_ = absl::OkStatus();
  table_.reset();
  if (caller_ != nullptr) caller_ = nullptr;
}

void RenewCall::Start(const Collaborators& with, int64_t deadline_ns, DoneFn done, void* context) {
  with_ = &with;
  done_ = done;
  context_ = context;
  if (added_ == 0 || added_ > bounds::kMaxRenewedReceipts) {
    status_ = errors::BadReceiptCount(added_);
  } else if (deadline_ns != store::kNoDeadline && with.clock.NowNs() >= deadline_ns) {
    status_ = errors::PastDeadline();
  }
  if (!status_.ok()) {
    done(context, this);
    return;
  }
  operation_.deadline_ns = deadline_ns;
  results_.resize(receipts_.size());
  DecideSlice();
}

void RenewCall::Continue() { DecideSlice(); }

void RenewCall::DecideSlice() {
  table_ = with_->registry.Local();
  charges_.clear();
  asked_.clear();
  attempts_ = 0;
  slice_cost_ = 0;
  const auto open = [this](size_t receipt) {
    slice_cost_ += ReceiptCost(receipts_[receipt].size());
    Open(receipt);
  };
  for (const size_t receipt : again_) open(receipt);
  again_.clear();
  const size_t most_cost = sliced_ || with_->store.Shared() ? kSliceDecisions : SIZE_MAX;
  while (next_ < receipts_.size() && slice_cost_ < most_cost) open(next_++);
  Ask();
}

void RenewCall::Open(size_t receipt) {
  if (absl::Status status = with_->signer.Open(receipts_[receipt], &opened_); !status.ok()) {
    return SetError(receipt, std::move(status));
  }
  results_[receipt].status = absl::OkStatus();
  // A limit that was deleted bounds nothing any more: its slots are not missed. It gives no right
  // to those that remain.
  std::erase_if(opened_.charges, [this](const ReceiptCharge& charge) {
    return table_->Find(charge.limit) == nullptr;
  });
  if (caller_ != nullptr) {
    absl::Status status = CheckMayRedeem(caller_.get(), absl::StrCat("receipts[", receipt, "]"),
                                         opened_.charges, *table_);
    if (!status.ok()) return SetError(receipt, std::move(status));
  }
  const size_t first = charges_.size();
  for (const ReceiptCharge& charge : opened_.charges) {
    const store::Rule& rule = table_->Find(charge.limit)->RuleFor(charge.key);
    if (!algorithm::IsConcurrency(rule.parameters)) continue;
    charges_.push_back({&rule, charge.key, charge.permits});
  }
  if (charges_.size() == first) return;  // gone
  asked_.push_back({receipt, first, charges_.size() - first, opened_.id});
}

void RenewCall::SetError(size_t receipt, absl::Status error) {
  error_bytes_ += errors::MemoryOf(error);
  results_[receipt].status = std::move(error);
}

void RenewCall::Ask() {
  renewals_.clear();
  for (const Asked& asked : asked_) {
    store::Renewal& renewal = renewals_.emplace_back();
    renewal.receipt_id = asked.receipt_id;
    renewal.charges = absl::MakeConstSpan(charges_).subspan(asked.first_charge, asked.charges);
  }
  operation_.items = absl::MakeSpan(renewals_);
  operation_.ResetWork();
  if (sliced_) operation_.most_work = kSliceWork;
  with_->store.Renew(&operation_);
}

void RenewCall::Decided() {
  if (operation_.work > 0) slice_cost_ += operation_.work_in_decisions();
  const size_t decided = asked_.size() - operation_.undecided;
  bool stale = false;
  for (size_t i = 0; i < decided; ++i) {
    const store::Renewal& renewal = renewals_[i];
    Result& result = results_[asked_[i].receipt];
    switch (renewal.outcome) {
      case store::RenewOutcome::kRenewed:
        result.renewed = true;
        result.held_for_ns = renewal.held_for_ns;
        break;
      case store::RenewOutcome::kGone:
        break;
      case store::RenewOutcome::kStaleRule:
        SetError(asked_[i].receipt, errors::LimitsKeepChanging());
        if (attempts_ + 1 == kMaxAttempts) break;
        again_.push_back(asked_[i].receipt);
        stale = true;
        break;
      case store::RenewOutcome::kPending:
      case store::RenewOutcome::kUnavailable:
        SetError(asked_[i].receipt, errors::RenewUnanswered());
        break;
    }
  }
  for (size_t i = decided; i < asked_.size(); ++i) again_.push_back(asked_[i].receipt);
  if (stale && decided == asked_.size()) {
    // Again, under the limits as they are now.
    ++attempts_;
    table_ = with_->registry.Local();
    charges_.clear();
    asked_.clear();
    for (const size_t receipt : again_) Open(receipt);
    again_.clear();
    return Ask();
  }
  if (more() && !sliced_) return DecideSlice();
  done_(context_, this);
}

}  // namespace sluice::service
