// LocalBuckets when a limit changes: what was granted of it counts on. And the bounds of a table.
#include "server/store/redis/sharing/local_buckets.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  Outcome Acquire(uint64_t permits = 1) { return AcquireFrom(buckets_, "k", permits); }
  Outcome AcquireFrom(LocalBuckets& buckets, std::string_view key, uint64_t permits = 1,
                      uint64_t receipt_id = 0) {
    const LocalBuckets::Part part{entry_, key, permits, &result_, &history_};
    return buckets.Acquire({&part, 1}, at(), receipt_id, &retry_after_ns_);
  }
  // Ends the limit, and takes what was granted of it.
  std::vector<LocalBuckets::Granted> TakeLimit(const Rule& rule) {
    buckets_.EndLimit(rule);
    std::vector<LocalBuckets::Granted> all;
    for (size_t from = 0; from != LocalBuckets::kEnd;) {
      for (LocalBuckets::Granted& one : buckets_.TakeEnded(at(), &from)) {
        all.push_back(std::move(one));
      }
    }
    return all;
  }
  void SweepAll(LocalBuckets& buckets) {
    for (int i = 0; i < 16; ++i) buckets.Sweep(history_, history_, at());
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
  int64_t retry_after_ns_ = 0;
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
  const auto taken = TakeLimit(*entry_->rule);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].permits, 2u);
  EXPECT_EQ(taken[0].key, "k");
  EXPECT_EQ(buckets_.size(), 0u);
  EXPECT_TRUE(TakeLimit(*entry_->rule).empty());
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
  EXPECT_TRUE(TakeLimit(*exact->rule).empty());
  EXPECT_EQ(Granted(), 0);
}

