// HeldCallers with a store that answers later: in any order, from other threads, or not at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/store/memory/memory_store.h"
#include "server/waiting/alarm_thread.h"
#include "tests/support/late_store.h"
#include "tests/support/window_checker.h"
#include "tests/unit/waiting/waiting_scene.h"

namespace sluice::waiting {
namespace {

// How far the store's clock is ahead of the local clock.
constexpr int64_t kAheadNs = 12345 * kSecond;

class HeldCallersLateStoreTest : public ::testing::Test {
 protected:
  struct World {
    World(const testing::LateStore::Options& options, uint64_t seed)
        : late(memory, options, seed), random(seed * 7 + 1) {}

    int64_t Below(uint64_t n) { return static_cast<int64_t>(random() % n); }

    // Books in the store and holds the caller.
    void Hold(std::vector<Charge> charges, int64_t max_wait_ns) {
      auto caller = std::make_unique<Caller>(store_clock, std::move(charges));
      caller->decided_.max_wait_ns = max_wait_ns;
      Decide(memory, caller->decided_);
      if (caller->decided_.outcome != Outcome::kGranted) return;
      if (caller->decided_.wait_ns == 0) {
        at_once.push_back({caller->decided_.now_ns, 1});
        return;
      }
      caller->since_ns = clock.NowNs();
      caller->until_ns = caller->since_ns + max_wait_ns;
      caller->generation = limits.Generation();
      if (held_callers.Hold(caller.get())) callers.push_back(std::move(caller));
    }
    void AdvanceBy(int64_t by_ns) {
      clock.Advance(by_ns);
      store_clock.Advance(by_ns);
      if (alarm.at_ns_ <= clock.NowNs()) {
        alarm.at_ns_ = HeldCallers::kNever;
        alarm.at_ns_ = std::min(alarm.at_ns_, held_callers.Advance());
      }
    }
    // Runs until no caller waits and no operation is pending.
    ::testing::AssertionResult Finish() {
      for (int i = 0; i < 200'000; ++i) {
        const bool busy = late.Step();
        if (!busy && held_callers.size() == 0) return ::testing::AssertionSuccess();
        if (Below(4) == 0 || !busy) AdvanceBy(Below(kSecond / 20));
      }
      return ::testing::AssertionFailure() << held_callers.size() << " still wait, "
                                           << late.under_way() << " operations under way";
    }

    common::FakeClock clock{1000 * kSecond};
    common::FakeClock store_clock{1000 * kSecond + kAheadNs};
    store::MemoryStore memory{store_clock};
    testing::LateStore late;
    Limits limits{late};
    ManualAlarm alarm;
    HeldCallers held_callers{late, clock, limits, alarm};
    std::mt19937_64 random;
    std::vector<std::unique_ptr<Caller>> callers;
    std::vector<test_support::Grant> at_once;
    const Rule* overall = nullptr;
    const Rule* channel = nullptr;
  };

  // Callers arrive, cancel and wait, while the store answers at random.
  static void Run(World& world, uint32_t id, bool change_limits) {
    const Rule*& overall = world.overall;
    const Rule*& channel = world.channel;
    overall = &world.limits.Set(id, PerSecond(20, 3));
    channel = &world.limits.Set(id + 1, PerSecond(8, 2));
    for (int step = 0; step < 500; ++step) {
      if (world.Below(3) == 0) world.AdvanceBy(world.Below(kSecond / 10));
      for (int64_t n = world.Below(6); n > 0; --n) world.late.Step();
      std::vector<Charge> charges;
      if (world.Below(2) == 0) charges.push_back({channel, "", 1});
      charges.push_back({overall, "", 1});
      if (world.callers.size() < 4 || world.Below(2) == 0) world.Hold(charges, 5 * kSecond);
      if (world.Below(3) == 0 && !world.callers.empty()) {
        world.held_callers.Cancel(
            world.callers[static_cast<size_t>(world.Below(world.callers.size()))].get());
      }
      if (change_limits && world.Below(60) == 0) {
        channel = &world.limits.Set(id + 1, PerSecond(2 + world.random() % 12, 2));
        world.held_callers.LimitsChanged();
      }
    }
    EXPECT_TRUE(world.Finish());
    for (const auto& caller : world.callers) {
      ASSERT_EQ(caller->answers_.size(), 1u);
      if (caller->answers_[0] == HeldOutcome::kGrantTime) {
        EXPECT_GE(caller->answered_ns_, caller->grant_time_ns());  // by the store's clock
      }
    }
  }

  static void ExpectNothingBooked(World& world) {
    for (const Rule* rule : {world.overall, world.channel}) {
      EXPECT_EQ(testing::Query(world.memory, *rule, "").waiting, 0u);
    }
    EXPECT_EQ(world.memory.Stats().bookings, 0u);
  }

