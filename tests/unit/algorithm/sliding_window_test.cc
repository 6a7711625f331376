#include "server/algorithm/sliding_window.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/algorithm/wide.h"
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

SlidingWindow Make(uint64_t permits, int64_t period_ns, uint32_t k = 10) {
  return MakeSlidingWindow({permits, period_ns}, k)->sliding_window;
}

TEST(SlidingWindowTest, FollowsTheExampleInTheHeader) {
  const SlidingWindow p = Make(10, kSecond);
  SlidingWindowState window;
  EXPECT_TRUE(window.TryTake(p, 10, 50 * kMs));
  EXPECT_FALSE(window.TryTake(p, 1, 1'040 * kMs));
  EXPECT_FALSE(window.TryTake(p, 1, 1'060 * kMs));
  EXPECT_EQ(window.EarliestNs(p, 10, 1'060 * kMs), 1'100 * kMs);
  EXPECT_FALSE(window.TryTake(p, 1, 1'100 * kMs - 1));
  EXPECT_TRUE(window.TryTake(p, 10, 1'100 * kMs));
}

TEST(SlidingWindowTest, BoundariesAreExactRationals) {
  const SlidingWindow p = Make(10, kSecond, 7);
  EXPECT_EQ(SubWindowStartNs(p, 1), 142'857'143);  // 1e9 / 7 = 142857142.86
  EXPECT_EQ(SubWindowAt(p, 142'857'142), 0u);
  EXPECT_EQ(SubWindowAt(p, 142'857'143), 1u);
  EXPECT_EQ(SubWindowStartNs(p, 7'000'000'000), kSecond * 1'000'000'000);
}

TEST(SlidingWindowTest, ClockThatStepsBackCountsAsStopped) {
  const SlidingWindow p = Make(2, kSecond);
  SlidingWindowState window;
  EXPECT_TRUE(window.TryTake(p, 2, 10 * kSecond));
  EXPECT_FALSE(window.TryTake(p, 1, 5 * kSecond));
  EXPECT_FALSE(window.TryTake(p, 1, 10 * kSecond));
  EXPECT_TRUE(window.TryTake(p, 2, 11 * kSecond + 100 * kMs));
}

TEST(SlidingWindowTest, RefundsOnlyPermitsThatStillCount) {
  const SlidingWindow p = Make(10, kSecond);
  SlidingWindowState window;
  uint64_t index = 0;
  EXPECT_TRUE(window.TryTake(p, 4, 0, &index));
  EXPECT_TRUE(window.TryTake(p, 6, 500 * kMs));
  EXPECT_EQ(window.Refund(p, index, 4, 600 * kMs), 4u);
  EXPECT_EQ(window.Counted(p, 600 * kMs), 6u);
  EXPECT_EQ(window.Refund(p, index, 4, 1'100 * kMs), 0u);
}

RC_GTEST_PROP(SlidingWindowPropertyTest, DecidesLikeTheReferenceAndKeepsTheRateInEveryWindow, ()) {
  const RandomParameters random = *test_support::AnyParameters();
  const auto k = *rc::gen::inRange<uint32_t>(1, 101);
  const SlidingWindow p = Make(random.permits, random.period_ns, k);
  test_support::ReferenceSlidingWindow reference(random.permits, random.period_ns, k);
  SlidingWindowState window;
  int64_t now = *rc::gen::inRange<int64_t>(0, 2 * random.period_ns);
  int64_t latest = 0;
  std::vector<Grant> history;
  for (const Step& step : *test_support::AnySteps(random, random.permits, 100)) {
    now = test_support::Advanced(now, step);
    latest = std::max(latest, now);
    const bool would = window.CanTake(p, step.permits, now);
    const int64_t earliest = window.EarliestNs(p, step.permits, now);
    const bool granted = window.TryTake(p, step.permits, now);
    RC_ASSERT(granted == reference.TryTake(step.permits, now));
    RC_ASSERT(granted == would);
    RC_ASSERT(granted == (earliest == now));
    RC_ASSERT(window.Counted(p, now) == reference.CountedAt(now));
    if (granted) {
      history.push_back({latest, step.permits});
      continue;
    }
    if (step.permits > random.permits) {
      RC_ASSERT(earliest == kNeverNs);
      continue;
    }
    RC_ASSERT(window.CanTake(p, step.permits, earliest));
    RC_ASSERT(!window.CanTake(p, step.permits, earliest - 1));
    const Level level = window.LevelAt(p, now);
    RC_ASSERT(window.IsFull(p, now + level.reset_after_ns));
    RC_ASSERT(!window.IsFull(p, now + level.reset_after_ns - 1));
    RC_ASSERT(window.CanTake(p, 1, now + level.next_permit_after_ns));
  }
  RC_ASSERT(test_support::CheckCountInEveryWindow(history, random.period_ns, random.permits) == "");
}

// A caller that always has more work gets at least M*k/(k+1) a period.
RC_GTEST_PROP(SlidingWindowPropertyTest, SustainsKOfKPlusOneOfTheRate, ()) {
  const RandomParameters random = *test_support::AnyParameters(100);
  const auto k = *rc::gen::inRange<uint32_t>(1, 101);
  const SlidingWindow p = Make(random.permits, random.period_ns, k);
  SlidingWindowState window;
  const auto offset = *rc::gen::inRange<int64_t>(0, random.period_ns);
  int64_t now = offset;
  const int rounds = 20;
  for (uint64_t i = 0; i < rounds * random.permits + 1; ++i) {
    now = window.EarliestNs(p, 1, now);
    RC_ASSERT(window.TryTake(p, 1, now));
  }
  // M permits in (k+1)/k of a period; a nanosecond for rounding boundaries up.
  RC_ASSERT(static_cast<test_support::Wide>(now - offset - 1) * k <=
            static_cast<test_support::Wide>(random.period_ns) * rounds * (k + 1));
}

}  // namespace
}  // namespace sluice::algorithm
