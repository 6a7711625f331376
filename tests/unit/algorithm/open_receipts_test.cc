#include "server/algorithm/open_receipts.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include "common/bounds.h"

namespace sluice::algorithm {
namespace {

using common::bounds::kMaxReceiptsPerBucket;

TEST(OpenReceiptsTest, RefundGivesTheCostWhileTheBucketLacksIt) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 6, 6);
  receipts.NoteShortfall(6);
  EXPECT_EQ(receipts.RefundTicks(1), 6u);
  EXPECT_EQ(receipts.RefundTicks(1), std::nullopt);
}

TEST(OpenReceiptsTest, RefundGivesAtMostTheLeastShortfall) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 6, 6);
  receipts.NoteShortfall(2);
  receipts.NoteShortfall(9);
  EXPECT_EQ(receipts.RefundTicks(1), 2u);
}

TEST(OpenReceiptsTest, ClosesReceiptsWhenTheBucketWasFull) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 6, 6);
  receipts.NoteShortfall(0);
  EXPECT_TRUE(receipts.empty());
  EXPECT_EQ(receipts.RefundTicks(1), std::nullopt);
}

// The essay's second example.
TEST(OpenReceiptsTest, RefundLowersOtherReceipts) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 6, 6);
  receipts.NoteShortfall(6);
  receipts.OpenTicks(2, 4, 10);
  receipts.NoteShortfall(10);
  EXPECT_EQ(receipts.RefundTicks(1), 6u);
  receipts.NoteShortfall(4);
  EXPECT_EQ(receipts.RefundTicks(2), 4u);
}

// The essay's third example.
TEST(OpenReceiptsTest, RefundOfANewerReceiptKeepsALowerOlderOne) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 6, 6);
  receipts.NoteShortfall(6);
  receipts.OpenTicks(2, 4, 10);
  receipts.NoteShortfall(10);
  EXPECT_EQ(receipts.RefundTicks(2), 4u);
  receipts.NoteShortfall(6);
  EXPECT_EQ(receipts.RefundTicks(1), 6u);
}

TEST(OpenReceiptsTest, RefundOfANewerReceiptLowersAHigherOlderOne) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 6, 6);
  receipts.OpenTicks(2, 4, 10);
  receipts.NoteShortfall(5);
  EXPECT_EQ(receipts.RefundTicks(2), 4u);
  EXPECT_EQ(receipts.RefundTicks(1), 1u);
}

TEST(OpenReceiptsTest, ClosesTheOldestReceiptWhenFull) {
  OpenReceipts receipts;
  for (uint64_t id = 1; id <= kMaxReceiptsPerBucket; ++id) {
    EXPECT_FALSE(receipts.OpenTicks(id, 1, id));
  }
  EXPECT_TRUE(receipts.OpenTicks(5000, 1, 5000));
  EXPECT_EQ(receipts.size(), kMaxReceiptsPerBucket);
  EXPECT_EQ(receipts.RefundTicks(1), std::nullopt);
  EXPECT_EQ(receipts.RefundTicks(2), 1u);
}

TEST(OpenReceiptsTest, ScalesRoundingDown) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 10, 10);
  receipts.NoteShortfall(10);
  receipts.OpenTicks(2, 10, 20);
  receipts.Scale(1, 3, 5);
  EXPECT_EQ(receipts.RefundTicks(2), 3u);
  EXPECT_EQ(receipts.RefundTicks(1), 2u);  // 5 - 3
}

TEST(OpenReceiptsTest, ClosesReceiptsThatNoLongerCount) {
  OpenReceipts receipts;
  receipts.OpenPermits(1, 10, 3);
  receipts.OpenPermits(2, 20, 4);
  receipts.CloseUncounted([](uint64_t when) { return when >= 20; });
  EXPECT_FALSE(receipts.Close(1).has_value());
  const auto receipt = receipts.Close(2);
  ASSERT_TRUE(receipt.has_value());
  EXPECT_EQ(receipt->cost_or_when, 20u);
  EXPECT_EQ(receipt->shortfall_or_permits, 4u);
  EXPECT_TRUE(receipts.empty());
}

// The last one, which is closed, is converted too.
TEST(OpenReceiptsTest, ClosesNoneThatCountsAfterAConversion) {
  OpenReceipts receipts;
  receipts.OpenPermits(1, 10, 5);
  receipts.OpenPermits(2, 20, 5);
  ASSERT_TRUE(receipts.Close(2).has_value());
  receipts.Convert([](uint64_t when) { return when / 10; });
  receipts.CloseUncounted([](uint64_t when) { return when >= 1 && when <= 2; });
  EXPECT_EQ(receipts.size(), 1u);
  receipts.CloseUncounted([](uint64_t when) { return when > 2; });
  EXPECT_TRUE(receipts.empty());
}

