#include "server/waiting/held_callers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/memory/memory_store.h"
#include "server/waiting/alarm_thread.h"
#include "tests/support/store_calls.h"
#include "tests/support/window_checker.h"
#include "tests/unit/waiting/waiting_scene.h"

namespace sluice::waiting {
namespace {

// A clock that also moves when it is read.
class TickingClock final : public common::Clock {
 public:
  explicit TickingClock(common::FakeClock& clock) : clock_(clock) {}
  int64_t NowNs() const override {
    clock_.Advance(tick_ns_);
    return clock_.NowNs();
  }
  int64_t WallNs() const override { return clock_.WallNs(); }

  int64_t tick_ns_ = 0;

 private:
  common::FakeClock& clock_;
};

class HeldCallersTest : public ::testing::Test {
 protected:
  // Reserves and holds; null if it was granted at once or denied.
  std::unique_ptr<Caller> Hold(std::vector<Charge> charges, int64_t max_wait_ns = kMinute) {
    auto caller = std::make_unique<Caller>(clock_, std::move(charges));
    caller->decided_.max_wait_ns = max_wait_ns;
    Decide(store_, caller->decided_);
    if (caller->decided_.outcome != Outcome::kGranted || caller->decided_.wait_ns == 0) {
      return nullptr;
    }
    caller->since_ns = clock_.NowNs();
    caller->until_ns = caller->since_ns + max_wait_ns;
    caller->generation = limits_.Generation();
    EXPECT_TRUE(held_callers_.Hold(caller.get()));
    return caller;
  }
  // Two callers behind so many bookings, whose grant times have passed.
  std::vector<std::unique_ptr<Caller>> HoldBehindPassedBookings(uint64_t bookings) {
    const Rule& rule = limits_.Set(1, PerSecond(10'000));
    EXPECT_EQ(Hold({{&rule, "k", 1}}), nullptr);
    for (uint64_t i = 0; i < bookings; ++i) {
      EXPECT_TRUE(testing::Acquire(store_, rule, "k", 1, {.max_wait_ns = kMinute}).granted());
    }
    std::vector<std::unique_ptr<Caller>> callers;
    for (int i = 0; i < 2; ++i) callers.push_back(Hold({{&rule, "k", 1}}));
    clock_.Advance(callers[0]->grant_time_ns() - 1 - clock_.NowNs());
    return callers;
  }
  void AdvanceTo(int64_t to_ns) {
    int64_t next_ns = held_callers_.Advance();
    while (next_ns <= to_ns) {
      clock_.Advance(std::max<int64_t>(next_ns - clock_.NowNs(), 0));
      next_ns = held_callers_.Advance();
    }
    clock_.Advance(to_ns - clock_.NowNs());
    held_callers_.Advance();
  }
  void AdvanceBy(int64_t by_ns) { AdvanceTo(clock_.NowNs() + by_ns); }

  common::FakeClock clock_{1000 * kSecond};
  store::MemoryStore store_{clock_};
  Limits limits_{store_};
  ManualAlarm alarm_;
  TickingClock ticking_{clock_};
  HeldCallers held_callers_{store_, ticking_, limits_, alarm_};
};

TEST_F(HeldCallersTest, AnswersEachAtItsGrantTimeInOrder) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 5; ++i) callers.push_back(Hold({{&rule, "k", 1}}));
  const int64_t start_ns = clock_.NowNs();
  for (int64_t i = 0; i < 5; ++i) {
    AdvanceTo(start_ns + (i + 1) * kSecond - 1);
    EXPECT_FALSE(callers[i]->answered());
    AdvanceBy(1);
    ASSERT_EQ(callers[i]->answers_, std::vector{HeldOutcome::kGrantTime});
  }
  EXPECT_EQ(held_callers_.size(), 0u);
  EXPECT_EQ(testing::Query(store_, rule, "k").waiting, 0u);
}

TEST_F(HeldCallersTest, SetsTheAlarmForTheFirstGrantTime) {
  const Rule& rule = limits_.Set(1, PerSecond(100));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  EXPECT_EQ(alarm_.at_ns_, HeldCallers::kNever);
  const auto first = Hold({{&rule, "k", 1}});
  EXPECT_EQ(alarm_.at_ns_, first->grant_time_ns());
  const auto second = Hold({{&rule, "k", 1}});
  EXPECT_EQ(alarm_.at_ns_, first->grant_time_ns());
  held_callers_.Drain();
}

TEST_F(HeldCallersTest, CallersBehindACancelledOneMoveUp) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 6; ++i) callers.push_back(Hold({{&rule, "k", 1}}));
  const int64_t start_ns = clock_.NowNs();
  EXPECT_TRUE(held_callers_.Cancel(callers[1].get()));
  EXPECT_EQ(callers[1]->answers_, std::vector{HeldOutcome::kCancelled});
  EXPECT_FALSE(held_callers_.Cancel(callers[1].get()));
  AdvanceTo(start_ns + kMinute);
  const int64_t seconds[] = {1, -1, 2, 3, 4, 5};
  for (int i = 0; i < 6; ++i) {
    if (i == 1) continue;
    EXPECT_EQ(callers[i]->answers_, std::vector{HeldOutcome::kGrantTime});
    EXPECT_EQ(callers[i]->answered_ns_, start_ns + seconds[i] * kSecond) << i;
  }
}

