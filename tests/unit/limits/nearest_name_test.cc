#include "server/limits/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::limits {
namespace {

const std::vector<std::string_view> kFields = {"name", "rate", "burst", "debt", "mode", "keys"};

TEST(NearestTest, FindsTheMistypedName) {
  EXPECT_EQ(NearestName("brust", kFields), "burst");
  EXPECT_EQ(NearestName("burts", kFields), "burst");
  EXPECT_EQ(NearestName("nam", kFields), "name");
  EXPECT_EQ(NearestName("ratee", kFields), "rate");
  EXPECT_EQ(NearestName("key", kFields), "keys");
}

TEST(NearestTest, DoesNotGuessWildly) {
  EXPECT_EQ(NearestName("colour", kFields), "");
  EXPECT_EQ(NearestName("", kFields), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace sluice::limits
