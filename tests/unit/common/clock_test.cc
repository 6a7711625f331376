#include "common/clock.h"

#include <gtest/gtest.h>

namespace sluice::common {
namespace {

TEST(FakeClockTest, MovesOnlyWhenAdvancedOrSet) {
  FakeClock clock(5, 100);
  EXPECT_EQ(clock.NowNs(), 5);
  EXPECT_EQ(clock.NowNs(), 5);
  clock.Advance(10);
  EXPECT_EQ(clock.NowNs(), 15);
  EXPECT_EQ(clock.WallNs(), 110);
  clock.SetWall(7);
  EXPECT_EQ(clock.WallNs(), 7);
  EXPECT_EQ(clock.NowNs(), 15);
}

TEST(SystemClockTest, NeverStepsBack) {
  SystemClock clock;
  int64_t last = clock.NowNs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.NowNs();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace sluice::common