TEST_F(LocalBucketsTest, BucketsAreTakenInParts) {
  Load(Log(8));
  constexpr size_t kKeys = 100;
  for (size_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(AcquireFrom(buckets_, absl::StrCat("k", i)), Outcome::kGranted);
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
  EXPECT_TRUE(TakeLimit(other).empty());
  EXPECT_EQ(buckets_.size(), 1u);
  EXPECT_EQ(Acquire(), Outcome::kDenied);
}

TEST_F(LocalBucketsTest, ReceiptsAreBoundedInBytes) {
  constexpr size_t kMaxBytes = 64 << 10;
  // What the list of a bucket's receipts takes when it grows.
  constexpr size_t kGrowth = 8 << 10;
  LocalBuckets buckets(/*max_buckets=*/1000, kMaxBytes);
  Load(algorithm::MakeTokenBucket({4000, 24 * kHour}, 4000, 0).value());
  uint64_t granted = 0;
  Outcome outcome = Outcome::kGranted;
  for (int key = 0; key < 100 && outcome == Outcome::kGranted; ++key) {
    for (int i = 0; i < 200 && outcome == Outcome::kGranted; ++i) {
      outcome = AcquireFrom(buckets, absl::StrCat("k", key), 1, /*receipt_id=*/granted + 1);
      if (outcome == Outcome::kGranted) ++granted;
    }
  }
  EXPECT_EQ(outcome, Outcome::kDenied);
  EXPECT_EQ(result_.reason, Reason::kOverflow);
  EXPECT_EQ(retry_after_ns_, kOverflowRetryNs);
  EXPECT_GT(granted, 500u);
  EXPECT_LT(buckets.bytes(), kMaxBytes);
  // New buckets leave room in which those that exist may grow.
  EXPECT_EQ(AcquireFrom(buckets, "k0", 1, ++granted), Outcome::kGranted);
  while (AcquireFrom(buckets, "k0", 1, granted + 1) == Outcome::kGranted) ++granted;
  EXPECT_EQ(result_.reason, Reason::kOverflow);
  EXPECT_LT(buckets.bytes(), kMaxBytes + kGrowth);
  // A bucket that is there still grants what takes no memory.
  EXPECT_EQ(AcquireFrom(buckets, "k0"), Outcome::kGranted);
  EXPECT_EQ(AcquireFrom(buckets, "k0", 1, granted + 1), Outcome::kDenied);
  // A day later all buckets are full, and are dropped.
  now_ns_ += 24 * kHour;
  SweepAll(buckets);
  EXPECT_EQ(buckets.size(), 0u);
  EXPECT_EQ(buckets.bytes(), 0u);
  EXPECT_EQ(AcquireFrom(buckets, "new", 1, granted + 1), Outcome::kGranted);
}

TEST_F(LocalBucketsTest, KeysAreBoundedInBytes) {
  constexpr size_t kMaxBytes = 64 << 10;
  LocalBuckets buckets(/*max_buckets=*/1000, kMaxBytes);
  Load(Log(8));
  size_t granted = 0;
  while (granted < 1000 &&
         AcquireFrom(buckets, absl::StrCat(std::string(500, 'k'), granted)) == Outcome::kGranted) {
    ++granted;
  }
  EXPECT_EQ(result_.reason, Reason::kOverflow);
  EXPECT_GT(granted, 30u);
  EXPECT_LT(granted, kMaxBytes / 500);
  EXPECT_EQ(buckets.size(), granted);
}

TEST_F(LocalBucketsTest, LogsAreBoundedInBytes) {
  constexpr size_t kMaxBytes = 4 << 10;
  LocalBuckets buckets(/*max_buckets=*/100, kMaxBytes);
  Load(Log(100'000));
  int granted = 0;
  // Each in a run of its own.
  for (; granted < 10'000 && AcquireFrom(buckets, "k") == Outcome::kGranted; ++granted) {
    now_ns_ += kHour / 20'000;
  }
  EXPECT_LT(granted, 10'000);
  EXPECT_GT(granted, 500);
  EXPECT_EQ(result_.reason, Reason::kOverflow);
  EXPECT_LT(buckets.bytes(), 2 * kMaxBytes);
}

TEST_F(LocalBucketsTest, SlidingWindowWithItsCountersGoesOnInAFullTable) {
  LocalBuckets buckets(/*max_buckets=*/100);
  Load(algorithm::MakeSlidingWindow({8, kHour}, 10).value());
  EXPECT_EQ(AcquireFrom(buckets, "counted"), Outcome::kGranted);
  EXPECT_EQ(AcquireFrom(buckets, "empty", /*permits=*/3), Outcome::kDenied);
  EXPECT_EQ(result_.reason, Reason::kShareTooSmall);
  buckets.SetMaxBytes(buckets.bytes());
  EXPECT_EQ(AcquireFrom(buckets, "counted"), Outcome::kGranted);
  EXPECT_EQ(AcquireFrom(buckets, "empty"), Outcome::kDenied);
  EXPECT_EQ(result_.reason, Reason::kOverflow);
}

TEST_F(LocalBucketsTest, SweepFreesClosedReceipts) {
  Load(algorithm::MakeTokenBucket({1000, 24 * kHour}, 1000, 0).value());
  ASSERT_EQ(AcquireFrom(buckets_, "k"), Outcome::kGranted);
  const size_t before = buckets_.bytes();
  for (uint64_t id = 1; id <= 100; ++id) {
    ASSERT_EQ(AcquireFrom(buckets_, "k", 1, id), Outcome::kGranted);
  }
  EXPECT_GT(buckets_.bytes(), before + 1000);
  for (uint64_t id = 1; id <= 100; ++id) buckets_.CloseReceipt(*entry_->rule, "k", id);
  SweepAll(buckets_);
  EXPECT_EQ(buckets_.size(), 1u);
  EXPECT_EQ(buckets_.bytes(), before);
}

TEST_F(LocalBucketsTest, BytesAreGivenBackWhateverBecomesOfABucket) {
  const auto take_with_receipts = [&] {
    for (uint64_t id = 1; id <= 20; ++id) AcquireFrom(buckets_, "k", 1, id);
    EXPECT_GT(buckets_.bytes(), 0u);
  };
  const auto tokens = algorithm::MakeTokenBucket({1000, 24 * kHour}, 1000, 0).value();
  Load(tokens);
  take_with_receipts();
  // Begins from scratch.
  now_ns_ += 10 * kHour;
  Load(tokens, /*split_since_ns=*/now_ns_ - kHour);
  take_with_receipts();
  EXPECT_TRUE(buckets_.Forget(*entry_->rule, "k"));
  EXPECT_EQ(buckets_.bytes(), 0u);
  take_with_receipts();
  Load(tokens);
  TakeLimit(*entry_->rule);
  EXPECT_EQ(buckets_.bytes(), 0u);
  take_with_receipts();
  buckets_.Take(/*most=*/1, at());
  EXPECT_EQ(buckets_.bytes(), 0u);
}

TEST_F(LocalBucketsTest, BucketsOfAnEndedLimitAreTakenInParts) {
  constexpr size_t kKeys = 30'000;
  LocalBuckets buckets(kKeys);
  Load(Log(8));
  for (size_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(AcquireFrom(buckets, absl::StrCat("k", i)), Outcome::kGranted);
  }
  Rule exact = *entry_->rule;
  exact.id = ++last_id_;
  buckets.EndLimit(exact);
  size_t taken = 0;
  for (size_t from = 0; from != LocalBuckets::kEnd;) {
    const size_t part = buckets.TakeEnded(at(), &from).size();
    EXPECT_LT(part, kKeys / 3);
    taken += part;
    EXPECT_EQ(AcquireFrom(buckets, "new"), Outcome::kStaleRule);
  }
  EXPECT_EQ(taken, kKeys);
  EXPECT_EQ(buckets.size(), 0u);
}

}  // namespace
}  // namespace sluice::store::redis
