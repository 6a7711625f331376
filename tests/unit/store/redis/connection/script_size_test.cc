#include "server/store/redis/connection/script_size.h"

#include <gtest/gtest.h>

namespace sluice::store::redis {
namespace {

constexpr int64_t kUs = 1000;

// A server that takes so long for each unit, under scripts of the size that it gets.
void Saturate(ScriptSize& size, int64_t unit_ns, int scripts, int64_t* now_ns) {
  size.OnSend(*now_ns, /*idle=*/true);
  for (int i = 0; i < scripts; ++i) {
    const size_t units = size.units();
    *now_ns += static_cast<int64_t>(units) * unit_ns;
    size.OnAnswer(*now_ns, units);
  }
}

TEST(ScriptSizeTest, ScriptsOfAFastServerHaveTheMost) {
  ScriptSize size;
  int64_t now_ns = 1;
  Saturate(size, 4 * kUs, 100, &now_ns);
  EXPECT_EQ(size.units(), ScriptSize::kMost);
}

TEST(ScriptSizeTest, ScriptsHaveNoMoreThanTheyMay) {
  for (const size_t most : {1, 2}) {
    ScriptSize size(most);
    int64_t now_ns = 1;
    Saturate(size, 4 * kUs, 200, &now_ns);
    EXPECT_EQ(size.units(), most);
  }
}

TEST(ScriptSizeTest, ScriptsOfASlowServerTakeAtMostTheirTime) {
  for (const int64_t unit_us : {12, 30, 100, 200}) {
    ScriptSize size;
    int64_t now_ns = 1;
    Saturate(size, unit_us * kUs, 500, &now_ns);
    EXPECT_LE(static_cast<int64_t>(size.units()) * unit_us, 275) << unit_us;
    EXPECT_GE(static_cast<int64_t>(size.units() + 1) * unit_us, 240) << unit_us;
  }
}

TEST(ScriptSizeTest, ScriptHasOneUnitHoweverSlowTheServer) {
  ScriptSize size;
  int64_t now_ns = 1;
  Saturate(size, 10'000 * kUs, 500, &now_ns);
  EXPECT_EQ(size.units(), 1u);
  Saturate(size, 4 * kUs, 200, &now_ns);
  EXPECT_EQ(size.units(), ScriptSize::kMost) << "fast again";
}

TEST(ScriptSizeTest, TimeWithoutCommandsInFlightDoesNotCount) {
  ScriptSize size;
  int64_t now_ns = 1;
  Saturate(size, 4 * kUs, 100, &now_ns);
  for (int i = 0; i < 1000; ++i) {
    now_ns += 1'000'000 * kUs;
    size.OnSend(now_ns, /*idle=*/true);
    now_ns += 20 * kUs;
    size.OnAnswer(now_ns, 1);
  }
  EXPECT_EQ(size.units(), ScriptSize::kMost);
}

// A loop that was busy for long reads many replies at once.
TEST(ScriptSizeTest, RepliesReadAtOnceCountForTheTimeBefore) {
  ScriptSize size;
  int64_t now_ns = 1;
  Saturate(size, 25 * kUs, 500, &now_ns);
  const size_t before = size.units();
  for (int i = 0; i < 100; ++i) {
    now_ns += 40 * 10 * 25 * kUs;
    for (int reply = 0; reply < 40; ++reply) size.OnAnswer(now_ns, 10);
    now_ns += 10 * 25 * kUs;
    size.OnAnswer(now_ns, 10);
  }
  EXPECT_LE(size.units(), before);
}

}  // namespace
}  // namespace sluice::store::redis
