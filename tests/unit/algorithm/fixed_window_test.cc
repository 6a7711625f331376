#include "server/algorithm/fixed_window.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
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

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMinute = 60 * kSecond;
constexpr int64_t kHour = 60 * kMinute;
constexpr int64_t kDay = 24 * kHour;
// Midnight of some day, UTC.
constexpr int64_t kMidnight = 20'000 * kDay;

FixedWindow Make(uint64_t permits, int64_t period_ns, int64_t utc_offset_ns = 0) {
  return MakeFixedWindow({permits, period_ns}, utc_offset_ns)->fixed_window;
}

// Two clocks, of which one can be set.
struct Clocks {
  int64_t now_ns = 5 * kDay;
  int64_t wall_ns = kMidnight;
  void Advance(int64_t by_ns) {
    now_ns += by_ns;
    wall_ns += by_ns;
  }
  Moment At() const { return {now_ns, wall_ns}; }
  Moment After(int64_t by_ns) const { return {now_ns + by_ns, wall_ns + by_ns}; }
};

TEST(FixedWindowTest, GrantsAgainAtMidnight) {
  const FixedWindow p = Make(100, kDay);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(23 * kHour);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + kHour);
  EXPECT_FALSE(window.TryTake(p, 1, clocks.After(kHour - 1)));
  EXPECT_TRUE(window.TryTake(p, 100, clocks.After(kHour)));
}

TEST(FixedWindowTest, MidnightFollowsTheUtcOffset) {
  const FixedWindow p = Make(100, kDay, 2 * kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(21 * kHour);  // 23:00 there
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + kHour);
}

TEST(FixedWindowTest, FollowsTheExampleInTheHeader) {
  const FixedWindow p = Make(100, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour + 10 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
  clocks.Advance(10 * kMinute);
  clocks.wall_ns += kHour;  // set to 11:20 by mistake
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + 40 * kMinute);
  clocks.Advance(10 * kMinute);
  clocks.wall_ns -= kHour;  // set right again
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  clocks.Advance(30 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
}

TEST(FixedWindowTest, ClockSetBackAtTheEndOfAWindowDoesNotGrantItTwice) {
  const FixedWindow p = Make(100, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour + 10 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
  clocks.Advance(50 * kMinute);
  clocks.wall_ns -= 10 * kMinute;  // 10:50 again
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + 10 * kMinute);
  EXPECT_FALSE(window.TryTake(p, 1, clocks.After(10 * kMinute - 1)));
  EXPECT_TRUE(window.TryTake(p, 100, clocks.After(10 * kMinute)));
}

TEST(FixedWindowTest, ClockSetBackByDaysDeniesForAtMostAPeriod) {
  const FixedWindow p = Make(100, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
  clocks.Advance(kMinute);
  clocks.wall_ns -= 3 * kDay;
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + 59 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.After(59 * kMinute)));
}

// The window opened early, since the clock was set back; when the clock gets there, it is spent.
TEST(FixedWindowTest, WindowOpenedEarlyIsNotOpenedAgain) {
  const FixedWindow p = Make(100, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
  clocks.Advance(kMinute);
  clocks.wall_ns -= kMinute;  // 10:00 again
  clocks.Advance(59 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));  // an hour after the first
  clocks.Advance(kMinute);                           // 11:00
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + 59 * kMinute);
}

TEST(FixedWindowTest, IsKeptForAPeriodAfterItsEndWhateverTheWallClockShows) {
  const FixedWindow p = Make(100, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour + 10 * kMinute);
  uint64_t serial = 0;
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At(), &serial));
  clocks.Advance(55 * kMinute);
  clocks.wall_ns -= 50 * kMinute;  // 10:15 again, in a window that is used up
  EXPECT_FALSE(window.IsFull(p, clocks.At()));
  // Nothing is counted, but the window's number must not be forgotten.
  EXPECT_EQ(window.Refund(p, serial, 100, clocks.At()), 100u);
  EXPECT_FALSE(window.IsFull(p, clocks.At()));
  EXPECT_FALSE(window.IsFull(p, clocks.After(55 * kMinute - 1)));
  EXPECT_TRUE(window.IsFull(p, clocks.After(55 * kMinute)));
}

