#include "server/waiting/held_callers_change.h"

#include <algorithm>

namespace sluice::waiting {

using store::Rebooking;

// Where a shared store did not say what became of one.
constexpr Rebooking::Outcome kUnknown = Rebooking::Outcome::kPending;

void HeldCallers::Change::Prepare() {
  std::sort(errands.begin(), errands.end(),
            [](const auto* a, const auto* b) { return a->receipt_id < b->receipt_id; });
  rebookings.resize(errands.size());
  left = errands.size();
  for (size_t i = 0; i < errands.size(); ++i) {
    PendingOperation& errand = *errands[i];
    errand.number = i;
    errand.results.resize(errand.charges.size());
    rebookings[i].receipt_id = errand.receipt_id;
    rebookings[i].charges = errand.charges;
    rebookings[i].results = errand.results.data();
    rebookings[i].grant_time_ns = errand.grant_time_ns;
    rebookings[i].until_ns = errand.until_ns;
  }
  items = absl::MakeSpan(rebookings);
}

void HeldCallers::Change::GaveBack(PendingOperation* errand) {
  --under_way;
  --left;
  switch (errand->refund_outcome()) {
    case store::RefundOutcome::kRefunded:
      sets[SetOf(errand->charges)].push_back(errand);
      break;
    case store::RefundOutcome::kAlreadyRefunded:
    case store::RefundOutcome::kExpired:
      // Its moment came before.
      RebookingOf(*errand).outcome = Rebooking::Outcome::kGone;
      break;
    case store::RefundOutcome::kPending:
    case store::RefundOutcome::kStaleRule:
    case store::RefundOutcome::kUnavailable:
      RebookingOf(*errand).outcome = kUnknown;
      break;
  }
  if (left > 0) return;
  step = Step::kReserve;
  for (auto& [set, waiting] : sets) {
    std::sort(waiting.begin(), waiting.end(),
              [](const auto* a, const auto* b) { return a->number < b->number; });
    left += waiting.size();
    ready.push_back(set);
  }
}

void HeldCallers::Change::Reserved(PendingOperation* errand) {
  --under_way;
  --left;
  const uint64_t set = SetOf(errand->charges);
  if (!sets[set].empty()) ready.push_back(set);
  const store::Acquisition& reserved = errand->reserved;
  Rebooking& rebooking = RebookingOf(*errand);
  rebooking.now_ns = reserved.now_ns;
  rebooking.outcome = kUnknown;
  if (reserved.outcome == store::Outcome::kGranted) {
    rebooking.outcome = Rebooking::Outcome::kBooked;
    rebooking.receipt_id = reserved.receipt_id;
    rebooking.grant_time_ns = reserved.now_ns + reserved.wait_ns;
  } else if (reserved.outcome == store::Outcome::kDenied) {
    rebooking.outcome = Rebooking::Outcome::kDenied;
    rebooking.retry_after_ns = reserved.retry_after_ns;
  }
}

HeldCallers::Change* HeldCallers::BeginChange(Outbox* out) {
  auto change = std::make_unique<Change>(*this);
  const auto take = [&](HeldCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    PendingOperation* const errand = NewPendingOperation(caller);
    errand->until_ns -= distance_.ns();
    errand->changes = true;
    change->errands.push_back(errand);
    return errand;
  };
  absl::flat_hash_set<uint64_t> sets;  // whose limits changed
  std::vector<HeldCaller*> same;
  std::vector<HeldCaller*> gone;
  std::vector<store::Charge> charges;
  for (const Place& place : line_) {
    HeldCaller* const caller = place.caller;
    const absl::Span<const store::Charge> now = caller->acquisition->charges;
    charges.assign(now.begin(), now.end());
    std::shared_ptr<const void> keep = caller->rules;
    switch (rules_.Refresh(absl::MakeSpan(charges), &keep)) {
      case Refreshed::kSame:
        caller->generation = generation_;
        same.push_back(caller);
        break;
      case Refreshed::kChanged: {
        take(caller)->SetRules(charges, std::move(keep));
        sets.insert(SetOf(charges));
        break;
      }
      case Refreshed::kGone:
        gone.push_back(caller);
        break;
    }
  }
  for (HeldCaller* const caller : gone) {
    // Its limit was deleted: nobody can say when it may go.
    Leave(caller, HeldOutcome::kDenied, out);
    caller->acquisition->outcome = store::Outcome::kDenied;
    caller->acquisition->wait_ns = 0;
    caller->acquisition->retry_after_ns = 0;
  }
  // Who came since the change, by the new limits, was booked behind the others' old places.
  for (HeldCaller* const caller : same) {
    if (sets.contains(SetOf(caller->acquisition->charges))) take(caller);
  }
  if (change->errands.empty()) return nullptr;
  for (PendingOperation* const errand : change->errands) {
    line_.erase(PlaceOf(errand->caller));
    errand->caller->state_ = HeldCaller::State::kChanging;
    errand->caller->errand_ = errand;
  }
  changing_ = change->errands.size();
  change->Prepare();
  change_ = std::move(change);
  return change_.get();
}

void HeldCallers::Rebooked(Change* change) {
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
        change->step = Change::Step::kGiveBack;
        pump = true;
        break;
      case store::RebookStatus::kPending:
      case store::RebookStatus::kUnavailable:
        for (Rebooking& rebooking : change->rebookings) rebooking.outcome = kUnknown;
        EndChange(&out);
        break;
    }
    SetAlarm();
  }
  Send(&out);
  if (pump) Pump();
}

