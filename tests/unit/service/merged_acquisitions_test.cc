#include "server/service/merged_acquisitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/bounds.h"
#include "common/clock.h"
#include "server/service/validation.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/store_calls.h"

namespace sluice::service {
namespace {

using store::Outcome;
using store::Reason;
using ::testing::HasSubstr;

class Work final : public MergedAcquisitions {
 public:
  void Done() override { ++done; }
  int done = 0;
};

class MergedAcquisitionsTest : public ::testing::Test {
 protected:
  std::shared_ptr<const store::Rule> TokenBucket(uint32_t limit_id, uint64_t burst,
                                                 uint64_t debt = 0) {
    auto rule = ::sluice::testing::MakeRule(
        limit_id, algorithm::MakeTokenBucket({1, 1'000'000'000}, burst, debt).value());
    store_.Register(rule);
    return rule;
  }
  absl::Status AddOne(const store::Rule& rule, std::string_view key, uint64_t permits) {
    work_.Begin(false);
    work_.Add(rule, key, permits);
    return End();
  }
  // Checks the last acquisition, and drops it if it is bad.
  absl::Status End() {
    absl::Status status = CheckMergedCharges(FieldPath(), work_.last_added(), work_.last_merged());
    if (!status.ok()) work_.DropLast();
    return status;
  }

  common::FakeClock clock_;
  store::MemoryStore store_{clock_};
  Work work_;
};

TEST_F(MergedAcquisitionsTest, DecidesEachAcquisitionAndCallsDoneOnce) {
  const auto rule = TokenBucket(1, 1);
  ASSERT_TRUE(AddOne(*rule, "k", 1).ok());
  ASSERT_TRUE(AddOne(*rule, "k", 1).ok());
  work_.Decide(store_, store::kNoDeadline);
  EXPECT_EQ(work_.done, 1);
  ASSERT_EQ(work_.size(), 2u);
  EXPECT_EQ(work_.acquisition(0).outcome, Outcome::kGranted);
  EXPECT_EQ(work_.acquisition(1).outcome, Outcome::kDenied);
  EXPECT_EQ(work_.acquisition(1).retry_after_ns, 1'000'000'000);
}

TEST_F(MergedAcquisitionsTest, AddsUpChargesOnTheSameBucketAndReturnsItsResultToEach) {
  const auto rule = TokenBucket(1, 10);
  const auto other = TokenBucket(2, 10);
  work_.Begin(false);
  work_.Add(*rule, "a", 2);
  work_.Add(*other, "a", 1);
  work_.Add(*rule, "a", 3);
  work_.Add(*rule, "b", 1);
  ASSERT_TRUE(End().ok());
  work_.Decide(store_, store::kNoDeadline);
  EXPECT_EQ(work_.acquisition(0).charges.size(), 3u);
  ASSERT_EQ(work_.charges(0), 4u);
  EXPECT_EQ(work_.charge(0, 0).level.remaining, 5);
  EXPECT_EQ(work_.charge(0, 1).level.remaining, 9);
  EXPECT_EQ(work_.charge(0, 2).level.remaining, 5);
  EXPECT_EQ(work_.charge(0, 3).level.remaining, 9);
  EXPECT_EQ(&work_.rule(0, 1), other.get());
  EXPECT_EQ(&work_.rule(0, 2), rule.get());
}

TEST_F(MergedAcquisitionsTest, ReportsSumAndBoundWhenChargesOnOneBucketExceedIt) {
  const auto rule = TokenBucket(1, 10, 5);
  work_.Begin(false);
  work_.Add(*rule, "a", 8);
  work_.Add(*rule, "a", 8);
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("charges: the charges on one bucket of limit \"limit1\" add up to 16 permits"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("burst + debt = 15"));
}

TEST_F(MergedAcquisitionsTest, RefusesASumThatOverflows) {
  const auto rule = TokenBucket(1, 10);
  work_.Begin(false);
  work_.Add(*rule, "a", ~uint64_t{0});
  work_.Add(*rule, "a", 2);
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2^64-1"));
}

TEST_F(MergedAcquisitionsTest, RefusesZeroPermitsAndNoCharges) {
  const auto rule = TokenBucket(1, 10);
  LimitFinder limits;
  EXPECT_EQ(
      CheckCharge(FieldPath(), rule->limit_name, "a", 0, /*force=*/false, Utf8::kChecked, limits)
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
  work_.Begin(false);
  EXPECT_EQ(End().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MergedAcquisitionsTest, CountsChargesBeforeAddingThemUp) {
  const auto rule = TokenBucket(1, 100);
  work_.Begin(false);
  for (size_t i = 0; i < common::bounds::kMaxCharges; ++i) work_.Add(*rule, "a", 1);
  EXPECT_TRUE(End().ok());
  work_.Begin(false);
  for (size_t i = 0; i < common::bounds::kMaxCharges + 1; ++i) work_.Add(*rule, "a", 1);
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("17"));
}

TEST_F(MergedAcquisitionsTest, DecidesTheOthersWhenOneWasDropped) {
  const auto rule = TokenBucket(1, 10);
  ASSERT_TRUE(AddOne(*rule, "a", 1).ok());
  EXPECT_EQ(AddOne(*rule, "a", 11).code(), absl::StatusCode::kInvalidArgument);
  work_.Begin(false);
  work_.Add(*rule, "a", 1);
  work_.Add(*rule, "b", 1);
  work_.DropLast();
  ASSERT_TRUE(AddOne(*rule, "a", 2).ok());
  work_.Decide(store_, store::kNoDeadline);
  ASSERT_EQ(work_.size(), 2u);
  ASSERT_EQ(work_.charges(1), 1u);
  EXPECT_EQ(work_.charge(0, 0).level.remaining, 9);
  EXPECT_EQ(work_.charge(1, 0).level.remaining, 7);
}

TEST_F(MergedAcquisitionsTest, CallsDoneWhenThereIsNothingToDecide) {
  const auto rule = TokenBucket(1, 10);
  ASSERT_FALSE(AddOne(*rule, "a", 11).ok());
  work_.Decide(store_, store::kNoDeadline);
  EXPECT_EQ(work_.done, 1);
}

TEST_F(MergedAcquisitionsTest, IsReusableAfterClear) {
  const auto rule = TokenBucket(1, 10);
  for (int i = 0; i < 12; ++i) {
    work_.Clear();
    ASSERT_FALSE(AddOne(*rule, "a", 11).ok());
    ASSERT_TRUE(AddOne(*rule, "a", 1).ok());
    work_.Decide(store_, store::kNoDeadline);
    EXPECT_EQ(work_.size(), 1u);
    EXPECT_EQ(work_.acquisition(0).outcome == Outcome::kGranted, i < 10) << i;
  }
  EXPECT_EQ(work_.done, 12);
}

TEST_F(MergedAcquisitionsTest, PassesTheDeadlineToTheStore) {
  const auto rule = TokenBucket(1, 10);
  ASSERT_TRUE(AddOne(*rule, "a", 1).ok());
  work_.Decide(store_, clock_.NowNs() - 1);
  EXPECT_EQ(work_.acquisition(0).outcome, Outcome::kDeadlineExceeded);
}

TEST_F(MergedAcquisitionsTest, IssuesAReceiptOnlyToAcquisitionsThatWantOne) {
  const auto rule = TokenBucket(1, 10);
  work_.Begin(true);
  work_.Add(*rule, "a", 1);
  ASSERT_TRUE(End().ok());
  ASSERT_TRUE(AddOne(*rule, "a", 1).ok());
  work_.Decide(store_, store::kNoDeadline);
  EXPECT_NE(work_.acquisition(0).receipt_id, 0u);
  EXPECT_EQ(work_.acquisition(1).receipt_id, 0u);
}

}  // namespace
}  // namespace sluice::service
