#include "server/service/key_usage.h"

#include <map>
#include <random>
#include <string>
#include <thread>

#include "absl/hash/hash.h"
#include "gtest/gtest.h"

namespace sluice::service {
namespace {

TEST(FrequentKeysTest, FollowsTheWorkedExample) {
  FrequentKeys sketch(4);
  sketch.Add(1, 0, "a", 5);
  sketch.Add(2, 0, "b", 3);
  sketch.Add(3, 0, "c", 1);
  sketch.Add(4, 0, "d", 1);
  sketch.Add(5, 0, "e", 2);
  std::map<std::string, uint64_t> counts;
  sketch.ForEach([&](uint64_t, uint32_t, std::string_view key, uint64_t count) {
    counts[std::string(key)] = count;
  });
  EXPECT_EQ(counts, (std::map<std::string, uint64_t>{{"a", 2}, {"e", 2}}));
  EXPECT_EQ(sketch.offset(), 3u);
  EXPECT_EQ(sketch.total(), 12u);
}

TEST(FrequentKeysTest, KeepsEveryTrueWeightAndTheErrorWithinBounds) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 20; ++round) {
    FrequentKeys sketch(64);
    std::map<std::string, uint64_t> truth;
    std::geometric_distribution<int> skewed(0.02 + 0.01 * round);
    for (int i = 0; i < 20'000; ++i) {
      const std::string key = std::to_string(skewed(random));
      const uint64_t weight = 1 + random() % 10;
      truth[key] += weight;
      // Few different hashes, so that keys collide.
      sketch.Add(absl::HashOf(key) % 1000, 7, key, weight);
    }
    std::map<std::string, uint64_t> counts;
    sketch.ForEach([&](uint64_t, uint32_t, std::string_view key, uint64_t count) {
      ASSERT_TRUE(counts.emplace(key, count).second) << "a key has one counter";
    });
    uint64_t total = 0;
    for (const auto& [key, weight] : truth) {
      total += weight;
      ASSERT_LE(counts[key], weight);
      ASSERT_LE(weight, counts[key] + sketch.offset());
    }
    EXPECT_EQ(sketch.total(), total);
    EXPECT_LE(sketch.offset(), 2 * total / 64);
  }
}

// As above, with names that do not all fit.
TEST(FrequentKeysTest, KeepsTheErrorWithinBoundsWhenTheRoomForNamesIsFull) {
  std::mt19937_64 random(43);
  for (int round = 0; round < 20; ++round) {
    FrequentKeys sketch(64);
    std::map<std::string, uint64_t> truth;
    std::geometric_distribution<int> skewed(0.002 + 0.01 * round);
    const size_t shortest = round % 2 == 0 ? common::bounds::kMaxKeyBytes : 1;
    for (int i = 0; i < 20'000; ++i) {
      const int number = skewed(random);
      const std::string name = std::to_string(number);
      const size_t more = static_cast<size_t>(number) * 37 % common::bounds::kMaxKeyBytes;
      const std::string key =
          name + std::string(std::max(shortest, more + name.size()) - name.size(), 'k');
      const uint64_t weight = 1 + random() % 10;
      truth[key.substr(0, common::bounds::kMaxKeyBytes)] += weight;
      sketch.Add(absl::HashOf(key) % 1000, 7, key, weight);
    }
    std::map<std::string, uint64_t> counts;
    sketch.ForEach([&](uint64_t, uint32_t, std::string_view key, uint64_t count) {
      ASSERT_TRUE(truth.contains(std::string(key))) << key;
      ASSERT_TRUE(counts.emplace(key, count).second) << "a key has one counter";
    });
    uint64_t total = 0;
    for (const auto& [key, weight] : truth) {
      total += weight;
      ASSERT_LE(counts[key], weight);
      ASSERT_LE(weight, counts[key] + sketch.offset());
    }
    EXPECT_LE(sketch.offset(), 2 * total / 16);
  }
}

TEST(FrequentKeysTest, TellsLongKeysApart) {
  FrequentKeys sketch(8);
  const std::string longest(common::bounds::kMaxKeyBytes, 'k');
  std::map<std::string, uint64_t> expected;
  for (const size_t bytes : {0, 16, 17, 512}) {
    const std::string key = longest.substr(0, bytes);
    expected[key] = bytes + 1;
    // One hash for all.
    sketch.Add(1, 0, key, bytes);
    sketch.Add(1, 0, key, 1);
  }
  std::map<std::string, uint64_t> counts;
  sketch.ForEach([&](uint64_t, uint32_t, std::string_view key, uint64_t count) {
    counts[std::string(key)] = count;
  });
  EXPECT_EQ(counts, expected);
}

