#include "server/algorithm/sliding_log.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
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
constexpr int64_t kDay = 24 * 3600 * kSecond;

SlidingLog Make(uint64_t permits, int64_t period_ns) {
  return MakeSlidingLog({permits, period_ns})->sliding_log;
}

TEST(SlidingLogTest, FollowsTheExampleInTheHeader) {
  const SlidingLog p = Make(3, kSecond);
  EXPECT_EQ(p.quantum_ns, 15'259);
  SlidingLogState log;
  EXPECT_TRUE(log.TryTake(p, 2, 0));
  EXPECT_TRUE(log.TryTake(p, 1, 400'200'000));
  EXPECT_FALSE(log.TryTake(p, 1, 700 * kMs));
  EXPECT_EQ(log.EarliestNs(p, 1, 700 * kMs), kSecond);
  EXPECT_TRUE(log.TryTake(p, 2, kSecond));
  EXPECT_FALSE(log.TryTake(p, 1, kSecond));
}

// What must not happen: 1000 at 0.75 s and 1000 at 1.25 s.
TEST(SlidingLogTest, GrantsNoBurstAroundAReset) {
  const SlidingLog p = Make(1000, kSecond);
  SlidingLogState log;
  EXPECT_TRUE(log.TryTake(p, 1000, 750 * kMs));
  EXPECT_FALSE(log.TryTake(p, 1, 1'250 * kMs));
  const int64_t earliest = log.EarliestNs(p, 1000, 1'250 * kMs);
  EXPECT_GE(earliest, 1'750 * kMs);
  EXPECT_LE(earliest, 1'750 * kMs + p.quantum_ns);
}

// 51 a second, a producer with a backlog and random pauses; windows of one second
// at any offset hold at most 51, and the total is within 1 % of the allowed.
TEST(SlidingLogTest, GrantsAtMostFiftyOneInAnySecond) {
  const SlidingLog p = Make(51, kSecond);
  SlidingLogState log;
  uint32_t random = 12345;
  int64_t produced_at = 0;
  int64_t sent_at = 0;
  std::vector<Grant> history;
  while (sent_at < 60 * kSecond) {
    // Work comes at twice the rate on average; it is sent in order, as soon as the log lets it.
    random = random * 1664525 + 1013904223;
    produced_at += (random >> 8) % (kSecond / 51);
    sent_at = log.EarliestNs(p, 1, std::max(sent_at, produced_at));
    ASSERT_TRUE(log.TryTake(p, 1, sent_at));
    history.push_back({sent_at, 1});
  }
  EXPECT_EQ(test_support::CheckCountInEveryWindow(history, kSecond, 51), "");
  EXPECT_GE(history.size(), 60u * 51 * 99 / 100);
  EXPECT_LE(history.size(), 61u * 51);
}

TEST(SlidingLogTest, ClockThatStepsBackCountsAsStopped) {
  const SlidingLog p = Make(2, kSecond);
  SlidingLogState log;
  EXPECT_TRUE(log.TryTake(p, 2, 10 * kSecond));
  EXPECT_FALSE(log.TryTake(p, 1, 5 * kSecond));
  EXPECT_FALSE(log.TryTake(p, 3, 20 * kSecond));  // denied, but what it forgot stays forgotten
  EXPECT_TRUE(log.TryTake(p, 2, 5 * kSecond));    // as at 20 s
  EXPECT_FALSE(log.TryTake(p, 1, 20 * kSecond));
}

TEST(SlidingLogTest, RefundsOnlyPermitsThatStillCount) {
  const SlidingLog p = Make(10, kSecond);
  SlidingLogState log;
  uint64_t first = 0;
  uint64_t second = 0;
  EXPECT_TRUE(log.TryTake(p, 4, kSecond, &first));
  EXPECT_TRUE(log.TryTake(p, 6, kSecond + 500 * kMs, &second));
  EXPECT_EQ(log.Refund(p, first, 4, kSecond + 600 * kMs), 4u);
  EXPECT_EQ(log.Counted(p, kSecond + 600 * kMs), 6u);
  EXPECT_EQ(log.Refund(p, first, 4, kSecond + 600 * kMs), 0u);
  EXPECT_EQ(log.Refund(p, second, 6, 3 * kSecond), 0u);
}

// Two billion permits in one run, then a refund that makes its encoding shorter.
TEST(SlidingLogTest, RefundsFromARunInTheMiddle) {
  const SlidingLog p = Make(3'000'000'000, 60 * kSecond);
  SlidingLogState log;
  uint64_t middle = 0;
  EXPECT_TRUE(log.TryTake(p, 1, kSecond));
  EXPECT_TRUE(log.TryTake(p, 2'000'000'000, 2 * kSecond, &middle));
  EXPECT_TRUE(log.TryTake(p, 5, 3 * kSecond));
  EXPECT_EQ(log.Refund(p, middle, 1'999'999'999, 4 * kSecond), 1'999'999'999u);
  EXPECT_EQ(log.Counted(p, 4 * kSecond), 7u);
  EXPECT_EQ(log.Counted(p, 61 * kSecond + kSecond / 2), 6u);
  EXPECT_EQ(log.Counted(p, 62 * kSecond + kSecond / 2), 5u);
  EXPECT_EQ(log.Counted(p, 63 * kSecond + kSecond / 2), 0u);
}

// 10,000 a day, in bursts of 100: at most 2 bytes a permit. It is 0.05.
TEST(SlidingLogTest, BurstsTakeFewBytes) {
  const SlidingLog p = Make(10'000, kDay);
  SlidingLogState log;
  for (int burst = 0; burst < 100; ++burst) {
    const int64_t at = burst * (kDay / 100);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(log.TryTake(p, 1, at + i * kMs));
  }
  EXPECT_EQ(log.Counted(p, kDay - 1), 10'000u);
  RecordProperty("bytes", static_cast<int>(log.MemoryBytes() + sizeof(log)));
  EXPECT_LE(log.MemoryBytes() + sizeof(log), 2u * 10'000);
  EXPECT_LE(log.runs(), 200u);
}

TEST(SlidingLogTest, EvenlySpreadPermitsTakeThreeBytesPerRun) {
  const SlidingLog p = Make(10'000, kDay);
  SlidingLogState log;
  int64_t now = 0;
  // Ten days, so that the front is consumed while the back grows.
  for (int i = 0; i < 100'000; ++i) {
    now = log.EarliestNs(p, 1, now + kDay / 10'000);
    ASSERT_TRUE(log.TryTake(p, 1, now));
  }
  RecordProperty("runs", static_cast<int>(log.runs()));
  RecordProperty("bytes", static_cast<int>(log.MemoryBytes()));
  EXPECT_GE(log.runs(), 9'000u);
  EXPECT_LE(log.MemoryBytes(), 3 * log.runs());
}

// Tens of thousands of runs, so that there are many checkpoints; against a list of all runs.
TEST(SlidingLogTest, LongLogDecidesLikeAListOfItsRuns) {
  std::mt19937_64 random(1);
  const SlidingLog p = Make(60'000, 60 * kSecond);
  SlidingLogState log;
  std::deque<std::pair<uint64_t, uint64_t>> runs;  // quantum, permits
  int64_t now = 0;
  for (int step = 0; step < 120'000; ++step) {
    now += static_cast<int64_t>(random() % 2'000'000);
    if (random() % 20'000 == 0) now += static_cast<int64_t>(random() % 20) * kSecond;
    uint64_t quantum = 0;
    const uint64_t permits = 1 + random() % (random() % 50 == 0 ? 200 : 2);
    if (log.TryTake(p, permits, now, &quantum)) {
      if (runs.empty() || runs.back().first != quantum) runs.emplace_back(quantum, 0);
      runs.back().second += permits;
    }
    while (!runs.empty() && SlidingLogState::UntilNs(p, runs.front().first, now) <= now) {
      runs.pop_front();
    }
    if (!runs.empty() && random() % 8 == 0) {
      auto& [of, counted] = runs[random() % runs.size()];
      const uint64_t permits_back = 1 + random() % 3;
      const uint64_t refunded = std::min(counted, permits_back);
      ASSERT_EQ(log.Refund(p, of, permits_back, now), refunded);
      counted -= refunded;
    }
    if (step % 100 != 0) continue;
    const int64_t later = now + static_cast<int64_t>(random() % 60) * kSecond;
    const uint64_t wanted = 1 + random() % p.rate.permits;
    uint64_t counted = 0;
    for (const auto& [of, count] : runs) {
      if (SlidingLogState::UntilNs(p, of, later) > later) counted += count;
    }
    ASSERT_EQ(log.Counted(p, later), counted);
    int64_t earliest = later;
    for (const auto& [of, count] : runs) {
      const int64_t until = SlidingLogState::UntilNs(p, of, later);
      if (until <= later) continue;
      if (counted + wanted <= p.rate.permits) break;
      counted -= count;
      earliest = until;
    }
    ASSERT_EQ(log.EarliestNs(p, wanted, later), earliest);
  }
}

TEST(SlidingLogTest, FreesItsMemoryWhenEmpty) {
  const SlidingLog p = Make(10'000, kDay);
  SlidingLogState log;
  for (int i = 0; i < 5'000; ++i) ASSERT_TRUE(log.TryTake(p, 1, i * (kDay / 10'000)));
  EXPECT_TRUE(log.IsFull(p, 2 * kDay));
  EXPECT_TRUE(log.TryTake(p, 1, 2 * kDay));
  EXPECT_LE(log.MemoryBytes(), 64u);
}

RC_GTEST_PROP(SlidingLogPropertyTest, DecidesLikeTheReferenceAndKeepsTheRateInEveryWindow, ()) {
  const RandomParameters random = *test_support::AnyParameters();
  const SlidingLog p = Make(random.permits, random.period_ns);
  test_support::ReferenceLog reference(random.permits, random.period_ns, p.quantum_ns);
  SlidingLogState log;
  int64_t now = *rc::gen::inRange<int64_t>(0, 2 * random.period_ns);
  int64_t latest = 0;
  std::vector<Grant> history;
  for (const Step& step : *test_support::AnySteps(random, random.permits, 100)) {
    now = test_support::Advanced(now, step);
    latest = std::max(latest, now);
    const bool would = log.CanTake(p, step.permits, now);
    const int64_t earliest = log.EarliestNs(p, step.permits, now);
    const bool granted = log.TryTake(p, step.permits, now);
    RC_ASSERT(granted == reference.TryTake(step.permits, now));
    RC_ASSERT(granted == would);
    RC_ASSERT(granted == (earliest == now));
    RC_ASSERT(log.Counted(p, now) == reference.CountedAt(now));
    RC_ASSERT(log.IsFull(p, now) == (reference.CountedAt(now) == 0));
    if (granted) {
      history.push_back({latest, step.permits});
      continue;
    }
    if (step.permits > random.permits) {
      RC_ASSERT(earliest == kNeverNs);
      continue;
    }
    RC_ASSERT(log.CanTake(p, step.permits, earliest));
    RC_ASSERT(!log.CanTake(p, step.permits, earliest - 1));
    const Level level = log.LevelAt(p, now);
    RC_ASSERT(log.IsFull(p, now + level.reset_after_ns));
    RC_ASSERT(!log.IsFull(p, now + level.reset_after_ns - 1));
    RC_ASSERT(level.remaining == static_cast<int64_t>(random.permits - log.Counted(p, now)));
    RC_ASSERT(log.CanTake(p, 1, now + level.next_permit_after_ns));
  }
  RC_ASSERT(test_support::CheckCountInEveryWindow(history, random.period_ns, random.permits) == "");
}

// At most 1 % low: a caller that always has more work gets M permits in 1.01 periods.
RC_GTEST_PROP(SlidingLogPropertyTest, SustainsTheRate, ()) {
  const RandomParameters random = *test_support::AnyParameters(200);
  const SlidingLog p = Make(random.permits, random.period_ns);
  const auto offset = *rc::gen::inRange<int64_t>(0, random.period_ns);
  SlidingLogState log;
  int64_t now = offset;
  std::vector<Grant> history;
  const int periods = 10;
  for (uint64_t i = 0; i < periods * random.permits + 1; ++i) {
    now = log.EarliestNs(p, 1, now);
    RC_ASSERT(log.TryTake(p, 1, now));
    history.push_back({now, 1});
  }
  RC_ASSERT((now - offset) / 101 <= random.period_ns * periods / 100);
  RC_ASSERT(test_support::CheckCountInEveryWindow(history, random.period_ns, random.permits) == "");
}

}  // namespace
}  // namespace sluice::algorithm
