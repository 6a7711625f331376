#include "server/store/used_receipts.h"

#include <gtest/gtest.h>

namespace sluice::store {
namespace {

TEST(UsedReceiptsTest, RemembersAddedReceipts) {
  UsedReceipts used;
  used.Add(5);
  used.Add(5);
  EXPECT_TRUE(used.Contains(5));
  EXPECT_FALSE(used.Contains(6));
}

TEST(UsedReceiptsTest, ForgetsTheOldestReceiptsAndStaysBounded) {
  UsedReceipts used;
  for (uint64_t id = 1; id <= UsedReceipts::kMost + 10; ++id) used.Add(id);
  EXPECT_FALSE(used.Contains(1));
  EXPECT_FALSE(used.Contains(10));
  EXPECT_TRUE(used.Contains(11));
  EXPECT_TRUE(used.Contains(UsedReceipts::kMost + 10));
  const uint64_t bytes = used.memory_bytes();
  for (uint64_t id = 1'000'000; id < 1'000'000 + 3 * UsedReceipts::kMost; ++id) used.Add(id);
  EXPECT_EQ(used.memory_bytes(), bytes);
}

}  // namespace
}  // namespace sluice::store
