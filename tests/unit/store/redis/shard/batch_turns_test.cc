#include "server/store/redis/shard/batch_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/store_calls.h"

namespace sluice::store::redis {
namespace {

class BatchTurnsTest : public ::testing::Test {
 protected:
  struct Batch final : AcquireOperation {
    Batch(char its_name, size_t count, const Rule& rule)
        : charge{&rule, "k", 1}, name(its_name), all(count) {
      for (Acquisition& acquisition : all) {
        acquisition.charges = absl::MakeConstSpan(&charge, 1);
        acquisition.results = &result;
      }
      acquisitions = absl::MakeSpan(all);
    }
    void Done() override { done = true; }

    Charge charge;
    ChargeResult result;
    const char name;
    std::vector<Acquisition> all;
    bool done = false;
  };

  // What was begun has memory until it is answered.
  void TearDown() override {
    while (!started_.empty()) Answer(started_.size());
  }

  Batch& Begin(char name, size_t count, int64_t deadline_ns = kNoDeadline) {
    Batch& batch = batches_.emplace_back(name, count, *rule_);
    batch.deadline_ns = deadline_ns;
    turns_.Begin(&batch);
    return batch;
  }
  // Answers the oldest ones that were started.
  void Answer(size_t count = 1) {
    for (size_t i = 0; i < count; ++i) {
      Caller caller = started_.front();
      started_.pop_front();
      acquires_.Answer(caller, Outcome::kGranted);
    }
    loop_->RunOnce(0);
  }

  common::FakeClock clock_;
  std::unique_ptr<net::EventLoop> loop_{std::move(net::EventLoop::Create(clock_)).value()};
  const std::shared_ptr<const Rule> rule_ =
      testing::MakeRule(1, algorithm::MakeTokenBucket({10, 1'000'000'000}, 10, 0).value());
  ShardCounters counters_;
  PendingAcquires acquires_{counters_, [](const Acquisition&) {}, [this] { turns_.OnAnswered(); }};
  std::deque<Caller> started_;
  std::string names_;
  BatchTurns turns_{*loop_, clock_, acquires_, [this](const Caller& caller) {
                      started_.push_back(caller);
                      names_.push_back(static_cast<Batch*>(caller.pending->operation)->name);
                    }};
  std::deque<Batch> batches_;
};

TEST_F(BatchTurnsTest, StartsAllOfABatchWhileThereIsRoom) {
  const Batch& batch = Begin('a', 4096);
  EXPECT_EQ(started_.size(), 4096u);
  EXPECT_EQ(turns_.waiting(), 0u);
  Answer(4095);
  EXPECT_FALSE(batch.done);
  Answer();
  EXPECT_TRUE(batch.done);
}

TEST_F(BatchTurnsTest, StartsFewOfManyBatchesAtATime) {
  for (int i = 0; i < 5; ++i) Begin('a', 4096);
  size_t answered = 0;
  while (!started_.empty()) {
    EXPECT_EQ(started_.size(), std::min(BatchTurns::kMost, 5 * 4096 - answered));
    EXPECT_EQ(turns_.waiting(), 5 * 4096 - answered - started_.size());
    Answer(512);
    answered += 512;
  }
  for (const Batch& batch : batches_) EXPECT_TRUE(batch.done);
  EXPECT_EQ(acquires_.waiting(), 0u);
}

TEST_F(BatchTurnsTest, BatchesTakeTurns) {
  Begin('a', 4096);
  Begin('a', 4096);
  Begin('b', 4096);
  Begin('c', 100);
  names_.clear();
  while (turns_.waiting() > 0) Answer(BatchTurns::kPiece);
  const std::string piece(BatchTurns::kPiece, 'b');
  EXPECT_EQ(names_.substr(0, 228), piece + std::string(64, 'c') + piece + std::string(36, 'c'));
}

TEST_F(BatchTurnsTest, AnswersBatchesThatWaitWhenTheirDeadlineHasPassed) {
  Begin('a', BatchTurns::kMost);
  const int64_t deadline_ns = clock_.NowNs() + 1'000'000'000;
  const Batch& late = Begin('b', 100, deadline_ns);
  const Batch& in_time = Begin('c', 100, deadline_ns + 1'000'000'000);
  clock_.Advance(1'100'000'000);
  loop_->RunOnce(0);
  EXPECT_TRUE(late.done);
  for (const Acquisition& acquisition : late.all) {
    ASSERT_EQ(acquisition.outcome, Outcome::kDeadlineExceeded);
    ASSERT_EQ(acquisition.now_ns, clock_.NowNs());
  }
  EXPECT_EQ(turns_.waiting(), 100u);
  EXPECT_EQ(started_.size(), BatchTurns::kMost);
  clock_.Advance(1'000'000'000);
  loop_->RunOnce(0);
  EXPECT_TRUE(in_time.done);
  EXPECT_EQ(turns_.waiting(), 0u);
}

TEST_F(BatchTurnsTest, AnswersTheRestOfABatchPastItsDeadline) {
  Begin('a', BatchTurns::kMost - 100);
  const Batch& late = Begin('b', 200, clock_.NowNs() + 1'000'000'000);
  EXPECT_EQ(turns_.waiting(), 100u);
  clock_.Advance(1'100'000'000);
  loop_->RunOnce(0);
  EXPECT_EQ(turns_.waiting(), 0u);
  EXPECT_FALSE(late.done);
  Answer(started_.size());
  EXPECT_TRUE(late.done);
  EXPECT_EQ(late.all.back().outcome, Outcome::kDeadlineExceeded);
  Begin('c', BatchTurns::kMost);
  EXPECT_EQ(started_.size(), BatchTurns::kMost) << "those that were late take no room";
}

// Each look visits all batches that wait.
TEST_F(BatchTurnsTest, LooksForLateBatchesNowAndThen) {
  constexpr int kLate = 150;
  constexpr int64_t kStepNs = 100'000;
  Begin('a', BatchTurns::kMost);
  const int64_t start_ns = clock_.NowNs();
  for (int i = 0; i < kLate; ++i) Begin('b', BatchTurns::kFew + 1, start_ns + (i + 1) * kStepNs);
  const uint64_t looks = loop_->counters().timers.value();
  for (int i = 0; i < kLate + 20; ++i) {
    clock_.Advance(kStepNs);
    loop_->RunOnce(0);
  }
  EXPECT_LT(loop_->counters().timers.value() - looks, 40u);
  EXPECT_EQ(turns_.waiting(), 0u);
  for (size_t i = 1; i < batches_.size(); ++i) EXPECT_TRUE(batches_[i].done) << i;
}

TEST_F(BatchTurnsTest, StartsAllAtTheEnd) {
  for (int i = 0; i < 5; ++i) Begin('a', 4096);
  turns_.End();
  EXPECT_EQ(started_.size(), 5u * 4096);
  Answer(started_.size());
  for (const Batch& batch : batches_) EXPECT_TRUE(batch.done);
}

}  // namespace
}  // namespace sluice::store::redis
