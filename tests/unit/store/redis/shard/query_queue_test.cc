#include "server/store/redis/shard/query_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace sluice::store::redis {
namespace {

class Query final : public QueryOperation {
 public:
  explicit Query(std::string name, size_t count) : name_(std::move(name)), items_(count) {
    for (QueryItem& item : items_) item.key = name_;
    items = absl::MakeSpan(items_);
  }
  void Done() override { ++done; }

  int done = 0;

 private:
  const std::string name_;
  std::vector<QueryItem> items_;
};

class QueryQueueTest : public ::testing::Test {
 protected:
  void AnswerOne() {
    auto answered = std::move(unanswered_.front());
    unanswered_.pop_front();
    answered();
  }

  std::vector<std::string> asked_;
  std::deque<absl::AnyInvocable<void()>> unanswered_;
  bool at_once_ = false;
  QueryQueue queue_{[this](QueryItem& item, int64_t, absl::AnyInvocable<void()> answered) {
    asked_.emplace_back(item.key);
    item.exists = true;
    if (at_once_) return answered();
    unanswered_.push_back(std::move(answered));
  }};
};

TEST_F(QueryQueueTest, AsksForFewBucketsAtATime) {
  Query query("a", 1000);
  queue_.Begin(&query);
  EXPECT_EQ(asked_.size(), QueryQueue::kMost);
  AnswerOne();
  EXPECT_EQ(asked_.size(), QueryQueue::kMost + 1);
  while (!unanswered_.empty()) {
    EXPECT_LE(unanswered_.size(), QueryQueue::kMost);
    EXPECT_EQ(query.done, 0);
    AnswerOne();
  }
  EXPECT_EQ(query.done, 1);
  EXPECT_EQ(asked_.size(), 1000u);
  for (const QueryItem& item : query.items) EXPECT_TRUE(item.exists);
}

TEST_F(QueryQueueTest, SmallQueryDoesNotWaitForLargeOnes) {
  std::deque<Query> large;
  for (int i = 0; i < 10; ++i) queue_.Begin(&large.emplace_back("large", 256));
  Query small("small", 1);
  queue_.Begin(&small);
  // Its turn comes after one bucket of each of the others.
  for (size_t i = 0; i < QueryQueue::kMost + 11; ++i) AnswerOne();
  EXPECT_EQ(small.done, 1);
}

TEST_F(QueryQueueTest, AnswersThatComeAtOnceAreNoRecursion) {
  at_once_ = true;
  Query query("a", 100'000);
  queue_.Begin(&query);
  EXPECT_EQ(query.done, 1);
  Query empty("b", 0);
  queue_.Begin(&empty);
  EXPECT_EQ(empty.done, 1);
}

TEST_F(QueryQueueTest, EndAnswersWhatIsNotAskedFor) {
  Query query("a", 100);
  queue_.Begin(&query);
  queue_.End();
  EXPECT_EQ(asked_.size(), QueryQueue::kMost);
  EXPECT_EQ(query.done, 0) << "what was asked for is answered by its command";
  while (!unanswered_.empty()) AnswerOne();
  EXPECT_EQ(query.done, 1);
  EXPECT_TRUE(query.items.back().unavailable);
  Query late("b", 2);
  queue_.Begin(&late);
  EXPECT_EQ(late.done, 1);
}

}  // namespace
}  // namespace sluice::store::redis
