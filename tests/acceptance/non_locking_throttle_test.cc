// Non-locking throttle: a limit per caller, many threads, changed while it runs. (Throttler 5.)
#include <atomic>

#include "tests/acceptance/scene.h"
#include "tests/support/window_checker.h"

namespace sluice::acceptance {
namespace {

TEST(NonLockingThrottle, LosesNoIncrementInRaces) {
  constexpr int kPermits = 20'000;
  for (const char* algorithm : {"token_bucket", "sliding_log"}) {
    SCOPED_TRACE(algorithm);
    Scene scene({{.name = "calls", .algorithm = algorithm, .rate = {kPermits, seconds(1)}}});
    const Throttler throttler = scene.MakeThrottler("calls");
    std::atomic<int> granted{0};
    scene.RunThreads(throttler, 8, [&](size_t) {
      for (int i = 0; i < kPermits / 4; ++i) {
        if (throttler.TryStart().value() == nanoseconds(0)) granted.fetch_add(1);
      }
    });
    EXPECT_EQ(granted.load(), kPermits) << "the clock stood still";
  }
}

TEST(NonLockingThrottle, KeepsALimitForEachCaller) {
  Scene scene({{.name = "calls", .rate = {2, seconds(1)}}});
  const Throttler throttler = scene.MakeThrottler("calls");
  for (int caller = 0; caller < 1000; ++caller) {
    const ThrottlerChannel channel =
        throttler.Channel("calls", "caller:" + std::to_string(caller)).value();
    EXPECT_EQ(channel.TryStart().value(), nanoseconds(0));
    EXPECT_EQ(channel.TryStart().value(), nanoseconds(0));
    EXPECT_EQ(channel.TryStart().value(), milliseconds(500));
  }
}

std::vector<LimitInfo> Log(uint64_t permits) {
  return {{.name = "calls", .algorithm = "sliding_log", .rate = {permits, seconds(1)}}};
}

TEST(NonLockingThrottle, RaisingALimitAdmitsWaitingCallersSooner) {
  Scene scene(Log(2));
  const Throttler throttler = scene.MakeThrottler("calls");
  std::vector<Ran> ran;
  for (int i = 0; i < 10; ++i) {
    static_cast<void>(throttler.Submit([&ran, &scene, i] { ran.push_back({i, scene.now()}); }));
  }
  scene.AdvanceTo(milliseconds(500));
  EXPECT_EQ(ran.size(), 2u);
  ASSERT_TRUE(scene.embedded().SetLimits(Log(6)).ok());
  EXPECT_EQ(ran.size(), 6u) << "four more fit at once";
  scene.AdvanceTo(milliseconds(1001));
  EXPECT_EQ(ran.size(), 8u);
  scene.AdvanceTo(milliseconds(1501));
  EXPECT_EQ(Numbers(ran), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(NonLockingThrottle, LoweringALimitNeverAdmitsTwoAtOnceAboveIt) {
  Scene scene(Log(4));
  const Throttler throttler = scene.MakeThrottler("calls");
  std::vector<Ran> ran;
  for (int i = 0; i < 12; ++i) {
    static_cast<void>(throttler.Submit([&ran, &scene, i] { ran.push_back({i, scene.now()}); }));
  }
  scene.AdvanceTo(milliseconds(500));
  EXPECT_EQ(ran.size(), 4u);
  ASSERT_TRUE(scene.embedded().SetLimits(Log(1)).ok());
  scene.AdvanceTo(seconds(30));
  ASSERT_EQ(ran.size(), 12u) << "each is let through once";
  EXPECT_EQ(Numbers(ran), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  std::vector<test_support::Grant> after;
  for (size_t i = 4; i < ran.size(); ++i) after.push_back({ran[i].at.count(), 1});
  EXPECT_EQ(test_support::CheckCountInEveryWindow(after, 1'000'000'000, 1), "");
  EXPECT_GE(ran[4].at, seconds(1));
}

// Threads take permits without a lock while the limit changes.
TEST(NonLockingThrottle, KeepsLimitsThatChangeUnderManyThreads) {
  Scene scene({{.name = "calls", .rate = {1000, seconds(1)}, .burst = 1000}});
  const Throttler throttler = scene.MakeThrottler("calls");
  std::atomic<int> granted{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        const auto wait = throttler.TryStart();
        ASSERT_TRUE(wait.ok()) << wait.status();
        if (*wait == nanoseconds(0)) granted.fetch_add(1);
      }
    });
  }
  while (granted.load() < 1000) std::this_thread::yield();
  // The clock stands still, so the bucket stays empty, also after each change.
  for (uint64_t i = 1; i <= 200; ++i) {
    ASSERT_TRUE(
        scene.embedded()
            .SetLimits(
                {{.name = "calls", .rate = {1000 + i % 7, seconds(1)}, .burst = 1000 + i % 5}})
            .ok());
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted.load(), 1000);
}

}  // namespace
}  // namespace sluice::acceptance