  static std::vector<test_support::Grant> Grants(const World& world) {
    std::vector<test_support::Grant> grants = world.at_once;
    for (const auto& caller : world.callers) {
      if (caller->answers_[0] != HeldOutcome::kGrantTime) continue;
      grants.push_back(
          {world.late.MomentOf(caller->decided_.receipt_id, caller->grant_time_ns()), 1});
    }
    std::sort(grants.begin(), grants.end(),
              [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
    return grants;
  }
};

TEST_F(HeldCallersLateStoreTest, AnswersEachOnceForAnyOrderOfTheStoresAnswers) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    World world({.in_order = seed % 2 == 0}, seed);
    Run(world, 10, /*change_limits=*/false);
    EXPECT_EQ(test_support::CheckRateInEveryWindow(Grants(world), 20, kSecond, 3), "");
    ExpectNothingBooked(world);
    std::map<size_t, int64_t> last_of_set;
    for (const auto& caller : world.callers) {
      if (caller->answers_[0] != HeldOutcome::kGrantTime) continue;
      const int64_t grant_time_ns =
          world.late.MomentOf(caller->decided_.receipt_id, caller->grant_time_ns());
      EXPECT_GE(grant_time_ns, last_of_set[caller->charges_.size()]) << seed;
      last_of_set[caller->charges_.size()] = grant_time_ns;
    }
  }
}

TEST_F(HeldCallersLateStoreTest, AnswersEachOnceWhileLimitsChange) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    World world({.in_order = seed % 2 == 0, .rebooks = seed % 4 < 2}, seed);
    Run(world, 10, /*change_limits=*/true);
    EXPECT_EQ(test_support::CheckRateInEveryWindow(Grants(world), 20, kSecond, 3), "") << seed;
    ExpectNothingBooked(world);
  }
}

TEST_F(HeldCallersLateStoreTest, AnswersEachOnceWhenStoreAnswersAreLost) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    World world({.in_order = seed % 2 == 0, .rebooks = seed % 4 < 2, .lost_percent = 20}, seed);
    Run(world, 10, /*change_limits=*/true);
    // An unknown result counts as spent, so the rate is never exceeded.
    EXPECT_EQ(test_support::CheckRateInEveryWindow(Grants(world), 20, kSecond, 3), "") << seed;
  }
}

TEST_F(HeldCallersLateStoreTest, CallersBehindACancelledOneMoveUpInOrder) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    World world({.in_order = true}, seed);
    const Rule& rule = world.limits.Set(1, PerSecond(1));
    for (int i = 0; i < 101; ++i) world.Hold({{&rule, "k", 1}}, 5 * kMinute);
    ASSERT_EQ(world.callers.size(), 100u);
    const int64_t start_ns = world.store_clock.NowNs();
    for (size_t i = 0; i < 50; ++i) ASSERT_TRUE(world.held_callers.Cancel(world.callers[i].get()));
    for (int i = 0; i < 4000; ++i) {
      world.late.Step();
      if (i % 16 == 0) world.AdvanceBy(1000);
    }
    EXPECT_EQ(world.late.under_way(), 0u);
    for (size_t i = 50; i < 100; ++i) {
      EXPECT_EQ(world.callers[i]->grant_time_ns(),
                start_ns + static_cast<int64_t>(i - 49) * kSecond);
    }
    EXPECT_TRUE(world.Finish());
  }
}

// Decides at once, but answers moves when the test says so.
class LateMoves final : public store::Store {
 public:
  explicit LateMoves(store::Store& store) : store_(store) {}
  std::string_view Kind() const override { return store_.Kind(); }
  void Register(std::shared_ptr<const Rule> rule) override { store_.Register(std::move(rule)); }
  store::StoreStats Stats() const override { return store_.Stats(); }
  void Acquire(store::AcquireOperation* operation) override { store_.Acquire(operation); }
  void Query(store::QueryOperation* operation) override { store_.Query(operation); }
  void Refund(store::RefundOperation* operation) override { store_.Refund(operation); }
  void Move(store::MoveOperation* operation) override {
    struct Inner final : store::MoveOperation {
      void Done() override {}
    } inner;
    inner.receipt_id = operation->receipt_id;
    inner.grant_time_ns = operation->grant_time_ns;
    inner.charges = operation->charges;
    store_.Move(&inner);
    operation->grant_time_ns = inner.grant_time_ns;
    operation->outcome = inner.outcome;
    ++moves_;
    decided_.push_back(operation);
  }
  void Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) override {
    store_.Reset(rule, key, done, context);
  }
  // How many were started.
  int moves() const { return moves_; }
  // Answers the oldest one. False: there is none.
  bool Answer() {
    if (decided_.empty()) return false;
    store::MoveOperation* const operation = decided_.front();
    decided_.erase(decided_.begin());
    operation->Done();
    return true;
  }

 private:
  store::Store& store_;
  int moves_ = 0;
  std::vector<store::MoveOperation*> decided_;
};