TEST_F(HeldCallersTest, LooksBehindManyOtherCallersInSteps) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  const Rule& other = limits_.Set(2, PerSecond(1000));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  ASSERT_EQ(Hold({{&other, "k", 1}}), nullptr);
  const int64_t start_ns = clock_.NowNs();
  const auto first = Hold({{&rule, "k", 1}});
  const auto second = Hold({{&rule, "k", 1}});
  // 500 of them are between the two.
  std::vector<std::unique_ptr<Caller>> others;
  for (int i = 0; i < 1500; ++i) others.push_back(Hold({{&other, "k", 1}}));
  ASSERT_EQ(second->grant_time_ns(), start_ns + 2 * kSecond);
  ASSERT_TRUE(held_callers_.Cancel(first.get()));
  ticking_.tick_ns_ = HeldCallers::kStepNs / 3;
  held_callers_.Advance();
  ticking_.tick_ns_ = 0;
  EXPECT_EQ(second->grant_time_ns(), start_ns + 2 * kSecond) << "the step ended before";
  // One arrives, and some leave where the next step goes on.
  const auto third = Hold({{&rule, "k", 1}});
  constexpr size_t kPassed = 1000 + 2 * HeldCallers::kPassedPerOperation;
  for (size_t i = kPassed - 2; i < kPassed + 2; ++i) {
    EXPECT_TRUE(held_callers_.Cancel(others[i].get()));
  }
  AdvanceTo(start_ns + 3 * kSecond);
  EXPECT_EQ(second->answered_ns_, start_ns + kSecond);
  EXPECT_EQ(third->answered_ns_, start_ns + 2 * kSecond);
  for (size_t i = 0; i < others.size(); ++i) {
    const bool left = i >= kPassed - 2 && i < kPassed + 2;
    EXPECT_EQ(others[i]->answers_,
              std::vector{left ? HeldOutcome::kCancelled : HeldOutcome::kGrantTime});
  }
  EXPECT_EQ(others.back()->answered_ns_, start_ns + (1500 - 4) * (kSecond / 1000));
  EXPECT_EQ(testing::Query(store_, rule, "k").waiting, 0u);
  EXPECT_EQ(testing::Query(store_, other, "k").waiting, 0u);
  EXPECT_EQ(held_callers_.size(), 0u);
}

TEST_F(HeldCallersTest, RefundsInSlicesBehindManyPassedBookings) {
  constexpr uint64_t kBookings = 4000;
  const auto callers = HoldBehindPassedBookings(kBookings);
  const int64_t first_ns = callers[0]->grant_time_ns();
  EXPECT_EQ(held_callers_.Cancel(callers[0].get()), 1u);
  EXPECT_EQ(callers[0]->answers_, std::vector{HeldOutcome::kCancelled});
  EXPECT_GT(store_.Stats().bookings, kBookings / 2);
  EXPECT_LE(alarm_.at_ns_, clock_.NowNs());
  held_callers_.Advance();
  EXPECT_EQ(store_.Stats().bookings, 1u);
  AdvanceTo(first_ns);
  // It moved up to the grant time of the first.
  EXPECT_EQ(callers[1]->answered_ns_, first_ns);
}

TEST_F(HeldCallersTest, DrainRefundsBehindManyPassedBookings) {
  const auto callers = HoldBehindPassedBookings(4000);
  // Its refund has begun, that of the other has not.
  EXPECT_EQ(held_callers_.Cancel(callers[0].get()), 1u);
  held_callers_.Drain();
  EXPECT_EQ(callers[1]->answers_, std::vector{HeldOutcome::kDrained});
  EXPECT_EQ(store_.Stats().bookings, 0u);
}

