// Forced debits (BucketState::Force) of all algorithms: as the slow references do them, in every
// window of random histories with takes, bookings, refunds and settlements, and beside each
// booking.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_parameters.h"
#include "tests/support/window_checker.h"
#include "tests/unit/algorithm/any_parameters.h"
#include "tests/unit/algorithm/earliest_check.h"

namespace sluice::algorithm {
namespace {

using test_support::Grant;
using test_support::Wide;
using testing::AnyTiny;

constexpr int64_t kSecond = 1'000'000'000;

Moment At(int64_t now_ns) { return {now_ns, now_ns}; }

// ---- Examples ----

TEST(ForcedDebitTest, TokenBucketOwesAtMostMaxOwed) {
  const Parameters parameters = *MakeTokenBucket({1, kSecond}, 10, 0);
  BucketState state(parameters);
  EXPECT_EQ(state.Force(parameters, 12, 5, At(kSecond)), 0u);
  EXPECT_EQ(state.LevelAt(parameters, At(kSecond)).remaining, -2);
  EXPECT_EQ(state.Force(parameters, 9, 5, At(kSecond)), 6u);
  EXPECT_EQ(state.LevelAt(parameters, At(kSecond)).remaining, -5);
  EXPECT_EQ(state.EarliestNs(parameters, 1, At(kSecond)), 7 * kSecond);
  EXPECT_FALSE(state.CanTake(parameters, 1, At(7 * kSecond - 1)));
  EXPECT_TRUE(state.TryTake(parameters, 1, At(7 * kSecond)));
}

TEST(ForcedDebitTest, ClockThatStepsBackCreatesNoPermits) {
  const Parameters parameters = *MakeTokenBucket({1, kSecond}, 10, 0);
  BucketState state(parameters);
  state.Force(parameters, 15, 5, At(100 * kSecond));
  const uint64_t tat = state.tat();
  EXPECT_EQ(state.Force(parameters, 3, 5, At(50 * kSecond)), 3u);
  EXPECT_EQ(state.tat(), tat);
}

TEST(ForcedDebitTest, WindowsCountAtMostCapacityAndMaxOwed) {
  for (const Parameters& parameters :
       {*MakeSlidingLog({10, kSecond}), *MakeSlidingWindow({10, kSecond}, 10),
        *MakeFixedWindow({10, kSecond}, 0)}) {
    BucketState state(parameters);
    EXPECT_EQ(state.Force(parameters, 12, 5, At(0)), 0u);
    EXPECT_EQ(state.LevelAt(parameters, At(0)).remaining, -2);
    EXPECT_EQ(state.Force(parameters, 9, 5, At(1)), 6u);
    EXPECT_EQ(state.LevelAt(parameters, At(1)).remaining, -5);
    EXPECT_FALSE(state.CanTake(parameters, 1, At(kSecond - 1)));
    EXPECT_TRUE(state.TryTake(parameters, 10, At(2 * kSecond + kSecond / 5)));
  }
}

TEST(ForcedDebitTest, FixedWindowOwesNothingToTheNext) {
  const Parameters parameters = *MakeFixedWindow({10, 7 * 24 * 3600 * kSecond}, 0);
  BucketState state(parameters);
  state.Force(parameters, 1'000'000, 1'000'000, At(0));
  EXPECT_TRUE(state.TryTake(parameters, 10, At(7 * 24 * 3600 * kSecond)));
}

TEST(ForcedDebitTest, CountSaturatesAndNeverWraps) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  const Parameters parameters = *MakeFixedWindow({0xffffffff, 365 * 24 * 3600 * kSecond}, 0);
  BucketState state(parameters);
  EXPECT_EQ(state.Force(parameters, kMost - 1, kMost, At(0)), 0u);
  EXPECT_EQ(state.Force(parameters, kMost, kMost, At(0)), kMost - 1);
  EXPECT_EQ(state.Force(parameters, std::numeric_limits<uint64_t>::max(), kMost, At(0)),
            std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(state.LevelAt(parameters, At(0)).remaining, -static_cast<int64_t>(kMost - 0xffffffff));
}

TEST(ForcedDebitTest, GiveBackLowersTheCurrentWindowOnly) {
  const Parameters parameters = *MakeFixedWindow({10, kSecond}, 0);
  BucketState state(parameters);
  state.GiveBack(parameters, 3, At(0));
  state.Force(parameters, 8, 100, At(0));
  state.GiveBack(parameters, 3, At(1));
  EXPECT_EQ(state.LevelAt(parameters, At(1)).remaining, 5);
  state.GiveBack(parameters, 100, At(2));
  EXPECT_EQ(state.LevelAt(parameters, At(2)).remaining, 10);
  state.Force(parameters, 8, 100, At(3));
  state.GiveBack(parameters, 8, At(kSecond));
  EXPECT_EQ(state.LevelAt(parameters, At(kSecond)).remaining, 10);
}

TEST(ForcedDebitTest, GiveBackLeavesReceiptsNothingThatOthersTook) {
  const Parameters parameters = *MakeFixedWindow({10, kSecond}, 0);
  BucketState state(parameters);
  ASSERT_TRUE(state.TryTake(parameters, 5, At(0), /*receipt_id=*/1));
  state.GiveBack(parameters, 5, At(0));
  ASSERT_TRUE(state.TryTake(parameters, 5, At(0)));
  EXPECT_EQ(state.Refund(parameters, 1, At(0)), 0u);
  EXPECT_EQ(state.LevelAt(parameters, At(0)).remaining, 5);
}

// Without A, all of B would have been counted.
TEST(ForcedDebitTest, ForgivenPermitsLowerOpenReceipts) {
  for (const Parameters& parameters :
       {*MakeTokenBucket({10, kSecond}, 10, 0), *MakeSlidingLog({10, kSecond}),
        *MakeSlidingWindow({10, kSecond}, 10), *MakeFixedWindow({10, kSecond}, 0)}) {
    BucketState state(parameters);
    ASSERT_TRUE(state.TryTake(parameters, 10, At(0), /*receipt_id=*/1));
    EXPECT_EQ(state.Force(parameters, 9, 5, At(0), /*receipt_id=*/2), 4u);
    EXPECT_EQ(state.Refund(parameters, 1, At(0)), 6u);
    EXPECT_EQ(state.LevelAt(parameters, At(0)).remaining, 1);
    EXPECT_EQ(state.Refund(parameters, 2, At(0)), 5u);
  }
}

TEST(ForcedDebitTest, BookingsKeepTheirGrantTimes) {
  for (const Parameters& parameters :
       {*MakeTokenBucket({1, kSecond}, 2, 0), *MakeSlidingLog({2, kSecond}),
        *MakeSlidingWindow({2, kSecond}, 1), *MakeFixedWindow({2, kSecond}, 0)}) {
    BucketState state(parameters);
    ASSERT_TRUE(state.TryTake(parameters, 2, At(0)));
    const int64_t grant_time_ns = state.EarliestNs(parameters, 2, At(0));
    state.Book(parameters, {grant_time_ns, 2, /*id=*/1, /*set=*/1}, At(0));
    state.Force(parameters, 100, /*max_owed=*/3, At(1));
    state.Fold(parameters, At(grant_time_ns));
    EXPECT_EQ(state.bookings(), 0u);
    EXPECT_GE(state.LevelAt(parameters, At(grant_time_ns)).remaining, -3);
  }
}

// ---- The references ----

RC_GTEST_PROP(ForcedDebitTest, TokenBucketDecidesAsTheReference, ()) {
  const Parameters parameters = AnyTiny(Kind::kTokenBucket);
  const TokenBucket& token = parameters.token_bucket;
  const auto max_owed = token.debt + *rc::gen::inRange<uint64_t>(0, 8);
  BucketState state(parameters);
  test_support::ReferenceTokenBucket reference(token.unit_ticks, uint64_t{1} << token.shift,
                                               token.burst, token.debt);
  int64_t now_ns = 1000;
  for (int steps = *rc::gen::inRange(1, 60); steps > 0; --steps) {
    now_ns += *rc::gen::inRange<int64_t>(-3, 20);
    const auto permits = *rc::gen::inRange<uint64_t>(1, 9);
    if (*rc::gen::arbitrary<bool>()) {
      RC_ASSERT(state.TryTake(parameters, permits, At(now_ns)) ==
                reference.TryTake(permits, now_ns));
    } else {
      const Wide counted = reference.Force(permits, max_owed, now_ns);
      RC_ASSERT(state.Force(parameters, permits, max_owed, At(now_ns)) ==
                permits - static_cast<uint64_t>(counted / token.unit_ticks));
    }
    RC_ASSERT(state.LevelAt(parameters, At(now_ns)).remaining == reference.RemainingAt(now_ns));
  }
}

template <typename Reference>
void DecideAlike(const Parameters& parameters, Reference reference) {
  const auto max_owed = *rc::gen::inRange<uint64_t>(0, 8);
  BucketState state(parameters);
  int64_t now_ns = 1000;
  for (int steps = *rc::gen::inRange(1, 60); steps > 0; --steps) {
    now_ns += *rc::gen::inRange<int64_t>(0, 20);
    const auto permits = *rc::gen::inRange<uint64_t>(1, 9);
    if (*rc::gen::arbitrary<bool>()) {
      RC_ASSERT(state.TryTake(parameters, permits, At(now_ns)) ==
                reference.TryTake(permits, now_ns));
    } else {
      RC_ASSERT(state.Force(parameters, permits, max_owed, At(now_ns)) ==
                permits - static_cast<uint64_t>(reference.Force(permits, max_owed, now_ns)));
    }
  }
}

RC_GTEST_PROP(ForcedDebitTest, LogAndWindowsDecideAsTheReferences, ()) {
  const Parameters log = AnyTiny(Kind::kSlidingLog);
  DecideAlike(
      log, test_support::ReferenceLog(log.sliding_log.rate.permits, log.sliding_log.rate.period_ns,
                                      log.sliding_log.quantum_ns));
  const Parameters window = AnyTiny(Kind::kSlidingWindow);
  DecideAlike(window, test_support::ReferenceSlidingWindow(window.sliding_window.rate.permits,
                                                           window.sliding_window.rate.period_ns,
                                                           window.sliding_window.sub_windows));
  const Parameters fixed = AnyTiny(Kind::kFixedWindow);
  DecideAlike(fixed, test_support::ReferenceFixedWindow(fixed.fixed_window.rate.permits,
                                                        fixed.fixed_window.rate.period_ns, 0));
}

// ---- Every window ----

// A random history on one bucket, and what it counted.
class RandomHistory {
 public:
  explicit RandomHistory(Kind kind)
      : parameters_(AnyTiny(kind)),
        max_owed_(Debt(parameters_) + *rc::gen::inRange<uint64_t>(0, 6)),
        state_(parameters_) {}