TEST(HeldCallersLateMovesTest, MovesAgainIntoAGapThatOpenedDuringAMove) {
  common::FakeClock clock{1000 * kSecond};
  store::MemoryStore memory(clock);
  LateMoves late(memory);
  Limits limits(late);
  ManualAlarm alarm;
  const Rule& rule = limits.Set(1, PerSecond(1));
  ASSERT_TRUE(testing::Acquire(memory, rule, "k", 1).granted());
  std::vector<std::unique_ptr<Caller>> callers;
  HeldCallers held_callers(late, clock, limits, alarm);
  const int64_t start_ns = clock.NowNs();
  for (int64_t i = 1; i <= 3; ++i) {
    callers.push_back(std::make_unique<Caller>(clock, std::vector<Charge>{{&rule, "k", 1}}));
    Caller& caller = *callers.back();
    caller.decided_.max_wait_ns = kMinute;
    Decide(memory, caller.decided_);
    ASSERT_EQ(caller.grant_time_ns(), start_ns + i * kSecond);
    caller.since_ns = start_ns;
    caller.until_ns = start_ns + kMinute;
    caller.generation = limits.Generation();
    ASSERT_TRUE(held_callers.Hold(&caller));
  }
  const Caller& last = *callers[2];
  held_callers.Cancel(callers[1].get());
  held_callers.Advance();
  ASSERT_EQ(late.moves(), 1);
  held_callers.Cancel(callers[0].get());
  held_callers.Advance();
  ASSERT_EQ(late.moves(), 1) << "the other one is not answered";
  ASSERT_TRUE(late.Answer());
  EXPECT_EQ(last.grant_time_ns(), start_ns + 2 * kSecond);
  held_callers.Advance();
  EXPECT_EQ(late.moves(), 2);
  ASSERT_TRUE(late.Answer());
  EXPECT_EQ(last.grant_time_ns(), start_ns + kSecond);
  held_callers.Advance();
  EXPECT_EQ(late.moves(), 2);
}

TEST_F(HeldCallersLateStoreTest, AnswersAtOnceACallerCancelledBeforeItsReservation) {
  World world({}, 1);
  const Rule& rule = world.limits.Set(1, PerSecond(1));
  world.Hold({{&rule, "k", 1}}, kMinute);
  Caller caller(world.store_clock, {{&rule, "k", 1}});
  const testing::Acquired booked =
      testing::Acquire(world.memory, rule, "k", 1, {.max_wait_ns = kMinute});
  caller.decided_.outcome = Outcome::kGranted;
  caller.decided_.now_ns = booked.now_ns;
  caller.decided_.wait_ns = booked.wait_ns;
  caller.decided_.receipt_id = booked.receipt_id;
  EXPECT_FALSE(world.held_callers.Cancel(&caller));
  EXPECT_TRUE(world.held_callers.Hold(&caller));
  EXPECT_EQ(caller.answers_, std::vector{HeldOutcome::kCancelled});
  EXPECT_TRUE(world.Finish());
  EXPECT_EQ(testing::Query(world.memory, rule, "k").waiting, 0u);
}

TEST_F(HeldCallersLateStoreTest, DrainAnswersAllAtOnceAndRefundsAll) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    World world({.rebooks = seed % 2 == 0}, seed);
    const Rule& rule = world.limits.Set(1, PerSecond(1));
    for (int i = 0; i < 40; ++i) world.Hold({{&rule, "k", 1}}, kMinute);
    world.limits.Set(1, PerSecond(2));
    world.held_callers.LimitsChanged();
    world.AdvanceBy(1);
    for (int64_t n = world.Below(100); n > 0; --n) world.late.Step();
    world.held_callers.Drain();
    for (const auto& caller : world.callers) {
      EXPECT_EQ(caller->answers_, std::vector{HeldOutcome::kDrained});
    }
    EXPECT_TRUE(world.Finish());
    EXPECT_EQ(testing::Query(world.memory, rule, "k").waiting, 0u);
  }
}

TEST_F(HeldCallersLateStoreTest, AnswersAllOnRealThreads) {
  const common::SystemClock clock;
  store::MemoryStore memory(clock);
  testing::LateStore late(memory, {}, 1);
  Limits limits(late);
  const auto rate = [](uint64_t permits) {
    return algorithm::MakeTokenBucket({permits, kSecond}, 1, 0).value();
  };
  std::atomic<const Rule*> rule{&limits.Set(1, rate(10'000))};
  AlarmThread alarm(clock);
  CallerCrowd crowd(clock, memory, limits);
  std::atomic<bool> stop{false};
  std::vector<std::thread> steppers;
  for (int i = 0; i < 2; ++i) {
    steppers.emplace_back([&] {
      while (!stop.load()) {
        if (!late.Step()) std::this_thread::yield();
      }
    });
  }
  {
    HeldCallers held_callers(late, clock, limits, alarm);
    alarm.Start(held_callers);
    crowd.Run(
        held_callers, /*threads=*/3, /*each=*/300,
        [&](int) { return CallerCrowd::Request{rule.load(), kMinute}; },
        [&](int thread, int i) {
          if (thread != 0 || i % 100 != 50) return;
          rule.store(&limits.Set(1, rate(i == 150 ? 20'000 : 8'000)));
          held_callers.LimitsChanged();
        });
    crowd.AwaitAnswers();
    alarm.Stop();
  }
  stop.store(true);
  for (std::thread& thread : steppers) thread.join();
  EXPECT_GT(crowd.held(), 0);
  EXPECT_EQ(crowd.answered(), crowd.held());
}

}  // namespace
}  // namespace sluice::waiting
