// Fixed number of sends in any interval: at most M, wherever the interval begins. (Throttler 1: a
// circular buffer of the last M send times.)
#include <mutex>
#include <random>

#include "tests/acceptance/scene.h"
#include "tests/support/window_checker.h"

namespace sluice::acceptance {
namespace {

constexpr uint64_t kSends = 51;
constexpr seconds kLength(200);

const std::vector<LimitInfo> kLimits = {
    {.name = "peer", .algorithm = "sliding_log", .rate = {kSends, seconds(1)}}};

// `late`: sends whose times may have been noted after they were granted.
void ExpectNoWindowOverAndAllUsed(std::vector<nanoseconds> sent, std::mt19937_64& random,
                                  uint64_t late = 0) {
  std::sort(sent.begin(), sent.end());
  std::uniform_int_distribution<int64_t> offset(-1'000'000'000, nanoseconds(kLength).count());
  for (int i = 0; i < 100'000; ++i) {
    const nanoseconds from(offset(random));
    const auto first = std::lower_bound(sent.begin(), sent.end(), from);
    const auto end = std::lower_bound(first, sent.end(), from + seconds(1));
    ASSERT_LE(static_cast<uint64_t>(end - first), kSends + late)
        << "from " << from.count() << " ns";
  }
  // Every window, not only the sampled ones.
  std::vector<test_support::Grant> history;
  for (const nanoseconds at : sent) history.push_back({at.count(), 1});
  EXPECT_EQ(test_support::CheckCountInEveryWindow(history, 1'000'000'000, kSends + late), "");

  const auto allowed = static_cast<double>(kSends) * kLength.count();
  const auto total = static_cast<double>(
      std::lower_bound(sent.begin(), sent.end(), nanoseconds(kLength)) - sent.begin());
  EXPECT_GE(total, 0.99 * allowed);
  EXPECT_LE(total, allowed);
  ::testing::Test::RecordProperty("sent", static_cast<int>(total));
  ::testing::Test::RecordProperty("allowed", static_cast<int>(allowed));
}

// A producer that always has more work than the rate, and pauses at random.
TEST(FixedNumberOfSends, RandomWindowsOfASecondHoldAtMost51WhenSubmitted) {
  Scene scene(kLimits);
  const Throttler throttler = scene.MakeThrottler("peer");
  std::mt19937_64 random(51);
  std::uniform_int_distribution<int64_t> pause_ns(0, 300'000'000);
  std::uniform_int_distribution<int> batch(1, 40);
  std::vector<nanoseconds> sent;
  while (scene.now() < kLength) {
    const int most = batch(random);
    for (int i = 0; i < most || throttler.stats().waiting < 60; ++i) {
      static_cast<void>(throttler.Submit([&] { sent.push_back(scene.now()); }));
    }
    scene.clock().Advance(nanoseconds(pause_ns(random)));
  }
  ExpectNoWindowOverAndAllUsed(std::move(sent), random);
}

// The same with blocking calls, from a few threads, so that there is always a caller. A caller that
// is granted at once may note its send after the clock has advanced, so each may have one late.
TEST(FixedNumberOfSends, RandomWindowsOfASecondHoldAtMost51WhenBlocking) {
  constexpr size_t kThreads = 3;
  Scene scene(kLimits);
  const Throttler throttler = scene.MakeThrottler("peer");
  std::mt19937_64 random(51);
  std::mutex mu;
  std::vector<nanoseconds> sent;
  scene.RunThreads(throttler, kThreads, [&](size_t) {
    while (scene.now() < kLength) {
      const Status status = throttler.Run([&] {
        const std::lock_guard<std::mutex> lock(mu);
        sent.push_back(scene.now());
      });
      ASSERT_TRUE(status.ok()) << status;
    }
  });
  ExpectNoWindowOverAndAllUsed(std::move(sent), random, /*late=*/kThreads);
}

}  // namespace
}  // namespace sluice::acceptance
