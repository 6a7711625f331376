#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/generators.h"
#include "tests/support/window_checker.h"
#include "tests/unit/algorithm/any_parameters.h"

namespace sluice::algorithm {
namespace {

using test_support::Grant;
using test_support::RandomParameters;
using test_support::Wide;

constexpr int64_t kSecond = 1'000'000'000;

Moment At(int64_t now_ns) { return {now_ns, now_ns}; }

TEST(CarryOverTest, TokenBucketKeepsItsFillInProportion) {
  const Parameters from = *MakeTokenBucket({1, kSecond}, 10, 5);
  for (const auto& [burst, remaining] :
       std::vector<std::pair<uint64_t, int64_t>>{{5, 2}, {10, 4}, {30, 12}, {1, 0}}) {
    const Parameters to = *MakeTokenBucket({7, kSecond}, burst, 5);
    BucketState bucket(from);
    ASSERT_TRUE(bucket.TryTake(from, 6, At(kSecond)));
    bucket.Convert(from, to, At(kSecond));
    EXPECT_EQ(bucket.LevelAt(to, At(kSecond)).remaining, remaining) << burst;
  }
}

TEST(CarryOverTest, TokenBucketKeepsItsDebt) {
  const Parameters from = *MakeTokenBucket({1, kSecond}, 10, 5);
  const Parameters to = *MakeTokenBucket({100, kSecond}, 4, 5);
  BucketState bucket(from);
  ASSERT_TRUE(bucket.TryTake(from, 13, At(kSecond)));
  bucket.Convert(from, to, At(kSecond));
  EXPECT_EQ(bucket.LevelAt(to, At(kSecond)).remaining, -3);
  EXPECT_EQ(bucket.EarliestNs(to, 4, At(kSecond)), kSecond + 30'000'000);
}

// Else the way back would make it full.
TEST(CarryOverTest, BucketThatStoresNothingOwesWhatWasUsed) {
  const Parameters stores = *MakeTokenBucket({1, kSecond}, 10, 0);
  const Parameters paces = *MakeTokenBucket({1, kSecond}, 0, 5);
  BucketState bucket(stores);
  ASSERT_TRUE(bucket.TryTake(stores, 6, At(kSecond)));
  bucket.Convert(stores, paces, At(kSecond));
  EXPECT_EQ(bucket.LevelAt(paces, At(kSecond)).remaining, -3);
  bucket = BucketState(stores);
  ASSERT_TRUE(bucket.TryTake(stores, 10, At(kSecond)));
  // As two nodes do whose limits files differ: it does not owe more each time.
  for (int round = 0; round < 3; ++round) {
    bucket.Convert(stores, paces, At(kSecond));
    EXPECT_EQ(bucket.LevelAt(paces, At(kSecond)).remaining, -5) << round;
    EXPECT_FALSE(bucket.CanTake(paces, 1, At(kSecond))) << round;
    bucket.Convert(paces, stores, At(kSecond));
    EXPECT_EQ(bucket.LevelAt(stores, At(kSecond)).remaining, -5) << round;
    EXPECT_FALSE(bucket.CanTake(stores, 1, At(kSecond))) << round;
  }
}

// What is owed beyond what was stored stays owed.
TEST(CarryOverTest, BucketThatStoresNothingKeepsADebtAsItWas) {
  const Parameters stores = *MakeTokenBucket({1, kSecond}, 10, 8);
  const Parameters paces = *MakeTokenBucket({1, kSecond}, 0, 5);
  BucketState bucket(stores);
  ASSERT_TRUE(bucket.TryTake(stores, 17, At(kSecond)));
  bucket.Convert(stores, paces, At(kSecond));
  EXPECT_EQ(bucket.LevelAt(paces, At(kSecond)).remaining, -7);
}

TEST(CarryOverTest, FullBucketStaysFull) {
  const Parameters from = *MakeTokenBucket({1, kSecond}, 10, 0);
  const Parameters to = *MakeTokenBucket({1, kSecond}, 1000, 0);
  BucketState bucket(from);
  ASSERT_TRUE(bucket.TryTake(from, 10, At(0)));
  bucket.Convert(from, to, At(10 * kSecond));
  EXPECT_TRUE(bucket.IsFull(to, At(10 * kSecond)));
}

TEST(CarryOverTest, LogsAndWindowsKeepTheirCounts) {
  const auto made = [](Kind kind, uint64_t permits) {
    return ParametersOf(kind, {permits, kSecond}, 0, 0, 10);
  };
  for (const Kind kind : {Kind::kSlidingLog, Kind::kSlidingWindow, Kind::kFixedWindow}) {
    BucketState bucket(made(kind, 100));
    ASSERT_TRUE(bucket.TryTake(made(kind, 100), 70, At(kSecond)));
    bucket.Convert(made(kind, 100), made(kind, 80), At(kSecond));
    EXPECT_EQ(bucket.LevelAt(made(kind, 80), At(kSecond)).remaining, 10);
    bucket.Convert(made(kind, 80), made(kind, 60), At(kSecond));
    EXPECT_EQ(bucket.LevelAt(made(kind, 60), At(kSecond)).remaining, -10);
    EXPECT_FALSE(bucket.CanTake(made(kind, 60), 1, At(kSecond + kSecond / 2)));
  }
}

TEST(CarryOverTest, KeepsTheUsedFractionBetweenAlgorithms) {
  for (int from_kind = 0; from_kind < 4; ++from_kind) {
    for (int to_kind = 0; to_kind < 4; ++to_kind) {
      if (from_kind == to_kind) continue;
      const Parameters from =
          ParametersOf(static_cast<Kind>(from_kind), {100, kSecond}, 100, 0, 10);
      const Parameters to = ParametersOf(static_cast<Kind>(to_kind), {1000, kSecond}, 1000, 0, 10);
      BucketState bucket(from);
      ASSERT_TRUE(bucket.TryTake(from, 30, At(kSecond), 1));
      bucket.Convert(from, to, At(kSecond));
      EXPECT_EQ(bucket.LevelAt(to, At(kSecond)).remaining, 700) << from_kind << " " << to_kind;
      EXPECT_EQ(bucket.Refund(to, 1, At(kSecond)), std::nullopt);
    }
  }
}

TEST(CarryOverTest, BucketWithoutBurstIsUsedUpBetweenAlgorithms) {
  const Parameters debt = *MakeTokenBucket({1, kSecond}, 0, 5);
  const Parameters log = *MakeSlidingLog({10, kSecond});
  BucketState bucket(debt);
  ASSERT_TRUE(bucket.TryTake(debt, 1, At(kSecond)));
  bucket.Convert(debt, log, At(kSecond));
  EXPECT_FALSE(bucket.CanTake(log, 1, At(kSecond)));
  bucket.Convert(log, debt, At(kSecond));
  EXPECT_EQ(bucket.LevelAt(debt, At(kSecond)).remaining, -5);
}

TEST(CarryOverTest, ReceiptsKeepTheirShareOfTheBucket) {
  const Parameters from = *MakeTokenBucket({1, kSecond}, 10, 0);
  const Parameters smaller = *MakeTokenBucket({1, kSecond}, 5, 0);
  BucketState bucket(from);
  ASSERT_TRUE(bucket.TryTake(from, 4, At(kSecond), 1));
  bucket.Convert(from, smaller, At(kSecond));
  EXPECT_EQ(bucket.Refund(smaller, 1, At(kSecond)), 2u);
  EXPECT_TRUE(bucket.IsFull(smaller, At(kSecond)));
}

// What is owed does not fit the new ticks: denied for as long as can be said, and no receipt lowers
// that.
TEST(CarryOverTest, SaturatedTatClosesReceipts) {
  const Parameters from = *MakeTokenBucket({1'000'000'000, kSecond}, 1, uint64_t{1} << 40);
  const Parameters to = *MakeTokenBucket({1, 3600 * kSecond}, 1, 1);
  BucketState bucket(from);
  ASSERT_TRUE(bucket.TryTake(from, uint64_t{1} << 39, At(kSecond), 1));
  bucket.Convert(from, to, At(kSecond));
  EXPECT_EQ(bucket.tat(), kMaxTat);
  EXPECT_EQ(bucket.EarliestNs(to, 1, At(kSecond)), kNeverNs);
  EXPECT_EQ(bucket.Refund(to, 1, At(kSecond)), std::nullopt);
}

struct Change {
  AnyLimit from;
  AnyLimit to;
};

// Of one kind; `raise`: neither rate nor burst nor debt falls and the period stays.
Change AnyChange(bool raise) {
  const Kind kind = AnyKind();
  RandomParameters before = *test_support::AnyParameters();
  RandomParameters after = before;
  BurstAndDebt old_burst = AnyBurst(before);
  BurstAndDebt new_burst = old_burst;
  if (raise) {
    after.permits = *rc::gen::inRange<uint64_t>(
        before.permits, std::max<uint64_t>(before.permits, std::min<uint64_t>(2 * before.permits,
                                                                              before.period_ns)) +
                            1);
    if (*rc::gen::arbitrary<bool>()) {
      const BurstAndDebt more = AnyBurst(before);
      new_burst.burst = std::max(new_burst.burst, more.burst);
      new_burst.debt = std::max(new_burst.debt, more.debt);
    }
  } else {
    after = *test_support::AnyParameters();
    if (*rc::gen::arbitrary<bool>()) after.period_ns = before.period_ns;
    after.permits = std::min<uint64_t>(after.permits, after.period_ns);
    new_burst = AnyBurst(after);
  }
  const auto k = *rc::gen::inRange<uint32_t>(1, 30);
  const uint32_t new_k = raise ? k : *rc::gen::inRange<uint32_t>(1, 30);
  return {{before, ParametersOf(kind, before, old_burst.burst, old_burst.debt, k)},
          {after, ParametersOf(kind, after, new_burst.burst, new_burst.debt, new_k)}};
}

// Takes a few, and leaves the moment in *now.
BucketState UsedBucket(const AnyLimit& limit, int64_t* now, std::vector<Grant>* history) {
  BucketState bucket(limit.parameters);
  for (const auto& step : *test_support::AnySteps(limit.random, MaxGrant(limit.parameters), 25)) {
    if (step.advance_ns > 0) *now = test_support::Advanced(*now, step);
    if (bucket.TryTake(limit.parameters, step.permits, At(*now))) {
      history->push_back({*now, step.permits});
    }
  }
  return bucket;
}

RC_GTEST_PROP(CarryOverPropertyTest, RaisedParametersStillGrantWhatWasGrantedBefore, ()) {
  const Change change = AnyChange(true);
  int64_t now = 0;
  std::vector<Grant> history;
  BucketState old_bucket = UsedBucket(change.from, &now, &history);
  BucketState new_bucket = old_bucket;
  const Parameters& from = change.from.parameters;
  const Parameters& to = change.to.parameters;
  new_bucket.Convert(from, to, At(now));
  for (const auto& step : *test_support::AnySteps(change.from.random, MaxGrant(from), 40)) {
    if (step.advance_ns > 0) now = test_support::Advanced(now, step);
    RC_ASSERT(new_bucket.EarliestNs(to, step.permits, At(now)) <=
              old_bucket.EarliestNs(from, step.permits, At(now)));
    if (old_bucket.TryTake(from, step.permits, At(now))) {
      RC_ASSERT(new_bucket.TryTake(to, step.permits, At(now)));
    }
  }
}

RC_GTEST_PROP(CarryOverPropertyTest, ChangesNeverAddPermits, ()) {
  const Change change = AnyChange(false);
  const Parameters& from = change.from.parameters;
  const Parameters& to = change.to.parameters;
  int64_t now = 0;
  std::vector<Grant> history;
  BucketState bucket = UsedBucket(change.from, &now, &history);
  const int64_t changed_at = now;
  const Level before = bucket.LevelAt(from, At(now));
  const uint64_t tat_before = from.kind == Kind::kTokenBucket ? bucket.tat() : 0;
  bucket.Convert(from, to, At(now));
  const Level after = bucket.LevelAt(to, At(now));

  if (from.kind == Kind::kTokenBucket) {
    // In exact ticks: lacking / burst does not fall (but by the rounding of a raise). What stores
    // nothing owes the same part of its debt.
    const TokenBucket& a = from.token_bucket;
    const TokenBucket& b = to.token_bucket;
    const Wide lacked = ShortfallTicks(tat_before, ToTicks(a, now));
    const Wide lacks = ShortfallTicks(bucket.tat(), ToTicks(b, now));
    const uint64_t most = b.burst != 0 ? b.burst_ticks : b.debt_ticks;
    if (lacked <= static_cast<Wide>(a.burst_ticks)) {
      if (lacked > 0) RC_ASSERT((lacks + 1) * a.burst_ticks > lacked * most - 1);
      RC_ASSERT(lacked > 0 || lacks == 0);
    } else if (bucket.tat() < kMaxTat) {
      RC_ASSERT((lacks + 2 - b.burst_ticks) * a.unit_ticks >=
                (lacked - a.burst_ticks) * b.unit_ticks);
    }
  } else if (from.kind != Kind::kFixedWindow) {
    const RandomParameters& old_parameters = change.from.random;
    const RandomParameters& random = change.to.random;
    if (random.period_ns >= old_parameters.period_ns) {
      RC_ASSERT(static_cast<Wide>(after.capacity) - after.remaining >=
                static_cast<Wide>(before.capacity) - before.remaining);
    }
  } else {
    RC_ASSERT(static_cast<Wide>(after.capacity) - after.remaining ==
              static_cast<Wide>(before.capacity) - before.remaining);
  }

  // From the change on, the new parameters hold in every window, and a window that reaches back
  // before it counts what was taken then.
  std::vector<Grant> since;
  for (const auto& step : *test_support::AnySteps(change.to.random, MaxGrant(to), 40)) {
    if (step.advance_ns > 0) now = test_support::Advanced(now, step);
    if (!bucket.TryTake(to, step.permits, At(now))) continue;
    since.push_back({now, step.permits});
    if (to.kind != Kind::kSlidingLog && to.kind != Kind::kSlidingWindow) continue;
    const int64_t reach = now - std::min(change.to.random.period_ns, change.from.random.period_ns);
    Wide sum = 0;
    for (const Grant& grant : history) {
      if (grant.at_ns > reach && grant.at_ns > changed_at - change.from.random.period_ns) {
        sum += grant.permits;
      }
    }
    for (const Grant& grant : since) {
      if (grant.at_ns > reach) sum += grant.permits;
    }
    RC_ASSERT(sum <= Capacity(to));
  }
  switch (to.kind) {
    case Kind::kTokenBucket:
      RC_ASSERT(test_support::CheckRateInEveryWindow(since, change.to.random.permits,
                                                     change.to.random.period_ns,
                                                     MaxGrant(to)) == "");
      break;
    case Kind::kSlidingLog:
    case Kind::kSlidingWindow:
      RC_ASSERT(test_support::CheckCountInEveryWindow(since, change.to.random.period_ns,
                                                      Capacity(to)) == "");
      break;
    case Kind::kFixedWindow:
    case Kind::kConcurrency:
      break;
  }
}

// Acquisitions before the change that are refunded after it: the bucket is never fuller than had
// they never happened.
RC_GTEST_PROP(CarryOverPropertyTest, RefundsAfterAChangeNeverGiveTooMuch, ()) {
  const Change change = AnyChange(*rc::gen::arbitrary<bool>());
  const Parameters& from = change.from.parameters;
  const Parameters& to = change.to.parameters;
  BucketState bucket(from);
  std::map<uint64_t, Grant> taken;
  uint64_t next_id = 1;
  int64_t now = 0;
  const auto steps = *test_support::AnySteps(change.from.random, MaxGrant(from), 20);
  for (const auto& step : steps) {
    if (step.advance_ns > 0) now = test_support::Advanced(now, step);
    if (bucket.TryTake(from, step.permits, At(now), next_id)) {
      taken[next_id++] = {now, step.permits};
    }
  }
  bucket.Convert(from, to, At(now));
  for (uint64_t id = 1; id < next_id; ++id) {
    if (*rc::gen::arbitrary<bool>()) continue;
    if (bucket.Refund(to, id, At(now)).has_value()) taken.erase(id);
    BucketState without(from);
    for (const auto& [other, grant] : taken) {
      RC_ASSERT(without.TryTake(from, grant.permits, At(grant.at_ns)));
    }
    without.Convert(from, to, At(now));
    RC_ASSERT(bucket.LevelAt(to, At(now)).remaining <= without.LevelAt(to, At(now)).remaining);
  }
}

std::vector<std::pair<int64_t, uint64_t>> BookingsOf(const BucketState& bucket) {
  std::vector<std::pair<int64_t, uint64_t>> bookings;
  bucket.ForEachBooking(
      [&](const Booking& one) { bookings.push_back({one.grant_time_ns, one.id}); });
  return bookings;
}

RC_GTEST_PROP(CarryOverPropertyTest, ConversionInPiecesIsThatAtOnce, ()) {
  // So few permits that most are booked.
  const auto few = [] {
    const RandomParameters random{*rc::gen::inRange<uint64_t>(1, 20), kSecond};
    return ParametersOf(AnyKind(), random, *rc::gen::inRange<uint64_t>(1, 5),
                        *rc::gen::inRange<uint64_t>(0, 3), *rc::gen::inRange<uint32_t>(1, 30));
  };
  const Parameters from = few();
  const Parameters to = few();
  BucketState bucket(from);
  int64_t now_ns = kSecond;
  uint64_t id = 0;
  const int count = *rc::gen::inRange(0, 500);
  for (int i = 0; i < count; ++i) {
    const auto permits = *rc::gen::inRange<uint64_t>(1, 4);
    const uint64_t set = *rc::gen::inRange<uint64_t>(1, 4);
    const int64_t grant_time_ns = bucket.EarliestNs(from, permits, At(now_ns), set);
    if (grant_time_ns > now_ns + int64_t{24} * 3600 * kSecond) continue;
    if (grant_time_ns == now_ns) {
      RC_ASSERT(bucket.TryTake(from, permits, At(now_ns), ++id, nullptr, set));
    } else {
      bucket.Book(from, {grant_time_ns, permits, ++id, set}, At(now_ns));
    }
  }
  now_ns += *rc::gen::inRange<int64_t>(0, 20 * kSecond);
  bucket.Fold(from, At(now_ns));
  BucketState at_once(bucket);
  at_once.Convert(from, to, At(now_ns));
  const auto most = *rc::gen::inRange<size_t>(1, 200);
  bucket.Convert(from, to, At(now_ns), 0, most);
  while (bucket.converting()) {
    RC_ASSERT(BookingsOf(bucket) == BookingsOf(at_once));
    RC_ASSERT(bucket.bookings() == at_once.bookings());
    bucket.Fold(to, At(now_ns), most);
  }
  bucket.Fold(to, At(now_ns));
  at_once.Fold(to, At(now_ns));
  RC_ASSERT(BookingsOf(bucket) == BookingsOf(at_once));
  RC_ASSERT(bucket.LevelAt(to, At(now_ns)).remaining == at_once.LevelAt(to, At(now_ns)).remaining);
  for (uint64_t permits = 1; permits < 5; ++permits) {
    const uint64_t set = *rc::gen::inRange<uint64_t>(1, 5);
    RC_ASSERT(bucket.EarliestNs(to, permits, At(now_ns), set) ==
              at_once.EarliestNs(to, permits, At(now_ns), set));
  }
}

}  // namespace
}  // namespace sluice::algorithm
