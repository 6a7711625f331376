#include "server/limits/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::limits {
namespace {

const std::vector<std::string_view> kFields = {"name", "rate", "burst", "debt", "mode", "keys"};

TEST(NearestTest, FindsWhatWasMistyped) {
  EXPECT_EQ(Nearest("brust", kFields), "burst");
  EXPECT_EQ(Nearest("burts", kFields), "burst");
  EXPECT_EQ(Nearest("nam", kFields), "name");
  EXPECT_EQ(Nearest("ratee", kFields), "rate");
  EXPECT_EQ(Nearest("key", kFields), "keys");
}

TEST(NearestTest, DoesNotGuessWildly) {
  EXPECT_EQ(Nearest("colour", kFields), "");
  EXPECT_EQ(Nearest("", kFields), "");
  EXPECT_EQ(Nearest("x", {}), "");
}

}  // namespace
}  // namespace sluice::limits
