#include "common/wait_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

namespace sluice::common {
namespace {

using Queue = WaitQueue<int>;

std::vector<int> DrainBehindGap(Queue& queue) {
  std::vector<int> values;
  while (const auto* const next = queue.NextBehindGap()) values.push_back(next->second);
  return values;
}

TEST(WaitQueueTest, PopsDueEntriesByGrantTimeThenSequence) {
  Queue queue;
  queue.Insert({20, 1}, 3);
  queue.Insert({10, 7}, 2);
  queue.Insert({10, 5}, 1);
  EXPECT_EQ(queue.PopDue(9), std::nullopt);
  EXPECT_EQ(queue.PopDue(10), 1);
  EXPECT_EQ(queue.PopDue(10), 2);
  EXPECT_EQ(queue.PopDue(19), std::nullopt);
  EXPECT_EQ(queue.PopDue(20), 3);
  EXPECT_EQ(queue.PopDue(Queue::kNever), std::nullopt);
}

TEST(WaitQueueTest, ErasesAndMovesEntries) {
  Queue queue;
  for (int i = 1; i <= 3; ++i) queue.Insert({10 * i, 0}, i);
  queue.Erase({20, 0});
  queue.Move({30, 0}, {5, 0});
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.PopDue(100), 3);
  EXPECT_EQ(queue.PopDue(100), 1);
  EXPECT_TRUE(queue.empty());
}

TEST(WaitQueueTest, MovesValuesThatCannotBeCopied) {
  WaitQueue<std::unique_ptr<int>> queue;
  queue.Insert({10, 0}, std::make_unique<int>(1));
  queue.Move({10, 0}, {20, 0});
  EXPECT_EQ(**queue.PopDue(20), 1);
}

TEST(WaitQueueTest, TakesEntriesLaterThanATime) {
  Queue queue;
  for (int i = 1; i <= 4; ++i) queue.Insert({10 * i, 0}, i);
  EXPECT_EQ(queue.TakeLaterThan(20), (std::vector<int>{3, 4}));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.TakeLaterThan(INT64_MIN), (std::vector<int>{1, 2}));
  EXPECT_TRUE(queue.empty());
}

TEST(WaitQueueTest, ReturnsEachEntryBehindTheFirstGapOnce) {
  Queue queue;
  for (int i = 1; i <= 4; ++i) queue.Insert({10 * i, 0}, i);
  EXPECT_FALSE(queue.has_gap());
  EXPECT_EQ(queue.NextBehindGap(), nullptr);
  queue.NoteGap({35, 0});
  queue.NoteGap({20, 0});
  queue.NoteGap({30, 0});
  EXPECT_TRUE(queue.has_gap());
  EXPECT_EQ(DrainBehindGap(queue), (std::vector<int>{2, 3, 4}));
  EXPECT_FALSE(queue.has_gap());
}

TEST(WaitQueueTest, ContinuesBehindAnEntryThatMovedUp) {
  Queue queue;
  for (int i = 1; i <= 3; ++i) queue.Insert({10 * i, 0}, i);
  queue.NoteGap({10, 0});
  ASSERT_EQ(queue.NextBehindGap()->second, 1);
  queue.Move({10, 0}, {5, 0});
  EXPECT_EQ(DrainBehindGap(queue), (std::vector<int>{2, 3}));
}

TEST(WaitQueueTest, ReturnsEntryInsertedBehindAGapInAnEmptyQueue) {
  Queue queue;
  queue.NoteGap({10, 0});
  queue.Insert({20, 0}, 1);
  EXPECT_EQ(DrainBehindGap(queue), (std::vector<int>{1}));
}

TEST(WaitQueueTest, WakesAtTheFirstGrantTimeOrForTheGap) {
  Queue queue;
  EXPECT_EQ(queue.NextWakeNs(0), Queue::kNever);
  queue.NoteGap({10, 0});
  EXPECT_EQ(queue.NextWakeNs(0), Queue::kNever);
  queue.Insert({20, 0}, 1);
  EXPECT_EQ(queue.NextWakeNs(5), 5);
  EXPECT_EQ(queue.NextWakeNs(30), 20);
  queue.ForgetGap();
  EXPECT_EQ(queue.NextWakeNs(5), 20);
}

}  // namespace
}  // namespace sluice::common
