#include "server/algorithm/bucket_state.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "tests/support/generators.h"
#include "tests/support/window_checker.h"
#include "tests/unit/algorithm/any_parameters.h"

namespace sluice::algorithm {
namespace {

using test_support::Grant;

constexpr int64_t kSecond = 1'000'000'000;

Moment At(int64_t now_ns) { return {now_ns, now_ns}; }

TEST(BucketStateTest, RefundAfterTheBucketWasFullGivesNothing) {
  const Parameters p = *MakeTokenBucket({1, kSecond}, 10, 0);
  BucketState bucket(p);
  EXPECT_TRUE(bucket.TryTake(p, 10, At(0), 1));
  EXPECT_EQ(bucket.open_receipts(), 1u);
  // Idle until full, take 10, refund the first.
  EXPECT_TRUE(bucket.TryTake(p, 10, At(10 * kSecond), 2));
  EXPECT_EQ(bucket.Refund(p, 1, At(10 * kSecond)), std::nullopt);
  EXPECT_EQ(bucket.LevelAt(p, At(10 * kSecond)).remaining, 0);
  EXPECT_EQ(bucket.Refund(p, 2, At(10 * kSecond)), 10u);
  EXPECT_EQ(bucket.Refund(p, 2, At(10 * kSecond)), std::nullopt);
  EXPECT_EQ(bucket.LevelAt(p, At(10 * kSecond)).remaining, 10);
}

TEST(BucketStateTest, RefundGivesFractionsOfPermits) {
  const Parameters p = *MakeTokenBucket({1, kSecond}, 10, 0);
  BucketState bucket(p);
  EXPECT_TRUE(bucket.TryTake(p, 4, At(0), 1));
  // 1.5 of the 4 have come back by themselves: 2.5 are lacking.
  EXPECT_EQ(bucket.Refund(p, 1, At(kSecond * 3 / 2)), 2u);
  EXPECT_TRUE(bucket.IsFull(p, At(kSecond * 3 / 2)));
}

RC_GTEST_PROP(BucketStateTest, RefundableIsWhatAllRefundsGiveBackInAnyOrder, ()) {
  const AnyLimit any = AnyParameters();
  const Parameters& p = any.parameters;
  BucketState bucket(p);
  int64_t now_ns = 0;
  std::vector<uint64_t> open;
  const int steps = *rc::gen::inRange(1, 20);
  for (int s = 0; s < steps; ++s) {
    const test_support::Step step = *test_support::AnyStep(any.random, MaxGrant(p));
    now_ns = test_support::Advanced(now_ns, {std::abs(step.advance_ns), 1});
    const uint64_t receipt = *rc::gen::arbitrary<bool>() ? static_cast<uint64_t>(s) + 1 : 0;
    const uint64_t permits = 1 + step.permits % MaxGrant(p);
    if (bucket.TryTake(p, permits, At(now_ns), receipt) && receipt != 0) open.push_back(receipt);
  }
  const Refundable refundable = bucket.RefundableAt(p, At(now_ns));
  const Level before = bucket.LevelAt(p, At(now_ns));
  uint64_t given = 0;
  const bool tokens = p.kind == Kind::kTokenBucket;
  const uint64_t tat = tokens ? bucket.tat() : 0;
  while (!open.empty()) {
    const auto at = open.begin() + *rc::gen::inRange<std::ptrdiff_t>(0, std::ssize(open));
    given += bucket.Refund(p, *at, At(now_ns)).value_or(0);
    open.erase(at);
  }
  // Fractions of a permit add up.
  if (tokens) given = (tat - bucket.tat()) / p.token_bucket.unit_ticks;
  RC_ASSERT(refundable.permits == given);
  const bool gave_nothing = tokens ? tat == bucket.tat() : given == 0;
  RC_ASSERT((refundable.receipts == 0) == gave_nothing);
  RC_ASSERT(before.remaining + static_cast<int64_t>(given) <=
            bucket.LevelAt(p, At(now_ns)).remaining);
}

TEST(BucketStateTest, IsPlainWhenNoReceiptIsOpen) {
  const Parameters p = *MakeTokenBucket({1, kSecond}, 10, 0);
  BucketState bucket = BucketState::FromTat(5 * kSecond);
  EXPECT_TRUE(bucket.IsPlainTokenBucket());
  EXPECT_TRUE(bucket.TryTake(p, 1, At(kSecond), 7));
  EXPECT_FALSE(bucket.IsPlainTokenBucket());
  EXPECT_EQ(bucket.tat(), static_cast<uint64_t>(6 * kSecond));
  bucket.CloseWorthless(p, At(6 * kSecond));
  EXPECT_TRUE(bucket.IsPlainTokenBucket());
}

// A million of them would take 100 ms.
TEST(BucketStateTest, EndedHoldsStayWhenTheLimitChanges) {
  const Parameters before = *MakeConcurrency(1000, kSecond);
  const Parameters after = *MakeConcurrency(500, kSecond);
  BucketState bucket(before);
  for (uint64_t id = 1; id <= 1000; ++id) ASSERT_TRUE(bucket.TryTake(before, 1, At(0), id));
  bucket.Convert(before, after, At(kSecond));
  EXPECT_EQ(bucket.slots()->holds().size(), 1000u);
  EXPECT_EQ(bucket.LevelAt(after, At(kSecond)).remaining, 500);
  EXPECT_TRUE(bucket.TryTake(after, 500, At(kSecond), 1001));
  bucket.Reset(after, At(kSecond));
  EXPECT_EQ(bucket.slots()->holds().size(), 0u);
  EXPECT_EQ(bucket.LevelAt(after, At(kSecond)).remaining, 500);
}

TEST(BucketStateTest, GivesAllItsHoldsAway) {
  const Parameters slots = *MakeConcurrency(10, kSecond);
  BucketState bucket(slots);
  ASSERT_TRUE(bucket.TryTake(slots, 10, At(0), 1));
  const BucketState taken = bucket.TakeHolds();
  EXPECT_EQ(taken.open_receipts(), 1u);
  EXPECT_TRUE(bucket.IsFull(slots, At(0)));
  EXPECT_TRUE(bucket.TryTake(slots, 10, At(0), 2));
}

TEST(BucketStateTest, ReportsAnEvictedReceipt) {
  const Parameters p = *MakeSlidingLog({10'000, kSecond});
  BucketState bucket(p);
  bool evicted = false;
  for (uint64_t id = 1; id <= 1024; ++id) {
    EXPECT_TRUE(bucket.TryTake(p, 1, At(0), id, &evicted));
    EXPECT_FALSE(evicted);
  }
  EXPECT_TRUE(bucket.TryTake(p, 1, At(0), 2000, &evicted));
  EXPECT_TRUE(evicted);
  EXPECT_EQ(bucket.Refund(p, 1, At(0)), std::nullopt);
  EXPECT_EQ(bucket.Refund(p, 2, At(0)), 1u);
}

TEST(BucketStateTest, ReportsItsMemory) {
  const Parameters p = *MakeSlidingWindow({10'000, kSecond}, 10);
  BucketState bucket(p);
  const size_t empty = bucket.MemoryBytes();
  EXPECT_TRUE(bucket.TryTake(p, 1, At(0), 1));
  EXPECT_GE(bucket.MemoryBytes(), empty + 11 * 8 + 24);
}

// All kinds: what is asked, what is taken and when it could be taken agree.
RC_GTEST_PROP(BucketStatePropertyTest, CanTakeAgreesWithTryTake, ()) {
  const AnyLimit limit = AnyParameters();
  BucketState bucket(limit.parameters);
  int64_t now = 0;
  for (const auto& step : *test_support::AnySteps(limit.random, MaxGrant(limit.parameters), 60)) {
    now = test_support::Advanced(now, step);
    const bool can = bucket.CanTake(limit.parameters, step.permits, At(now));
    const int64_t earliest = bucket.EarliestNs(limit.parameters, step.permits, At(now));
    RC_ASSERT(can == (earliest == now));
    RC_ASSERT(bucket.TryTake(limit.parameters, step.permits, At(now)) == can);
    const Level level = bucket.LevelAt(limit.parameters, At(now));
    RC_ASSERT(level.capacity == Capacity(limit.parameters));
    RC_ASSERT((level.next_permit_after_ns == 0) == bucket.CanTake(limit.parameters, 1, At(now)));
    if (bucket.IsFull(limit.parameters, At(now))) {
      RC_ASSERT(static_cast<uint64_t>(level.remaining) == level.capacity);
      RC_ASSERT(level.reset_after_ns == 0);
    }
  }
}

struct Taken {
  Grant grant;
  bool refunded = false;
};

// The history without refunded acquisitions obeys every MUST; a second refund gives nothing; a
// bucket is never fuller than it would be had what was refunded never happened.
RC_GTEST_PROP(BucketStatePropertyTest, RefundsNeverGiveTooMuch, ()) {
  const AnyLimit limit = AnyParameters();
  const Parameters& p = limit.parameters;
  const bool steady = p.kind == Kind::kFixedWindow;
  BucketState bucket(p);
  std::map<uint64_t, Taken> taken;  // by receipt
  uint64_t next_id = 1;
  int64_t now = 0;
  int64_t latest = 0;
  for (const auto& step : *test_support::AnySteps(limit.random, MaxGrant(p), 80)) {
    if (!steady || step.advance_ns > 0) now = test_support::Advanced(now, step);
    if (next_id > 1 && *rc::gen::inRange(0, 3) == 0) {
      const auto id = *rc::gen::inRange<uint64_t>(1, next_id);
      Taken& one = taken[id];
      const int64_t before = bucket.LevelAt(p, At(now)).remaining;
      const auto given = bucket.Refund(p, id, At(now));
      RC_ASSERT(!(given.has_value() && one.refunded));
      if (given.has_value()) {
        one.refunded = true;
        latest = std::max(latest, now);
        RC_ASSERT(*given <= one.grant.permits);
        const int64_t after = bucket.LevelAt(p, At(now)).remaining;
        RC_ASSERT(after - before >= static_cast<int64_t>(*given));
        RC_ASSERT(after - before <= static_cast<int64_t>(*given) + 1);  // fractions
      }
      RC_ASSERT(!bucket.Refund(p, id, At(now)).has_value());
    } else {
      latest = std::max(latest, now);
      if (bucket.TryTake(p, step.permits, At(now), next_id)) {
        // If the clock steps back, a token bucket uses it as it is; a log stops its clock.
        taken[next_id++] = {{p.kind == Kind::kTokenBucket ? now : latest, step.permits}, false};
      }
    }
    const int64_t at = p.kind == Kind::kTokenBucket ? now : std::max(now, latest);
    // The same history without what was refunded.
    BucketState without(p);
    bool fits = true;
    for (const auto& [id, one] : taken) {
      if (!one.refunded) fits = fits && without.TryTake(p, one.grant.permits, At(one.grant.at_ns));
    }
    RC_ASSERT(fits);
    RC_ASSERT(bucket.LevelAt(p, At(at)).remaining <= without.LevelAt(p, At(at)).remaining);
  }
  std::vector<Grant> history;
  for (const auto& [id, one] : taken) {
    if (!one.refunded) history.push_back(one.grant);
  }
  switch (p.kind) {
    case Kind::kTokenBucket:
      RC_ASSERT(test_support::CheckRateInEveryWindow(history, limit.random.permits,
                                                     limit.random.period_ns, MaxGrant(p)) == "");
      break;
    case Kind::kSlidingLog:
    case Kind::kSlidingWindow:
      RC_ASSERT(test_support::CheckCountInEveryWindow(history, limit.random.period_ns,
                                                      Capacity(p)) == "");
      break;
    case Kind::kFixedWindow: {
      std::map<int64_t, test_support::Wide> sums;
      for (const Grant& grant : history) {
        sums[grant.at_ns / limit.random.period_ns] += grant.permits;
      }
      for (const auto& [number, sum] : sums) RC_ASSERT(sum <= Capacity(p));
      break;
    }
    case Kind::kConcurrency:
      break;
  }
}

}  // namespace
}  // namespace sluice::algorithm