TEST(FixedWindowTest, RefundsOnlyInTheSameWindow) {
  const FixedWindow p = Make(10, kHour);
  FixedWindowState window;
  Clocks clocks;
  uint64_t serial = 0;
  EXPECT_TRUE(window.TryTake(p, 7, clocks.At(), &serial));
  EXPECT_EQ(window.Refund(p, serial, 7, clocks.After(kMinute)), 7u);
  EXPECT_EQ(window.Counted(p, clocks.After(kMinute)), 0u);
  EXPECT_TRUE(window.TryTake(p, 10, clocks.After(kMinute), &serial));
  EXPECT_TRUE(window.TryTake(p, 10, clocks.After(kHour)));
  EXPECT_EQ(window.Refund(p, serial, 10, clocks.After(kHour)), 0u);
}

TEST(FixedWindowTest, AcceptsWallClocksBefore1970) {
  const FixedWindow p = Make(10, kHour, -2 * kHour);
  FixedWindowState window;
  EXPECT_TRUE(window.TryTake(p, 10, {kSecond, 0}));
  EXPECT_FALSE(window.TryTake(p, 10, {kHour + kSecond - 1, kHour - 1}));
  EXPECT_TRUE(window.TryTake(p, 10, {kHour + kSecond, kHour}));
}

struct Limit {
  RandomParameters random;
  int64_t utc_offset_ns;
  FixedWindow p;
};

Limit AnyFixedWindow() {
  const RandomParameters random = *test_support::AnyParameters();
  const auto offset = *rc::gen::element<int64_t>(0, kHour, -5 * kHour - 30 * kMinute, kDay);
  return {random, offset, Make(random.permits, random.period_ns, offset)};
}

RC_GTEST_PROP(FixedWindowPropertyTest, WindowsAreExactWhileTheClockIsNotSet, ()) {
  const Limit limit = AnyFixedWindow();
  test_support::ReferenceFixedWindow reference(limit.random.permits, limit.random.period_ns,
                                               limit.utc_offset_ns);
  const auto wall_offset = *rc::gen::inRange<int64_t>(0, kMidnight);
  FixedWindowState window;
  int64_t now = 0;
  for (const Step& step : *test_support::AnySteps(limit.random, limit.random.permits, 100)) {
    if (step.advance_ns > 0) now = test_support::Advanced(now, step);
    const Moment at{now, now + wall_offset};
    const int64_t earliest = window.EarliestNs(limit.p, step.permits, at);
    const auto would_at = [&](int64_t moment) {
      return window.CanTake(limit.p, step.permits, {moment, moment + wall_offset});
    };
    if (step.permits > limit.random.permits) {
      RC_ASSERT(earliest == kNeverNs);
    } else {
      RC_ASSERT(would_at(earliest));
      if (earliest > now) RC_ASSERT(!would_at(earliest - 1));
    }
    const bool granted = window.TryTake(limit.p, step.permits, at);
    RC_ASSERT(granted == (earliest == now));
    RC_ASSERT(granted == reference.TryTake(step.permits, now + wall_offset));
  }
}

// Whatever the wall clock shows, a denied request is granted at most one period later.
RC_GTEST_PROP(FixedWindowPropertyTest, DenialsLastAtMostAPeriod, ()) {
  const Limit limit = AnyFixedWindow();
  const auto any_wall = [&] {
    return *rc::gen::oneOf(
        rc::gen::inRange<int64_t>(-kDay, kMidnight),
        rc::gen::inRange<int64_t>(-3 * limit.random.period_ns, 3 * limit.random.period_ns));
  };
  FixedWindowState window;
  int64_t now = 0;
  for (const Step& step : *test_support::AnySteps(limit.random, limit.random.permits, 60)) {
    if (step.advance_ns > 0) now = test_support::Advanced(now, step);
    if (!window.TryTake(limit.p, step.permits, {now, any_wall()})) {
      RC_ASSERT(window.CanTake(limit.p, limit.random.permits,
                               {now + limit.random.period_ns, any_wall()}));
    }
  }
}