TEST_F(HeldCallersTest, RefundsManyCallersThatLeaveAtOnceInAdvance) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  std::vector<std::unique_ptr<Caller>> callers;
  constexpr size_t kCallers = HeldCallers::kChargesByCancel + 20;
  for (size_t i = 0; i < kCallers; ++i) callers.push_back(Hold({{&rule, "k", 1}}));
  const auto last = Hold({{&rule, "k", 1}});
  const int64_t start_ns = clock_.NowNs();
  for (size_t i = 0; i < kCallers; ++i) {
    EXPECT_EQ(held_callers_.Cancel(callers[i].get()), i < HeldCallers::kChargesByCancel ? 1 : 0);
    EXPECT_EQ(callers[i]->answers_, std::vector{HeldOutcome::kCancelled});
  }
  EXPECT_EQ(store_.Stats().bookings, 21u);
  EXPECT_LE(alarm_.at_ns_, start_ns);
  AdvanceTo(start_ns + kSecond / 2);
  EXPECT_EQ(store_.Stats().bookings, 1u);
  AdvanceTo(start_ns + kSecond);
  // It moved up to the first grant time.
  EXPECT_EQ(last->answered_ns_, start_ns + kSecond);
}

TEST_F(HeldCallersTest, DrainRefundsCallersThatLeftBefore) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  std::vector<std::unique_ptr<Caller>> callers;
  constexpr size_t kCallers = HeldCallers::kChargesByCancel + 20;
  for (size_t i = 0; i < kCallers; ++i) callers.push_back(Hold({{&rule, "k", 1}}));
  for (const auto& caller : callers) EXPECT_TRUE(held_callers_.Cancel(caller.get()));
  held_callers_.Drain();
  EXPECT_EQ(store_.Stats().bookings, 0u);
}

TEST_F(HeldCallersTest, AnotherChannelMovesUpInASharedBucket) {
  const Rule& overall = limits_.Set(1, PerSecond(1));
  const Rule& one = limits_.Set(2, PerSecond(1));
  const Rule& two = limits_.Set(3, PerSecond(1));
  ASSERT_EQ(Hold({{&overall, "", 1}}), nullptr);
  const auto first = Hold({{&one, "", 1}, {&overall, "", 1}});
  const auto second = Hold({{&two, "", 1}, {&overall, "", 1}});
  const int64_t start_ns = clock_.NowNs();
  ASSERT_EQ(second->grant_time_ns(), start_ns + 2 * kSecond);
  ASSERT_TRUE(held_callers_.Cancel(first.get()));
  AdvanceTo(start_ns + kSecond);
  EXPECT_EQ(second->answers_, std::vector{HeldOutcome::kGrantTime});
}

TEST_F(HeldCallersTest, DoesNotOvertakeAReservationWhoseGrantTimeIsKnown) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  const auto first = Hold({{&rule, "k", 1}});
  const testing::Acquired told = testing::Acquire(store_, rule, "k", 1, {.max_wait_ns = kMinute});
  ASSERT_EQ(told.wait_ns, 2 * kSecond);
  const auto last = Hold({{&rule, "k", 1}});
  const int64_t start_ns = clock_.NowNs();
  ASSERT_TRUE(held_callers_.Cancel(first.get()));
  AdvanceTo(start_ns + kMinute);
  EXPECT_EQ(last->answered_ns_, start_ns + 3 * kSecond);
}

TEST_F(HeldCallersTest, RaisedLimitAnswersSooner) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 5; ++i) callers.push_back(Hold({{&rule, "k", 1}}));
  const int64_t start_ns = clock_.NowNs();
  limits_.Set(1, PerSecond(10));
  AdvanceTo(start_ns + kSecond);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(callers[i]->answers_, std::vector{HeldOutcome::kGrantTime});
    if (i > 0) {
      EXPECT_GE(callers[i]->answered_ns_ - callers[i - 1]->answered_ns_, kSecond / 10);
    }
  }
}

TEST_F(HeldCallersTest, LoweredLimitNeverGrantsMoreAndDeniesBeyondMaxWait) {
  const Rule& rule = limits_.Set(1, PerSecond(10));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 8; ++i) callers.push_back(Hold({{&rule, "k", 1}}, 4 * kSecond));
  const int64_t start_ns = clock_.NowNs();
  limits_.Set(1, PerSecond(1));
  AdvanceTo(start_ns + kMinute);
  int64_t last_ns = 0;
  int through = 0;
  for (const auto& caller : callers) {
    ASSERT_EQ(caller->answers_.size(), 1u);
    if (caller->answers_[0] == HeldOutcome::kDenied) {
      EXPECT_GT(caller->decided_.retry_after_ns, 0);
      continue;
    }
    ++through;
    EXPECT_GE(caller->answered_ns_ - last_ns, kSecond);
    EXPECT_LE(caller->answered_ns_, start_ns + 4 * kSecond);
    last_ns = caller->answered_ns_;
  }
  EXPECT_GE(through, 3);
  EXPECT_LE(through, 4);
}

