#include "server/store/redis/connection/polling_clock.h"

#include <gtest/gtest.h>

namespace sluice::store::redis {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(PollingClockTest, RunsLikeTheClockWhileItIsReadOften) {
  PollingClock clock(6 * kMs);
  const int64_t begin = clock.Read(1000 * kMs);
  EXPECT_EQ(clock.Read(1005 * kMs) - begin, 5 * kMs);
  EXPECT_EQ(clock.Read(1006 * kMs) - begin, 6 * kMs);
  EXPECT_EQ(clock.Read(1012 * kMs) - begin, 12 * kMs);
}

TEST(PollingClockTest, CountsOneStepForAStall) {
  PollingClock clock(6 * kMs);
  const int64_t begin = clock.Read(1000 * kMs);
  EXPECT_EQ(clock.Read(1500 * kMs) - begin, 6 * kMs);
  // Four steps of looking make 20 ms, however long they take.
  EXPECT_EQ(clock.Read(2000 * kMs) - begin, 12 * kMs);
  EXPECT_EQ(clock.Read(2500 * kMs) - begin, 18 * kMs);
  EXPECT_EQ(clock.Read(2503 * kMs) - begin, 21 * kMs);
}

}  // namespace
}  // namespace sluice::store::redis