  void Step() {
    now_ns_ += *rc::gen::weightedOneOf<int64_t>(
        {{2, rc::gen::just(int64_t{0})}, {3, rc::gen::inRange<int64_t>(1, 12)}});
    Fold();
    const auto permits = *rc::gen::inRange<uint64_t>(1, 9);
    switch (*rc::gen::inRange(0, 10)) {
      case 8:
      case 9:
        return Settle();
      case 0:
      case 1:
        return Take(permits);
      case 2:
      case 3:
        return Force(permits);
      case 4:
        return Refund();
      case 5:
        return Book(1 + permits % std::max<uint64_t>(MaxGrant(parameters_), 1));
      case 6:
        return Cancel();
      case 7:
        // A reload that changes it converts nothing.
        max_owed_ = Debt(parameters_) + *rc::gen::inRange<uint64_t>(0, 6);
        most_owed_ = std::max(most_owed_, max_owed_);
        return;
    }
  }

  // The hint of a denial is exact, whatever was forced and settled before.
  void CheckRetryHint() const {
    CheckEarliest(state_, parameters_, *rc::gen::inRange<uint64_t>(1, 9), now_ns_);
  }

  // Empty: everything counted, less what was refunded, is within burst + max_owed + rate * w, or
  // capacity + max_owed, in every window.
  std::string Check() {
    now_ns_ += 1'000'000;
    Fold();
    std::vector<Grant> grants;
    for (const auto& [id, one] : counted_) grants.push_back(one);
    std::stable_sort(grants.begin(), grants.end(),
                     [](const Grant& a, const Grant& b) { return a.at_ns < b.at_ns; });
    if (parameters_.kind == Kind::kTokenBucket) {
      const TokenBucket& token = parameters_.token_bucket;
      return test_support::CheckRateInEveryWindow(grants, uint64_t{1} << token.shift, 1,
                                                  (token.burst + most_owed_) * token.unit_ticks);
    }
    const Rate& rate = RateOf(parameters_);
    const Wide most = static_cast<Wide>(rate.permits + most_owed_);
    if (parameters_.kind != Kind::kFixedWindow) {
      return test_support::CheckCountInEveryWindow(grants, rate.period_ns, most);
    }
    std::map<int64_t, Wide> windows;
    for (const Grant& one : grants) windows[one.at_ns / rate.period_ns] += one.permits;
    for (const auto& [index, permits] : windows) {
      if (permits > most) return "window " + std::to_string(index);
    }
    return "";
  }

