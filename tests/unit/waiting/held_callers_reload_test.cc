// Limits change while callers wait and others arrive.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/store/memory/memory_store.h"
#include "server/waiting/alarm_thread.h"
#include "tests/support/window_checker.h"
#include "tests/unit/waiting/waiting_scene.h"

namespace sluice::waiting {
namespace {

// Between a change of limits and LimitsChanged, callers arrive with the old limits and with the new
// ones, to be decided at once or held.
class HeldCallersReloadTest : public ::testing::Test {
 protected:
  struct Granted {
    int64_t at_ns;
    uint64_t receipt_id;  // 0: at once
  };

  struct World {
    explicit World(uint64_t seed) : random(seed) {}

    int64_t Below(uint64_t n) { return static_cast<int64_t>(random() % n); }

    // `late`: with the limits from before the last change.
    void Arrive(bool hold, bool late) {
      const Rule* const rule = late && before != nullptr ? before : now;
      auto caller = std::make_unique<Caller>(clock, std::vector<Charge>{{rule, "k", 1}});
      caller->decided_.max_wait_ns = hold ? 20 * kSecond : 0;
      Decide(store, caller->decided_);
      if (caller->decided_.outcome == Outcome::kStaleRule) {
        ASSERT_TRUE(late);
        return;
      }
      if (caller->decided_.outcome != Outcome::kGranted) return;
      if (caller->decided_.wait_ns == 0) {
        // No earlier caller still waits for a later grant time.
        for (const auto& other : callers) {
          if (other->answered()) continue;
          EXPECT_LE(other->grant_time_ns(), clock.NowNs());
        }
        granted.push_back({clock.NowNs(), 0});
        return;
      }
      caller->since_ns = clock.NowNs();
      caller->until_ns = caller->since_ns + 20 * kSecond;
      caller->generation = limits.Generation() - (rule == now ? 0 : 1);
      ASSERT_TRUE(held_callers.Hold(caller.get()));
      callers.push_back(std::move(caller));
    }
    void Change() {
      before = now;
      now = &limits.Set(1, PerSecond(rate = 2 + random() % 20, 1));
      changes.push_back({clock.NowNs(), rate});
    }
    void AdvanceTo(int64_t to_ns) {
      int64_t next_ns = held_callers.Advance();
      while (next_ns <= to_ns) {
        clock.Advance(std::max<int64_t>(next_ns - clock.NowNs(), 0));
        next_ns = held_callers.Advance();
      }
      clock.Advance(to_ns - clock.NowNs());
    }

