#include "server/service/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/bounds.h"
#include "common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/store_calls.h"

namespace sluice::service {
namespace {

using store::Outcome;
using store::Reason;
using ::testing::HasSubstr;

class Work final : public AcquireWork {
 public:
  void Done() override { ++done; }
  int done = 0;
};

class EngineTest : public ::testing::Test {
 protected:
  std::shared_ptr<const store::Rule> TokenBucket(uint32_t limit_id, uint64_t burst,
                                                 uint64_t debt = 0) {
    auto rule = ::sluice::testing::MakeRule(
        limit_id, algorithm::MakeTokenBucket({1, 1'000'000'000}, burst, debt).value());
    store_.Register(rule);
    return rule;
  }
  absl::Status AddOne(const store::Rule& rule, std::string_view key, uint64_t permits) {
    work_.Begin(0, false);
    work_.Add(rule, key, permits);
    return work_.End();
  }

  common::FakeClock clock_;
  store::MemoryStore store_{clock_};
  Engine engine_{store_};
  Work work_;
};

TEST_F(EngineTest, DecidesEachAcquisitionAndCallsDoneOnce) {
  const auto rule = TokenBucket(1, 1);
  ASSERT_TRUE(AddOne(*rule, "k", 1).ok());
  ASSERT_TRUE(AddOne(*rule, "k", 1).ok());
  engine_.Acquire(&work_, store::kNoDeadline);
  EXPECT_EQ(work_.done, 1);
  ASSERT_EQ(work_.size(), 2u);
  EXPECT_EQ(work_.acquisition(0).outcome, Outcome::kGranted);
  EXPECT_EQ(work_.acquisition(1).outcome, Outcome::kDenied);
  EXPECT_EQ(work_.acquisition(1).retry_after_ns, 1'000'000'000);
}

TEST_F(EngineTest, AddsUpChargesOnTheSameBucketAndAnswersEach) {
  const auto rule = TokenBucket(1, 10);
  const auto other = TokenBucket(2, 10);
  work_.Begin(0, false);
  work_.Add(*rule, "a", 2);
  work_.Add(*other, "a", 1);
  work_.Add(*rule, "a", 3);
  work_.Add(*rule, "b", 1);
  ASSERT_TRUE(work_.End().ok());
  engine_.Acquire(&work_, store::kNoDeadline);
  EXPECT_EQ(work_.acquisition(0).charges.size(), 3u);
  ASSERT_EQ(work_.charges(0), 4u);
  EXPECT_EQ(work_.charge(0, 0).level.remaining, 5);
  EXPECT_EQ(work_.charge(0, 1).level.remaining, 9);
  EXPECT_EQ(work_.charge(0, 2).level.remaining, 5);
  EXPECT_EQ(work_.charge(0, 3).level.remaining, 9);
  EXPECT_EQ(&work_.rule(0, 1), other.get());
  EXPECT_EQ(&work_.rule(0, 2), rule.get());
}

TEST_F(EngineTest, ASumAboveTheCapacityIsRefusedWithNumbers) {
  const auto rule = TokenBucket(1, 10, 5);
  work_.Begin(0, false);
  work_.Add(*rule, "a", 8);
  work_.Add(*rule, "a", 8);
  const absl::Status status = work_.End();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("permits: 16 asked of limit 'limit1'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("15"));
}

TEST_F(EngineTest, ASumThatOverflowsIsRefused) {
  const auto rule = TokenBucket(1, 10);
  work_.Begin(0, false);
  work_.Add(*rule, "a", ~uint64_t{0});
  work_.Add(*rule, "a", 2);
  const absl::Status status = work_.End();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2^64-1"));
}

TEST_F(EngineTest, ZeroPermitsAndNoChargesAreRefused) {
  const auto rule = TokenBucket(1, 10);
  EXPECT_EQ(AddOne(*rule, "a", 0).code(), absl::StatusCode::kInvalidArgument);
  work_.Begin(0, false);
  EXPECT_EQ(work_.End().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, ChargesAreCountedBeforeTheyAreAddedUp) {
  const auto rule = TokenBucket(1, 100);
  work_.Begin(0, false);
  for (size_t i = 0; i < common::bounds::kMaxCharges; ++i) work_.Add(*rule, "a", 1);
  EXPECT_TRUE(work_.End().ok());
  work_.Begin(0, false);
  for (size_t i = 0; i < common::bounds::kMaxCharges + 1; ++i) work_.Add(*rule, "a", 1);
  const absl::Status status = work_.End();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("17"));
}

TEST_F(EngineTest, ARefusedAcquisitionKeepsItsPlaceAndTheOthersAreDecided) {
  const auto rule = TokenBucket(1, 10);
  ASSERT_TRUE(AddOne(*rule, "a", 1).ok());
  ASSERT_FALSE(AddOne(*rule, "a", 11).ok());
  work_.Begin(0, false);
  work_.Add(*rule, "a", 1);
  work_.Fail(absl::NotFoundError("limit 'x' is not known"));
  EXPECT_EQ(work_.End().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(AddOne(*rule, "a", 2).ok());
  engine_.Acquire(&work_, store::kNoDeadline);
  ASSERT_EQ(work_.size(), 4u);
  EXPECT_TRUE(work_.status(0).ok());
  EXPECT_EQ(work_.status(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(work_.status(2).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(work_.status(3).ok());
  EXPECT_EQ(work_.charge(0, 0).level.remaining, 9);
  EXPECT_EQ(work_.charge(3, 0).level.remaining, 7);
}

TEST_F(EngineTest, WithNothingToDecideDoneIsCalledAllTheSame) {
  const auto rule = TokenBucket(1, 10);
  ASSERT_FALSE(AddOne(*rule, "a", 11).ok());
  engine_.Acquire(&work_, store::kNoDeadline);
  EXPECT_EQ(work_.done, 1);
}

TEST_F(EngineTest, AWorkAreaIsUsedAgainAfterClear) {
  const auto rule = TokenBucket(1, 10);
  for (int i = 0; i < 12; ++i) {
    work_.Clear();
    ASSERT_FALSE(AddOne(*rule, "a", 11).ok());
    ASSERT_TRUE(AddOne(*rule, "a", 1).ok());
    engine_.Acquire(&work_, store::kNoDeadline);
    EXPECT_EQ(work_.size(), 2u);
    EXPECT_EQ(work_.acquisition(1).outcome == Outcome::kGranted, i < 10) << i;
  }
  EXPECT_EQ(work_.done, 12);
}

TEST_F(EngineTest, TheDeadlineReachesTheStore) {
  const auto rule = TokenBucket(1, 10);
  ASSERT_TRUE(AddOne(*rule, "a", 1).ok());
  engine_.Acquire(&work_, clock_.NowNs() - 1);
  EXPECT_EQ(work_.acquisition(0).outcome, Outcome::kDeadlineExceeded);
}

TEST_F(EngineTest, WantReceiptIsThatOfEachAcquisition) {
  const auto rule = TokenBucket(1, 10);
  work_.Begin(0, true);
  work_.Add(*rule, "a", 1);
  ASSERT_TRUE(work_.End().ok());
  ASSERT_TRUE(AddOne(*rule, "a", 1).ok());
  engine_.Acquire(&work_, store::kNoDeadline);
  EXPECT_NE(work_.acquisition(0).receipt_id, 0u);
  EXPECT_EQ(work_.acquisition(1).receipt_id, 0u);
}

}  // namespace
}  // namespace sluice::service