 private:
  // What a token bucket counts is measured in ticks.
  void Note(uint64_t id, uint64_t permits) {
    if (permits == 0) return;
    const bool token = parameters_.kind == Kind::kTokenBucket;
    counted_[id] = {now_ns_, token ? permits * parameters_.token_bucket.unit_ticks : permits};
  }

  // Half of all acquisitions are estimates.
  void MaybeEstimate(uint64_t id, uint64_t permits, int64_t grant_time_ns) {
    if (id % 2 == 0) return;
    RC_ASSERT(state_.HasRoomForEstimate(At(now_ns_)));
    state_.BeginEstimate(id, permits, grant_time_ns, *rc::gen::inRange<int64_t>(1, 60));
  }

  void Settle() {
    if (last_id_ == 0) return;
    const auto id = *rc::gen::inRange<uint64_t>(1, last_id_ + 1);
    const Estimate* const found = state_.FindEstimate(id);
    if (found == nullptr || found->closed() || booked_.contains(id)) return;
    const Estimate before = *found;
    const uint64_t actual = before.actual + *rc::gen::inRange<uint64_t>(0, 9);
    const bool more = *rc::gen::inRange(0, 3) == 0;
    const bool token = parameters_.kind == Kind::kTokenBucket;
    const auto tat = [&] {
      return std::max(state_.tat(), ToTicks(parameters_.token_bucket, now_ns_));
    };
    const uint64_t tat_before = token ? tat() : 0;
    const uint64_t counted =
        state_.Settle(parameters_, id,
                      {.actual = actual,
                       .share = actual - std::min(actual, before.asked_so_far()),
                       .max_owed = max_owed_,
                       .more = more},
                      At(now_ns_));
    if (actual > before.asked_so_far()) {
      const uint64_t ticks = token ? tat() - tat_before : counted;
      if (ticks != 0) counted_[++last_id_] = {now_ns_, ticks};
    } else if (!more && now_ns_ <= before.end_ns && counted_.contains(id)) {
      uint64_t& permits = counted_[id].permits;
      permits = std::min(permits, token ? actual * parameters_.token_bucket.unit_ticks : actual);
    }
  }

