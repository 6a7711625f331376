// LocalBuckets when a limit changes: what was granted of it counts on.
#include "server/store/redis/sharing/local_buckets.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::store::redis {
namespace {

using algorithm::Parameters;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kHour = 3600 * kSecond;

class LocalBucketsTest : public ::testing::Test {
 protected:
  LocalBucketsTest() { history_.changes = {{.serial = 1, .at_ns = kHour, .divisor = 4}}; }

  // Reloads the limit.
  void Load(const Parameters& parameters,
            int64_t split_since_ns = std::numeric_limits<int64_t>::min()) {
    Rule rule;
    rule.id = ++last_id_;
    rule.limit_id = 1;
    rule.limit_name = "api";
    rule.parameters = parameters;
    entry_ = std::make_shared<const RuleEntry>(
        RuleEntry{std::make_shared<const Rule>(std::move(rule)), "", "", split_since_ns});
  }
  Outcome Acquire(uint64_t permits = 1) {
    const LocalBuckets::Part part{entry_, "k", permits, &result_, &history_};
    int64_t retry_after_ns = 0;
    return buckets_.Acquire({&part, 1}, at(), /*receipt_id=*/0, &retry_after_ns);
  }
  // Takes one permit after the other until none is left.
  int Granted() {
    int granted = 0;
    while (Acquire() == Outcome::kGranted) ++granted;
    return granted;
  }
  algorithm::Moment at() const { return {now_ns_, now_ns_}; }

  int64_t now_ns_ = 100 * kHour;
  ShareHistory history_;
  LocalBuckets buckets_{100};
  std::shared_ptr<const RuleEntry> entry_;
  ChargeResult result_;
  uint32_t last_id_ = 0;
};

Parameters Log(uint64_t permits, int64_t period_ns = kHour) {
  return algorithm::MakeSlidingLog({permits, period_ns}).value();
}

TEST_F(LocalBucketsTest, LogCountsOnWhileItsShareIsNothing) {
  Load(Log(8));
  EXPECT_EQ(Granted(), 2);
  Load(Log(3));
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  EXPECT_EQ(result_.reason, Reason::kShareTooSmall);
  Load(Log(8));
  EXPECT_EQ(Granted(), 0);
  now_ns_ += kHour + kSecond;
  EXPECT_EQ(Granted(), 2);
}

TEST_F(LocalBucketsTest, LogCountsOnWhenALongerPeriodBeginsWithoutAShare) {
  Load(Log(8));
  EXPECT_EQ(Granted(), 2);
  Load(Log(3, 2 * kHour));
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  now_ns_ += kHour + kSecond;
  Load(Log(8, 2 * kHour));
  EXPECT_EQ(Granted(), 0);
}

TEST_F(LocalBucketsTest, LogCountsOnWhenNodesJoinBeforeItIsRaised) {
  Load(Log(4));
  EXPECT_EQ(Granted(), 1);
  history_.changes.push_back({.serial = 2, .at_ns = now_ns_, .divisor = 5});
  EXPECT_EQ(Granted(), 0);
  Load(Log(10));
  EXPECT_EQ(Granted(), 1);
}

TEST_F(LocalBucketsTest, TokenBucketThatHadNoShareStartsEmpty) {
  const auto whole = algorithm::MakeTokenBucket({8, kHour}, 8, 0).value();
  Load(whole);
  EXPECT_EQ(Granted(), 2);
  Load(algorithm::MakeTokenBucket({3, kHour}, 3, 0).value());
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  Load(whole);
  EXPECT_EQ(Granted(), 0);
  now_ns_ += kHour / 2;
  EXPECT_EQ(Granted(), 1);
}

TEST_F(LocalBucketsTest, LogOfATokenBucketThatHadNoShareStartsUsedUp) {
  Load(algorithm::MakeTokenBucket({8, kHour}, 8, 0).value());
  EXPECT_EQ(Granted(), 2);
  Load(algorithm::MakeTokenBucket({3, kHour}, 3, 0).value());
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  Load(Log(8));
  EXPECT_EQ(Granted(), 0);
  now_ns_ += kHour + kSecond;
  EXPECT_EQ(Granted(), 2);
}

TEST_F(LocalBucketsTest, NothingGrantedIsNothingCounted) {
  Load(algorithm::MakeTokenBucket({3, kHour}, 3, 0).value());
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  Load(Log(8));
  EXPECT_EQ(Granted(), 2);
}

TEST_F(LocalBucketsTest, PermitsOfAShareThatIsNothingNowAreDebited) {
  Load(Log(8));
  EXPECT_EQ(Granted(), 2);
  Load(Log(3));
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  const auto all = buckets_.Take(/*most=*/1, at());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].permits, 2u);
  EXPECT_GE(all[0].until_ns, now_ns_ + kHour);
}

