#include "server/store/bucket_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace sluice::store {
namespace {

TEST(BucketHashTest, SameSeedGivesTheSameHash) {
  EXPECT_EQ(BucketHash(1)(7, "key"), BucketHash(1)(7, "key"));
  EXPECT_NE(BucketHash(1)(7, "key"), BucketHash(2)(7, "key"));
}

TEST(BucketHashTest, HashDependsOnTheLimit) {
  EXPECT_NE(BucketHash(1)(7, "key"), BucketHash(1)(8, "key"));
  EXPECT_NE(BucketHash(1)(7, ""), BucketHash(1)(8, ""));
}

TEST(BucketHashTest, HashDependsOnEveryByteOfTheKey) {
  const BucketHash hash(42);
  for (size_t length = 1; length <= 100; ++length) {
    const std::string key(length, 'a');
    std::set<uint64_t> seen{hash(1, key)};
    for (size_t i = 0; i < length; ++i) {
      std::string changed = key;
      changed[i] = 'b';
      EXPECT_TRUE(seen.insert(hash(1, changed)).second) << length << " " << i;
    }
  }
}

TEST(BucketHashTest, HashOfZerosDependsOnTheLength) {
  const BucketHash hash(42);
  std::set<uint64_t> seen;
  for (size_t length = 0; length <= 200; ++length) {
    EXPECT_TRUE(seen.insert(hash(1, std::string(length, '\0'))).second) << length;
  }
}

TEST(BucketHashTest, SequentialKeysSpreadOverShardsSlotsAndTags) {
  const BucketHash hash(0);
  constexpr int kKeys = 1 << 18;
  std::vector<int> by_top(4096);
  std::vector<int> by_middle(4096);
  std::vector<int> by_low(4096);
  for (int i = 0; i < kKeys; ++i) {
    const uint64_t h = hash(1, "user:" + std::to_string(i));
    ++by_top[h >> 52];
    ++by_middle[h >> 40 & 4095];
    ++by_low[h & 4095];
  }
  // 64 a cell on average, standard deviation 8: six of them are never passed by chance.
  for (const auto* counts : {&by_top, &by_middle, &by_low}) {
    EXPECT_LT(*std::max_element(counts->begin(), counts->end()), 64 + 48);
    EXPECT_GT(*std::min_element(counts->begin(), counts->end()), 64 - 48);
  }
}

TEST(BucketHashTest, OneBitOfTheKeyChangesHalfOfTheHash) {
  const BucketHash hash(3);
  int flipped = 0;
  int trials = 0;
  for (int n = 0; n < 200; ++n) {
    std::string key = "key" + std::to_string(n * 7919);
    const uint64_t before = hash(1, key);
    for (size_t bit = 0; bit < key.size() * 8; ++bit) {
      key[bit / 8] ^= static_cast<char>(1 << bit % 8);
      flipped += __builtin_popcountll(before ^ hash(1, key));
      ++trials;
      key[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
  }
  EXPECT_NEAR(static_cast<double>(flipped) / trials, 32.0, 0.5);
}

}  // namespace
}  // namespace sluice::store
