#include "server/store/memory/rule_registry.h"

#include <gtest/gtest.h>

#include <memory>

namespace sluice::store::memory {
namespace {

class RuleRegistryTest : public ::testing::Test {
 protected:
  static std::shared_ptr<Rule> MakeRule(uint32_t id) {
    auto rule = std::make_shared<Rule>();
    rule->id = id;
    return rule;
  }

  EpochDomain epochs_{[](void*, uint8_t, uint64_t object) { RuleRegistry::Free(object); }, nullptr};
  TableRoom room_{/*max_buckets=*/100, /*max_bytes=*/0};
  RuleRegistry rules_{epochs_, 0, room_};
};

TEST_F(RuleRegistryTest, FindsOnlyAddedRules) {
  for (uint32_t id : {1u, 2u, 4095u, 4096u, 1'000'000u, 0xffffffffu}) {
    EXPECT_EQ(rules_.Find(id), nullptr);
    rules_.Add(MakeRule(id));
    ASSERT_NE(rules_.Find(id), nullptr);
    EXPECT_EQ(rules_.Find(id)->rule->id, id);
  }
  EXPECT_EQ(rules_.Find(3), nullptr);
}

TEST_F(RuleRegistryTest, AddingAgainChangesNothing) {
  const auto rule = MakeRule(5);
  rules_.Add(rule);
  RuleRegistry::Entry* const entry = rules_.Find(5);
  ASSERT_NE(entry, nullptr);
  rules_.Add(rule);
  EXPECT_EQ(rules_.Find(5), entry);
}

TEST_F(RuleRegistryTest, CollectForgetsUnusedRules) {
  const auto held = MakeRule(1);
  rules_.Add(held);
  rules_.Add(MakeRule(2));
  rules_.Add(MakeRule(3));
  rules_.Find(3)->buckets = 1;
  std::weak_ptr<const Rule> gone = rules_.Find(2)->rule;
  rules_.Collect(10);
  epochs_.Reclaim(10);
  EXPECT_NE(rules_.Find(1), nullptr);
  EXPECT_EQ(rules_.Find(2), nullptr);
  EXPECT_TRUE(gone.expired());
  EXPECT_NE(rules_.Find(3), nullptr);
  rules_.Find(3)->buckets = 0;
  rules_.Collect(10);
  EXPECT_EQ(rules_.Find(3), nullptr);
}

TEST_F(RuleRegistryTest, CollectVisitsAFewRulesInTurn) {
  for (uint32_t id = 1; id <= 100; ++id) rules_.Add(MakeRule(id));
  const auto count = [&] {
    int found = 0;
    for (uint32_t id = 1; id <= 100; ++id) found += rules_.Find(id) != nullptr;
    return found;
  };
  rules_.Collect(30);
  EXPECT_EQ(count(), 70);
  for (int i = 0; i < 3; ++i) rules_.Collect(30);
  EXPECT_EQ(count(), 0);
}

}  // namespace
}  // namespace sluice::store::memory