TEST(FrequentKeysTest, SaturatesInsteadOfOverflowing) {
  FrequentKeys sketch(4);
  for (int i = 0; i < 3; ++i) sketch.Add(1, 0, "a", ~uint64_t{0});
  EXPECT_EQ(sketch.total(), ~uint64_t{0});
  sketch.ForEach(
      [](uint64_t, uint32_t, std::string_view, uint64_t count) { EXPECT_EQ(count, ~uint64_t{0}); });
}

TEST(KeyUsageTest, AddsUpThreadsAndOrdersByUseOrByDenials) {
  KeyUsage usage;
  for (int t = 0; t < 3; ++t) {
    std::thread([&] {
      usage.Record([](auto record) {
        record.Used(1, "a", 10);
        record.Used(1, "b", 25);
        record.Used(2, "a", 1);
        record.Denied(1, "a");
      });
    }).join();
  }
  auto top = usage.MostUsed(KeyOrder::kUse, KeyUsage::kAllLimits, 2);
  ASSERT_EQ(top.keys.size(), 2u);
  EXPECT_EQ(top.keys[0].key, "b");
  EXPECT_EQ(top.keys[0].estimate, 75u);
  EXPECT_EQ(top.keys[0].error, 0u);
  EXPECT_EQ(top.keys[1].estimate, 30u);
  EXPECT_EQ(top.total, 108u);
  top = usage.MostUsed(KeyOrder::kDenials, KeyUsage::kAllLimits, 10);
  ASSERT_EQ(top.keys.size(), 1u);
  EXPECT_EQ(top.keys[0].estimate, 3u);
  top = usage.MostUsed(KeyOrder::kUse, 2, 10);
  ASSERT_EQ(top.keys.size(), 1u);
  EXPECT_EQ(top.keys[0].limit_id, 2u);
}

TEST(KeyUsageTest, ForgetsWhatIsOlderThanTwoPeriods) {
  KeyUsage usage;
  constexpr int64_t kPeriod = KeyUsage::kPeriodNs;
  constexpr int64_t kWall = 1'700'000'000'000'000'000;
  const auto at = [&](int64_t now_ns) { usage.Advance(now_ns, kWall + now_ns); };
  const auto use = [&](const char* key) {
    usage.Record([&](auto record) {
      record.Used(1, key, 1);
      record.Denied(1, key);
    });
  };
  const auto keys = [&](KeyOrder order) {
    std::string all;
    const KeyUsage::Top top = usage.MostUsed(order, KeyUsage::kAllLimits, 10);
    for (const KeyUsage::Key& key : top.keys) all += key.key + std::to_string(key.estimate);
    EXPECT_EQ(top.total, top.keys.size());
    return all;
  };
  const auto since = [&] {
    return usage.MostUsed(KeyOrder::kUse, KeyUsage::kAllLimits, 1).since_wall_ns - kWall;
  };
  use("a");
  at(5);
  EXPECT_EQ(keys(KeyOrder::kUse), "a1");
  EXPECT_EQ(since(), 5);
  at(4 + kPeriod);  // the first period has not ended
  EXPECT_EQ(since(), 5);
  at(5 + kPeriod);
  use("b");
  EXPECT_EQ(keys(KeyOrder::kUse), "a1b1");
  EXPECT_EQ(keys(KeyOrder::kDenials), "a1b1");
  EXPECT_EQ(since(), 5);
  at(5 + 2 * kPeriod);
  EXPECT_EQ(keys(KeyOrder::kUse), "b1") << "although no thread has recorded since";
  EXPECT_EQ(since(), 5 + kPeriod);
  use("c");
  EXPECT_EQ(keys(KeyOrder::kDenials), "b1c1");
  at(5 + 3 * kPeriod);
  at(5 + 4 * kPeriod);
  EXPECT_EQ(keys(KeyOrder::kUse), "");
  use("d");
  EXPECT_EQ(keys(KeyOrder::kUse), "d1");
}

TEST(KeyUsageTest, LosesNoWeightWhenReadWhileThreadsRecord) {
  KeyUsage usage;
  std::thread writer([&] {
    for (int i = 0; i < 50'000; ++i) {
      usage.Record([&](auto record) { record.Used(1, std::to_string(i % 3000), 2); });
    }
  });
  for (int i = 0; i < 50; ++i) usage.MostUsed(KeyOrder::kUse, KeyUsage::kAllLimits, 10);
  writer.join();
  EXPECT_EQ(usage.MostUsed(KeyOrder::kUse, KeyUsage::kAllLimits, 1).total, 100'000u);
}

}  // namespace
}  // namespace sluice::service
