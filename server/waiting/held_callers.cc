#include "server/waiting/held_callers.h"

#include <algorithm>
#include <optional>

#include "common/random.h"

namespace sluice::waiting {
namespace {

using Purpose = PendingOperation::Purpose;

}  // namespace

HeldCallers::HeldCallers(store::Store& store, const common::Clock& clock, RuleSource& rules,
                         Alarm& alarm, common::MemoryBudget* memory)
    : store_(store),
      clock_(clock),
      rules_(rules),
      alarm_(alarm),
      refund_memory_(memory),
      node_(common::RandomWord() | 1) {}

HeldCallers::~HeldCallers() {
  Drain();
  common::MutexLock lock(&mu_);
  while (operations_ > 0 || change_ != nullptr) idle_.Wait(&mu_);
}

void HeldCallers::ObserveStoreClock(int64_t store_ns) {
  if (!store_.UsesLocalClock()) clock_offset_.Observe(clock_.NowNs(), store_ns);
}

void HeldCallers::Enqueue(HeldCaller* caller) {
  caller->state_ = HeldCaller::State::kQueued;
  queue_.Insert(PositionOf(*caller), caller);
}

void HeldCallers::Dequeue(HeldCaller* caller) {
  queue_.Erase(PositionOf(*caller));
  caller->state_ = HeldCaller::State::kIdle;
}

PendingOperation* HeldCallers::NewOperation(HeldCaller* caller, Purpose purpose) {
  Retain();
  return new PendingOperation(*this, *caller, purpose);
}

void HeldCallers::RefundFor(HeldCaller* caller, Outbox* out) {
  out->refunds.push_back(NewOperation(caller, Purpose::kRefund));
  out->refunds.back()->caller = nullptr;
}

void HeldCallers::Release() {
  if (--operations_ == 0) idle_.SignalAll();
}

void HeldCallers::Finish(PendingOperation* operation, Outbox* out) {
  out->finished.emplace_back(operation);
  Release();
}

void HeldCallers::RefundOrFinish(PendingOperation* operation, bool refund, Outbox* out) {
  if (!refund) return Finish(operation, out);
  operation->purpose = Purpose::kRefund;
  out->refunds.push_back(operation);
}

void HeldCallers::Send(Outbox* out) {
  // Refunds first: if the store answers at once, the permits are back when the caller is answered.
  for (PendingOperation* const operation : out->refunds) {
    operation->Refund(store::Operation::kSliceWork);
  }
  for (const auto& [caller, outcome] : out->answers) caller->OnAnswer(outcome);
}

bool HeldCallers::Hold(HeldCaller* caller) {
  Outbox out;
  bool held = true;
  {
    common::MutexLock lock(&mu_);
    ObserveStoreClock(caller->acquisition->now_ns);
    if (draining_) {
      RefundFor(caller, &out);
      held = false;
    } else if (caller->state_ == HeldCaller::State::kCancelledEarly) {
      RefundFor(caller, &out);
      out.answers.push_back({caller, HeldOutcome::kCancelled});
    } else {
      Enqueue(caller);
      // If it is from a newer snapshot, LimitsChanged is still to come.
      if (caller->generation < generation_) limits_stale_ = true;
      SetAlarm();
    }
  }
  Send(&out);
  return held;
}

void HeldCallers::Remove(HeldCaller* caller, HeldOutcome outcome, Outbox* out) {
  if (caller->state_ == HeldCaller::State::kQueued) {
    Dequeue(caller);
  } else {
    --rebooking_;
    caller->state_ = HeldCaller::State::kIdle;
  }
  if (PendingOperation* const operation = std::exchange(caller->operation_, nullptr);
      operation != nullptr) {
    // What to refund is known when the operation ends.
    operation->caller = nullptr;
    operation->refund_after = true;
  } else {
    RefundFor(caller, out);
  }
  out->answers.push_back({caller, outcome});
}

std::optional<size_t> HeldCallers::Cancel(HeldCaller* caller) {
  Outbox out;
  size_t refunded = 0;
  {
    common::MutexLock lock(&mu_);
    if (caller->state_ == HeldCaller::State::kIdle ||
        caller->state_ == HeldCaller::State::kCancelledEarly) {
      caller->state_ = HeldCaller::State::kCancelledEarly;
      return std::nullopt;
    }
    if (caller->state_ == HeldCaller::State::kInLine) {
      AnswerInLine(caller, HeldOutcome::kCancelled, &out);
      SetAlarm();
    } else {
      CancelReserved(caller, &out);
    }
    for (const PendingOperation* const refund : out.refunds) refunded += refund->charges.size();
  }
  Send(&out);
  return refunded;
}

void HeldCallers::CancelReserved(HeldCaller* caller, Outbox* out) {
  const size_t charges = caller->acquisition->charges.size();
  Remove(caller, HeldOutcome::kCancelled, out);
  const bool many = charges_by_cancel_ > 0 && charges_by_cancel_ + charges > kChargesByCancel;
  const bool advances = advancing_ || many;
  charges_by_cancel_ += charges;
  if (!out->refunds.empty() && advances && refunds_.size() < kMaxRefundsLeft &&
      !refund_memory_.over()) {
    LeaveRefund(out->refunds.front());
    out->refunds.clear();
  }
  SetAlarm();
}

void HeldCallers::Drain() {
  Outbox out;
  {
    common::MutexLock lock(&mu_);
    draining_ = true;
    while (!queue_.empty()) {
      Remove(queue_.entries().begin()->second, HeldOutcome::kDrained, &out);
    }
    if (change_ != nullptr) {
      for (const PendingOperation* const operation : change_->operations()) {
        if (operation->caller != nullptr) Remove(operation->caller, HeldOutcome::kDrained, &out);
      }
    }
    while (!lines_.empty()) {
      AnswerInLine(lines_.callers().begin()->second, HeldOutcome::kDrained, &out);
    }
    queue_.ForgetGap();
    gap_buckets_.clear();
    while (!refunds_.empty()) out.refunds.push_back(TakeRefund());
  }
  Send(&out);
}

void HeldCallers::OnRefundUndecided(PendingOperation* operation) {
  {
    common::MutexLock lock(&mu_);
    if (!draining_) {
      // However many are left: the store has folded a thousand bookings for each that comes here.
      LeaveRefund(operation);
      return SetAlarm();
    }
  }
  // Advance may not be called any more.
  operation->Refund(store::Operation::kAnyWork);
}

void HeldCallers::OnRefunded(PendingOperation* operation) {
  Outbox out;
  {
    common::MutexLock lock(&mu_);
    if (operation->purpose != Purpose::kRebook) {
      if (operation->refund_outcome() == store::RefundOutcome::kRefunded) {
        NoteGap(operation->charges, operation->grant_time_ns);
        TryFirstOf(operation->charges);
      }
      Finish(operation, &out);
      SetAlarm();
      return;
    }
    change_->OnRefunded(operation);
    Retain();
  }
  PumpAndRelease();
}

// ---- Moving up ----

void HeldCallers::NoteGap(absl::Span<const store::Charge> charges, int64_t grant_time_ns) {
  if (queue_.empty()) return;
  for (const store::Charge& charge : charges) gap_buckets_.insert(BucketId(charge));
  queue_.NoteGap({grant_time_ns, 0});
}

bool HeldCallers::SharesGap(const HeldCaller& caller) const {
  for (const store::Charge& charge : caller.acquisition->charges) {
    if (gap_buckets_.contains(BucketId(charge))) return true;
  }
  return false;
}

PendingOperation* HeldCallers::NextMove() {
  if (!CanMove()) return nullptr;
  for (size_t passed = 0; passed < kPassedPerOperation; ++passed) {
    const auto* const next = queue_.NextBehindGap();
    if (next == nullptr) {
      if (pending_moves_ == 0) gap_buckets_.clear();
      return nullptr;
    }
    HeldCaller* const caller = next->second;
    if (!SharesGap(*caller)) continue;
    if (caller->operation_ != nullptr) {
      // The store may have decided it before this gap opened.
      caller->operation_->again = true;
      continue;
    }
    ++pending_moves_;
    return caller->operation_ = NewOperation(caller, Purpose::kMove);
  }
  return nullptr;
}

void HeldCallers::LeaveRefund(PendingOperation* refund) {
  refunds_.push_back(refund);
  refund_memory_.Add(static_cast<int64_t>(refund->memory()));
}

PendingOperation* HeldCallers::TakeRefund() {
  PendingOperation* const refund = refunds_.front();
  refunds_.pop_front();
  refund_memory_.Add(-static_cast<int64_t>(refund->memory()));
  return refund;
}

PendingOperation* HeldCallers::NextOfStep(Outbox* out) {
  if (!refunds_.empty()) return TakeRefund();
  PendingOperation* const next_try = NextTry(out);
  return next_try != nullptr ? next_try : NextMove();
}

void HeldCallers::Start(PendingOperation* operation) {
  switch (operation->purpose) {
    case Purpose::kMove:
      return operation->Move();
    case Purpose::kSlots:
      return operation->Reserve(std::max<int64_t>(operation->until_ns - clock_.NowNs(), 0));
    case Purpose::kRefund:
    case Purpose::kRebook:
      return operation->Refund(store::Operation::kSliceWork);
  }
}

void HeldCallers::RunStep() {
  mu_.Lock();
  next_step_ns_ = 0;
  charges_by_cancel_ = 0;
  const int64_t until_ns = clock_.NowNs() + kStepNs;
  for (size_t count = 0;; ++count) {
    if (count == kOperationsPerStep || clock_.NowNs() > until_ns) {
      // In the pause other threads get the lock.
      next_step_ns_ = clock_.NowNs() + kStepNs;
      break;
    }
    Outbox out;
    PendingOperation* const operation = NextOfStep(&out);
    if (operation == nullptr && out.answers.empty() && !MoreToMove()) break;
    mu_.Unlock();
    Send(&out);
    if (operation != nullptr) Start(operation);
    mu_.Lock();
  }
  mu_.Unlock();
}

void HeldCallers::OnMoved(PendingOperation* operation) {
  Outbox out;
  {
    common::MutexLock lock(&mu_);
    --pending_moves_;
    HeldCaller* const caller = operation->caller;
    if (caller != nullptr) caller->operation_ = nullptr;
    if (operation->move_outcome() == store::MoveOutcome::kMoved) {
      if (caller != nullptr) {
        Dequeue(caller);
        caller->acquisition->wait_ns = operation->moved_to_ns() - caller->acquisition->now_ns;
        Enqueue(caller);
        // A gap that opened meanwhile may be before its new place.
        if (operation->again) queue_.NoteGap(PositionOf(*caller));
      }
      // Its old place is a gap in all its buckets.
      for (const store::Charge& charge : operation->charges) gap_buckets_.insert(BucketId(charge));
      queue_.NoteGap({operation->grant_time_ns, operation->receipt_id + 1});
      operation->grant_time_ns = operation->moved_to_ns();
    } else if (operation->move_outcome() == store::MoveOutcome::kUnavailable && caller != nullptr) {
      // The store may have debited another grant time than the one in the queue. The refund
      // succeeds if the reservation was not moved.
      Dequeue(caller);
      operation->caller = nullptr;
      operation->refund_after = true;
      out.answers.push_back({caller, HeldOutcome::kUnavailable});
    } else if (operation->again && caller != nullptr) {
      queue_.NoteGap(PositionOf(*caller));
    }
    if (pending_moves_ == 0 && !queue_.has_gap()) gap_buckets_.clear();
    RefundOrFinish(operation, operation->refund_after, &out);
    SetAlarm();
  }
  Send(&out);
}

// ---- Time ----

int64_t HeldCallers::Advance() {
  Outbox out;
  LimitChange* change = nullptr;
  {
    common::MutexLock lock(&mu_);
    alarm_ns_ = kNever;
    // The other thread looks at the queue again before it returns.
    if (advancing_) return clock_.NowNs() + kStepNs;
    advancing_ = true;
    // Read the clock before the generation: a caller answered by a grant time from before a change
    // of limits had then reached it before the change.
    const int64_t now_ns = clock_.NowNs() - clock_offset_.ns();
    if (!queue_.empty() || !lines_.empty()) {
      if (const uint64_t generation = rules_.Generation(); generation != generation_) {
        generation_ = generation;
        limits_stale_ = true;
        RefreshLines(&out);
      }
    }
    if (limits_stale_ && !AnswersPaused()) {
      limits_stale_ = false;
      change = BeginChange(&out);
    }
    while (!AnswersPaused()) {
      const std::optional<HeldCaller*> due = queue_.PopDue(now_ns);
      if (!due.has_value()) break;
      HeldCaller* const caller = *due;
      caller->state_ = HeldCaller::State::kIdle;
      // The permits are its own, whatever the result of a move that is under way.
      if (caller->operation_ != nullptr) caller->operation_->caller = nullptr;
      caller->operation_ = nullptr;
      out.answers.push_back({caller, HeldOutcome::kGrantTime});
    }
  }
  Send(&out);
  if (change != nullptr) store_.Rebook(change);
  RunStep();

  common::MutexLock lock(&mu_);
  advancing_ = false;
  return alarm_ns_ = NextAdvanceNs();
}

int64_t HeldCallers::NextAdvanceNs() const {
  int64_t step_ns = refunds_.empty() ? kNever : next_step_ns_;
  // Operations under way set the alarm when they end.
  if (pending_tries_ < kMaxPendingTries) {
    step_ns = std::min(step_ns, std::max(lines_.NextNs(), next_step_ns_));
  }
  if (queue_.empty() || AnswersPaused()) return step_ns;
  if (limits_stale_) return 0;
  const int64_t offset_ns = clock_offset_.ns();
  const int64_t wake_ns =
      queue_.NextWakeNs(CanMove() ? next_step_ns_ - offset_ns : kNever) + offset_ns;
  return std::min(step_ns, wake_ns);
}

void HeldCallers::SetAlarm() {
  // Advance returns when to call it next. An alarm before that would end the pause of RunStep.
  if (advancing_) return;
  const int64_t next_ns = NextAdvanceNs();
  if (next_ns >= alarm_ns_) return;
  alarm_ns_ = next_ns;
  alarm_.SetAt(next_ns);
}

void HeldCallers::LimitsChanged() {
  common::MutexLock lock(&mu_);
  if (queue_.empty() && lines_.empty()) return;
  alarm_ns_ = 0;
  alarm_.SetAt(0);
}

}  // namespace sluice::waiting
