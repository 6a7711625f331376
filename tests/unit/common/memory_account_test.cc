#include "common/memory_account.h"

#include "gtest/gtest.h"

namespace sluice::common {
namespace {

constexpr int64_t kChunk = MemoryPart::kChunk;

TEST(MemoryAccountTest, PartReportsInChunks) {
  MemoryBudget budget(10 * kChunk);
  MemoryPart part(&budget);
  part.Add(kChunk - 1);
  EXPECT_EQ(budget.held(), 0);
  part.Add(1);
  EXPECT_EQ(budget.held(), kChunk);
  part.Add(1 - kChunk);
  EXPECT_EQ(budget.held(), kChunk);
  part.Add(-1);
  EXPECT_EQ(budget.held(), 0);
}

TEST(MemoryAccountTest, PartReportsTheRestWhenItEnds) {
  MemoryBudget budget(10 * kChunk);
  {
    MemoryPart part(&budget);
    part.Add(100);
  }
  EXPECT_EQ(budget.held(), 100);
}

TEST(MemoryAccountTest, BudgetIsOverItsLimitBySumOfParts) {
  MemoryBudget budget(8 * kChunk);
  MemoryPart one(&budget);
  MemoryPart other(&budget);
  one.Add(7 * kChunk);
  EXPECT_FALSE(budget.nearly_over());
  other.Add(kChunk);
  EXPECT_TRUE(budget.nearly_over());
  EXPECT_FALSE(budget.over());
  one.Add(kChunk);
  EXPECT_TRUE(other.over());
  EXPECT_EQ(budget.excess(), 2 * kChunk);
}

TEST(MemoryAccountTest, PartWithoutBudgetIsNeverOver) {
  MemoryPart part(nullptr);
  part.Add(int64_t{1} << 60);
  EXPECT_FALSE(part.over());
}

}  // namespace
}  // namespace sluice::common
