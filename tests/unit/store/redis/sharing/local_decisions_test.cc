// Acquisitions of a split and an exact limit, whose exact part the test decides in place of Redis.
#include "server/store/redis/sharing/local_decisions.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"
#include "tests/unit/store/redis/command_scene.h"

namespace sluice::store::redis {
namespace {

using common::bounds::kMaxReceiptsPerBucket;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kTtlNs = 80 * kMillisecond;
constexpr int64_t kBurst = 4000;

struct Call final : AcquireOperation {
  Call(const Rule& split, const Rule& exact, bool want_receipt)
      : charges{{&split, "k", 1}, {&exact, "k", 1}} {
    acquisition.charges = charges;
    acquisition.results = results;
    acquisition.want_receipt = want_receipt;
    acquisitions = absl::MakeSpan(&acquisition, 1);
  }
  void Done() override {}

  const Charge charges[2];
  ChargeResult results[2];
  Acquisition acquisition;
};

class LocalDecisionsTest : public CommandScene, private LocalDecisions::Remote {
 protected:
  LocalDecisionsTest() {
    auto split = std::make_shared<Rule>(
        *testing::MakeRule(1, algorithm::MakeTokenBucket({1'000'000, kSecond}, kBurst, 0).value()));
    split->sharing = Sharing::kSplit;
    split_ = std::move(split);
    state_.node_ttl_ns = kTtlNs;
    state_.loops = 1;
    state_.nodes =
        std::make_unique<NodeRegistry>(*this, "node", kTtlNs, state_.unavailable, state_.split,
                                       /*log=*/nullptr);
  }
  // A heartbeat may still be in flight there.
  ~LocalDecisionsTest() override { endpoints.clear(); }

  // Until this node holds its share, the whole, and its bucket is full. Then time stands still.
  void SetUp() override {
    const auto holds = [&] { return !state_.nodes->view()->membership.strict().none(); };
    state_.nodes->Start();
    for (int beats = 0; !holds(); ++beats) {
      ASSERT_LT(beats, 100);
      ASSERT_TRUE(Until([&] {
        clock_.Advance(kMillisecond);
        return !servers[0].asked.empty() || holds();
      }));
      if (servers[0].asked.empty()) break;
      // What heartbeat.lua returns: the time, whether the node is new, how long Redis has known
      // any.
      servers[0].Answer(absl::StrCat("*5\r\n:", clock_.NowNs() / 1000, "\r\n:", beats == 0 ? 1 : 0,
                                     "\r\n:", kSecond / 1000, "\r\n:0\r\n:0\r\n"));
    }
    clock_.Advance(10 * kMillisecond);
    ASSERT_EQ(Query().level.remaining, kBurst);
  }

  // Takes one permit of each limit; the exact limit's part waits for the test.
  Call& Take(bool want_receipt) {
    Call& call = calls_.emplace_back(*split_, *exact_, want_receipt);
    EXPECT_TRUE(local_.Acquire(acquires_.Add(acquires_.Begin(&call, 0), call.acquisition)));
    return call;
  }
  // Answers the first `count` parts that wait.
  void Answer(size_t count, Outcome outcome) {
    for (; count > 0 && !waiting_.empty(); --count) {
      AcquireOperation* const rest = waiting_.front();
      waiting_.pop_front();
      rest->acquisitions[0].outcome = outcome;
      rest->Done();
    }
  }
  RefundOutcome Refund(uint64_t receipt_id, absl::Span<const Charge> charges) {
    struct Operation final : RefundOperation {
      void Done() override { done = true; }
      bool done = false;
    };
    Operation operation;
    uint64_t refunded[2] = {};
    operation.receipt_id = receipt_id;
    operation.charges = charges;
    operation.refunded = refunded;
    EXPECT_TRUE(local_.Refund(&operation));
    EXPECT_TRUE(operation.done);
    return operation.outcome;
  }
  // The split limit's bucket.
  QueryItem Query() {
    QueryItem item;
    item.rule = split_.get();
    item.key = "k";
    EXPECT_TRUE(local_.Query(item));
    return item;
  }

