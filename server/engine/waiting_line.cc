#include "server/engine/waiting_line.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "server/common/bounds.h"

namespace sluice::engine {
namespace {

// Between two steps of moving up, for others to be heard.
constexpr int64_t kStepNs = 1'000'000;

// How often changed limits are looked for while anybody waits.
constexpr int64_t kLookNs = 50'000'000;

class InlineAcquire final : public store::AcquireOperation {
 public:
  void Done() override {}
};

class InlineRefund final : public store::RefundOperation {
 public:
  void Done() override {}
};

}  // namespace

WaitingLine::~WaitingLine() { Drain(); }

uint64_t WaitingLine::BucketOf(const store::Charge& charge) {
  return std::hash<std::string_view>()(charge.key) * 31 + charge.rule->limit_id;
}

void WaitingLine::Tell(const std::vector<Answer>& answers) {
  for (const Answer& answer : answers) answer.caller->OnAnswer(answer.outcome);
}

void WaitingLine::GiveBack(HeldCaller* caller) {
  store::Acquisition& acquisition = *caller->acquisition;
  std::array<uint64_t, common::bounds::kMaxCharges> refunded;
  InlineRefund refund;
  refund.receipt_id = acquisition.receipt_id;
  refund.moment_ns = caller->moment_ns();
  refund.charges = acquisition.charges;
  refund.refunded = refunded.data();
  // Each time it is stale the limits changed since we looked.
  for (int attempt = 0; attempt < 8; ++attempt) {
    store_.Refund(&refund);
    if (refund.outcome != store::RefundOutcome::kStaleRule) return;
    caller->charges_.assign(acquisition.charges.begin(), acquisition.charges.end());
    bool changed = false;
    std::shared_ptr<const void> keep = std::move(caller->rules_);
    if (!rules_.Refresh(absl::MakeSpan(caller->charges_), &caller->rules_, &changed)) return;
    acquisition.charges = caller->charges_;
    refund.charges = acquisition.charges;
  }
}

bool WaitingLine::Hold(HeldCaller* caller) {
  {
    common::MutexLock lock(&mu_);
    if (!draining_) {
      if (line_.empty()) generation_ = rules_.Generation();
      caller->waiting_ = true;
      caller->charges_.clear();
      caller->rules_.reset();
      line_.insert(PlaceOf(caller));
      SetAlarm();
      return true;
    }
  }
  GiveBack(caller);
  return false;
}

void WaitingLine::Remove(HeldCaller* caller) {
  line_.erase(PlaceOf(caller));
  caller->waiting_ = false;
}

bool WaitingLine::Cancel(HeldCaller* caller) {
  {
    common::MutexLock lock(&mu_);
    if (!caller->waiting_) return false;
    Remove(caller);
    GiveBack(caller);
    NoteFree(caller->acquisition->charges, caller->moment_ns());
    SetAlarm();
  }
  caller->OnAnswer(HeldOutcome::kCancelled);
  return true;
}

void WaitingLine::NoteFree(absl::Span<const store::Charge> charges, int64_t moment_ns) {
  for (const store::Charge& charge : charges) free_buckets_.insert(BucketOf(charge));
  move_next_ = std::min(move_next_, Place{moment_ns, 0, nullptr});
}

void WaitingLine::MoveUp() {
  for (size_t moves = 0; moves < kMovesPerStep;) {
    const auto next = line_.lower_bound(move_next_);
    if (next == line_.end()) {
      move_next_ = kNobody;
      free_buckets_.clear();
      return;
    }
    const Place place = *next;
    move_next_ = {place.moment_ns, place.receipt_id + 1, nullptr};
    store::Acquisition& acquisition = *place.caller->acquisition;
    bool concerned = false;
    for (const store::Charge& charge : acquisition.charges) {
      concerned |= free_buckets_.contains(BucketOf(charge));
    }
    if (!concerned) continue;
    ++moves;
    store::MoveOperation move;
    move.receipt_id = acquisition.receipt_id;
    move.charges = acquisition.charges;
    move.moment_ns = place.moment_ns;
    store_.Move(&move);
    if (move.outcome != store::MoveOutcome::kMoved) continue;
    line_.erase(place);
    acquisition.wait_ns = move.moment_ns - acquisition.now_ns;
    line_.insert(PlaceOf(place.caller));
    // The place that it left is free for those behind, in all its buckets.
    for (const store::Charge& charge : acquisition.charges) free_buckets_.insert(BucketOf(charge));
  }
}

bool WaitingLine::Reserve(HeldCaller* caller) {
  store::Acquisition& acquisition = *caller->acquisition;
  const int64_t now_ns = clock_.NowNs();
  acquisition.max_wait_ns = std::max<int64_t>(caller->until_ns - now_ns, 0);
  acquisition.want_receipt = true;
  InlineAcquire operation;
  operation.acquisitions = absl::MakeSpan(&acquisition, 1);
  for (int attempt = 0; attempt < 8; ++attempt) {
    store_.Acquire(&operation);
    if (acquisition.outcome != store::Outcome::kStaleRule) break;
    bool changed = false;
    if (!rules_.Refresh(absl::MakeSpan(caller->charges_), &caller->rules_, &changed)) break;
  }
  return acquisition.outcome == store::Outcome::kGranted;
}

void WaitingLine::ChangeRules(std::vector<Answer>* answers) {
  std::vector<HeldCaller*> concerned;  // in order
  std::vector<HeldCaller*> gone;
  for (const Place& place : line_) {
    HeldCaller* const caller = place.caller;
    store::Acquisition& acquisition = *caller->acquisition;
    std::vector<store::Charge> charges(acquisition.charges.begin(), acquisition.charges.end());
    std::shared_ptr<const void> keep;
    bool changed = false;
    if (!rules_.Refresh(absl::MakeSpan(charges), &keep, &changed)) {
      gone.push_back(caller);
      continue;
    }
    if (!changed) continue;
    caller->charges_ = std::move(charges);
    acquisition.charges = caller->charges_;
    std::swap(caller->rules_, keep);
    concerned.push_back(caller);
  }
  for (HeldCaller* const caller : gone) {
    // Its limit was deleted: nobody can say when it may go.
    Remove(caller);
    caller->acquisition->outcome = store::Outcome::kDenied;
    caller->acquisition->wait_ns = 0;
    caller->acquisition->retry_after_ns = 0;
    answers->push_back({caller, HeldOutcome::kDenied});
  }
  for (HeldCaller* const caller : concerned) {
    Remove(caller);
    GiveBack(caller);
  }
  for (HeldCaller* const caller : concerned) {
    if (!Reserve(caller)) {
      answers->push_back({caller, HeldOutcome::kDenied});
      continue;
    }
    // Also if it is now: Advance answers it.
    caller->waiting_ = true;
    line_.insert(PlaceOf(caller));
  }
}

int64_t WaitingLine::Advance() {
  std::vector<Answer> answers;
  int64_t next_ns;
  {
    common::MutexLock lock(&mu_);
    alarm_ns_ = kNever;
    if (!line_.empty()) {
      const uint64_t generation = rules_.Generation();
      if (generation != generation_) {
        generation_ = generation;
        ChangeRules(&answers);
      }
    }
    const int64_t now_ns = clock_.NowNs();
    while (!line_.empty() && line_.begin()->moment_ns <= now_ns) {
      HeldCaller* const caller = line_.begin()->caller;
      line_.erase(line_.begin());
      caller->waiting_ = false;
      answers.push_back({caller, HeldOutcome::kMoment});
    }
    if (move_next_.moment_ns != kNever) MoveUp();
    next_ns = NextNs();
    alarm_ns_ = next_ns;
  }
  Tell(answers);
  return next_ns;
}

int64_t WaitingLine::NextNs() const {
  if (line_.empty()) return kNever;
  int64_t next_ns = std::min(line_.begin()->moment_ns, clock_.NowNs() + kLookNs);
  if (move_next_.moment_ns != kNever) next_ns = std::min(next_ns, clock_.NowNs() + kStepNs);
  return next_ns;
}

void WaitingLine::SetAlarm() {
  const int64_t next_ns = NextNs();
  if (next_ns >= alarm_ns_) return;
  alarm_ns_ = next_ns;
  alarm_.SetAt(next_ns);
}

void WaitingLine::Drain() {
  std::vector<Answer> answers;
  {
    common::MutexLock lock(&mu_);
    draining_ = true;
    answers.reserve(line_.size());
    for (const Place& place : line_) {
      place.caller->waiting_ = false;
      GiveBack(place.caller);
      answers.push_back({place.caller, HeldOutcome::kDrained});
    }
    line_.clear();
    move_next_ = kNobody;
    free_buckets_.clear();
  }
  Tell(answers);
}

}  // namespace sluice::engine