PendingOperation* HeldCallers::NextOfChange() {
  Change& change = *change_;
  if (change.under_way >= kChangesUnderWay) return nullptr;
  if (change.step == Change::Step::kGiveBack) {
    if (change.next == change.errands.size()) return nullptr;
    ++change.under_way;
    return change.errands[change.next++];
  }
  while (!change.ready.empty()) {
    std::deque<PendingOperation*>& waiting = change.sets[change.ready.front()];
    PendingOperation* const errand = waiting.front();
    waiting.pop_front();
    if (errand->caller == nullptr) {
      // It has been given back already.
      errand->give_back = false;
      --change.left;
      if (waiting.empty()) change.ready.pop_front();
      continue;
    }
    change.ready.pop_front();
    ++change.under_way;
    return errand;
  }
  return nullptr;
}

void HeldCallers::Pump() {
  Outbox out;
  mu_.Lock();
  // Who does it looks again after each.
  if (change_ == nullptr || change_->pumping) {
    mu_.Unlock();
    return;
  }
  change_->pumping = true;
  while (PendingOperation* const errand = NextOfChange()) {
    const bool reserve = change_->step == Change::Step::kReserve;
    int64_t max_wait_ns = 0;
    if (reserve) {
      errand->attempts = 0;
      max_wait_ns = std::max<int64_t>(errand->caller->until_ns - clock_.NowNs(), 0);
    }
    mu_.Unlock();
    if (reserve) {
      errand->Reserve(max_wait_ns);
    } else {
      errand->GiveBack();
    }
    mu_.Lock();
  }
  change_->pumping = false;
  if (change_->left == 0 && change_->step == Change::Step::kReserve) {
    EndChange(&out);
    SetAlarm();
  }
  mu_.Unlock();
  Send(&out);
}

void HeldCallers::Reserved(PendingOperation* errand) {
  if (errand->reserved.outcome == store::Outcome::kStaleRule && errand->attempts < 8) {
    ++errand->attempts;
    errand->Refresh();
    errand->Reserve(errand->reserved.max_wait_ns);
    return;
  }
  {
    common::MutexLock lock(&mu_);
    if (errand->reserved.outcome == store::Outcome::kGranted) Observe(errand->reserved.now_ns);
    change_->Reserved(errand);
    ++errands_;  // the line stays until Pump is through
  }
  Pump();
  common::MutexLock lock(&mu_);
  if (--errands_ == 0) no_errands_.SignalAll();
}