  // Of the exact limit's part of a refund.
  RefundOutcome by_redis_ = RefundOutcome::kRefunded;

 private:
  void Begin(AcquireOperation* rest, uint64_t) override { waiting_.push_back(rest); }
  void Begin(RefundOperation* rest) override {
    rest->outcome = by_redis_;
    rest->Done();
  }

  std::shared_ptr<const Rule> split_;
  const std::shared_ptr<const Rule> exact_ =
      testing::MakeRule(2, algorithm::MakeTokenBucket({10, kSecond}, 10, 0).value());
  std::deque<Call> calls_;
  std::deque<AcquireOperation*> waiting_;
  SharingState state_;
  LocalDecisions local_{*this, state_, *this};
};

TEST_F(LocalDecisionsTest, GivesBackWhatAnyNumberOfCallsInFlightTook) {
  constexpr size_t kCalls = kMaxReceiptsPerBucket + 10;
  for (size_t i = 0; i < kCalls; ++i) Take(/*want_receipt=*/false);
  EXPECT_EQ(Query().level.remaining, kBurst - static_cast<int64_t>(kCalls));
  Answer(kCalls, Outcome::kDenied);
  EXPECT_EQ(Query().level.remaining, kBurst);
  EXPECT_EQ(Query().refundable.receipts, 0u);
}

TEST_F(LocalDecisionsTest, CallsWithoutReceiptsDisplaceNone) {
  const Call& wanted = Take(/*want_receipt=*/true);
  Answer(1, Outcome::kGranted);
  ASSERT_NE(wanted.acquisition.receipt_id, 0u);
  const Call& other = Take(/*want_receipt=*/false);
  for (size_t i = 1; i < kMaxReceiptsPerBucket; ++i) Take(/*want_receipt=*/false);
  Answer(kMaxReceiptsPerBucket, Outcome::kGranted);
  EXPECT_EQ(other.acquisition.outcome, Outcome::kGranted);
  EXPECT_EQ(other.acquisition.receipt_id, 0u);
  EXPECT_EQ(Query().refundable.receipts, 1u);
  EXPECT_EQ(Refund(wanted.acquisition.receipt_id, {wanted.charges, 1}), RefundOutcome::kRefunded);
}

TEST_F(LocalDecisionsTest, ReceiptsOfGrantedCallsAreBounded) {
  constexpr size_t kDenied = 5;
  constexpr size_t kGranted = kMaxReceiptsPerBucket + 5;
  for (size_t i = 0; i < kDenied + kGranted; ++i) Take(/*want_receipt=*/true);
  Answer(kDenied, Outcome::kDenied);
  Answer(kGranted, Outcome::kGranted);
  EXPECT_EQ(Query().level.remaining, kBurst - static_cast<int64_t>(kGranted));
  EXPECT_EQ(Query().refundable.receipts, kMaxReceiptsPerBucket);
}

TEST_F(LocalDecisionsTest, RefundThatRedisDidNotDecideIsToBeRepeated) {
  for (const RefundOutcome undecided : {RefundOutcome::kUnavailable, RefundOutcome::kStaleRule}) {
    const Call& call = Take(/*want_receipt=*/true);
    Answer(1, Outcome::kGranted);
    by_redis_ = undecided;
    EXPECT_EQ(Refund(call.acquisition.receipt_id, call.charges), undecided);
    EXPECT_EQ(Query().level.remaining, kBurst);
    // Gives back nothing twice.
    by_redis_ = RefundOutcome::kRefunded;
    EXPECT_EQ(Refund(call.acquisition.receipt_id, call.charges), RefundOutcome::kRefunded);
    EXPECT_EQ(Query().level.remaining, kBurst);
  }
}

TEST_F(LocalDecisionsTest, RefundGivesBackTheSplitPartOfAReceiptThatRedisDoesNotKnow) {
  const Call& call = Take(/*want_receipt=*/true);
  Answer(1, Outcome::kGranted);
  by_redis_ = RefundOutcome::kExpired;
  EXPECT_EQ(Refund(call.acquisition.receipt_id, call.charges), RefundOutcome::kRefunded);
}

}  // namespace
}  // namespace sluice::store::redis
