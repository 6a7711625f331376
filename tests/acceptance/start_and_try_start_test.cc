// Start blocks; try-start returns 0 or the time to sleep before the next try. (Throttler 3.)
#include "tests/acceptance/scene.h"
#include "tests/support/window_checker.h"

namespace sluice::acceptance {
namespace {

std::vector<LimitInfo> Requests(const std::string& algorithm, uint64_t permits,
                                nanoseconds period) {
  return {{.name = "requests", .algorithm = algorithm, .rate = {permits, period}}};
}

TEST(StartAndTryStart, TryStartRequestReturnsZeroOrHowLongToSleep) {
  Scene scene(Requests("sliding_log", 3, seconds(1)));
  const Throttler throttler = scene.MakeThrottler("requests");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0));
  const nanoseconds sleep = throttler.TryStart().value();
  EXPECT_GE(sleep, seconds(1));
  EXPECT_LE(sleep, seconds(1) + nanoseconds(16'000));
  scene.clock().Advance(sleep - nanoseconds(1));
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(1)) << "exact: not before";
  scene.clock().Advance(nanoseconds(1));
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0)) << "but then";
}

TEST(StartAndTryStart, StartRequestBlocks) {
  Scene scene(Requests("token_bucket", 4, seconds(1)));
  const Throttler throttler = scene.MakeThrottler("requests");
  std::vector<nanoseconds> started;
  scene.RunThreads(throttler, 1, [&](size_t) {
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(throttler.Start().ok());
      started.push_back(scene.now());
    }
  });
  ASSERT_EQ(started.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(started[i], milliseconds(i < 4 ? 0 : 250 * (static_cast<int>(i) - 3))) << i;
  }
}

TEST(StartAndTryStart, SeveralClientsOfOneProgramShareOneLimit) {
  Scene scene(Requests("sliding_log", 10, seconds(1)));
  const Throttler one = scene.MakeThrottler("requests");
  const Throttler other = scene.MakeThrottler("requests");
  int started = 0;
  for (int i = 0; i < 20; ++i) {
    if ((i % 3 == 0 ? one : other).TryStart().value() == nanoseconds(0)) ++started;
  }
  EXPECT_EQ(started, 10);
}

// A sliding_window stores counts of k sub-windows instead of timestamps.
TEST(StartAndTryStart, TenThousandADayInSubIntervals) {
  Scene scene(Requests("sliding_window", 10'000, hours(24)));
  const Throttler throttler = scene.MakeThrottler("requests");
  std::vector<test_support::Grant> history;
  while (scene.now() < hours(96)) {
    const nanoseconds sleep = throttler.TryStart().value();
    if (sleep == nanoseconds(0)) {
      history.push_back({scene.now().count(), 1});
      scene.clock().Advance(seconds(1));
    } else {
      scene.clock().Advance(sleep);
    }
  }
  EXPECT_EQ(test_support::CheckCountInEveryWindow(history, nanoseconds(hours(24)).count(), 10'000),
            "");
  EXPECT_GE(history.size(), 4u * 10'000 * 10 / 11);
}

// The counter-example: a timer that resets each second grants 1000 at 0.75 and 1000 at 1.25.
TEST(StartAndTryStart, HasNoTimerResetBurst) {
  for (const char* algorithm : {"sliding_log", "sliding_window"}) {
    SCOPED_TRACE(algorithm);
    Scene scene(Requests(algorithm, 1000, seconds(1)));
    const Throttler throttler = scene.MakeThrottler("requests");
    scene.AdvanceTo(milliseconds(750));
    int at_075 = 0;
    for (int i = 0; i < 1000; ++i) at_075 += throttler.TryStart().value() == nanoseconds(0);
    EXPECT_EQ(at_075, 1000);
    scene.AdvanceTo(milliseconds(1250));
    int at_125 = 0;
    for (int i = 0; i < 1000; ++i) at_125 += throttler.TryStart().value() == nanoseconds(0);
    EXPECT_EQ(at_125, 0);
    EXPECT_GE(throttler.TryStart().value(), milliseconds(500));
  }
}

}  // namespace
}  // namespace sluice::acceptance
