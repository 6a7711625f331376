#include "server/waiting/held_callers.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "server/waiting/held_callers_change.h"
#include "server/waiting/pending_operation.h"

namespace sluice::waiting {
namespace {

// Between two steps of moving up, for others to be heard.
constexpr int64_t kStepNs = 1'000'000;

}  // namespace

HeldCallers::HeldCallers(store::Store& store, const common::Clock& clock, RuleSource& rules,
                         Alarm& alarm)
    : store_(store), clock_(clock), rules_(rules), alarm_(alarm) {}

HeldCallers::~HeldCallers() {
  Drain();
  common::MutexLock lock(&mu_);
  while (errands_ > 0 || change_ != nullptr) no_errands_.Wait(&mu_);
}

uint64_t HeldCallers::BucketOf(const store::Charge& charge) {
  return std::hash<std::string_view>()(charge.key) * 31 + charge.rule->limit_id;
}

uint64_t HeldCallers::SetOf(absl::Span<const store::Charge> charges) {
  uint64_t set = 0;
  for (const store::Charge& charge : charges) set += BucketOf(charge);  // whatever their order
  return set;
}

void HeldCallers::Observe(int64_t store_ns) {
  if (!store_.UsesLocalClock()) distance_.Observe(clock_.NowNs(), store_ns);
}

PendingOperation* HeldCallers::NewPendingOperation(HeldCaller* caller) {
  ++errands_;
  return new PendingOperation(*this, *caller);
}

void HeldCallers::End(PendingOperation* errand, Outbox* out) {
  out->over.emplace_back(errand);
  if (--errands_ == 0) no_errands_.SignalAll();
}

void HeldCallers::Send(Outbox* out) {
  // Given back before it is said, where the store is quick.
  for (PendingOperation* const errand : out->give_back) errand->GiveBack();
  for (const Outbox::Answer& answer : out->answers) answer.caller->OnAnswer(answer.outcome);
}

bool HeldCallers::Hold(HeldCaller* caller) {
  Outbox out;
  bool taken = true;
  {
    common::MutexLock lock(&mu_);
    Observe(caller->acquisition->now_ns);
    if (draining_ || caller->left_) {
      out.give_back.push_back(NewPendingOperation(caller));
      out.give_back.back()->caller = nullptr;
      taken = !draining_;
      if (taken) out.answers.push_back({caller, HeldOutcome::kCancelled});
    } else {
      caller->state_ = HeldCaller::State::kInLine;
      line_.insert(PlaceOf(caller));
      // Booked by limits that were replaced meanwhile; or by newer ones than were looked at, of
      // which LimitsChanged will tell.
      if (caller->generation < generation_) look_ = true;
      SetAlarm();
    }
  }
  Send(&out);
  return taken;
}

void HeldCallers::Leave(HeldCaller* caller, HeldOutcome outcome, Outbox* out) {
  if (caller->state_ == HeldCaller::State::kInLine) {
    line_.erase(PlaceOf(caller));
  } else {
    --changing_;
  }
  caller->state_ = HeldCaller::State::kOutside;
  if (PendingOperation* const errand = std::exchange(caller->errand_, nullptr); errand != nullptr) {
    // What it has is known when that is over.
    errand->caller = nullptr;
    errand->give_back = true;
  } else {
    PendingOperation* const back = NewPendingOperation(caller);
    back->caller = nullptr;
    out->give_back.push_back(back);
  }
  out->answers.push_back({caller, outcome});
}

bool HeldCallers::Cancel(HeldCaller* caller) {
  Outbox out;
  {
    common::MutexLock lock(&mu_);
    if (caller->state_ == HeldCaller::State::kOutside) {
      caller->left_ = true;
      return false;
    }
    Leave(caller, HeldOutcome::kCancelled, &out);
    SetAlarm();
  }
  Send(&out);
  return true;
}

void HeldCallers::Drain() {
  Outbox out;
  {
    common::MutexLock lock(&mu_);
    draining_ = true;
    while (!line_.empty()) Leave(line_.begin()->caller, HeldOutcome::kDrained, &out);
    if (change_ != nullptr) {
      for (PendingOperation* const errand : change_->errands) {
        if (errand->caller != nullptr) Leave(errand->caller, HeldOutcome::kDrained, &out);
      }
    }
    move_next_ = kNobody;
    free_buckets_.clear();
  }
  Send(&out);
}

void HeldCallers::GaveBack(PendingOperation* errand) {
  if (errand->refund_outcome() == store::RefundOutcome::kStaleRule && errand->attempts < 8) {
    // Each time the limits changed since we looked.
    ++errand->attempts;
    errand->Refresh();
    errand->GiveBack();
    return;
  }
  Outbox out;
  bool changes = false;
  {
    common::MutexLock lock(&mu_);
    changes = errand->changes;
    if (changes) {
      change_->GaveBack(errand);
      ++errands_;  // the line stays until Pump is through
    } else {
      if (errand->refund_outcome() == store::RefundOutcome::kRefunded) {
        NoteFree(errand->charges, errand->grant_time_ns);
      }
      End(errand, &out);
      SetAlarm();
    }
  }
  if (!changes) return;
  Pump();
  common::MutexLock lock(&mu_);
  if (--errands_ == 0) no_errands_.SignalAll();
}

// ---- Moving up ----

void HeldCallers::NoteFree(absl::Span<const store::Charge> charges, int64_t grant_time_ns) {
  if (line_.empty()) return;
  for (const store::Charge& charge : charges) free_buckets_.insert(BucketOf(charge));
  move_next_ = std::min(move_next_, Place{grant_time_ns, 0, nullptr});
}

PendingOperation* HeldCallers::NextToMove() {
  if (look_ || change_ != nullptr || moves_ >= kMovesUnderWay) return nullptr;
  while (move_next_.grant_time_ns != kNever) {
    const auto next = line_.lower_bound(move_next_);
    if (next == line_.end()) {
      move_next_ = kNobody;
      if (moves_ == 0) free_buckets_.clear();
      break;
    }
    HeldCaller* const caller = next->caller;
    move_next_ = {next->grant_time_ns, next->receipt_id + 1, nullptr};
    bool concerned = false;
    for (const store::Charge& charge : caller->acquisition->charges) {
      concerned |= free_buckets_.contains(BucketOf(charge));
    }
    if (!concerned) continue;
    if (caller->errand_ != nullptr) {
      // It may be decided before what became free since: if it stays it is to be asked again.
      caller->errand_->again = true;
      continue;
    }
    ++moves_;
    return caller->errand_ = NewPendingOperation(caller);
  }
  return nullptr;
}

void HeldCallers::Moved(PendingOperation* errand) {
  Outbox out;
  {
    common::MutexLock lock(&mu_);
    --moves_;
    HeldCaller* const caller = errand->caller;
    const Place left{errand->grant_time_ns, errand->receipt_id + 1, nullptr};
    if (caller != nullptr) caller->errand_ = nullptr;
    if (errand->move_outcome() == store::MoveOutcome::kMoved) {
      if (caller != nullptr) {
        line_.erase(PlaceOf(caller));
        caller->acquisition->wait_ns = errand->moved_to_ns() - caller->acquisition->now_ns;
        line_.insert(PlaceOf(caller));
      }
      errand->grant_time_ns = errand->moved_to_ns();
      // The place that it left is free for those behind, in all its buckets.
      for (const store::Charge& charge : errand->charges) free_buckets_.insert(BucketOf(charge));
      move_next_ = std::min(move_next_, left);
    } else if (errand->move_outcome() == store::MoveOutcome::kUnavailable && caller != nullptr) {
      // It may be debited at another moment than the one at which it would be answered. If it was
      // not moved it can still be given back.
      line_.erase(PlaceOf(caller));
      caller->state_ = HeldCaller::State::kOutside;
      errand->caller = nullptr;
      errand->give_back = true;
      out.answers.push_back({caller, HeldOutcome::kUnavailable});
    } else if (errand->again && caller != nullptr) {
      move_next_ = std::min(move_next_, PlaceOf(caller));
    }
    if (moves_ == 0 && move_next_.grant_time_ns == kNever) free_buckets_.clear();
    if (errand->give_back) {
      out.give_back.push_back(errand);
    } else {
      End(errand, &out);
    }
    SetAlarm();
  }
  Send(&out);
}

// ---- Time ----

int64_t HeldCallers::Advance() {
  Outbox out;
  Change* change = nullptr;
  mu_.Lock();
  if (advancing_) {
    // That thread looks again before it leaves.
    alarm_ns_ = kNever;
    mu_.Unlock();
    return clock_.NowNs() + kStepNs;
  }
  advancing_ = true;
  alarm_ns_ = kNever;
  // The clock first: who is answered by a moment of before the limits changed had reached it then.
  const int64_t now_ns = clock_.NowNs() - distance_.ns();
  if (!line_.empty()) {
    if (const uint64_t generation = rules_.Generation(); generation != generation_) {
      generation_ = generation;
      look_ = true;
    }
  }
  if (look_ && !Blocked()) {
    look_ = false;
    change = BeginChange(&out);
  }
  if (!Blocked()) {
    while (!line_.empty() && line_.begin()->grant_time_ns <= now_ns) {
      HeldCaller* const caller = line_.begin()->caller;
      line_.erase(line_.begin());
      caller->state_ = HeldCaller::State::kOutside;
      // It has its permits, whatever becomes of a move that is under way.
      if (caller->errand_ != nullptr) caller->errand_->caller = nullptr;
      caller->errand_ = nullptr;
      out.answers.push_back({caller, HeldOutcome::kGrantTime});
    }
  }
  mu_.Unlock();
  Send(&out);
  if (change != nullptr) store_.Rebook(change);

  mu_.Lock();
  move_from_ns_ = 0;
  size_t moves = 0;
  for (; moves < kMovesPerStep; ++moves) {
    PendingOperation* const errand = NextToMove();
    if (errand == nullptr) break;
    mu_.Unlock();
    errand->Move();
    mu_.Lock();
  }
  if (moves == kMovesPerStep) move_from_ns_ = clock_.NowNs() + kStepNs;
  advancing_ = false;
  const int64_t next_ns = NextNs();
  alarm_ns_ = next_ns;
  mu_.Unlock();
  return next_ns;
}

int64_t HeldCallers::NextNs() const {
  // What is under way sets the alarm when it is over.
  if (line_.empty() || Blocked()) return kNever;
  if (look_) return 0;
  int64_t next_ns = line_.begin()->grant_time_ns + distance_.ns();
  if (move_next_.grant_time_ns != kNever && change_ == nullptr && moves_ < kMovesUnderWay) {
    next_ns = std::min(next_ns, move_from_ns_);
  }
  return next_ns;
}

void HeldCallers::SetAlarm() {
  const int64_t next_ns = NextNs();
  if (next_ns >= alarm_ns_) return;
  alarm_ns_ = next_ns;
  alarm_.SetAt(next_ns);
}

void HeldCallers::LimitsChanged() {
  common::MutexLock lock(&mu_);
  if (line_.empty()) return;
  alarm_ns_ = 0;
  alarm_.SetAt(0);
}

}  // namespace sluice::waiting