TEST(OpenReceiptsTest, ClosesTheOldestReceiptOfAWindowWhenFull) {
  OpenReceipts receipts;
  for (uint64_t id = 1; id <= kMaxReceiptsPerBucket; ++id)
    EXPECT_FALSE(receipts.OpenPermits(id, id, 1));
  EXPECT_TRUE(receipts.OpenPermits(5000, 5000, 1));
  EXPECT_FALSE(receipts.Close(1).has_value());
  EXPECT_TRUE(receipts.Close(2).has_value());
}

TEST(OpenReceiptsTest, KeepsAPartOfTheCost) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 6, 6);
  receipts.OpenTicks(2, 6, 12);
  EXPECT_EQ(receipts.RefundTicks(1, /*keep_ticks=*/4), 2u);
  EXPECT_EQ(receipts.RefundTicks(2, /*keep_ticks=*/7), 0u);
  EXPECT_TRUE(receipts.empty());
}

TEST(OpenReceiptsTest, KeptReceiptsAreNotClosedForOthers) {
  OpenReceipts receipts;
  receipts.OpenTicks(1, 1, 1, OpenReceipts::Kept::kYes);
  for (uint64_t id = 2; id <= kMaxReceiptsPerBucket + 2; ++id) {
    EXPECT_EQ(receipts.OpenTicks(id, 1, id), id == kMaxReceiptsPerBucket + 2);
  }
  EXPECT_EQ(receipts.kept(), 1u);
  EXPECT_EQ(receipts.RefundTicks(2), std::nullopt);
  EXPECT_EQ(receipts.RefundTicks(1), 1u);
}

TEST(OpenReceiptsTest, ReceiptsKeptNoLongerAreClosedForOthers) {
  OpenReceipts receipts;
  for (uint64_t id = 1; id <= kMaxReceiptsPerBucket + 1; ++id) {
    receipts.OpenTicks(id, 1, id, OpenReceipts::Kept::kYes);
  }
  for (uint64_t id = kMaxReceiptsPerBucket + 1; id > 1; --id) receipts.KeepNoLonger(id);
  EXPECT_EQ(receipts.size(), kMaxReceiptsPerBucket + 1);
  EXPECT_EQ(receipts.kept(), 1u);
  // One more than there may be, and the oldest.
  receipts.KeepNoLonger(1);
  EXPECT_EQ(receipts.size(), kMaxReceiptsPerBucket);
  EXPECT_EQ(receipts.kept(), 0u);
  EXPECT_EQ(receipts.RefundTicks(1), std::nullopt);
  receipts.KeepNoLonger(2);
  EXPECT_TRUE(
      receipts.OpenTicks(kMaxReceiptsPerBucket + 2, 1, /*shortfall=*/kMaxReceiptsPerBucket + 2));
  EXPECT_EQ(receipts.RefundTicks(2), std::nullopt);
  EXPECT_EQ(receipts.RefundTicks(3), 1u);
}

// The essay, without steps: each event changes every receipt that it concerns.
class SlowReceipts {
 public:
  void Open(uint64_t id, uint64_t cost, uint64_t shortfall) {
    receipts_.push_back({id, cost, shortfall});
  }
  void Note(uint64_t shortfall) {
    for (auto& one : receipts_) {
      one.shortfall_or_permits = std::min(one.shortfall_or_permits, shortfall);
    }
    CloseWorthless();
  }
  std::optional<uint64_t> Refund(uint64_t id, uint64_t keep) {
    const auto it = std::find_if(receipts_.begin(), receipts_.end(),
                                 [&](const auto& one) { return one.id == id; });
    if (it == receipts_.end()) return std::nullopt;
    const uint64_t part = it->cost_or_when - std::min(keep, it->cost_or_when);
    const uint64_t given = std::min(part, it->shortfall_or_permits);
    const uint64_t left = it->shortfall_or_permits - given;
    for (auto older = receipts_.begin(); older != it; ++older) {
      older->shortfall_or_permits = std::min(older->shortfall_or_permits, left);
    }
    for (auto newer = it + 1; newer != receipts_.end(); ++newer) {
      newer->shortfall_or_permits -= given;
    }
    receipts_.erase(it);
    CloseWorthless();
    return given;
  }
  void Forgive(uint64_t ticks) {
    for (auto& one : receipts_) {
      one.cost_or_when -= std::min(one.cost_or_when, ticks);
      one.shortfall_or_permits -= std::min(one.shortfall_or_permits, ticks);
    }
    CloseWorthless();
  }
  void Scale(uint64_t numerator, uint64_t denominator, uint64_t most) {
    for (auto& one : receipts_) {
      one.cost_or_when = std::min(one.cost_or_when * numerator / denominator, most);
      one.shortfall_or_permits = std::min(one.shortfall_or_permits * numerator / denominator, most);
    }
    CloseWorthless();
  }
  void Drop(uint64_t id) {
    std::erase_if(receipts_, [&](const auto& one) { return one.id == id; });
  }
  const std::vector<OpenReceipts::Receipt>& all() const { return receipts_; }