// The wall clock goes wrong and right again within a window: as if it had not.
RC_GTEST_PROP(FixedWindowPropertyTest, ClockThatJumpsAndComesBackChangesNothing, ()) {
  const auto period = *rc::gen::inRange<int64_t>(1'000'000, 10 * kSecond);
  const FixedWindow p = Make(10, period);
  FixedWindowState wrong;
  FixedWindowState right;
  int64_t now = *rc::gen::inRange<int64_t>(0, period);
  const auto jump_window = *rc::gen::inRange(0, 5);
  const auto jump = *rc::gen::inRange<int64_t>(-5 * period, 5 * period);
  for (int i = 0; i < 60; ++i) {
    const auto permits = *rc::gen::inRange<uint64_t>(1, 6);
    // Window 0 is in use before the clock jumps; it jumps while one window lasts.
    const int64_t number = now / period;
    const bool jumped =
        number == jump_window && now % period > period / 2 && right.Counted(p, {now, now}) > 0;
    const bool expected = right.TryTake(p, permits, {now, now});
    RC_ASSERT(wrong.TryTake(p, permits, {now, jumped ? now + jump : now}) == expected);
    now += *rc::gen::inRange<int64_t>(0, period / 4);
  }
}

// Set back by less than a period, at any time: as with a clock that was not set, no stretch of a
// period holds more than the permits of two windows (and no window's number grants twice). Whether
// the store drops full buckets does not matter.
RC_GTEST_PROP(FixedWindowPropertyTest, ClockSetBackByLessThanAPeriodGrantsNoWindowTwice, ()) {
  const auto period = *rc::gen::inRange<int64_t>(1'000'000, 10 * kSecond);
  const FixedWindow p = Make(10, period);
  FixedWindowState window;
  const auto set_back_at = *rc::gen::inRange<int64_t>(0, 4 * period);
  const auto set_back_by = *rc::gen::inRange<int64_t>(1, period);
  const auto dropped = *rc::gen::arbitrary<bool>();
  int64_t now = *rc::gen::inRange<int64_t>(0, period);
  std::vector<Grant> history;
  std::set<int64_t> numbers;
  while (now < 10 * period) {
    const int64_t wall = now >= set_back_at ? now - set_back_by : now;
    numbers.insert((wall + period) / period);
    const auto permits = *rc::gen::inRange<uint64_t>(1, 11);
    if (dropped && window.IsFull(p, {now, wall})) window = FixedWindowState();
    if (window.TryTake(p, permits, {now, wall})) history.push_back({now, permits});
    now += *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, period / 3),
                           rc::gen::just<int64_t>(period / 10));
  }
  RC_ASSERT(test_support::CheckCountInEveryWindow(history, period, 20) == "");
  uint64_t sum = 0;
  for (const Grant& grant : history) sum += grant.permits;
  RC_ASSERT(sum <= 10 * (numbers.size() + 1));  // the last one may have been opened early
}

// However often it is set: each time is worth at most one more window.
RC_GTEST_PROP(FixedWindowPropertyTest, EachClockJumpAddsAtMostOneWindow, ()) {
  const auto period = *rc::gen::inRange<int64_t>(1'000'000, 10 * kSecond);
  const FixedWindow p = Make(10, period);
  FixedWindowState window;
  int64_t now = 0;
  int64_t offset = 0;
  int jumps = 0;
  std::vector<Grant> history;
  for (int i = 0; i < 100; ++i) {
    if (*rc::gen::inRange(0, 20) == 0) {
      offset = *rc::gen::inRange<int64_t>(-3 * period, 3 * period);
      ++jumps;
    }
    const auto permits = *rc::gen::inRange<uint64_t>(1, 11);
    if (window.TryTake(p, permits, {now, now + offset})) history.push_back({now, permits});
    now += *rc::gen::inRange<int64_t>(0, period / 3);
  }
  RC_ASSERT(test_support::CheckCountInEveryWindow(history, period, 10 * (2 + jumps)) == "");
}

}  // namespace
}  // namespace sluice::algorithm
