// RuleTable: since when a limit is split.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/shard/store_state.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kAlways = std::numeric_limits<int64_t>::min();

class RuleTableTest : public ::testing::Test {
 protected:
  // Returns whether the limit was split.
  bool Register(Sharing sharing, int64_t now_ns, uint32_t limit_id = 1) {
    Rule rule;
    rule.id = ++last_id_;
    rule.limit_id = limit_id;
    rule.sharing = sharing;
    rule.parameters = algorithm::MakeTokenBucket({8, 1'000'000'000}, 8, 0).value();
    return table_.Register(std::make_shared<const Rule>(std::move(rule)), now_ns);
  }
  int64_t SplitSinceNs() const { return table_.Find(last_id_)->split_since_ns; }

  RuleTable table_{"node"};
  uint32_t last_id_ = 0;
};

TEST_F(RuleTableTest, LimitThatWasAlwaysSplitHasNoBeginning) {
  EXPECT_FALSE(Register(Sharing::kSplit, 100));
  EXPECT_EQ(SplitSinceNs(), kAlways);
  EXPECT_TRUE(Register(Sharing::kSplit, 200));
  EXPECT_EQ(SplitSinceNs(), kAlways);
}

TEST_F(RuleTableTest, LimitThatBecomesSplitIsSoFromThenOn) {
  EXPECT_FALSE(Register(Sharing::kExact, 100));
  EXPECT_EQ(SplitSinceNs(), kAlways);
  EXPECT_FALSE(Register(Sharing::kSplit, 200));
  EXPECT_EQ(SplitSinceNs(), 200);
  // Another rule of the limit, or its next change.
  EXPECT_TRUE(Register(Sharing::kSplit, 300));
  EXPECT_EQ(SplitSinceNs(), 200);
}

TEST_F(RuleTableTest, LimitThatIsSplitAgainBeginsAgain) {
  EXPECT_FALSE(Register(Sharing::kSplit, 100));
  EXPECT_TRUE(Register(Sharing::kRelaxed, 200));
  EXPECT_FALSE(Register(Sharing::kRelaxed, 200));
  EXPECT_FALSE(Register(Sharing::kSplit, 300));
  EXPECT_EQ(SplitSinceNs(), 300);
}

TEST_F(RuleTableTest, LimitsDoNotAffectEachOther) {
  EXPECT_FALSE(Register(Sharing::kExact, 100, /*limit_id=*/1));
  EXPECT_FALSE(Register(Sharing::kSplit, 200, /*limit_id=*/2));
  EXPECT_EQ(SplitSinceNs(), kAlways);
}

}  // namespace
}  // namespace sluice::store::redis