 private:
  void CloseWorthless() {
    std::erase_if(receipts_, [](const auto& one) { return one.shortfall_or_permits == 0; });
  }
  std::vector<OpenReceipts::Receipt> receipts_;
};

RC_GTEST_PROP(OpenReceiptsTest, ChangesAsIfEachReceiptWereChanged, ()) {
  OpenReceipts receipts;
  SlowReceipts slow;
  uint64_t lacking = 0;
  uint64_t last_id = 0;
  const auto most_kept = *rc::gen::inRange(0, 2);
  for (int steps = *rc::gen::inRange(1, 400); steps > 0; --steps) {
    const auto amount = *rc::gen::inRange<uint64_t>(0, 12);
    receipts.NoteShortfall(lacking);
    slow.Note(lacking);
    switch (*rc::gen::inRange(0, 9)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        // Not always in order.
        ++last_id;
        const uint64_t id = 2 * last_id - (amount == 0 && last_id > 1 ? 3 : 0);
        if (amount == 0 && last_id > 1) slow.Drop(id), receipts.Drop(id);
        lacking += 1 + amount;
        receipts.OpenTicks(id, 1 + amount, lacking,
                           most_kept != 0 ? OpenReceipts::Kept::kYes : OpenReceipts::Kept::kNo);
        slow.Open(id, 1 + amount, lacking);
        break;
      }
      case 4:
        lacking -= std::min(lacking, amount);
        break;
      case 5:
      case 6: {
        const auto id = *rc::gen::inRange<uint64_t>(1, 2 * last_id + 2);
        const auto keep = *rc::gen::inRange<uint64_t>(0, 4);
        const std::optional<uint64_t> given = receipts.RefundTicks(id, keep);
        RC_ASSERT(given == slow.Refund(id, keep));
        lacking -= given.value_or(0);
        break;
      }
      case 7:
        receipts.ForgiveTicks(amount / 2);
        slow.Forgive(amount / 2);
        break;
      case 8:
        if (amount > 2) break;
        receipts.Scale(amount + 1, 2, lacking);
        slow.Scale(amount + 1, 2, lacking);
        break;
    }
    std::vector<OpenReceipts::Receipt> all;
    receipts.ForEachTicks([&](const OpenReceipts::Receipt& one) { all.push_back(one); });
    RC_ASSERT(all == slow.all());
    RC_ASSERT(receipts.size() == all.size());
  }
}

RC_GTEST_PROP(OpenReceiptsTest, ForgivesPermitsAsIfOfEachReceipt, ()) {
  const auto any_permits = [] {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    return *rc::gen::oneOf(rc::gen::inRange<uint64_t>(1, 20),
                           rc::gen::element<uint64_t>(kMost / 2, kMost - 1, kMost));
  };
  OpenReceipts receipts;
  std::vector<OpenReceipts::Receipt> slow;
  uint64_t last_id = 0;
  for (int steps = *rc::gen::inRange(1, 200); steps > 0; --steps) {
    const uint64_t permits = any_permits();
    switch (*rc::gen::inRange(0, 4)) {
      case 0:
      case 1:
        ++last_id;
        receipts.OpenPermits(last_id, /*when=*/last_id, permits);
        slow.push_back({last_id, last_id, permits});
        break;
      case 2: {
        // Also twice as many as a receipt can have.
        const uint64_t amount = permits * *rc::gen::inRange<uint64_t>(1, 3);
        receipts.ForgivePermits(amount);
        for (auto& one : slow) {
          one.shortfall_or_permits -= std::min(one.shortfall_or_permits, amount);
        }
        break;
      }
      case 3: {
        if (slow.empty()) break;
        const auto one = slow.begin() + *rc::gen::inRange<std::ptrdiff_t>(0, std::ssize(slow));
        RC_ASSERT(receipts.Close(one->id) == *one);
        slow.erase(one);
        break;
      }
    }
    std::vector<OpenReceipts::Receipt> all;
    receipts.ForEachPermits([&](const OpenReceipts::Receipt& one) { all.push_back(one); });
    RC_ASSERT(all == slow);
  }
}

}  // namespace
}  // namespace sluice::algorithm
