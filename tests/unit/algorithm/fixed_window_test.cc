#include "server/algorithm/fixed_window.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
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
  EXPECT_TRUE(window.TryTake(p, 60, clocks.At()));
  clocks.Advance(10 * kMinute);
  clocks.wall_ns += kHour;  // set to 11:20 by mistake
  EXPECT_FALSE(window.TryTake(p, 41, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 41, clocks.At()), clocks.now_ns + 40 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 10, clocks.At()));
  clocks.Advance(10 * kMinute);
  clocks.wall_ns -= kHour;  // set right again
  EXPECT_FALSE(window.TryTake(p, 31, clocks.At()));
  clocks.Advance(30 * kMinute);  // 11:00
  EXPECT_FALSE(window.TryTake(p, 91, clocks.At()));
  EXPECT_TRUE(window.TryTake(p, 60, clocks.At()));
  clocks.Advance(5 * kMinute);
  Clocks days_back = clocks;
  clocks.wall_ns -= 10 * kMinute;  // set back to 10:55
  FixedWindowState other = window;
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + 5 * kMinute);
  clocks.Advance(5 * kMinute);  // 11:00
  EXPECT_TRUE(window.TryTake(p, 30, clocks.At()));
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + kHour);
  EXPECT_FALSE(window.TryTake(p, 1, clocks.After(kHour - 1)));
  EXPECT_TRUE(window.TryTake(p, 100, clocks.After(kHour)));
  // Set back by two days instead.
  days_back.wall_ns -= 2 * kDay;
  EXPECT_FALSE(other.TryTake(p, 31, days_back.At()));
  EXPECT_EQ(other.EarliestNs(p, 31, days_back.At()), days_back.now_ns + 55 * kMinute);
  EXPECT_TRUE(other.TryTake(p, 100, days_back.After(55 * kMinute)));
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

TEST(FixedWindowTest, LaterNumberIsForgottenAlsoIfTheClockIsSetToShowItAgain) {
  const FixedWindow p = Make(2, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour);
  EXPECT_TRUE(window.TryTake(p, 1, clocks.At()));
  clocks.wall_ns += kHour;
  EXPECT_TRUE(window.TryTake(p, 1, clocks.At()));  // counts for 11 too, until 13:00
  clocks.Advance(2 * kHour + 30 * kMinute);
  clocks.wall_ns -= 2 * kHour + 30 * kMinute;  // 11:00 again
  EXPECT_FALSE(window.TryTake(p, 2, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 2, clocks.At()), clocks.now_ns + 30 * kMinute);
  EXPECT_FALSE(window.TryTake(p, 2, clocks.After(30 * kMinute - 1)));
  EXPECT_TRUE(window.TryTake(p, 2, clocks.After(30 * kMinute)));
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

// The next window does not open before the wall clock shows its number, however early the one
// before was opened.
TEST(FixedWindowTest, ClockSetBackWithinAWindowGrantsItsNumberOnlyOnce) {
  const FixedWindow p = Make(100, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour);
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
  clocks.Advance(kMinute);
  clocks.wall_ns -= kMinute;  // 10:00 again
  clocks.Advance(59 * kMinute);
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));  // an hour after the first; 10:59
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + kMinute);
  clocks.Advance(kMinute);  // 11:00
  EXPECT_TRUE(window.TryTake(p, 100, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 1, clocks.At()), clocks.now_ns + kHour);
}

TEST(FixedWindowTest, ClockSetBackByAPeriodGrantsItsNumberOnlyOnce) {
  const FixedWindow p = Make(5, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour + kMinute);
  EXPECT_TRUE(window.TryTake(p, 5, clocks.At()));
  clocks.Advance(50 * kMinute);
  clocks.wall_ns -= kHour;  // 9:51, the number before
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_FALSE(window.TryTake(p, 1, clocks.After(9 * kMinute)));
  EXPECT_FALSE(window.TryTake(p, 1, clocks.After(69 * kMinute - 1)));
  EXPECT_TRUE(window.TryTake(p, 5, clocks.After(69 * kMinute)));
}

// The number before may have been used up before this window was opened.
TEST(FixedWindowTest, ClockSetBackIntoTheNumberBeforeGrantsNothingThere) {
  const FixedWindow p = Make(5, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour + 30 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 5, clocks.At()));
  clocks.Advance(35 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 1, clocks.At()));  // 11:05
  clocks.wall_ns -= 10 * kMinute;                  // 10:55
  EXPECT_FALSE(window.TryTake(p, 1, clocks.At()));
  EXPECT_EQ(window.LevelAt(p, clocks.At()).remaining, 0);
  EXPECT_EQ(window.EarliestNs(p, 4, clocks.At()), clocks.now_ns + 5 * kMinute);
  EXPECT_EQ(window.EarliestNs(p, 5, clocks.At()), clocks.now_ns + 65 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 4, clocks.After(5 * kMinute)));
}

