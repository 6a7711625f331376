#include "sluice/clock.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(VirtualClockTest, StandsStillUntilAdvance) {
  VirtualClock clock(seconds(10), seconds(1000));
  EXPECT_EQ(clock.Now(), seconds(10));
  EXPECT_EQ(clock.WallNow(), seconds(1000));
  clock.Advance(seconds(2));
  EXPECT_EQ(clock.Now(), seconds(12));
  EXPECT_EQ(clock.WallNow(), seconds(1002));
}

TEST(VirtualClockTest, RunsTimersByTimeThenInTheOrderOfSetting) {
  VirtualClock clock(seconds(10));
  std::vector<int> ran;
  std::vector<nanoseconds> at;
  const auto timer = [&](int number) {
    return [&, number] {
      ran.push_back(number);
      at.push_back(clock.Now());
    };
  };
  clock.RunAt(seconds(13), timer(4));
  clock.RunAt(seconds(11), timer(1));
  clock.RunAt(seconds(12), timer(2));
  clock.RunAt(seconds(12), timer(3));
  clock.RunAt(seconds(20), timer(5));
  EXPECT_EQ(clock.timers(), 5u);
  clock.Advance(seconds(5));
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(at, (std::vector<nanoseconds>{seconds(11), seconds(12), seconds(12), seconds(13)}));
  EXPECT_EQ(clock.Now(), seconds(15));
  EXPECT_TRUE(clock.AdvanceToNext());
  EXPECT_EQ(clock.Now(), seconds(20));
  EXPECT_FALSE(clock.AdvanceToNext());
}

TEST(VirtualClockTest, RunsTimersSetMeanwhileAndLateTimers) {
  VirtualClock clock(seconds(10));
  int ran = 0;
  clock.RunAt(seconds(11), [&] {
    ++ran;
    clock.RunAt(seconds(12), [&] { ++ran; });
    clock.RunAt(seconds(1), [&] { ++ran; });
  });
  clock.Advance(seconds(3));
  EXPECT_EQ(ran, 3);
  EXPECT_EQ(clock.Now(), seconds(13)) << "a time in the past does not turn the clock back";
}

TEST(VirtualClockTest, LetsATimerAdvanceTheClock) {
  VirtualClock clock(seconds(10));
  std::vector<nanoseconds> at;
  clock.RunAt(seconds(11), [&] {
    clock.Advance(seconds(5));
    at.push_back(clock.Now());
  });
  clock.RunAt(seconds(12), [&] { at.push_back(clock.Now()); });
  clock.Advance(seconds(1));
  EXPECT_EQ(at, (std::vector<nanoseconds>{seconds(12), seconds(16)}));
  EXPECT_EQ(clock.Now(), seconds(16));
}

TEST(VirtualClockTest, DoesNotRunCancelledTimers) {
  VirtualClock clock;
  bool ran = false;
  const uint64_t timer = clock.RunAt(clock.Now() + seconds(1), [&] { ran = true; });
  EXPECT_NE(timer, 0u);
  EXPECT_TRUE(clock.Cancel(timer));
  EXPECT_FALSE(clock.Cancel(timer));
  clock.Advance(seconds(2));
  EXPECT_FALSE(ran);
  const uint64_t late = clock.RunAt(clock.Now(), [] {});
  clock.Advance(seconds(0));
  EXPECT_FALSE(clock.Cancel(late)) << "it has run";
}

TEST(SystemClockTest, RunsTimersInOrderAndNeverEarly) {
  std::promise<void> done;
  std::vector<int> ran;
  nanoseconds at{0};
  SystemClock clock;  // destroyed first, which ends its thread
  const nanoseconds begin = clock.Now();
  clock.RunAt(begin + milliseconds(20), [&] {
    ran.push_back(2);
    at = clock.Now();
    done.set_value();
  });
  clock.RunAt(begin + milliseconds(10), [&] { ran.push_back(1); });
  const uint64_t never = clock.RunAt(begin + milliseconds(15), [&] { ran.push_back(0); });
  EXPECT_TRUE(clock.Cancel(never));
  done.get_future().wait();
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  EXPECT_GE(at - begin, milliseconds(20));
}

TEST(SystemClockTest, CanBeDestroyedByATimerAndWithTimersSet) {
  auto clock = std::make_unique<SystemClock>();
  SystemClock* const raw = clock.get();
  raw->RunAt(raw->Now() + seconds(3600), [] {});
  // The thread continues after the destructor, so it shares ownership of its data.
  const auto done = std::make_shared<std::promise<void>>();
  std::future<void> ended = done->get_future();
  std::promise<void> all_set;
  raw->RunAt(raw->Now(), [&clock, done, set = all_set.get_future().share()] {
    set.wait();
    clock.reset();
    done->set_value();
  });
  all_set.set_value();
  ended.wait();
}

}  // namespace
}  // namespace sluice
