#include "common/net/timer_wheel.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace sluice::net {
namespace {

constexpr int64_t kTick = TimerWheel::kTickNs;

struct Probe {
  explicit Probe(std::vector<int>* log, int name) : log(log), name(name) {}
  void OnTimer() {
    if (log != nullptr) log->push_back(name);
  }
  std::vector<int>* log;
  int name;
  Timer timer{Timer::To<&Probe::OnTimer>, this};
};

TEST(TimerWheelTest, FiresWithinATickAndNeverEarly) {
  for (const int64_t at_ns : {int64_t{1}, kTick - 1, kTick, kTick + 1, 64 * kTick, 64 * kTick + 1,
                              4096 * kTick - 1, int64_t{3600} * 1'000'000'000}) {
    TimerWheel wheel(0);
    std::vector<int> log;
    Probe probe(&log, 1);
    wheel.Arm(probe.timer, at_ns);
    EXPECT_EQ(wheel.Advance(at_ns - 1), 0u) << at_ns;
    EXPECT_GE(wheel.NextNs(), at_ns);
    EXPECT_LT(wheel.NextNs(), at_ns + kTick);
    EXPECT_EQ(wheel.Advance(wheel.NextNs()), 1u) << at_ns;
    EXPECT_FALSE(probe.timer.armed());
    EXPECT_EQ(wheel.NextNs(), TimerWheel::kNever);
  }
}

TEST(TimerWheelTest, FiresInOrderOfDeadlineHoweverFarTimeJumps) {
  TimerWheel wheel(12345);
  std::vector<int> log;
  std::vector<std::unique_ptr<Probe>> probes;
  for (int i = 0; i < 300; ++i) {
    probes.push_back(std::make_unique<Probe>(&log, i));
    wheel.Arm(probes.back()->timer, 12345 + (int64_t{1} << 16) * i * i * i);
  }
  EXPECT_EQ(wheel.Advance(int64_t{1} << 50), 300u);
  EXPECT_TRUE(std::is_sorted(log.begin() + 1, log.end()));
}

TEST(TimerWheelTest, CancelledTimerDoesNotFire) {
  TimerWheel wheel(0);
  std::vector<int> log;
  Probe kept(&log, 1), cancelled(&log, 2);
  wheel.Arm(kept.timer, kTick);
  wheel.Arm(cancelled.timer, kTick);
  cancelled.timer.Cancel();
  cancelled.timer.Cancel();
  EXPECT_EQ(wheel.size(), 1u);
  wheel.Advance(10 * kTick);
  EXPECT_EQ(log, std::vector<int>{1});
}

TEST(TimerWheelTest, RearmedTimerMoves) {
  TimerWheel wheel(0);
  std::vector<int> log;
  Probe probe(&log, 1);
  wheel.Arm(probe.timer, kTick);
  wheel.Arm(probe.timer, 1000 * kTick);
  EXPECT_EQ(wheel.Advance(999 * kTick), 0u);
  EXPECT_EQ(wheel.Advance(1000 * kTick), 1u);
}

struct Periodic {
  void OnTimer() {
    ++fired;
    wheel.Arm(timer, 0);
  }
  TimerWheel& wheel;
  int fired = 0;
  Timer timer{Timer::To<&Periodic::OnTimer>, this};
};

TEST(TimerWheelTest, TimerThatArmsItselfForThePastFiresOncePerAdvance) {
  TimerWheel wheel(0);
  Periodic periodic{wheel};
  wheel.Arm(periodic.timer, kTick);
  wheel.Advance(int64_t{3600} * 1'000'000'000);
  EXPECT_EQ(periodic.fired, 1);
  wheel.Advance(int64_t{3600} * 1'000'000'000 + kTick);
  EXPECT_EQ(periodic.fired, 2);
}

struct Destroyer {
  void OnTimer() { victim.reset(); }
  std::unique_ptr<Probe> victim;
  Timer timer{Timer::To<&Destroyer::OnTimer>, this};
};

TEST(TimerWheelTest, CallbackMayDestroyAnotherDueTimer) {
  TimerWheel wheel(0);
  std::vector<int> log;
  Destroyer first{std::make_unique<Probe>(&log, 1)};
  Destroyer second{std::make_unique<Probe>(&log, 2)};
  wheel.Arm(first.timer, kTick);
  wheel.Arm(first.victim->timer, kTick);
  wheel.Arm(second.victim->timer, kTick);
  wheel.Arm(second.timer, kTick);
  wheel.Advance(kTick);
  EXPECT_EQ(wheel.size(), 0u);
  // One destroyed timer is due before its destroyer, in any order within a tick.
  EXPECT_EQ(log.size(), 1u);
}

TEST(TimerWheelTest, TimersBeyondTheClockNeverFire) {
  TimerWheel wheel(0);
  Probe probe(nullptr, 1);
  wheel.Arm(probe.timer, TimerWheel::kNever);
  EXPECT_EQ(wheel.NextNs(), TimerWheel::kNever);
  EXPECT_EQ(wheel.Advance(TimerWheel::kNever - kTick), 0u);
}

TEST(TimerWheelTest, IdleTimersNeedNoWakeUpBeforeTheFirst) {
  TimerWheel wheel(0);
  constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;
  std::vector<std::unique_ptr<Probe>> probes;
  for (int i = 0; i < 100'000; ++i) {
    probes.push_back(std::make_unique<Probe>(nullptr, i));
    wheel.Arm(probes.back()->timer, kHour + i * int64_t{36'000'000});
  }
  EXPECT_GE(wheel.NextNs(), kHour);
  EXPECT_LT(wheel.NextNs(), kHour + kTick);
  // Other wake-ups of the loop change nothing.
  for (int64_t now = 0; now < kHour; now += kHour / 97) {
    EXPECT_EQ(wheel.Advance(now), 0u);
    EXPECT_GE(wheel.NextNs(), kHour);
  }
  int wakeups = 0;
  size_t fired = 0;
  while (fired < probes.size()) {
    fired += wheel.Advance(wheel.NextNs());
    ++wakeups;
  }
  EXPECT_LE(wakeups, 100'000);
}

TEST(TimerWheelTest, ManyTimersOfASlotMoveInSteps) {
  constexpr int kTimers = 10'000;
  constexpr int64_t kDue = int64_t{1} << 40;
  TimerWheel wheel(0);
  std::vector<int> log;
  std::vector<std::unique_ptr<Probe>> probes;
  for (int i = 0; i < kTimers; ++i) {
    probes.push_back(std::make_unique<Probe>(&log, i));
    wheel.Arm(probes.back()->timer, kDue + i % 2 * kTick);
  }
  const int64_t now = kDue + 2 * kTick;
  EXPECT_EQ(wheel.Advance(now, 64), 0u);
  EXPECT_LE(wheel.NextNs(), now);
  // Some have moved, some have not.
  for (int i = 0; i < kTimers; i += 4) probes[i].reset();
  for (int i = 2; i < kTimers; i += 4) probes[i]->timer.Cancel();
  Probe other(&log, -1);
  wheel.Arm(other.timer, kDue);
  int calls = 1;
  for (; wheel.NextNs() <= now; ++calls) EXPECT_LE(wheel.Advance(now, 64), 64u);
  EXPECT_GT(calls, kTimers / 2 / 64);
  ASSERT_EQ(log.size(), kTimers / 2 + 1u);
  EXPECT_EQ(wheel.size(), 0u);
}

TEST(TimerWheelTest, DestroyedWheelDisarmsItsTimers) {
  Probe probe(nullptr, 1);
  {
    TimerWheel wheel(0);
    wheel.Arm(probe.timer, kTick);
  }
  EXPECT_FALSE(probe.timer.armed());
}

// Compares random arming, cancelling and advancing with a list that is searched in full.
RC_GTEST_PROP(TimerWheelProperty, BehavesLikeASearchedList, ()) {
  constexpr int kTimers = 40;
  int64_t now = *rc::gen::inRange<int64_t>(0, int64_t{1} << 60);
  TimerWheel wheel(now);
  std::vector<int> log;
  std::vector<std::unique_ptr<Probe>> probes;
  std::vector<std::optional<int64_t>> due_tick(kTimers);  // the reference
  for (int i = 0; i < kTimers; ++i) probes.push_back(std::make_unique<Probe>(&log, i));
  int64_t wheel_tick = now / kTick;
  bool cancelled_since_exact = false;
  const int steps = *rc::gen::inRange(1, 200);
  for (int step = 0; step < steps; ++step) {
    const int which = *rc::gen::inRange(0, kTimers);
    const int64_t magnitude = int64_t{1} << *rc::gen::inRange(0, 58);
    switch (*rc::gen::inRange(0, 5)) {
      case 0:
      case 1: {
        if (due_tick[which]) cancelled_since_exact = true;
        const int64_t at = now + *rc::gen::inRange<int64_t>(-1000, magnitude);
        wheel.Arm(probes[which]->timer, at);
        const int64_t tick = at <= 0 ? 0 : (at - 1) / kTick + 1;
        due_tick[which] = std::max(tick, wheel_tick + 1);
        break;
      }
      case 2:
        if (due_tick[which]) cancelled_since_exact = true;
        probes[which]->timer.Cancel();
        due_tick[which].reset();
        break;
      default: {
        if (*rc::gen::arbitrary<bool>() && wheel.NextNs() != TimerWheel::kNever) {
          now = std::max(now, wheel.NextNs());
        } else {
          now += *rc::gen::inRange<int64_t>(0, magnitude);
        }
        log.clear();
        size_t fired = 0;
        if (*rc::gen::arbitrary<bool>()) {
          fired = wheel.Advance(now);
        } else {
          do {
            fired += wheel.Advance(now, /*most=*/1);
          } while (wheel.NextNs() <= now);
        }
        wheel_tick = std::max(wheel_tick, now / kTick);
        std::vector<int> expected;
        for (int i = 0; i < kTimers; ++i) {
          if (due_tick[i] && *due_tick[i] <= wheel_tick) expected.push_back(i);
        }
        RC_ASSERT(fired == expected.size());
        for (size_t i = 1; i < log.size(); ++i) {
          RC_ASSERT(*due_tick[log[i - 1]] <= *due_tick[log[i]]);
        }
        std::sort(log.begin(), log.end());
        RC_ASSERT(log == expected);
        for (const int i : expected) due_tick[i].reset();
        break;
      }
    }
    std::optional<int64_t> earliest;
    size_t armed = 0;
    for (const auto& tick : due_tick) {
      if (!tick) continue;
      ++armed;
      earliest = std::min(earliest.value_or(*tick), *tick);
    }
    RC_ASSERT(wheel.size() == armed);
    if (!earliest) {
      RC_ASSERT(wheel.NextNs() == TimerWheel::kNever);
    } else if (cancelled_since_exact) {
      RC_ASSERT(wheel.NextNs() <= *earliest * kTick);
      RC_ASSERT(wheel.NextNs() > wheel_tick * kTick);
    } else {
      RC_ASSERT(wheel.NextNs() == *earliest * kTick);
    }
  }
}

}  // namespace
}  // namespace sluice::net