  void Take(uint64_t permits) {
    const uint64_t id = ++last_id_;
    if (!state_.CanTake(parameters_, permits, At(now_ns_))) return;
    MaybeEstimate(id, permits, now_ns_);
    if (state_.TryTake(parameters_, permits, At(now_ns_), id)) Note(id, permits);
  }

  void Force(uint64_t permits) {
    const uint64_t id = ++last_id_;
    MaybeEstimate(id, permits, now_ns_);
    const bool token = parameters_.kind == Kind::kTokenBucket;
    const uint64_t before =
        token ? std::max(state_.tat(), ToTicks(parameters_.token_bucket, now_ns_)) : 0;
    const uint64_t forgiven = state_.Force(parameters_, permits, max_owed_, At(now_ns_), id);
    RC_ASSERT(forgiven <= permits);
    if (!token) return Note(id, permits - forgiven);
    const uint64_t after = std::max(state_.tat(), ToTicks(parameters_.token_bucket, now_ns_));
    RC_ASSERT((after - before) / parameters_.token_bucket.unit_ticks == permits - forgiven);
    if (after != before) counted_[id] = {now_ns_, after - before};
  }

  void Refund() {
    if (last_id_ == 0) return;
    const auto id = *rc::gen::inRange<uint64_t>(1, last_id_ + 1);
    if (booked_.contains(id)) return;
    // It may be worth less than a permit.
    if (state_.Refund(parameters_, id, At(now_ns_)).has_value()) counted_.erase(id);
  }

  void Book(uint64_t permits) {
    const auto set = *rc::gen::inRange<uint64_t>(1, 3);
    const int64_t grant_time_ns = state_.EarliestNs(parameters_, permits, At(now_ns_), set);
    if (grant_time_ns == kNeverNs || grant_time_ns <= now_ns_) return;
    const uint64_t id = ++last_id_;
    MaybeEstimate(id, permits, grant_time_ns);
    state_.Book(parameters_, {grant_time_ns, permits, id, set}, At(now_ns_));
    booked_[id] = {grant_time_ns, permits};
  }

