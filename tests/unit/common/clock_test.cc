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

// Its thread loses the processor after each of the first `pauses` readings.
class InterruptedClock final : public Clock {
 public:
  explicit InterruptedClock(int pauses) : pauses_(pauses) {}

  int64_t NowNs() const override { return Read(); }
  int64_t WallNs() const override { return Read() + kAheadNs; }

  static constexpr int64_t kAheadNs = 1'700'000'000'000'000'000;

 private:
  int64_t Read() const {
    const int64_t read_ns = time_ns_;
    time_ns_ += pauses_-- > 0 ? 5'000'000 : 50;
    return read_ns;
  }

  mutable int pauses_;
  mutable int64_t time_ns_ = 1'000'000'000;
};

TEST(WallAtNsTest, IsTheWallClockOfAnEarlierMoment) {
  const InterruptedClock clock(/*pauses=*/1);
  const int64_t now_ns = clock.NowNs();
  EXPECT_NEAR(static_cast<double>(WallAtNs(clock, now_ns) - now_ns - InterruptedClock::kAheadNs), 0,
              100);
}

TEST(WallAtNsTest, ReadsAgainAfterAPause) {
  for (int pauses = 1; pauses < 12; ++pauses) {
    const InterruptedClock clock(pauses);
    EXPECT_NEAR(static_cast<double>(WallAtNs(clock, 0) - InterruptedClock::kAheadNs), 0, 100)
        << pauses;
  }
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
