// Limits that change while callers wait and others come.
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

// Everything that happens between a change of limits and its coming to the line happens here too:
// newcomers by the old limits and by the new ones, at once and to be held.
class HeldCallersReloadTest : public ::testing::Test {
 protected:
  struct Granted {
    int64_t at_ns;
    uint64_t receipt_id;  // 0: at once
  };

  struct World {
    explicit World(uint64_t seed) : random(seed) {}

    int64_t Below(uint64_t n) { return static_cast<int64_t>(random() % n); }

    // `late`: its limits are those of before the last change.
    void Come(bool hold, bool late) {
      const Rule* const rule = late && before != nullptr ? before : now;
      auto caller = std::make_unique<Caller>(clock, std::vector<Charge>{{rule, "k", 1}});
      caller->decided_.max_wait_ns = hold ? 20 * kSecond : 0;
      struct Operation final : store::AcquireOperation {
        void Done() override {}
      } operation;
      operation.acquisitions = absl::MakeSpan(&caller->decided_, 1);
      store.Acquire(&operation);
      if (caller->decided_.outcome == Outcome::kStaleRule) {
        ASSERT_TRUE(late);
        return;
      }
      if (caller->decided_.outcome != Outcome::kGranted) return;
      if (caller->decided_.wait_ns == 0) {
        // Nobody who came before it still waits, but for those whose moment has come.
        for (const auto& other : callers) {
          if (other->answered()) continue;
          EXPECT_LE(other->grant_time_ns(), clock.NowNs());
        }
        granted.push_back({clock.NowNs(), 0});
        return;
      }
      caller->until_ns = clock.NowNs() + 20 * kSecond;
      caller->generation = limits.Generation() - (rule == now ? 0 : 1);
      ASSERT_TRUE(line.Hold(caller.get()));
      callers.push_back(std::move(caller));
    }
    void Change() {
      before = now;
      now = &limits.Set(1, PerSecond(rate = 2 + random() % 20, 1));
      changes.push_back({clock.NowNs(), rate});
    }
    void AdvanceTo(int64_t to_ns) {
      int64_t next_ns = line.Advance();
      while (next_ns <= to_ns) {
        clock.Advance(std::max<int64_t>(next_ns - clock.NowNs(), 0));
        next_ns = line.Advance();
      }
      clock.Advance(to_ns - clock.NowNs());
    }

    common::FakeClock clock{1000 * kSecond};
    store::MemoryStore store{clock};
    Limits limits{store};
    ManualAlarm alarm;
    HeldCallers line{store, clock, limits, alarm};
    std::mt19937_64 random;
    uint64_t rate = 5;
    const Rule* now = &limits.Set(1, PerSecond(5, 1));
    const Rule* before = nullptr;
    std::vector<std::unique_ptr<Caller>> callers;
    std::vector<Granted> granted;
    std::vector<std::pair<int64_t, uint64_t>> changes{{0, 5}};
  };
};

TEST_F(HeldCallersReloadTest, NobodyIsOvertakenAndNoFigureIsExceededFromTheChangeOn) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    World world(seed);
    for (int step = 0; step < 400; ++step) {
      switch (world.Below(8)) {
        case 0:
          if (world.Below(6) == 0) {
            world.Change();
            // Before it comes to the line.
            for (int64_t n = world.Below(4); n > 0; --n) {
              world.Come(world.Below(2) == 0, world.Below(2) == 0);
              world.clock.Advance(world.Below(kSecond / 100));
            }
            if (world.Below(2) == 0) world.line.LimitsChanged();
          }
          break;
        case 1:
          if (!world.callers.empty()) {
            world.line.Cancel(
                world.callers[static_cast<size_t>(world.Below(world.callers.size()))].get());
          }
          break;
        case 2:
        case 3:
        case 4:
          world.AdvanceTo(world.clock.NowNs() + world.Below(kSecond / 2));
          break;
        default:
          world.Come(world.Below(3) > 0, /*late=*/false);
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

TEST_F(HeldCallersReloadTest, OnRealThreadsEachIsAnsweredOnceAndNoneEarly) {
  const common::SystemClock clock;
  store::MemoryStore store(clock);
  Limits limits(store);
  const auto rate = [](uint64_t permits) {
    return algorithm::MakeTokenBucket({permits, kSecond}, 1, 0).value();
  };
  std::atomic<const Rule*> rule{&limits.Set(1, rate(5'000))};
  AlarmThread alarm(clock);
  struct Waiter final : HeldCaller {
    void OnAnswer(HeldOutcome outcome) override {
      if (outcome == HeldOutcome::kGrantTime && clock->NowNs() < grant_time_ns())
        early->fetch_add(1);
      answered->fetch_add(1);
    }
    const common::Clock* clock;
    std::atomic<int>* answered;
    std::atomic<int>* early;
    Charge charge;
    store::ChargeResult result;
    store::Acquisition decided;
  };
  constexpr int kThreads = 3;
  constexpr int kEach = 400;
  std::vector<std::unique_ptr<Waiter>> waiters(kThreads * kEach);
  std::atomic<int> answered{0};
  std::atomic<int> early{0};
  std::atomic<int> held{0};
  {
    HeldCallers line(store, clock, limits, alarm);
    alarm.Start(line);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          auto& waiter = waiters[static_cast<size_t>(t * kEach + i)];
          waiter = std::make_unique<Waiter>();
          waiter->clock = &clock;
          waiter->answered = &answered;
          waiter->early = &early;
          waiter->generation = limits.Generation();
          waiter->charge = {rule.load(), "k", 1};
          waiter->decided.charges = absl::MakeSpan(&waiter->charge, 1);
          waiter->decided.results = &waiter->result;
          waiter->decided.max_wait_ns = i % 3 == 0 ? 0 : kMinute;
          waiter->acquisition = &waiter->decided;
          struct Operation final : store::AcquireOperation {
            void Done() override {}
          } operation;
          operation.acquisitions = absl::MakeSpan(&waiter->decided, 1);
          store.Acquire(&operation);
          if (waiter->decided.outcome == Outcome::kGranted && waiter->decided.wait_ns > 0) {
            waiter->until_ns = clock.NowNs() + kMinute;
            held.fetch_add(1);
            line.Hold(waiter.get());
            if (i % 5 == 0) line.Cancel(waiter.get());
          }
          if (t == 0 && i % 20 == 10) {
            rule.store(&limits.Set(1, rate(i % 40 == 10 ? 20'000 : 4'000)));
            line.LimitsChanged();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const int64_t patience_ns = clock.NowNs() + kMinute;
    while (answered.load() < held.load() && clock.NowNs() < patience_ns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(answered.load(), held.load()) << "after a minute";
    alarm.Stop();
  }
  EXPECT_GT(held.load(), 0);
  EXPECT_EQ(answered.load(), held.load());
  EXPECT_EQ(early.load(), 0);
}

}  // namespace
}  // namespace sluice::waiting
