// The bounds of a RelaxedBuckets.
#include "server/store/redis/sharing/relaxed_buckets.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/store_calls.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class RelaxedBucketsTest : public ::testing::Test {
 protected:
  RelaxedBucketsTest() {
    RuleEntry entry;
    entry.rule = testing::MakeRule(1, algorithm::MakeTokenBucket({1000, kSecond}, 1000, 0).value());
    entry_ = std::make_shared<const RuleEntry>(std::move(entry));
  }

  // Redis answers that the bucket is full.
  void Learn(RelaxedBuckets& buckets, std::string_view key, int64_t now_ns) {
    BucketLevel level;
    level.capacity = 1000;
    level.remaining = 1000;
    buckets.Learn(entry_, key, level, now_ns);
  }
  // Learns "k0", "k1", ...
  void LearnKeys(RelaxedBuckets& buckets, size_t count, int64_t now_ns) {
    for (size_t i = 0; i < count; ++i) Learn(buckets, absl::StrCat("k", i), now_ns);
  }
  bool Takes(RelaxedBuckets& buckets, std::string_view key, int64_t now_ns) {
    BucketLevel level;
    RelaxedBuckets::Key* debit = nullptr;
    return buckets.TryTake(*entry_->rule, key, 1, /*most=*/100, now_ns, &level, &debit);
  }

  std::shared_ptr<const RuleEntry> entry_;
};

TEST_F(RelaxedBucketsTest, FullTableLearnsAgainWhenItsKeysAreOld) {
  constexpr size_t kMaxKeys = 4096;
  RelaxedBuckets buckets(kMaxKeys);
  // More than there is room for, all of them recent.
  LearnKeys(buckets, kMaxKeys + 1, /*now_ns=*/0);
  Learn(buckets, "recent", 2 * kSecond);
  EXPECT_FALSE(Takes(buckets, "recent", 2 * kSecond));
  EXPECT_TRUE(Takes(buckets, "k0", 2 * kSecond));
  Learn(buckets, "new", 60 * kSecond);
  EXPECT_TRUE(Takes(buckets, "new", 60 * kSecond));
}

TEST_F(RelaxedBucketsTest, FullTableIsPrunedOnceASecond) {
  constexpr int64_t kLateNs = 10 * kSecond;
  RelaxedBuckets buckets(/*max_keys=*/10);
  LearnKeys(buckets, 10, /*now_ns=*/0);
  // Ten seconds are not over. This prunes nothing.
  Learn(buckets, "new", kLateNs);
  EXPECT_FALSE(Takes(buckets, "new", kLateNs));
  Learn(buckets, "new", kLateNs + kSecond / 2);
  EXPECT_FALSE(Takes(buckets, "new", kLateNs + kSecond / 2));
  Learn(buckets, "new", kLateNs + kSecond);
  EXPECT_TRUE(Takes(buckets, "new", kLateNs + kSecond));
}

TEST_F(RelaxedBucketsTest, KeysAreBoundedInBytes) {
  constexpr size_t kMaxBytes = 64 << 10;
  RelaxedBuckets buckets(/*max_keys=*/1000, kMaxBytes);
  const auto long_key = [](int i) { return absl::StrCat(std::string(500, 'k'), i); };
  int learnt = 0;
  for (; learnt < 1000; ++learnt) {
    Learn(buckets, long_key(learnt), /*now_ns=*/0);
    if (!Takes(buckets, long_key(learnt), /*now_ns=*/0)) break;
  }
  EXPECT_GT(learnt, 20);
  EXPECT_LT(learnt, static_cast<int>(kMaxBytes / 1000));
}

TEST_F(RelaxedBucketsTest, ForgottenKeysGiveTheirBytesBack) {
  // Room for some fifty of these keys.
  RelaxedBuckets buckets(/*max_keys=*/1000, /*max_bytes=*/64 << 10);
  for (int64_t minute = 1; minute <= 6; ++minute) {
    const int64_t now_ns = minute * 60 * kSecond;
    const std::string prefix = absl::StrCat(std::string(500, 'k'), minute, ":");
    for (int i = 0; i < 20; ++i) Learn(buckets, absl::StrCat(prefix, i), now_ns);
    EXPECT_TRUE(Takes(buckets, absl::StrCat(prefix, 19), now_ns)) << minute;
  }
}

}  // namespace
}  // namespace sluice::store::redis