// Redis decided the limit until then, and may have granted all of it.
TEST_F(LocalBucketsTest, TokenBucketBeginsEmptyWhenItsLimitBecomesSplit) {
  Load(algorithm::MakeTokenBucket({8, kHour}, 8, 0).value(), /*split_since_ns=*/now_ns_);
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  EXPECT_EQ(result_.level.next_permit_after_ns, kHour / 2);
  now_ns_ += kHour / 2;
  EXPECT_EQ(Granted(), 1);
  now_ns_ += 10 * kHour;
  EXPECT_EQ(Granted(), 2);
}

TEST_F(LocalBucketsTest, NodeThatJoinedBeforeTheLimitBecameSplitAddsNothing) {
  history_.changes.push_back({.serial = 2, .at_ns = now_ns_ - kHour, .divisor = 2});
  Load(algorithm::MakeTokenBucket({8, kHour}, 8, 0).value(), /*split_since_ns=*/now_ns_);
  EXPECT_EQ(Granted(), 0);
  now_ns_ += kHour / 4;
  EXPECT_EQ(Granted(), 1);
}

TEST_F(LocalBucketsTest, LogIsUsedUpForAPeriodWhenItsLimitBecomesSplit) {
  Load(Log(8), /*split_since_ns=*/now_ns_);
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  EXPECT_EQ(result_.level.reset_after_ns, kHour);
  now_ns_ += kHour - kSecond;
  EXPECT_EQ(Acquire(), Outcome::kDenied);
  now_ns_ += kSecond;
  EXPECT_EQ(Granted(), 2);
}

TEST_F(LocalBucketsTest, GrantsOfALimitThatIsNoLongerSplitAreTakenOnce) {
  Load(Log(8));
  EXPECT_EQ(Granted(), 2);
  const auto old = entry_;
  Load(Log(8));
  const auto taken = buckets_.TakeLimit(*entry_->rule, at());
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].permits, 2u);
  EXPECT_EQ(taken[0].key, "k");
  EXPECT_EQ(buckets_.size(), 0u);
  EXPECT_TRUE(buckets_.TakeLimit(*entry_->rule, at()).empty());
  // A call that still has the old limit.
  entry_ = old;
  EXPECT_EQ(Acquire(), Outcome::kStaleRule);
}

TEST_F(LocalBucketsTest, LimitThatIsSplitAgainBeginsEmpty) {
  const auto tokens = algorithm::MakeTokenBucket({8, kHour}, 8, 0).value();
  Load(tokens);
  EXPECT_EQ(Granted(), 2);
  now_ns_ += 10 * kHour;
  // Redis decides it for a moment.
  Load(tokens);
  const auto exact = entry_;
  Load(tokens, /*split_since_ns=*/now_ns_);
  EXPECT_EQ(Granted(), 0);
  now_ns_ += kHour / 2;
  EXPECT_EQ(Granted(), 1);
  // What was granted since is not taken for what was granted before.
  EXPECT_TRUE(buckets_.TakeLimit(*exact->rule, at()).empty());
  EXPECT_EQ(Granted(), 0);
}

TEST_F(LocalBucketsTest, BucketsAreTakenInParts) {
  Load(Log(8));
  constexpr size_t kKeys = 100;
  for (size_t i = 0; i < kKeys; ++i) {
    const std::string key = absl::StrCat("k", i);
    const LocalBuckets::Part part{entry_, key, 1, &result_, &history_};
    int64_t retry_after_ns = 0;
    ASSERT_EQ(buckets_.Acquire({&part, 1}, at(), /*receipt_id=*/0, &retry_after_ns),
              Outcome::kGranted);
  }
  EXPECT_EQ(buckets_.Take(/*most=*/60, at()).size(), 60u);
  EXPECT_EQ(buckets_.size(), 40u);
  EXPECT_EQ(Acquire(), Outcome::kUnavailable) << "all are closed";
  EXPECT_EQ(buckets_.Take(/*most=*/60, at()).size(), 40u);
  EXPECT_EQ(buckets_.size(), 0u);
}

TEST_F(LocalBucketsTest, OtherLimitsKeepTheirGrants) {
  Load(Log(8));
  EXPECT_EQ(Granted(), 2);
  Rule other;
  other.id = ++last_id_;
  other.limit_id = 2;
  EXPECT_TRUE(buckets_.TakeLimit(other, at()).empty());
  EXPECT_EQ(buckets_.size(), 1u);
  EXPECT_EQ(Acquire(), Outcome::kDenied);
}

}  // namespace
}  // namespace sluice::store::redis