// Permits of a window count for the number that the clock shows after it was set forward.
TEST(FixedWindowTest, ClockSetForwardGrantsTheNextNumberOnlyOnce) {
  const FixedWindow p = Make(5, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour + 30 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 1, clocks.At()));
  clocks.wall_ns += 40 * kMinute;  // 11:10
  EXPECT_TRUE(window.TryTake(p, 3, clocks.At()));
  EXPECT_FALSE(window.TryTake(p, 2, clocks.At()));
  EXPECT_EQ(window.EarliestNs(p, 2, clocks.At()), clocks.now_ns + 30 * kMinute);
  EXPECT_EQ(window.EarliestNs(p, 3, clocks.At()), clocks.now_ns + 50 * kMinute);
  EXPECT_TRUE(window.TryTake(p, 2, clocks.After(30 * kMinute)));  // 11:40
  EXPECT_FALSE(window.TryTake(p, 1, clocks.After(30 * kMinute)));
  EXPECT_TRUE(window.TryTake(p, 5, clocks.After(50 * kMinute)));  // 12:00
}

TEST(FixedWindowTest, RefundedPermitsDoNotCountForTheNextNumber) {
  const FixedWindow p = Make(5, kHour);
  FixedWindowState window;
  Clocks clocks;
  clocks.Advance(10 * kHour + 30 * kMinute);
  clocks.wall_ns += 20 * kMinute;
  EXPECT_TRUE(window.TryTake(p, 1, clocks.At()));  // 10:50
  clocks.wall_ns += 10 * kMinute;
  uint64_t serial = 0;
  EXPECT_TRUE(window.TryTake(p, 4, clocks.At(), &serial));  // 11:00
  EXPECT_EQ(window.Refund(p, serial, 4, clocks.At()), 4u);
  EXPECT_TRUE(window.TryTake(p, 4, clocks.After(10 * kMinute)));
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

int64_t NumberShown(const Limit& limit, int64_t wall_ns) {
  const Int128 local_ns = static_cast<Int128>(wall_ns) + limit.utc_offset_ns;
  return static_cast<int64_t>(FloorDiv(local_ns, limit.random.period_ns));
}

// The wall clock less the monotonic clock, in a history in which the wall clock is set.
struct WallOffset {
  std::function<int64_t(int64_t last_ns)> next;
  int probability_percent = 10;
};

// Takes permits while the wall clock is set, and checks that no number of the wall clock is granted
// more than the limit's permits. `dropped`: the store drops the bucket as soon as it may.
void CheckNumbers(const Limit& limit, bool dropped, const WallOffset& offset) {
  FixedWindowState window;
  std::map<int64_t, uint64_t> granted;
  int64_t now = *rc::gen::inRange<int64_t>(0, 10 * limit.random.period_ns);
  int64_t offset_ns = offset.next(20 * limit.random.period_ns);
  for (int i = 0; i < 150; ++i) {
    if (*rc::gen::inRange(0, 100) < offset.probability_percent) offset_ns = offset.next(offset_ns);
    const Moment at{now, now + offset_ns};
    if (dropped && window.IsFull(limit.p, at)) window = FixedWindowState();
    const auto permits = *rc::gen::inRange<uint64_t>(1, limit.random.permits + 1);
    if (window.TryTake(limit.p, permits, at)) {
      uint64_t& of_number = granted[NumberShown(limit, at.wall_ns)];
      of_number += permits;
      RC_ASSERT(of_number <= limit.random.permits);
    }
    now += *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, limit.random.period_ns / 3 + 2),
                           rc::gen::just<int64_t>(limit.random.period_ns / 10),
                           rc::gen::inRange<int64_t>(0, 2 * limit.random.period_ns));
  }
}

RC_GTEST_PROP(FixedWindowPropertyTest, ClockSetWithinAPeriodGrantsNoNumberTwice, ()) {
  const Limit limit = AnyFixedWindow();
  const int64_t least_ns = *rc::gen::inRange<int64_t>(0, 20 * limit.random.period_ns);
  const auto dropped = *rc::gen::arbitrary<bool>();
  CheckNumbers(limit, dropped, {[&](int64_t) {
                 return least_ns +
                        *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, limit.random.period_ns + 1),
                                        rc::gen::element<int64_t>(0, limit.random.period_ns));
               }});
}

RC_GTEST_PROP(FixedWindowPropertyTest, ClockSetForwardGrantsNoNumberTwice, ()) {
  const Limit limit = AnyFixedWindow();
  const auto dropped = *rc::gen::arbitrary<bool>();
  CheckNumbers(limit, dropped, {[&](int64_t last_ns) {
                 return last_ns +
                        *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, 5 * limit.random.period_ns),
                                        rc::gen::inRange<int64_t>(0, limit.random.period_ns));
               }});
}

