#include "server/store/redis/connection/script_size.h"

#include <gtest/gtest.h>

namespace sluice::store::redis {
namespace {

constexpr int64_t kUs = 1000;

// A server that takes so long for each unit, with scripts of the size that it gets.
void Decide(ScriptSize& size, int64_t unit_ns, int scripts) {
  for (int i = 0; i < scripts; ++i) {
    const size_t units = size.units();
    size.OnDecided(units, static_cast<int64_t>(units) * unit_ns);
  }
}

TEST(ScriptSizeTest, ScriptsOfAFastServerHaveTheMost) {
  ScriptSize size;
  Decide(size, 4 * kUs, 1);
  EXPECT_EQ(size.units(), ScriptSize::kMost);
}

TEST(ScriptSizeTest, ScriptsHaveNoMoreThanTheyMay) {
  for (const size_t most : {1, 2}) {
    ScriptSize size(most);
    Decide(size, 4 * kUs, 200);
    EXPECT_EQ(size.units(), most);
  }
}

TEST(ScriptSizeTest, ScriptsOfASlowServerTakeAtMostTheirTime) {
  for (const int64_t unit_us : {20, 30, 100, 200}) {
    ScriptSize size;
    Decide(size, unit_us * kUs, 500);
    EXPECT_LE(static_cast<int64_t>(size.units()) * unit_us, 250) << unit_us;
    EXPECT_GE(static_cast<int64_t>(size.units() + 1) * unit_us, 240) << unit_us;
  }
}

TEST(ScriptSizeTest, ScriptHasOneUnitHoweverSlowTheServer) {
  ScriptSize size;
  Decide(size, 10'000 * kUs, 500);
  EXPECT_EQ(size.units(), 1u);
  Decide(size, 4 * kUs, 1);
  EXPECT_EQ(size.units(), ScriptSize::kMost) << "fast again";
}

// A server that does something else between two scripts now and then.
TEST(ScriptSizeTest, PausesOfTheServerDoNotCount) {
  ScriptSize size;
  for (int i = 0; i < 100; ++i) {
    size.OnDecided(16, 16 * 4 * kUs);
    size.OnDecided(16, 1'000'000 * kUs);
    EXPECT_GE(size.units(), ScriptSize::kMost - 1);
  }
}

TEST(ScriptSizeTest, ClockThatWasSetBackTellsNothing) {
  ScriptSize size;
  Decide(size, 20 * kUs, 1);
  size.OnDecided(16, 0);
  size.OnDecided(16, -5 * kUs);
  EXPECT_EQ(size.units(), 12u);
}

}  // namespace
}  // namespace sluice::store::redis
