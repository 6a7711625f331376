// Bursty smooth limiter: permits that are not used are stored. A caller that takes more than is
// stored is granted at once, and later callers wait. (Throttler 4.)
#include <mutex>

#include "tests/acceptance/scene.h"

namespace sluice::acceptance {
namespace {

std::vector<LimitInfo> Bucket(uint64_t permits, uint64_t burst, uint64_t debt) {
  return {{.name = "bucket", .rate = {permits, seconds(1)}, .burst = burst, .debt = debt}};
}

TEST(BurstySmoothLimiter, OnePerSecondIdleForFiveSecondsRunsAtOnceAt6300Milliseconds) {
  Scene scene(Bucket(1, 1, 0));
  const Throttler throttler = scene.MakeThrottler("bucket");
  scene.AdvanceTo(milliseconds(1300));
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0));
  scene.AdvanceTo(milliseconds(6300));
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0));
  EXPECT_EQ(throttler.TryStart().value(), seconds(1)) << "no more than one is stored";
}

TEST(BurstySmoothLimiter, FivePermitsAtOnceAreGrantedAndTheNextWaits) {
  Scene scene(Bucket(1, 1, 10));
  const Throttler throttler = scene.MakeThrottler("bucket");
  EXPECT_EQ(throttler.TryStart(5).value(), nanoseconds(0));
  // One permit was stored; the four owed take four seconds.
  EXPECT_EQ(throttler.TryStart().value(), seconds(4));
  scene.AdvanceTo(seconds(4));
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0));
}

TEST(BurstySmoothLimiter, SixteenThreadsOf50At3PerSecondWithNothingStored) {
  Scene scene(Bucket(3, 0, 1));
  const Throttler throttler = scene.MakeThrottler("bucket");
  std::mutex mu;
  std::vector<nanoseconds> ran;
  scene.RunThreads(throttler, 16, [&](size_t) {
    for (int i = 0; i < 50; ++i) {
      const Status status = throttler.Run([&] {
        const std::lock_guard<std::mutex> lock(mu);
        ran.push_back(scene.now());
      });
      ASSERT_TRUE(status.ok()) << status;
    }
  });
  ASSERT_EQ(ran.size(), 800u);
  std::sort(ran.begin(), ran.end());
  for (size_t i = 0; i < ran.size(); ++i) {
    // Never before i thirds of a second; late by the rounding of a tick each.
    const auto third = static_cast<int64_t>(i) * 1'000'000'000;
    ASSERT_GE(ran[i].count() * 3, third) << i;
    ASSERT_LE(ran[i].count() * 3, third + 3 * static_cast<int64_t>(i) + 3) << i;
  }
}

TEST(BurstySmoothLimiter, TenPermitsEachAt2PerSecondWithNothingStoredAreOneGrantEvery5Seconds) {
  Scene scene(Bucket(2, 0, 10));
  const Throttler throttler = scene.MakeThrottler("bucket");
  std::vector<Ran> ran;
  for (int i = 0; i < 6; ++i) {
    static_cast<void>(
        throttler.Submit([&ran, &scene, i] { ran.push_back({i, scene.now()}); }, {.permits = 10}));
  }
  scene.AdvanceTo(seconds(60));
  ASSERT_EQ(ran.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(ran[static_cast<size_t>(i)].number, i);
    EXPECT_EQ(ran[static_cast<size_t>(i)].at, seconds(5 * i));
  }
}

TEST(BurstySmoothLimiter, DebtsAsInGuavaWait0_1_1_2_4_8) {
  Scene scene(Bucket(1, 0, 8));
  const Throttler throttler = scene.MakeThrottler("bucket");
  std::vector<nanoseconds> waits;
  scene.RunThreads(throttler, 1, [&](size_t) {
    for (const uint64_t cost : {1, 1, 2, 4, 8, 1}) {
      const nanoseconds asked = scene.now();
      ASSERT_TRUE(
          throttler.Run([&] { waits.push_back(scene.now() - asked); }, {.permits = cost}).ok());
    }
  });
  EXPECT_EQ(waits, (std::vector<nanoseconds>{seconds(0), seconds(1), seconds(1), seconds(2),
                                             seconds(4), seconds(8)}));
}

TEST(BurstySmoothLimiter, KeepsTheFractionOfAPermit) {
  Scene scene(Bucket(1, 5, 0));
  const Throttler throttler = scene.MakeThrottler("bucket");
  EXPECT_EQ(throttler.TryStart(5).value(), nanoseconds(0));
  // Two and a half permits are stored; the original algorithm drops the half at each refill.
  scene.clock().Advance(milliseconds(2500));
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0));
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0));
  EXPECT_EQ(throttler.TryStart().value(), milliseconds(500));
}

TEST(BurstySmoothLimiter, RejectsZeroPermits) {
  Scene scene(Bucket(1, 5, 0));
  const Throttler throttler = scene.MakeThrottler("bucket");
  EXPECT_EQ(throttler.TryStart(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(throttler.Start({.permits = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(throttler.Submit([] {}, {.permits = 0}).get().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(throttler.TryStart(6).status().code(), StatusCode::kInvalidArgument)
      << "and what could never be granted";
}

}  // namespace
}  // namespace sluice::acceptance