TEST_F(HeldCallersTest, DeletedLimitDeniesItsCallers) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  const auto caller = Hold({{&rule, "k", 1}});
  limits_.Delete("limit1");
  AdvanceBy(kSecond / 2);
  EXPECT_EQ(caller->answers_, std::vector{HeldOutcome::kDenied});
}

TEST_F(HeldCallersTest, DrainAnswersAllAndDebitsNothing) {
  const Rule& rule = limits_.Set(1, PerSecond(1));
  ASSERT_EQ(Hold({{&rule, "k", 1}}), nullptr);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 5; ++i) callers.push_back(Hold({{&rule, "k", 1}}));
  held_callers_.Drain();
  for (const auto& caller : callers) {
    EXPECT_EQ(caller->answers_, std::vector{HeldOutcome::kDrained});
  }
  EXPECT_EQ(store_.Stats().bookings, 0u);
  clock_.Advance(kSecond);
  EXPECT_EQ(testing::Query(store_, rule, "k").level.remaining, 1);
  const auto late = std::make_unique<Caller>(clock_, std::vector<Charge>{{&rule, "k", 1}});
  EXPECT_FALSE(held_callers_.Hold(late.get()));
}

// Each caller is answered once, never early and in order; no window exceeds the limits, and the
// permits granted are those debited.
TEST_F(HeldCallersTest, RandomCancellationsKeepOrderAndWindows) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
    const auto id = static_cast<uint32_t>(seed * 10);
    const Rule& overall = limits_.Set(id, PerSecond(20, 3));
    const Rule& channel = limits_.Set(id + 1, PerSecond(8, 2));
    std::vector<std::unique_ptr<Caller>> callers;
    for (int step = 0; step < 600; ++step) {
      if (below(3) == 0) AdvanceBy(below(kSecond / 10));
      std::vector<Charge> charges;
      if (below(2) == 0) charges.push_back({&channel, "", 1});
      charges.push_back({&overall, "", 1});
      if (auto caller = Hold(charges, 5 * kSecond); caller != nullptr) {
        callers.push_back(std::move(caller));
      }
      if (below(3) == 0 && !callers.empty()) {
        held_callers_.Cancel(callers[static_cast<size_t>(below(callers.size()))].get());
      }
    }
    AdvanceBy(kMinute);
    std::vector<test_support::Grant> grants;
    std::map<size_t, int64_t> last_of_set;
    for (const auto& caller : callers) {
      ASSERT_EQ(caller->answers_.size(), 1u);
      if (caller->answers_[0] != HeldOutcome::kGrantTime) continue;
      EXPECT_GE(caller->answered_ns_, caller->grant_time_ns());
      EXPECT_LE(caller->grant_time_ns(), caller->until_ns);
      EXPECT_GE(caller->grant_time_ns(), last_of_set[caller->charges_.size()]);
      last_of_set[caller->charges_.size()] = caller->grant_time_ns();
      grants.push_back({caller->grant_time_ns(), 1});
    }
    std::sort(grants.begin(), grants.end(),
              [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
    EXPECT_EQ(test_support::CheckRateInEveryWindow(grants, 20, kSecond, 3), "");
    EXPECT_EQ(held_callers_.size(), 0u);
    EXPECT_EQ(testing::Query(store_, overall, "").level.remaining, 3);
    EXPECT_EQ(testing::Query(store_, channel, "").level.remaining, 2);
    EXPECT_EQ(store_.Stats().bookings, 0u);
  }
}

TEST(AlarmThreadTest, AnswersOnTheRealClockWithManyThreads) {
  const common::SystemClock clock;
  store::MemoryStore store(clock);
  Limits limits(store);
  const Rule& rule = limits.Set(1, algorithm::MakeTokenBucket({10'000, kSecond}, 1, 0).value());
  AlarmThread alarm(clock);
  HeldCallers held_callers(store, clock, limits, alarm);
  alarm.Start(held_callers);
  CallerCrowd crowd(clock, store, limits);
  crowd.Run(held_callers, /*threads=*/4, /*each=*/500,
            [&](int) { return CallerCrowd::Request{&rule, kMinute}; });
  while (held_callers.size() > 0) std::this_thread::yield();
  alarm.Stop();
  EXPECT_EQ(crowd.answered(), crowd.held());
  EXPECT_EQ(crowd.early(), 0);
}

}  // namespace
}  // namespace sluice::waiting
