#include "server/store/redis/commands/pending_acquires.h"

#include <algorithm>
#include <utility>

#include "server/algorithm/parameters.h"

namespace sluice::store::redis {
namespace {

constexpr size_t kMaxFree = 4096;

void Clear(Acquisition& acquisition) {
  acquisition.source = Source::kStore;
  acquisition.wait_ns = 0;
  acquisition.retry_after_ns = 0;
  acquisition.now_ns = 0;
  acquisition.receipt_id = 0;
  acquisition.may_be_debited = false;
  if (acquisition.once != nullptr) acquisition.once->repeated = false;
}

}  // namespace

ChargeResult ResultOf(const Rule& rule, bool fits, const BucketLevel& level) {
  ChargeResult result;
  result.level = level;
  if (!fits) result.reason = rule.shadow ? Reason::kShadowDenied : Reason::kNotEnough;
  return result;
}

PendingAcquire* PendingAcquires::Begin(AcquireOperation* operation, uint64_t receipt_id) {
  if (free_.empty()) free_.push_back(std::make_unique<PendingAcquire>());
  PendingAcquire* const pending = free_.back().release();
  free_.pop_back();
  *pending = {operation, operation->acquisitions.size(), operation->deadline_ns, receipt_id};
  return pending;
}

Caller PendingAcquires::Add(PendingAcquire* pending, Acquisition& acquisition) {
  Clear(acquisition);
  ++waiting_;
  return {pending, &acquisition};
}

void PendingAcquires::Answer(Caller& caller, Outcome outcome) {
  PendingAcquire* const pending = std::exchange(caller.pending, nullptr);
  if (pending == nullptr) return;
  --waiting_;
  if (pending->batch) on_batched_();
  Acquisition& acquisition = *caller.acquisition;
  acquisition.outcome = outcome;
  if (acquisition.charges.size() == 1 &&
      acquisition.charges[0].rule->sharing == Sharing::kRelaxed &&
      acquisition.source == Source::kStore &&
      (outcome == Outcome::kGranted || outcome == Outcome::kDenied)) {
    on_relaxed_(acquisition);
  }
  if (--pending->open != 0) return;
  AcquireOperation* const operation = pending->operation;
  if (free_.size() < kMaxFree) {
    free_.emplace_back(pending);
  } else {
    delete pending;
  }
  operation->Done();
}

void PendingAcquires::AnswerUnavailable(Caller& caller) {
  if (caller.pending != nullptr) Answer(caller, DecideUnavailable(*caller.acquisition));
}

Outcome PendingAcquires::DecideUnavailable(Acquisition& acquisition) {
  bool allow = true;
  for (size_t i = 0; i < acquisition.charges.size(); ++i) {
    const Rule& rule = *acquisition.charges[i].rule;
    if (!rule.shadow && !rule.allow_when_store_unavailable) allow = false;
    ChargeResult& result = acquisition.results[i];
    result = {};
    result.level.capacity = algorithm::Capacity(rule.parameters);
    result.reason = Reason::kStoreUnavailable;
    if (acquisition.debit == Debit::kForced) result.forgiven = acquisition.charges[i].permits;
  }
  acquisition.source = Source::kStoreUnavailable;
  (allow ? counters_.allowed_unavailable : counters_.denied_unavailable).Add();
  return allow ? Outcome::kGranted : Outcome::kUnavailable;
}

void PendingAcquires::CompleteUnavailable(AcquireOperation* operation) {
  for (Acquisition& acquisition : operation->acquisitions) {
    Clear(acquisition);
    acquisition.outcome = DecideUnavailable(acquisition);
  }
  operation->Done();
}

void SentCallers::CollectLate(int64_t now_ns, std::vector<Caller>* late, int64_t* next_ns) {
  for (Caller& caller : callers_) {
    if (caller.pending == nullptr) continue;
    if (caller.pending->deadline_ns < now_ns) {
      caller.acquisition->may_be_debited = MayBeExecuted();
      // The acquisition is gone once the caller is answered.
      late->push_back(std::exchange(caller, {}));
    } else {
      *next_ns = std::min(*next_ns, caller.pending->deadline_ns);
    }
  }
}

bool SentCallers::DropAnswered() {
  return std::erase_if(callers_, [](const Caller& caller) { return caller.pending == nullptr; }) >
         0;
}

void SentCallers::AnswerUnavailable(PendingAcquires& acquires, bool may_be_executed) {
  for (Caller& caller : callers_) {
    if (caller.pending != nullptr) {
      // What was decided here and is not known to be in force.
      caller.acquisition->wait_ns = 0;
      caller.acquisition->retry_after_ns = 0;
      caller.acquisition->receipt_id = 0;
      if (caller.acquisition->once != nullptr) caller.acquisition->once->repeated = false;
      caller.acquisition->may_be_debited = may_be_executed;
    }
    acquires.AnswerUnavailable(caller);
  }
}

}  // namespace sluice::store::redis