    common::FakeClock clock{1000 * kSecond};
    store::MemoryStore store{clock};
    Limits limits{store};
    ManualAlarm alarm;
    HeldCallers held_callers{store, clock, limits, alarm};
    std::mt19937_64 random;
    uint64_t rate = 5;
    const Rule* now = &limits.Set(1, PerSecond(5, 1));
    const Rule* before = nullptr;
    std::vector<std::unique_ptr<Caller>> callers;
    std::vector<Granted> granted;
    std::vector<std::pair<int64_t, uint64_t>> changes{{0, 5}};
  };
};

TEST_F(HeldCallersReloadTest, CallersOfLimitThatBecomesSlotsAreGrantedOnlyWithSlots) {
  World world(1);
  world.now = &world.limits.Set(1, PerSecond(1, 1));
  for (int i = 0; i < 4; ++i) world.Arrive(/*hold=*/true, /*late=*/false);
  ASSERT_EQ(world.callers.size(), 3u);
  const Rule& slots = world.limits.Set(1, *algorithm::MakeConcurrency(1, kMinute));
  // The grant time of the first caller comes before the change is known.
  world.clock.Advance(kSecond);
  world.held_callers.LimitsChanged();
  world.AdvanceTo(world.clock.NowNs() + 10 * kSecond);
  int64_t granted = 0;
  for (const auto& caller : world.callers) {
    ASSERT_TRUE(caller->answered());
    granted += caller->answers_[0] == HeldOutcome::kGrantTime ? 1 : 0;
  }
  EXPECT_EQ(granted, 1);
  EXPECT_EQ(testing::Query(world.store, slots, "k").level.remaining, 0);
}

TEST_F(HeldCallersReloadTest, KeepsTheOrderAndTheNewRateFromTheChangeOn) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    World world(seed);
    for (int step = 0; step < 400; ++step) {
      switch (world.Below(8)) {
        case 0:
          if (world.Below(6) == 0) {
            world.Change();
            // Before LimitsChanged.
            for (int64_t n = world.Below(4); n > 0; --n) {
              world.Arrive(world.Below(2) == 0, world.Below(2) == 0);
              world.clock.Advance(world.Below(kSecond / 100));
            }
            if (world.Below(2) == 0) world.held_callers.LimitsChanged();
          }
          break;
        case 1:
          if (!world.callers.empty()) {
            world.held_callers.Cancel(
                world.callers[static_cast<size_t>(world.Below(world.callers.size()))].get());
          }
          break;
        case 2:
        case 3:
        case 4:
          world.AdvanceTo(world.clock.NowNs() + world.Below(kSecond / 2));
          break;
        default:
          world.Arrive(world.Below(3) > 0, /*late=*/false);
          break;
      }
    }
    world.AdvanceTo(world.clock.NowNs() + kMinute);
    int64_t last_ns = 0;
    for (const auto& caller : world.callers) {
      ASSERT_EQ(caller->answers_.size(), 1u) << seed;
      if (caller->answers_[0] != HeldOutcome::kGrantTime) continue;
      // First come, first served.
      EXPECT_GE(caller->grant_time_ns(), last_ns) << seed;
      EXPECT_GE(caller->answered_ns_, caller->grant_time_ns()) << seed;
      EXPECT_LE(caller->grant_time_ns(), caller->until_ns) << seed;
      last_ns = caller->grant_time_ns();
      world.granted.push_back({caller->grant_time_ns(), caller->decided_.receipt_id});
    }
    std::sort(world.granted.begin(), world.granted.end(),
              [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
    for (size_t c = 0; c < world.changes.size(); ++c) {
      const auto& [from_ns, rate] = world.changes[c];
      const int64_t until_ns = c + 1 < world.changes.size() ? world.changes[c + 1].first
                                                            : std::numeric_limits<int64_t>::max();
      std::vector<test_support::Grant> during;
      for (const Granted& grant : world.granted) {
        if (grant.at_ns > from_ns && grant.at_ns <= until_ns) during.push_back({grant.at_ns, 1});
      }
      EXPECT_EQ(test_support::CheckRateInEveryWindow(during, rate, kSecond, 1), "") << seed;
    }
    EXPECT_EQ(testing::Query(world.store, *world.now, "k").level.remaining, 1);
    EXPECT_EQ(world.store.Stats().bookings, 0u);
  }
}

TEST_F(HeldCallersReloadTest, AnswersEachOnceAndNeverEarlyOnRealThreads) {
  const common::SystemClock clock;
  store::MemoryStore store(clock);
  Limits limits(store);
  const auto rate = [](uint64_t permits) {
    return algorithm::MakeTokenBucket({permits, kSecond}, 1, 0).value();
  };
  std::atomic<const Rule*> rule{&limits.Set(1, rate(5'000))};
  AlarmThread alarm(clock);
  CallerCrowd crowd(clock, store, limits);
  {
    HeldCallers held_callers(store, clock, limits, alarm);
    alarm.Start(held_callers);
    crowd.Run(
        held_callers, /*threads=*/3, /*each=*/400,
        [&](int i) { return CallerCrowd::Request{rule.load(), i % 3 == 0 ? 0 : kMinute}; },
        [&](int thread, int i) {
          if (thread != 0 || i % 20 != 10) return;
          rule.store(&limits.Set(1, rate(i % 40 == 10 ? 20'000 : 4'000)));
          held_callers.LimitsChanged();
        });
    crowd.AwaitAnswers();
    EXPECT_EQ(crowd.answered(), crowd.held()) << "after a minute";
    alarm.Stop();
  }
  EXPECT_GT(crowd.held(), 0);
  EXPECT_EQ(crowd.answered(), crowd.held());
  EXPECT_EQ(crowd.early(), 0);
}

}  // namespace
}  // namespace sluice::waiting