void HeldCallers::Adopt(PendingOperation* errand) {
  HeldCaller* const caller = errand->caller;
  store::Acquisition& acquisition = *caller->acquisition;
  // By the new rules, and with the owner's keys.
  std::vector<store::Charge> charges(acquisition.charges.begin(), acquisition.charges.end());
  for (size_t i = 0; i < charges.size(); ++i) charges[i].rule = errand->charges[i].rule;
  caller->charges_ = std::move(charges);
  acquisition.charges = caller->charges_;
  caller->rules = errand->rules();
  caller->generation = generation_;
}

void HeldCallers::UndoChange(Outbox* out) {
  for (PendingOperation* const errand : change_->errands) {
    if (HeldCaller* const caller = errand->caller; caller != nullptr) {
      caller->errand_ = nullptr;
      caller->state_ = HeldCaller::State::kInLine;
      line_.insert(PlaceOf(caller));
      End(errand, out);
    } else {
      errand->changes = false;
      out->give_back.push_back(errand);
    }
  }
  changing_ = 0;
  change_ = nullptr;
  look_ = true;
  if (errands_ == 0) no_errands_.SignalAll();
}

void HeldCallers::EndChange(Outbox* out) {
  const bool others = !line_.empty();
  for (size_t i = 0; i < change_->errands.size(); ++i) {
    PendingOperation* const errand = change_->errands[i];
    const Rebooking& rebooking = change_->rebookings[i];
    HeldCaller* const caller = errand->caller;
    const bool booked = rebooking.outcome == Rebooking::Outcome::kBooked;
    // What others left, those beside them may move into.
    if (others && rebooking.outcome != Rebooking::Outcome::kGone &&
        (!booked || rebooking.grant_time_ns > errand->grant_time_ns)) {
      NoteFree(errand->charges, errand->grant_time_ns);
    }
    errand->changes = false;
    if (booked) {
      errand->receipt_id = rebooking.receipt_id;
      errand->grant_time_ns = rebooking.grant_time_ns;
    }
    if (caller == nullptr) {
      // Denied, or not known: there is nothing to be given back.
      const bool has = booked || rebooking.outcome == Rebooking::Outcome::kGone;
      if (errand->give_back && has) {
        out->give_back.push_back(errand);
      } else {
        End(errand, out);
      }
      continue;
    }
    caller->errand_ = nullptr;
    store::Acquisition& acquisition = *caller->acquisition;
    Adopt(errand);
    if (rebooking.outcome == Rebooking::Outcome::kDenied) {
      std::copy(errand->results.begin(), errand->results.end(), acquisition.results);
    }
    caller->state_ = HeldCaller::State::kOutside;
    switch (rebooking.outcome) {
      case Rebooking::Outcome::kBooked:
        acquisition.receipt_id = rebooking.receipt_id;
        acquisition.now_ns = rebooking.now_ns;
        acquisition.wait_ns = rebooking.grant_time_ns - rebooking.now_ns;
        break;
      case Rebooking::Outcome::kGone:
        break;
      case Rebooking::Outcome::kDenied:
        acquisition.outcome = store::Outcome::kDenied;
        acquisition.now_ns = rebooking.now_ns;
        acquisition.wait_ns = 0;
        acquisition.receipt_id = 0;
        acquisition.retry_after_ns = rebooking.retry_after_ns;
        out->answers.push_back({caller, HeldOutcome::kDenied});
        break;
      case kUnknown:
        out->answers.push_back({caller, HeldOutcome::kUnavailable});
        break;
    }
    if (booked || rebooking.outcome == Rebooking::Outcome::kGone) {
      // Also if it is now: Advance answers it.
      caller->state_ = HeldCaller::State::kInLine;
      line_.insert(PlaceOf(caller));
    }
    End(errand, out);
  }
  changing_ = 0;
  change_ = nullptr;
  if (errands_ == 0) no_errands_.SignalAll();
}

}  // namespace sluice::waiting
