// Callers that wait for slots: see SlotLines.
#include <algorithm>
#include <atomic>
#include <utility>

#include "common/random.h"
#include "server/waiting/held_callers.h"

namespace sluice::waiting {

using Purpose = PendingOperation::Purpose;

bool HeldCallers::WaitForSlots(HeldCaller* caller) {
  Outbox out;
  {
    common::MutexLock lock(&mu_);
    if (draining_) return false;
    if (caller->state_ == HeldCaller::State::kCancelledEarly) {
      out.answers.push_back({caller, HeldOutcome::kCancelled});
    } else {
      caller->state_ = HeldCaller::State::kInLine;
      // It is tried at once if it is the first: slots freed since its denial have woken none.
      lines_.Add(caller);
      in_line_.store(lines_.size(), std::memory_order_relaxed);
      // A thread that frees slots from here on sees the caller; the try sees those freed before.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      SetAlarm();
    }
  }
  Send(&out);
  return true;
}

bool HeldCallers::SlotsAwaited(absl::Span<const store::Charge> charges) const {
  if (in_line_.load(std::memory_order_relaxed) == 0) return false;
  common::MutexLock lock(&mu_);
  for (const store::Charge& charge : charges) {
    if (WaitsFor(charge) && lines_.InLine(BucketId(charge)) > 0) return true;
  }
  return false;
}

size_t HeldCallers::InLine(const store::Charge& charge) const {
  if (in_line_.load(std::memory_order_relaxed) == 0) return 0;
  common::MutexLock lock(&mu_);
  return lines_.InLine(BucketId(charge));
}

void HeldCallers::SlotsFreed(absl::Span<const store::Charge> charges) {
  // See WaitForSlots.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (in_line_.load(std::memory_order_relaxed) == 0) return;
  common::MutexLock lock(&mu_);
  TryFirstOf(charges);
  SetAlarm();
}

void HeldCallers::TryFirst(uint64_t bucket) {
  HeldCaller* const first = lines_.FirstOf(bucket);
  if (first == nullptr) return;
  if (first->operation_ != nullptr) {
    // The store may have decided it before.
    first->operation_->again = true;
  } else {
    lines_.LookAt(first, 0);
  }
}

void HeldCallers::TryFirstOf(absl::Span<const store::Charge> charges) {
  for (const store::Charge& charge : charges) TryFirst(BucketId(charge));
}

void HeldCallers::LeaveLines(HeldCaller* caller) {
  caller->state_ = HeldCaller::State::kIdle;
  lines_.Remove(caller);
  in_line_.store(lines_.size(), std::memory_order_relaxed);
  for (const uint64_t bucket : caller->slot_buckets_) TryFirst(bucket);
}

void HeldCallers::AnswerInLine(HeldCaller* caller, HeldOutcome outcome, Outbox* out) {
  if (caller->operation_ != nullptr) {
    // UndoTry follows.
    caller->operation_->caller = nullptr;
    caller->operation_ = nullptr;
  } else if (caller->ticketed_) {
    PendingOperation* const leaving = NewOperation(caller, Purpose::kRefund);
    leaving->caller = nullptr;
    leaving->receipt_id = 0;
    leaving->grant_time_ns = 0;
    SetPlace(caller, /*last=*/true, leaving);
    out->refunds.push_back(leaving);
  }
  LeaveLines(caller);
  out->answers.push_back({caller, outcome});
}

bool HeldCallers::RefreshRules(HeldCaller* caller) {
  if (caller->generation == generation_) return true;
  store::Acquisition& acquisition = *caller->acquisition;
  std::vector<store::Charge> charges(acquisition.charges.begin(), acquisition.charges.end());
  std::shared_ptr<const void> keep = caller->rules;
  switch (rules_.Refresh(absl::MakeSpan(charges), &keep)) {
    case Refreshed::kSame:
      break;
    case Refreshed::kChanged:
      caller->charges_ = std::move(charges);
      acquisition.charges = caller->charges_;
      caller->rules = std::move(keep);
      caller->until_ns =
          std::min(caller->until_ns, caller->since_ns + store::LeastMaxWaitNs(acquisition.charges));
      break;
    case Refreshed::kGone:
      // Its limit was deleted: no time is better than another.
      acquisition.retry_after_ns = 0;
      return false;
  }
  caller->generation = generation_;
  return true;
}

void HeldCallers::RefreshLines(Outbox* out) {
  std::vector<HeldCaller*> gone;
  for (const auto& [place, caller] : lines_.callers()) {
    if (!RefreshRules(caller)) gone.push_back(caller);
    // To be tried by the new rules, or answered if its time is over.
    lines_.LookAt(caller, 0);
    if (caller->operation_ != nullptr) caller->operation_->again = true;
  }
  for (HeldCaller* const caller : gone) AnswerInLine(caller, HeldOutcome::kDenied, out);
}

PendingOperation* HeldCallers::NextTry(Outbox* out) {
  const int64_t now_ns = clock_.NowNs();
  while (pending_tries_ < kMaxPendingTries) {
    HeldCaller* const caller = lines_.Due(now_ns);
    if (caller == nullptr) return nullptr;
    const bool over = now_ns >= caller->until_ns;
    if (caller->operation_ == nullptr && lines_.IsFirst(*caller)) {
      if (!RefreshRules(caller)) {
        AnswerInLine(caller, HeldOutcome::kDenied, out);
        return nullptr;
      }
      // The last try answers it.
      lines_.LookAt(caller, over ? kNever : caller->until_ns);
      ++pending_tries_;
      caller->operation_ = NewOperation(caller, Purpose::kSlots);
      SetPlace(caller, over, caller->operation_);
      return caller->operation_;
    }
    if (over) {
      AnswerInLine(caller, HeldOutcome::kDenied, out);
      return nullptr;
    }
    lines_.LookAt(caller, caller->until_ns);
  }
  return nullptr;
}

void HeldCallers::SetPlace(HeldCaller* caller, bool last, PendingOperation* operation) {
  if (!store_.Shared()) return;
  caller->ticketed_ = true;
  store::QueuePlace& place = operation->place;
  place.node = node_;
  place.number = caller->number_;
  place.ticket_for_ns = std::min(SharedRetries() * kTicketNs, common::bounds::kMaxTicketNs);
  place.last = last;
  if (draining_) return;
  std::vector<store::QueuePlace::Next> next(operation->charges.size());
  bool any = false;
  for (size_t i = 0; i < next.size(); ++i) {
    if (!WaitsFor(operation->charges[i])) continue;
    const uint64_t bucket = BucketId(operation->charges[i]);
    HeldCaller* const behind = lines_.Behind(*caller, bucket);
    if (behind == nullptr) continue;
    for (const store::Charge& charge : behind->acquisition->charges) {
      if (WaitsFor(charge) && BucketId(charge) == bucket) {
        next[i] = {behind->number_, charge.permits};
      }
    }
    behind->ticketed_ = any = true;
  }
  if (!any) return;
  operation->next = std::move(next);
  place.next = operation->next;
}

bool HeldCallers::HasTickets(const PendingOperation& operation) {
  const store::Acquisition& tried = operation.reserved();
  if (operation.place.node == 0) return false;
  switch (tried.outcome) {
    case store::Outcome::kGranted:
      return false;
    case store::Outcome::kDenied:
      return !operation.place.last && store::StaysInLine(tried, tried.outcome);
    case store::Outcome::kUnavailable:
      return false;  // they end by themselves
    default:
      return true;
  }
}

void HeldCallers::UndoTry(PendingOperation* operation, bool granted, Outbox* out) {
  const bool tickets = HasTickets(*operation);
  if (!granted) {
    operation->receipt_id = 0;
    operation->grant_time_ns = 0;
  }
  operation->caller = nullptr;
  // The next caller leaves its own, or another is the next one now.
  operation->place.next = {};
  RefundOrFinish(operation, granted || tickets, out);
}

void HeldCallers::OnTried(PendingOperation* operation) {
  Outbox out;
  {
    common::MutexLock lock(&mu_);
    --pending_tries_;
    const store::Acquisition& tried = operation->reserved();
    const bool granted = tried.outcome == store::Outcome::kGranted;
    if (granted) {
      ObserveStoreClock(tried.now_ns);
      operation->receipt_id = tried.receipt_id;
      operation->grant_time_ns = tried.wait_ns == 0 ? 0 : tried.now_ns + tried.wait_ns;
    }
    if (operation->caller != nullptr) {
      EndTry(operation, &out);
    } else {
      UndoTry(operation, granted, &out);
    }
    SetAlarm();
  }
  Send(&out);
}

void HeldCallers::EndTry(PendingOperation* operation, Outbox* out) {
  HeldCaller* const caller = operation->caller;
  caller->operation_ = nullptr;
  const store::Acquisition& tried = operation->reserved();
  store::Acquisition& acquisition = *caller->acquisition;
  bool same_rules = true;
  for (size_t i = 0; i < tried.charges.size(); ++i) {
    same_rules &= acquisition.charges[i].rule == tried.charges[i].rule;
  }
  acquisition.outcome = tried.outcome;
  acquisition.source = tried.source;
  acquisition.receipt_id = tried.receipt_id;
  acquisition.now_ns = tried.now_ns;
  acquisition.wait_ns = tried.wait_ns;
  acquisition.retry_after_ns = tried.retry_after_ns;
  acquisition.may_be_debited = tried.may_be_debited;
  std::copy(operation->results.begin(), operation->results.end(), acquisition.results);

  const int64_t now_ns = clock_.NowNs();
  if (now_ns < caller->until_ns && store::StaysInLine(tried, tried.outcome)) {
    int64_t after_ns = tried.retry_after_ns > 0 ? tried.retry_after_ns : store::kOverflowRetryNs;
    if (store_.Shared()) {
      const int64_t times = SharedRetries();
      const int64_t least_ns = times * kSharedRetryNs * 3 / 4;
      const auto most_more_ns = static_cast<uint64_t>(times * kSharedRetryNs / 2);
      after_ns =
          std::min(after_ns, least_ns + static_cast<int64_t>(common::RandomWord() % most_more_ns));
    }
    const int64_t next_ns = std::min(caller->until_ns, now_ns + after_ns);
    lines_.LookAt(caller, operation->again || !same_rules ? 0 : next_ns);
    return Finish(operation, out);
  }
  LeaveLines(caller);
  AdoptRules(*operation);
  switch (tried.outcome) {
    case store::Outcome::kGranted:
      if (tried.wait_ns == 0) {
        out->answers.push_back({caller, HeldOutcome::kGrantTime});
        break;
      }
      Enqueue(caller);
      // Its rates were booked by rules that have changed since.
      if (!same_rules) limits_stale_ = true;
      break;
    case store::Outcome::kDenied:
      out->answers.push_back({caller, HeldOutcome::kDenied});
      break;
    default:
      out->answers.push_back({caller, HeldOutcome::kUnavailable});
      break;
  }
  UndoTry(operation, /*granted=*/false, out);
}

}  // namespace sluice::waiting
