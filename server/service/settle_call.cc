#include "server/service/settle_call.h"

#include <algorithm>
#include <limits>

#include "common/errors.h"
#include "server/service/permission.h"

namespace sluice::service {

namespace bounds = common::bounds;
namespace errors = common::errors;

void SettleCall::Reset(Form form) {
  form_ = form;
  sliced_ = false;
  begun_ = 0;
  items_.clear();
  actuals_.clear();
  charges_.clear();
  error_bytes_ = 0;
  first_ = next_ = 0;
  step_.store(Step::kPrepare, std::memory_order_relaxed);
  decoded_.charges.clear();
  table_.reset();
  if (caller_ != nullptr) caller_ = nullptr;
  status_ = absl::OkStatus();
  slice_cost_ = 0;
  operation_.ResetWork();
}

void SettleCall::BeginSettlement() {
  if (++begun_ > bounds::kMaxBatch) return;
  items_.emplace_back().first_actual = static_cast<uint32_t>(actuals_.size());
}

void SettleCall::AddActual(std::string_view limit, std::string_view key, uint64_t permits) {
  if (begun_ > bounds::kMaxBatch) return;
  if (++items_.back().actuals <= bounds::kMaxCharges) actuals_.push_back({limit, key, permits});
}

FieldPath SettleCall::PathOf(const Item& item) const {
  if (form_ == Form::kUnary) return FieldPath();
  return FieldPath().Element("settlements", static_cast<size_t>(&item - items_.data()));
}

void SettleCall::Start(const Collaborators& with, int64_t deadline_ns, DoneFn done, void* context) {
  with_ = &with;
  done_ = done;
  context_ = context;
  operation_.deadline_ns = deadline_ns;
  if (begun_ > bounds::kMaxBatch) {
    status_ = errors::TooManySettlements(begun_);
  } else if (deadline_ns != store::kNoDeadline && with.clock.NowNs() >= deadline_ns) {
    status_ = errors::PastDeadline();
  }
  if (!status_.ok()) return done_(context_, this);
  Run();
}

void SettleCall::Continue() {
  first_ = next_;
  slice_cost_ = 0;
  Run();
}

void SettleCall::Run() {
  while (next_ < items_.size() && !(sliced_ && slice_cost_ >= kSliceDecisions)) {
    Item& item = items_[next_];
    if (step_ == Step::kPrepare) {
      slice_cost_ += ReceiptCost(item.receipt.size());
      item.result.status = Prepare(item);
      attempts_ = 0;
      if (!item.result.status.ok()) {
        error_bytes_ += errors::MemoryOf(item.result.status);
        ++next_;
        continue;
      }
      step_.store(Step::kAsk, std::memory_order_relaxed);
    }
    if (step_ == Step::kAsk && !Resolve()) {
      item.result.outcome = store::SettleOutcome::kUnknown;
      KeepResults(&item);
      ++next_;
      step_.store(Step::kPrepare, std::memory_order_relaxed);
      continue;
    }
    if (step_ == Step::kAsk) {
      if (sliced_) operation_.most_work = kSliceWork;
      step_.store(Step::kAsking, std::memory_order_relaxed);
      with_->store.Settle(&operation_);
      Step asking = Step::kAsking;
      if (step_.load(std::memory_order_acquire) == asking &&
          step_.compare_exchange_strong(asking, Step::kWaiting, std::memory_order_acq_rel)) {
        return;
      }
    }
    slice_cost_ += std::max<size_t>(1, operation_.work_in_decisions());
    step_.store(Step::kAsk, std::memory_order_relaxed);
    if (operation_.undecided == 0 && Complete(&item)) {
      ++next_;
      step_.store(Step::kPrepare, std::memory_order_relaxed);
    }
    if (sliced_ && operation_.undecided > 0) break;
  }
  done_(context_, this);
}

void SettleCall::Decided() {
  if (step_.exchange(Step::kDecided, std::memory_order_acq_rel) == Step::kWaiting) Run();
}

absl::Status SettleCall::Prepare(const Item& item) {
  if (absl::Status status = with_->signer.Open(item.receipt, &decoded_); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckMayRedeem(caller_.get(), PathOf(item).Field("receipt"),
                                           decoded_.charges, *with_->registry.Local());
      !status.ok()) {
    return status;
  }
  if (decoded_.kind == Receipt::Kind::kAcquisition) {
    return errors::NotAnEstimate(PathOf(item).Field("receipt"));
  }
  if (item.more && decoded_.kind != Receipt::Kind::kEstimate) {
    return errors::MoreWithoutSettleWithin(PathOf(item).Field("more"));
  }
  if (absl::Status status = MapActuals(item); !status.ok()) return status;
  operation_.receipt_id = decoded_.id;
  operation_.grant_time_ns = decoded_.grant_time_ns;
  operation_.estimate = decoded_.kind == Receipt::Kind::kEstimate;
  operation_.charged_by = charged_by_;
  operation_.actual = asked_actual_;
  operation_.settled = settled_;
  operation_.more = item.more;
  return absl::OkStatus();
}

absl::Status SettleCall::MapActuals(const Item& item) {
  std::fill_n(actual_, decoded_.charges.size(), store::SettleOperation::kAsTaken);
  if (item.actuals > bounds::kMaxCharges) {
    return errors::TooManyCharges(PathOf(item).Field("actual"), item.actuals);
  }
  const std::shared_ptr<const limits::LimitTable> table = with_->registry.Local();
  for (size_t a = 0; a < item.actuals; ++a) {
    const Actual& actual = actuals_[item.first_actual + a];
    const FieldPath path = PathOf(item).Element("actual", a);
    if (actual.permits > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return errors::ActualTooLarge(path.Field("permits"), actual.permits);
    }
    const auto charge = std::find_if(
        decoded_.charges.begin(), decoded_.charges.end(), [&](const ReceiptCharge& of) {
          return of.limit == actual.limit && of.key == actual.key && of.own != 0;
        });
    if (charge == decoded_.charges.end()) {
      return errors::ActualNotCharged(path.Field("limit"), actual.limit, actual.key);
    }
    const limits::Limit* const limit = table->Find(actual.limit);
    if (limit != nullptr && algorithm::IsConcurrency(limit->RuleFor(actual.key).parameters)) {
      return errors::ActualOfSlots(path.Field("limit"), actual.limit);
    }
    const auto i = static_cast<size_t>(charge - decoded_.charges.begin());
    if (actual_[i] != store::SettleOperation::kAsTaken) {
      return errors::ActualTwice(path.Field("limit"), actual.limit, actual.key);
    }
    actual_[i] = actual.permits;
    actual_of_[i] = a;
  }
  return absl::OkStatus();
}

bool SettleCall::Resolve() {
  ++attempts_;
  table_ = with_->registry.Local();
  asked_.clear();
  size_t deleted = 0;
  size_t place_of_deleted[bounds::kMaxCharges];
  for (size_t i = 0; i < decoded_.charges.size(); ++i) {
    const ReceiptCharge& charge = decoded_.charges[i];
    if (const limits::Limit* const limit = table_->Find(charge.limit); limit != nullptr) {
      place_[asked_.size()] = i;
      asked_.push_back({&limit->RuleFor(charge.key), charge.key, charge.permits});
    } else {
      place_of_deleted[deleted] = i;
      deleted_[deleted++] = charge.permits;
    }
  }
  if (asked_.empty()) return false;
  std::copy_n(place_of_deleted, deleted, place_ + asked_.size());
  for (size_t to = 0; to < decoded_.charges.size(); ++to) {
    asked_actual_[to] = actual_[place_[to]];
    charged_by_[to] = 0;
    for (size_t by = 0; by < decoded_.charges.size(); ++by) {
      charged_by_[to] |=
          static_cast<uint16_t>((decoded_.charges[place_[to]].charged_by >> place_[by] & 1) << by);
    }
  }
  operation_.charges = asked_;
  operation_.deleted = absl::MakeConstSpan(deleted_, deleted);
  operation_.outcome = store::SettleOutcome::kPending;
  operation_.undecided = 0;
  return true;
}

bool SettleCall::Complete(Item* item) {
  if (operation_.outcome == store::SettleOutcome::kStaleRule && attempts_ < kMaxAttempts) {
    return false;
  }
  item->result.status = StatusOf(*item);
  error_bytes_ += errors::MemoryOf(item->result.status);
  item->result.outcome = operation_.outcome;
  if (item->result.status.ok()) KeepResults(item);
  if (SlotsOf(asked_) != nullptr && with_->held_callers != nullptr) {
    with_->held_callers->SlotsFreed(asked_);
  }
  return true;
}

absl::Status SettleCall::StatusOf(const Item& item) const {
  switch (operation_.outcome) {
    case store::SettleOutcome::kSettled:
    case store::SettleOutcome::kAlreadySettled:
    case store::SettleOutcome::kLate:
    case store::SettleOutcome::kUnknown:
      break;
    case store::SettleOutcome::kRefunded:
      return errors::RefundedBefore();
    case store::SettleOutcome::kTooEarly:
      return errors::SettleTooEarly();
    case store::SettleOutcome::kActualDecreased: {
      const size_t i = place_[operation_.decreased_charge];
      return errors::ActualFalls(PathOf(item).Element("actual", actual_of_[i]).Field("permits"),
                                 actual_[i], operation_.actual_before);
    }
    case store::SettleOutcome::kStaleRule:
      return errors::LimitsKeepChanging();
    case store::SettleOutcome::kNoRoom:
      return errors::NoRoomToSettle(PathOf(item).Field("actual"));
    case store::SettleOutcome::kSeveralSlots:
      return errors::SettleInSeveralSlots(PathOf(item).Field("actual"));
    case store::SettleOutcome::kPending:
    case store::SettleOutcome::kUnavailable:
      return errors::SettleUnanswered();
  }
  return absl::OkStatus();
}

void SettleCall::KeepResults(Item* item) {
  common::Metrics::Shard& shard = with_->metrics.Local();
  item->result.first_charge = charges_.size();
  item->result.charges = decoded_.charges.size();
  for (const ReceiptCharge& of : decoded_.charges) charges_.push_back({of.limit, of.key, {}});
  if (item->result.outcome != store::SettleOutcome::kSettled &&
      item->result.outcome != store::SettleOutcome::kLate) {
    return;
  }
  for (size_t i = 0; i < asked_.size(); ++i) {
    charges_[item->result.first_charge + place_[i]].permits = settled_[i];
    common::LimitCounters& counters = shard.OfLimit(asked_[i].rule->limit_id);
    counters.refunded_permits.Add(settled_[i].given_back_now);
    counters.permits_granted.Add(settled_[i].charged_now);
  }
}

}  // namespace sluice::service