// Wherever the wall clock was set: the earliest moment grants, and none before it does.
RC_GTEST_PROP(FixedWindowPropertyTest, EarliestIsExactAfterTheClockWasSet, ()) {
  const Limit limit = AnyFixedWindow();
  const int64_t period = limit.random.period_ns;
  FixedWindowState window;
  int64_t now = *rc::gen::inRange<int64_t>(0, 10 * period);
  int64_t offset = 20 * period;
  for (int i = 0; i < 30; ++i) {
    if (*rc::gen::inRange(0, 3) == 0) offset += *rc::gen::inRange<int64_t>(-3 * period, 3 * period);
    const auto permits = *rc::gen::inRange<uint64_t>(1, limit.random.permits + 1);
    const auto would_at = [&](int64_t at_ns) {
      return window.CanTake(limit.p, permits, {at_ns, at_ns + offset});
    };
    const int64_t earliest = window.EarliestNs(limit.p, permits, {now, now + offset});
    RC_ASSERT(would_at(earliest));
    RC_ASSERT(earliest <= now + 3 * period);
    if (earliest > now) {
      RC_ASSERT(!would_at(earliest - 1));
      RC_ASSERT(!would_at(now + *rc::gen::inRange<int64_t>(0, earliest - now)));
    }
    window.TryTake(limit.p, permits, {now, now + offset});
    now +=
        *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, period), rc::gen::just<int64_t>(period / 7));
  }
}

// Whatever the wall clock shows: a window is over one period after its end, and what counts for a
// later number has ended one period after that.
RC_GTEST_PROP(FixedWindowPropertyTest, DenialsEndWhateverTheClockShows, ()) {
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
                               {now + 3 * limit.random.period_ns, any_wall()}));
    }
  }
}

// The wall clock jumps far ahead for some time, and comes back.
RC_GTEST_PROP(FixedWindowPropertyTest, JumpForwardAndBackDeniesForAtMostAPeriod, ()) {
  const Limit limit = AnyFixedWindow();
  const int64_t period = limit.random.period_ns;
  const auto jump = *rc::gen::inRange<int64_t>(2 * period, 10 * period);
  const auto from = *rc::gen::inRange<int64_t>(0, 3 * period);
  const int64_t until = from + *rc::gen::inRange<int64_t>(1, 3 * period);
  FixedWindowState window;
  int64_t now = 0;
  for (int i = 0; i < 40; ++i) {
    const bool ahead = now >= from && now < until;
    const Moment at{now, now + 20 * period + (ahead ? jump : 0)};
    const auto permits = *rc::gen::inRange<uint64_t>(1, limit.random.permits + 1);
    if (!window.TryTake(limit.p, permits, at)) {
      RC_ASSERT(window.EarliestNs(limit.p, permits, at) <= now + period);
    }
    now += *rc::gen::oneOf(rc::gen::inRange<int64_t>(1, period / 2 + 2),
                           rc::gen::just<int64_t>(period / 7));
  }
}

// The wall clock goes wrong by several periods and right again within a window: as if it had not.
RC_GTEST_PROP(FixedWindowPropertyTest, ClockThatJumpsFarAndComesBackChangesNothing, ()) {
  const auto period = *rc::gen::inRange<int64_t>(1'000'000, 10 * kSecond);
  const FixedWindow p = Make(10, period);
  FixedWindowState wrong;
  FixedWindowState right;
  int64_t now = *rc::gen::inRange<int64_t>(0, period);
  const auto jump_window = *rc::gen::inRange(0, 5);
  const auto sign = *rc::gen::element<int64_t>(-1, 1);
  const int64_t jump = sign * *rc::gen::inRange<int64_t>(2 * period, 5 * period);
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

// However often and wherever it is set: each time is worth at most one more window.
RC_GTEST_PROP(FixedWindowPropertyTest, EachClockJumpAddsAtMostOneWindow, ()) {
  const auto period = *rc::gen::inRange<int64_t>(1'000'000, 10 * kSecond);
  const FixedWindow p = Make(10, period);
  FixedWindowState window;
  int64_t now = 0;
  int64_t offset = 0;
  std::vector<int64_t> jumps;
  std::vector<Grant> history;
  for (int i = 0; i < 100; ++i) {
    if (*rc::gen::inRange(0, 20) == 0) {
      offset = *rc::gen::inRange<int64_t>(-3 * period, 3 * period);
      jumps.push_back(now);
    }
    const auto permits = *rc::gen::inRange<uint64_t>(1, 11);
    if (window.TryTake(p, permits, {now, now + offset})) history.push_back({now, permits});
    now += *rc::gen::inRange<int64_t>(0, period / 3);
  }
  for (size_t first = 0; first < history.size(); ++first) {
    // A window that a jump made short, or kept open, may have begun three periods before.
    const int64_t from = history[first].at_ns;
    const auto near = std::count_if(jumps.begin(), jumps.end(), [&](int64_t jump) {
      return jump > from - 3 * period && jump < from + period;
    });
    uint64_t sum = 0;
    for (size_t i = first; i < history.size() && history[i].at_ns < from + period; ++i) {
      sum += history[i].permits;
    }
    RC_ASSERT(sum <= 10 * (2 + static_cast<uint64_t>(near)));
  }
}

}  // namespace
}  // namespace sluice::algorithm
