#include "common/net/work_queue.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace sluice::net {
namespace {

constexpr int64_t kTurn = WorkQueue::kTurnUnits;

// Has `left` pieces of work that cost `piece` units each.
class Source final : public Worker {
 public:
  Source(WorkQueue& queue, char name, int64_t piece, std::string* log)
      : queue_(queue), name_(name), piece_(piece), log_(log) {}

  void Give(int pieces) {
    left += pieces;
    queue_.Add(*this);
  }

  int left = 0;
  int done = 0;
  std::function<void()> on_turn = [] {};

 private:
  void OnTurn() override {
    log_->push_back(name_);
    on_turn();
    while (left > 0 && has_credit()) {
      Spend(piece_);
      --left;
      ++done;
    }
    if (left > 0) queue_.Add(*this);
  }

  WorkQueue& queue_;
  const char name_;
  const int64_t piece_;
  std::string* const log_;
};

class WorkQueueTest : public ::testing::Test {
 protected:
  // Of at most kTurnsPerIteration workers.
  void Round() {
    queue_.BeginIteration();
    queue_.RunTurns([this] { ++turns_; });
  }
  WorkQueue queue_;
  std::string log_;
  int turns_ = 0;
};

TEST_F(WorkQueueTest, SharesWorkAndNotTurns) {
  Source small(queue_, 's', kTurn / 64, &log_);
  Source large(queue_, 'l', 3 * kTurn, &log_);
  small.Give(100'000);
  large.Give(100'000);
  for (int i = 0; i < 300; ++i) Round();
  EXPECT_EQ(small.done, 300 * 64);
  EXPECT_EQ(large.done, 100);  // each piece takes three turns
}

TEST_F(WorkQueueTest, NewcomerWaitsForOneTurnOfEachOther) {
  Source first(queue_, 'a', kTurn, &log_);
  Source second(queue_, 'b', kTurn, &log_);
  first.Give(1000);
  second.Give(1000);
  for (int i = 0; i < 10; ++i) Round();
  log_.clear();
  Source newcomer(queue_, 'n', 1, &log_);
  newcomer.Give(1);
  Round();
  EXPECT_EQ(log_, "abn");
  Round();
  EXPECT_EQ(log_, "abnab");
}

TEST_F(WorkQueueTest, WorkOutsideOfTurnsCounts) {
  Source source(queue_, 's', kTurn, &log_);
  queue_.BeginIteration();
  queue_.Refill(source);
  EXPECT_EQ(source.credit(), kTurn);
  source.Spend(3 * kTurn);
  queue_.Refill(source);  // in the same round: nothing
  EXPECT_FALSE(source.has_credit());
  source.Give(1);
  Round();
  Round();
  EXPECT_EQ(log_, "");  // it pays its debt
  Round();
  EXPECT_EQ(log_, "s");
  for (int i = 0; i < 100; ++i) queue_.BeginIteration();
  queue_.Refill(source);
  EXPECT_EQ(source.credit(), kTurn);  // an idle worker saves nothing up
}

TEST_F(WorkQueueTest, RoundOfManyWorkersTakesSeveralIterations) {
  std::vector<std::unique_ptr<Source>> sources;
  for (size_t i = 0; i < 2 * WorkQueue::kTurnsPerIteration; ++i) {
    sources.push_back(std::make_unique<Source>(queue_, static_cast<char>('a' + i), kTurn, &log_));
    sources.back()->Give(10);
  }
  Source caller(queue_, 'z', 1, &log_);
  queue_.BeginIteration();
  queue_.Refill(caller);
  caller.Spend(kTurn);
  queue_.RunTurns([] {});
  EXPECT_EQ(log_, "abcde");
  queue_.BeginIteration();
  queue_.Refill(caller);  // in the same round: nothing
  EXPECT_FALSE(caller.has_credit());
  queue_.RunTurns([] {});
  EXPECT_EQ(log_, "abcdefghij");
  queue_.BeginIteration();
  queue_.Refill(caller);
  EXPECT_TRUE(caller.has_credit());
  queue_.RunTurns([] {});
  EXPECT_EQ(log_, "abcdefghijabcde");
}

TEST_F(WorkQueueTest, DestroyedWorkersLeaveTheQueue) {
  auto second = std::make_unique<Source>(queue_, 'b', kTurn, &log_);
  {
    Source first(queue_, 'a', kTurn, &log_);
    Source third(queue_, 'c', kTurn, &log_);
    first.Give(10);
    second->Give(10);
    third.Give(10);
    first.on_turn = [&] { second.reset(); };
    Round();
    EXPECT_EQ(log_, "ac");
    EXPECT_EQ(turns_, 2);
    EXPECT_FALSE(queue_.empty());
  }
  EXPECT_TRUE(queue_.empty());
  Round();
  EXPECT_EQ(turns_, 2);
}

}  // namespace
}  // namespace sluice::net
