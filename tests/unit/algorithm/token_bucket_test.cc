#include "server/algorithm/token_bucket.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "server/algorithm/make_parameters.h"
#include "tests/support/generators.h"
#include "tests/support/reference.h"
#include "tests/support/window_checker.h"

namespace sluice::algorithm {
namespace {

using test_support::Grant;
using test_support::RandomParameters;
using test_support::Step;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kYear = int64_t{365} * 24 * 3600 * kSecond;

// A bucket with a clock of its own.
class Bucket {
 public:
  Bucket(Rate rate, uint64_t burst, uint64_t debt = 0)
      : parameters_(MakeTokenBucket(rate, burst, debt)->token_bucket) {}

  bool Take(uint64_t permits, int64_t now_ns) {
    return TryTake(parameters_, permits, ToTicks(parameters_, now_ns), &tat_);
  }
  int64_t Earliest(uint64_t permits, int64_t now_ns) const {
    return EarliestNs(parameters_, permits, tat_, now_ns);
  }
  Level At(int64_t now_ns) const { return LevelAt(parameters_, tat_, now_ns); }

 private:
  const TokenBucket parameters_;
  uint64_t tat_ = 0;
};

TEST(TokenBucketTest, StartsFull) {
  Bucket bucket({1, kSecond}, 5);
  EXPECT_EQ(bucket.At(0).remaining, 5);
  EXPECT_TRUE(bucket.Take(5, 0));
}

TEST(TokenBucketTest, DeniesWhenBurstIsSpent) {
  Bucket bucket({1, kSecond}, 2);
  EXPECT_TRUE(bucket.Take(2, kSecond));
  EXPECT_FALSE(bucket.Take(1, kSecond));
  EXPECT_EQ(bucket.Earliest(1, kSecond), 2 * kSecond);
  EXPECT_FALSE(bucket.Take(1, 2 * kSecond - 1));
  EXPECT_TRUE(bucket.Take(1, 2 * kSecond));
}

// The worked example of the header.
TEST(TokenBucketTest, FollowsTheExampleInTheHeader) {
  Bucket bucket({1, kSecond}, 2);
  EXPECT_TRUE(bucket.Take(1, 10 * kSecond));
  EXPECT_FALSE(bucket.Take(2, 10 * kSecond));
  EXPECT_EQ(bucket.Earliest(2, 10 * kSecond), 11 * kSecond);
  EXPECT_TRUE(bucket.Take(1, 10'500 * kMs));
  EXPECT_TRUE(bucket.Take(1, 11 * kSecond));
  EXPECT_FALSE(bucket.Take(1, 11 * kSecond));
  EXPECT_EQ(bucket.Earliest(1, 11 * kSecond), 12 * kSecond);
}

TEST(TokenBucketTest, NeverHoldsMoreThanBurst) {
  Bucket bucket({1, kSecond}, 3);
  EXPECT_TRUE(bucket.Take(1, kSecond));
  EXPECT_EQ(bucket.At(1000 * kSecond).remaining, 3);
  EXPECT_FALSE(bucket.Take(4, 1000 * kSecond));
  EXPECT_EQ(bucket.Earliest(4, 1000 * kSecond), kNeverNs);
}

// Costs 1,1,2,4,8,1, each asked when the one before was let through, wait
// 0,1,1,2,4,8; the moments are 0,1,2,4,8,16.
TEST(TokenBucketTest, PacesDebtLikeGuava) {
  Bucket bucket({1, kSecond}, 0, 100);
  const std::vector<uint64_t> costs = {1, 1, 2, 4, 8, 1};
  const std::vector<int64_t> waits = {0, 1, 1, 2, 4, 8};
  const std::vector<int64_t> moments = {0, 1, 2, 4, 8, 16};
  int64_t now = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    const int64_t moment = bucket.Earliest(costs[i], now);
    EXPECT_EQ(moment - now, waits[i] * kSecond);
    EXPECT_EQ(moment, moments[i] * kSecond);
    if (moment > now) {
      EXPECT_FALSE(bucket.Take(costs[i], moment - 1));
    }
    EXPECT_TRUE(bucket.Take(costs[i], moment));
    now = moment;
  }
}

TEST(TokenBucketTest, AccruesFractionsOfPermits) {
  Bucket bucket({1, kSecond}, 10);
  EXPECT_TRUE(bucket.Take(10, 0));
  EXPECT_FALSE(bucket.Take(3, 2'500 * kMs));
  EXPECT_TRUE(bucket.Take(2, 2'500 * kMs));                 // idle for 2.5 intervals: worth 2.5
  EXPECT_EQ(bucket.Earliest(1, 2'500 * kMs), 3'000 * kMs);  // the half was not lost
  EXPECT_TRUE(bucket.Take(1, 3'000 * kMs));
}

// 1 per s, burst 1, debt, 5 permits at once: granted, the next waits.
TEST(TokenBucketTest, GrantsIntoDebtAndMakesTheNextWait) {
  Bucket bucket({1, kSecond}, 1, 5);
  EXPECT_TRUE(bucket.Take(5, 0));
  EXPECT_EQ(bucket.At(0).remaining, -4);
  EXPECT_EQ(bucket.At(0).reset_after_ns, 5 * kSecond);
  EXPECT_FALSE(bucket.Take(1, 0));
  // What is owed must be paid first, then one more permit may be owed.
  EXPECT_EQ(bucket.Earliest(1, 0), 4 * kSecond);
  EXPECT_TRUE(bucket.Take(1, 4 * kSecond));
}

// 1 per s, one request, idle 5 s, a request at 6.3 s runs at once.
TEST(TokenBucketTest, GrantsAtOnceAfterIdleTime) {
  Bucket bucket({1, kSecond}, 1);
  EXPECT_TRUE(bucket.Take(1, 1'300 * kMs));
  EXPECT_TRUE(bucket.Take(1, 6'300 * kMs));
}

// With debt: 3 per s, maximum stored 0: one every 1/3 s.
TEST(TokenBucketTest, SpacesGrantsEvenlyWithoutBurst) {
  Bucket bucket({3, kSecond}, 0, 1);
  int64_t now = 0;
  for (int i = 0; i < 16 * 50; ++i) {
    now = bucket.Earliest(1, now);
    ASSERT_TRUE(bucket.Take(1, now));
    const int64_t ideal = int64_t{i} * kSecond / 3;
    EXPECT_GE(now, ideal);
    EXPECT_LE(now, ideal + ideal / 1000 + 1);
  }
}

// 2 per s, maximum stored 0, 10 permits each: one grant every 5 s.
TEST(TokenBucketTest, SpacesLargeRequestsByTheirCost) {
  Bucket bucket({2, kSecond}, 0, 10);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(bucket.Earliest(10, i == 0 ? 0 : (i - 1) * 5 * kSecond), i * 5 * kSecond);
    EXPECT_TRUE(bucket.Take(10, i * 5 * kSecond));
  }
}

TEST(TokenBucketTest, GrantsOncePerYearWithBurst20) {
  Bucket bucket({1, kYear}, 20);
  EXPECT_TRUE(bucket.Take(20, kSecond));
  EXPECT_EQ(bucket.Earliest(1, kSecond), kSecond + kYear);
  EXPECT_EQ(bucket.Earliest(20, kSecond), kSecond + 20 * kYear);
  EXPECT_FALSE(bucket.Take(1, kYear));
  EXPECT_TRUE(bucket.Take(1, kSecond + kYear));
}

TEST(TokenBucketTest, ClockThatStepsBackGrantsNothing) {
  Bucket bucket({1, kSecond}, 2);
  EXPECT_TRUE(bucket.Take(2, 100 * kSecond));
  EXPECT_FALSE(bucket.Take(1, 10 * kSecond));
  EXPECT_FALSE(bucket.Take(1, -5));
  EXPECT_FALSE(bucket.Take(1, 100 * kSecond));
  EXPECT_TRUE(bucket.Take(1, 101 * kSecond));
}

TEST(TokenBucketTest, DeniesWhenTheTatSaturates) {
  Bucket bucket({1, kSecond}, 2);
  EXPECT_FALSE(bucket.Take(1, INT64_MAX));
  EXPECT_EQ(bucket.Earliest(1, INT64_MAX), kNeverNs);
  EXPECT_EQ(bucket.At(INT64_MAX).next_permit_after_ns, 0);  // it is full, for what that is worth
}

TEST(TokenBucketTest, DeniesPermitsThatWouldOverflow) {
  for (const uint64_t permits : {~uint64_t{0}, uint64_t{1} << 63, (uint64_t{1} << 63) - 1,
                                 (uint64_t{1} << 61) + 1, uint64_t{3}}) {
    Bucket bucket({1'000'000'000, kSecond}, 2);
    EXPECT_FALSE(bucket.Take(permits, kSecond)) << permits;
    EXPECT_EQ(bucket.Earliest(permits, kSecond), kNeverNs) << permits;
    EXPECT_EQ(bucket.At(kSecond).remaining, 2) << permits;
  }
}

struct Limit {
  RandomParameters random;
  TokenBucket bucket;
};

Limit AnyBucket() {
  const RandomParameters random = *test_support::AnyParameters();
  const Rate rate{random.permits, random.period_ns};
  const uint64_t unit_ns = (random.period_ns + random.permits - 1) / random.permits;
  const uint64_t room = (uint64_t{1} << 57) / unit_ns;  // fits whatever the shift
  uint64_t burst = *rc::gen::oneOf(test_support::Magnitude(std::max<uint64_t>(1, room / 2)),
                                   rc::gen::just(uint64_t{0}), rc::gen::just(uint64_t{1}));
  uint64_t debt = *rc::gen::oneOf(test_support::Magnitude(std::max<uint64_t>(1, room / 2)),
                                  rc::gen::just(uint64_t{0}), rc::gen::just(uint64_t{0}));
  if (burst + debt == 0) debt = 1;
  const auto made = MakeTokenBucket(rate, burst, debt);
  RC_ASSERT(made.ok());
  return {random, made->token_bucket};
}

RC_GTEST_PROP(TokenBucketPropertyTest, DecidesLikeTheReferenceAndKeepsTheRateInEveryWindow, ()) {
  const Limit limit = AnyBucket();
  const TokenBucket& p = limit.bucket;
  test_support::ReferenceTokenBucket reference(p.unit_ticks, uint64_t{1} << p.shift, p.burst,
                                               p.debt);
  uint64_t tat = 0;
  int64_t now = *rc::gen::inRange<int64_t>(0, 2 * limit.random.period_ns);
  std::vector<Grant> history;
  for (const Step& step : *test_support::AnySteps(limit.random, p.burst + p.debt, 60)) {
    now = test_support::Advanced(now, step);
    const uint64_t before = tat;
    const bool granted = TryTake(p, step.permits, ToTicks(p, now), &tat);
    RC_ASSERT(granted == reference.TryTake(step.permits, now));
    RC_ASSERT(LevelAt(p, tat, now).remaining == reference.RemainingAt(now));
    if (granted) {
      history.push_back({now, step.permits});
    } else {
      RC_ASSERT(tat == before);
    }
  }
  RC_ASSERT(test_support::CheckRateInEveryWindow(history, limit.random.permits,
                                                 limit.random.period_ns, p.burst + p.debt) == "");
}

RC_GTEST_PROP(TokenBucketPropertyTest, RetryAfterIsExactToTheNanosecond, ()) {
  const Limit limit = AnyBucket();
  const TokenBucket& p = limit.bucket;
  uint64_t tat = 0;
  int64_t now = *rc::gen::inRange<int64_t>(0, 2 * limit.random.period_ns);
  const auto would_grant = [&](uint64_t permits, int64_t at) {
    uint64_t copy = tat;
    return TryTake(p, permits, ToTicks(p, at), &copy);
  };
  for (const Step& step : *test_support::AnySteps(limit.random, p.burst + p.debt, 60)) {
    now = test_support::Advanced(now, step);
    const int64_t earliest = EarliestNs(p, step.permits, tat, now);
    if (step.permits > p.burst + p.debt) {
      RC_ASSERT(earliest == kNeverNs);
    } else {
      RC_ASSERT(would_grant(step.permits, earliest));
      if (earliest > now) RC_ASSERT(!would_grant(step.permits, earliest - 1));
    }
    RC_ASSERT(TryTake(p, step.permits, ToTicks(p, now), &tat) == (earliest == now));

    const Level level = LevelAt(p, tat, now);
    RC_ASSERT(would_grant(1, now + level.next_permit_after_ns));
    if (level.next_permit_after_ns > 0) {
      RC_ASSERT(!would_grant(1, now + level.next_permit_after_ns - 1));
    }
    RC_ASSERT(IsFull(tat, ToTicks(p, now + level.reset_after_ns)));
    if (level.reset_after_ns > 0) {
      RC_ASSERT(!IsFull(tat, ToTicks(p, now + level.reset_after_ns - 1)));
    }
  }
}

RC_GTEST_PROP(TokenBucketPropertyTest, SinglePermitsCostAsMuchAsOneRequest, ()) {
  const Limit limit = AnyBucket();
  const TokenBucket& p = limit.bucket;
  const auto permits = *rc::gen::inRange<uint64_t>(1, 50);
  RC_PRE(permits <= p.burst);
  uint64_t at_once = 0;
  uint64_t one_by_one = 0;
  RC_ASSERT(TryTake(p, permits, ToTicks(p, kSecond), &at_once));
  for (uint64_t i = 0; i < permits; ++i) {
    RC_ASSERT(TryTake(p, 1, ToTicks(p, kSecond), &one_by_one));
  }
  RC_ASSERT(at_once == one_by_one);
}

// A caller that always has more work gets at least 99 % of the rate, up to 100M/s.
RC_GTEST_PROP(TokenBucketPropertyTest, SustainsTheRate, ()) {
  const Limit limit = AnyBucket();
  const TokenBucket& p = limit.bucket;
  RC_PRE(limit.random.permits <= static_cast<uint64_t>(limit.random.period_ns) / 10);
  const uint64_t chunk = *test_support::Magnitude(
      std::min<uint64_t>(p.burst + p.debt, (uint64_t{1} << 55) / (p.unit_ticks * 100) + 1));
  uint64_t tat = 0;
  int64_t now = 0;
  std::vector<Grant> history;
  for (int i = 0; i < 100; ++i) {
    now = EarliestNs(p, chunk, tat, now);
    RC_ASSERT(TryTake(p, chunk, ToTicks(p, now), &tat));
    history.push_back({now, chunk});
  }
  // Grant i needs at most the time of i chunks; a nanosecond for rounding the moment up, which a
  // bucket that must be full for each grant cannot make good: it loses one each time.
  const bool must_be_full = std::min(p.burst, p.burst + p.debt - chunk) == 0;
  const auto ideal =
      static_cast<test_support::Wide>(99) * chunk * limit.random.period_ns / limit.random.permits;
  RC_ASSERT(static_cast<test_support::Wide>(now) * 99 <=
            ideal * 100 + (must_be_full ? 100 * 100 : 200));
  RC_ASSERT(test_support::CheckRateInEveryWindow(history, limit.random.permits,
                                                 limit.random.period_ns, p.burst + p.debt) == "");
}

}  // namespace
}  // namespace sluice::algorithm
