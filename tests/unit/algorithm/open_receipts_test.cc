#include "server/algorithm/open_receipts.h"

#include <gtest/gtest.h>

#include "common/bounds.h"

namespace sluice::algorithm {
namespace {

using common::bounds::kMaxReceiptsPerBucket;

TEST(OpenReceiptsTest, RefundGivesTheCostWhileTheBucketLacksIt) {
  OpenReceipts receipts;
  receipts.Open(1, 6, 6);
  receipts.NoteShortfall(6);
  EXPECT_EQ(receipts.RefundTicks(1), 6u);
  EXPECT_EQ(receipts.RefundTicks(1), std::nullopt);
}

TEST(OpenReceiptsTest, RefundGivesAtMostTheLeastShortfall) {
  OpenReceipts receipts;
  receipts.Open(1, 6, 6);
  receipts.NoteShortfall(2);
  receipts.NoteShortfall(9);
  EXPECT_EQ(receipts.RefundTicks(1), 2u);
}

TEST(OpenReceiptsTest, ClosesReceiptsWhenTheBucketWasFull) {
  OpenReceipts receipts;
  receipts.Open(1, 6, 6);
  receipts.NoteShortfall(0);
  EXPECT_TRUE(receipts.empty());
  EXPECT_EQ(receipts.RefundTicks(1), std::nullopt);
}

// The essay's second example.
TEST(OpenReceiptsTest, RefundLowersOtherReceipts) {
  OpenReceipts receipts;
  receipts.Open(1, 6, 6);
  receipts.NoteShortfall(6);
  receipts.Open(2, 4, 10);
  receipts.NoteShortfall(10);
  EXPECT_EQ(receipts.RefundTicks(1), 6u);
  receipts.NoteShortfall(4);
  EXPECT_EQ(receipts.RefundTicks(2), 4u);
}

// The essay's third example.
TEST(OpenReceiptsTest, RefundOfANewerReceiptKeepsALowerOlderOne) {
  OpenReceipts receipts;
  receipts.Open(1, 6, 6);
  receipts.NoteShortfall(6);
  receipts.Open(2, 4, 10);
  receipts.NoteShortfall(10);
  EXPECT_EQ(receipts.RefundTicks(2), 4u);
  receipts.NoteShortfall(6);
  EXPECT_EQ(receipts.RefundTicks(1), 6u);
}

TEST(OpenReceiptsTest, RefundOfANewerReceiptLowersAHigherOlderOne) {
  OpenReceipts receipts;
  receipts.Open(1, 6, 6);
  receipts.Open(2, 4, 10);
  receipts.NoteShortfall(5);
  EXPECT_EQ(receipts.RefundTicks(2), 4u);
  EXPECT_EQ(receipts.RefundTicks(1), 1u);
}

TEST(OpenReceiptsTest, ClosesTheOldestReceiptWhenFull) {
  OpenReceipts receipts;
  for (uint64_t id = 1; id <= kMaxReceiptsPerBucket; ++id) {
    EXPECT_FALSE(receipts.Open(id, 1, id));
  }
  EXPECT_TRUE(receipts.Open(5000, 1, 5000));
  EXPECT_EQ(receipts.size(), kMaxReceiptsPerBucket);
  EXPECT_EQ(receipts.RefundTicks(1), std::nullopt);
  EXPECT_EQ(receipts.RefundTicks(2), 1u);
}

TEST(OpenReceiptsTest, ScalesRoundingDown) {
  OpenReceipts receipts;
  receipts.Open(1, 10, 10);
  receipts.NoteShortfall(10);
  receipts.Open(2, 10, 20);
  receipts.Scale(1, 3, 5);
  EXPECT_EQ(receipts.RefundTicks(2), 3u);
  EXPECT_EQ(receipts.RefundTicks(1), 2u);  // 5 - 3
}

TEST(OpenReceiptsTest, ClosesReceiptsThatNoLongerCount) {
  OpenReceipts receipts;
  receipts.Open(1, 10, 3);
  receipts.Open(2, 20, 4);
  receipts.CloseUncounted([](uint64_t when) { return when >= 20; });
  EXPECT_FALSE(receipts.Close(1).has_value());
  const auto receipt = receipts.Close(2);
  ASSERT_TRUE(receipt.has_value());
  EXPECT_EQ(receipt->cost_or_when, 20u);
  EXPECT_EQ(receipt->shortfall_or_permits, 4u);
  EXPECT_TRUE(receipts.empty());
}

TEST(OpenReceiptsTest, ClosesTheOldestReceiptOfAWindowWhenFull) {
  OpenReceipts receipts;
  for (uint64_t id = 1; id <= kMaxReceiptsPerBucket; ++id) EXPECT_FALSE(receipts.Open(id, id, 1));
  EXPECT_TRUE(receipts.Open(5000, 5000, 1));
  EXPECT_FALSE(receipts.Close(1).has_value());
  EXPECT_TRUE(receipts.Close(2).has_value());
}

}  // namespace
}  // namespace sluice::algorithm