  void Cancel() {
    if (booked_.empty()) return;
    const auto [id, booking] = *booked_.begin();
    RC_ASSERT(state_.CancelBooking(parameters_, booking.at_ns, id));
    booked_.erase(id);
  }

  // Bookings whose grant time has come are counted as of then, in order.
  void Fold() {
    while (!booked_.empty()) {
      const auto next = std::min_element(
          booked_.begin(), booked_.end(),
          [](const auto& a, const auto& b) { return a.second.at_ns < b.second.at_ns; });
      if (next->second.at_ns > now_ns_) break;
      const int64_t at_ns = std::exchange(now_ns_, next->second.at_ns);
      Note(next->first, next->second.permits);
      now_ns_ = at_ns;
      booked_.erase(next);
    }
    state_.Fold(parameters_, At(now_ns_));
  }

  const Parameters parameters_;
  uint64_t max_owed_;
  uint64_t most_owed_ = max_owed_;  // at any time
  BucketState state_;
  int64_t now_ns_ = 1000;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Grant> counted_;  // by id
  std::map<uint64_t, Grant> booked_;
};

RC_GTEST_PROP(ForcedDebitTest, NoWindowCountsMoreThanMayBeOwed, ()) {
  for (const Kind kind : kKinds) {
    if (kind == Kind::kConcurrency) continue;  // it has no forced debits
    RandomHistory history(kind);
    for (int steps = *rc::gen::inRange(1, 60); steps > 0; --steps) history.Step();
    const std::string over = history.Check();
    if (!over.empty()) RC_FAIL(std::string(KindName(kind)) + ": " + over);
  }
}

RC_GTEST_PROP(ForcedDebitTest, RetryHintsOfDenialsAreExact, ()) {
  for (const Kind kind : kKinds) {
    if (kind == Kind::kConcurrency) continue;
    RandomHistory history(kind);
    for (int steps = *rc::gen::inRange(1, 60); steps > 0; --steps) {
      history.Step();
      history.CheckRetryHint();
    }
  }
}

// A refund leaves a token bucket no fuller than if the acquisition had never happened, and all
// later debits had been made as they were asked for.
RC_GTEST_PROP(ForcedDebitTest, RefundsAreWorthNoMoreThanTheAcquisitionTook, ()) {
  struct Event {
    int64_t at_ns;
    uint64_t permits;
    bool forced;
    bool refunded = false;
  };
  const Parameters parameters = AnyTiny(Kind::kTokenBucket);
  const auto max_owed = Debt(parameters) + *rc::gen::inRange<uint64_t>(0, 6);
  BucketState state(parameters);
  std::vector<Event> events;
  int64_t now_ns = 1000;
  for (int steps = *rc::gen::inRange(1, 40); steps > 0; --steps) {
    now_ns += *rc::gen::inRange<int64_t>(0, 12);
    const auto permits = *rc::gen::inRange<uint64_t>(1, 9);
    const uint64_t id = events.size() + 1;
    switch (*rc::gen::inRange(0, 3)) {
      case 0:
        if (state.TryTake(parameters, permits, At(now_ns), id)) {
          events.push_back({now_ns, permits, false});
        }
        break;
      case 1:
        state.Force(parameters, permits, max_owed, At(now_ns), id);
        events.push_back({now_ns, permits, true});
        break;
      case 2:
        if (events.empty()) break;
        const auto of = *rc::gen::inRange<uint64_t>(1, id);
        if (state.Refund(parameters, of, At(now_ns)).has_value()) events[of - 1].refunded = true;
        break;
    }
    BucketState without(parameters);
    for (const Event& event : events) {
      if (event.refunded) continue;
      if (event.forced) {
        without.Force(parameters, event.permits, max_owed, At(event.at_ns));
      } else {
        RC_ASSERT(without.TryTake(parameters, event.permits, At(event.at_ns)));
      }
    }
    const uint64_t now_ticks = ToTicks(parameters.token_bucket, now_ns);
    RC_ASSERT(ShortfallTicks(state.tat(), now_ticks) >= ShortfallTicks(without.tat(), now_ticks));
  }
}

}  // namespace
}  // namespace sluice::algorithm
