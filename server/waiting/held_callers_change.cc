// Changes of limits: see LimitChange.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "server/waiting/held_callers.h"

namespace sluice::waiting {

using store::Rebooking;
using Purpose = PendingOperation::Purpose;

LimitChange* HeldCallers::BeginChange(Outbox* out) {
  auto change = std::make_unique<LimitChange>(*this);
  const auto add = [&](HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    PendingOperation* const operation = NewOperation(caller, Purpose::kRebook);
    operation->until_ns -= clock_offset_.ns();
    change->Add(operation);
    return operation;
  };
  absl::flat_hash_set<uint64_t> changed_sets;
  std::vector<HeldCaller*> same;
  std::vector<HeldCaller*> gone;
  std::vector<store::Charge> charges;
  for (const auto& [position, caller] : queue_.entries()) {
    const absl::Span<const store::Charge> current = caller->acquisition->charges;
    charges.assign(current.begin(), current.end());
    std::shared_ptr<const void> keep = caller->rules;
    switch (rules_.Refresh(absl::MakeSpan(charges), &keep)) {
      case Refreshed::kSame:
        caller->generation = generation_;
        same.push_back(caller);
        break;
      case Refreshed::kChanged:
        caller->until_ns =
            std::min(caller->until_ns, caller->since_ns + store::LeastMaxWaitNs(charges));
        add(caller)->SetRules(charges, std::move(keep));
        changed_sets.insert(BucketSetId(charges));
        break;
      case Refreshed::kGone:
        gone.push_back(caller);
        break;
    }
  }
  for (HeldCaller* const caller : gone) {
    // Its limit was deleted, so there is no retry_after either.
    Remove(caller, HeldOutcome::kDenied, out);
    caller->acquisition->outcome = store::Outcome::kDenied;
    caller->acquisition->wait_ns = 0;
    caller->acquisition->retry_after_ns = 0;
  }
  // Callers that arrived after the change were booked behind the old grant times of the others.
  for (HeldCaller* const caller : same) {
    if (changed_sets.contains(BucketSetId(caller->acquisition->charges))) add(caller);
  }
  if (change->operations().empty()) return nullptr;
  for (PendingOperation* const operation : change->operations()) {
    Dequeue(operation->caller);
    operation->caller->state_ = HeldCaller::State::kRebooking;
    operation->caller->operation_ = operation;
  }
  rebooking_ = change->operations().size();
  change->Prepare();
  change_ = std::move(change);
  return change_.get();
}

void HeldCallers::OnRebooked(LimitChange* change) {
  Outbox out;
  bool pump = false;
  {
    common::MutexLock lock(&mu_);
    switch (change->status) {
      case store::RebookStatus::kDone:
        EndChange(&out);
        break;
      case store::RebookStatus::kStaleRule:
        UndoChange(&out);
        break;
      case store::RebookStatus::kUnsupported:
        change->RefundAll();
        pump = true;
        break;
      case store::RebookStatus::kPending:
      case store::RebookStatus::kUnavailable:
        change->SetAllUnknown();
        EndChange(&out);
        break;
    }
    SetAlarm();
  }
  Send(&out);
  if (pump) Pump();
}

void HeldCallers::Pump() {
  Outbox out;
  mu_.Lock();
  // A thread that pumps already looks for more operations after each one.
  if (change_ == nullptr || change_->pumping) {
    mu_.Unlock();
    return;
  }
  change_->pumping = true;
  while (PendingOperation* const operation = change_->Next(kMaxPendingChanges)) {
    const bool reserve = change_->step() == LimitChange::Step::kReserve;
    const int64_t max_wait_ns =
        reserve ? std::max<int64_t>(operation->caller->until_ns - clock_.NowNs(), 0) : 0;
    mu_.Unlock();
    if (reserve) {
      operation->Reserve(max_wait_ns);
    } else {
      operation->Refund(store::Operation::kAnyWork);
    }
    mu_.Lock();
  }
  change_->pumping = false;
  if (change_->all_reserved()) {
    EndChange(&out);
    SetAlarm();
  }
  mu_.Unlock();
  Send(&out);
}

void HeldCallers::PumpAndRelease() {
  Pump();
  common::MutexLock lock(&mu_);
  Release();
}

void HeldCallers::OnReserved(PendingOperation* operation) {
  if (operation->purpose == Purpose::kSlots) return OnTried(operation);
  {
    common::MutexLock lock(&mu_);
    if (operation->reserved().outcome == store::Outcome::kGranted) {
      ObserveStoreClock(operation->reserved().now_ns);
    }
    change_->OnReserved(operation);
    Retain();
  }
  PumpAndRelease();
}

void HeldCallers::AdoptRules(const PendingOperation& operation) {
  HeldCaller* const caller = operation.caller;
  store::Acquisition& acquisition = *caller->acquisition;
  // The keys stay views of the owner's memory.
  std::vector<store::Charge> charges(acquisition.charges.begin(), acquisition.charges.end());
  for (size_t i = 0; i < charges.size(); ++i) charges[i].rule = operation.charges[i].rule;
  caller->charges_ = std::move(charges);
  acquisition.charges = caller->charges_;
  caller->rules = operation.rules();
  caller->generation = generation_;
}

void HeldCallers::UndoChange(Outbox* out) {
  for (PendingOperation* const operation : change_->operations()) {
    if (HeldCaller* const caller = operation->caller; caller != nullptr) {
      caller->operation_ = nullptr;
      Enqueue(caller);
    }
    RefundOrFinish(operation, operation->caller == nullptr, out);
  }
  limits_stale_ = true;
  DropChange();
}

void HeldCallers::DropChange() {
  rebooking_ = 0;
  change_ = nullptr;
  if (operations_ == 0) idle_.SignalAll();
}

void HeldCallers::EndChange(Outbox* out) {
  const bool callers_stayed = !queue_.empty();
  for (PendingOperation* const operation : change_->operations()) {
    const Rebooking& rebooking = change_->rebooking(operation->number);
    const bool booked = rebooking.outcome == Rebooking::Outcome::kBooked;
    // Callers that stayed may move into the places that others left.
    if (callers_stayed && rebooking.outcome != Rebooking::Outcome::kGone &&
        (!booked || rebooking.grant_time_ns > operation->grant_time_ns)) {
      NoteGap(operation->charges, operation->grant_time_ns);
    }
    if (!booked) TryFirstOf(operation->charges);
    if (booked) {
      operation->receipt_id = rebooking.receipt_id;
      operation->grant_time_ns = rebooking.grant_time_ns;
    }
    if (operation->caller != nullptr) {
      EndRebooking(operation, rebooking, out);
    } else {
      // A reservation that was denied, or whose state is unknown, has nothing to refund.
      const bool has_permits = booked || rebooking.outcome == Rebooking::Outcome::kGone;
      RefundOrFinish(operation, operation->refund_after && has_permits, out);
    }
  }
  DropChange();
}

void HeldCallers::EndRebooking(PendingOperation* operation, const Rebooking& rebooking,
                               Outbox* out) {
  HeldCaller* const caller = operation->caller;
  store::Acquisition& acquisition = *caller->acquisition;
  caller->operation_ = nullptr;
  caller->state_ = HeldCaller::State::kIdle;
  AdoptRules(*operation);
  switch (rebooking.outcome) {
    case Rebooking::Outcome::kBooked:
      acquisition.receipt_id = rebooking.receipt_id;
      acquisition.now_ns = rebooking.now_ns;
      acquisition.wait_ns = rebooking.grant_time_ns - rebooking.now_ns;
      [[fallthrough]];
    case Rebooking::Outcome::kGone:
      // Even if the grant time is now: Advance answers it.
      Enqueue(caller);
      break;
    case Rebooking::Outcome::kDenied:
      std::copy(operation->results.begin(), operation->results.end(), acquisition.results);
      acquisition.outcome = store::Outcome::kDenied;
      acquisition.now_ns = rebooking.now_ns;
      acquisition.wait_ns = 0;
      acquisition.receipt_id = 0;
      acquisition.retry_after_ns = rebooking.retry_after_ns;
      out->answers.push_back({caller, HeldOutcome::kDenied});
      break;
    case Rebooking::Outcome::kPending:  // unknown
      out->answers.push_back({caller, HeldOutcome::kUnavailable});
      break;
  }
  Finish(operation, out);
}

}  // namespace sluice::waiting
