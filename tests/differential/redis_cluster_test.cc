// The same random history on the memory store and on a Redis Cluster, where most acquisitions have
// buckets in several slots, gives the same decisions, levels and waiting times, to the nanosecond.
// Callers come one after the other. (A concurrent caller may be denied by permits that another
// acquisition gives back a moment later.)
#include "tests/support/redis_cluster.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/memory/memory_store.h"
#include "tests/contract/redis_store_under_test.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

void ExpectSameLevel(const store::BucketLevel& one, const store::BucketLevel& other) {
  EXPECT_EQ(one.remaining, other.remaining);
  EXPECT_EQ(one.capacity, other.capacity);
  EXPECT_EQ(one.reset_after_ns, other.reset_after_ns);
  EXPECT_EQ(one.next_permit_after_ns, other.next_permit_after_ns);
}

class Histories {
 public:
  explicit Histories(RedisCluster& cluster) : redis_(cluster.url()), memory_(clock_, {}) {
    clock_.SetNow(1'000'000 * kSecond);
    clock_.SetWall(redis_.WallNs());
    using algorithm::MakeFixedWindow;
    using algorithm::MakeSlidingLog;
    using algorithm::MakeSlidingWindow;
    using algorithm::MakeTokenBucket;
    Add(MakeTokenBucket({7, kSecond}, 10, 0).value());
    Add(MakeTokenBucket({7, kSecond}, 4, 6).value());
    Add(MakeTokenBucket({5, kSecond}, 5, 0).value(), /*shadow=*/true);
    // Quanta of 8 us and windows of whole seconds are aligned alike on both clocks.
    Add(MakeSlidingLog({9, 524'288'000}).value());
    Add(MakeSlidingWindow({9, kSecond}, 5).value());
    Add(MakeFixedWindow({9, kSecond}, 0).value());
  }

  void Run(uint32_t seed, int steps) {
    std::minstd_rand random(seed);
    const auto below = [&](size_t n) { return static_cast<size_t>(random() / 7 % n); };
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
      switch (below(8)) {
        case 0: {
          const auto by_ns = static_cast<int64_t>(below(400'000'000));
          clock_.Advance(by_ns);
          redis_.Advance(by_ns);
          break;
        }
        case 1:
          if (!open_.empty()) GiveBack(below(open_.size()));
          break;
        case 2: {
          const store::Rule& rule = *rules_[below(rules_.size())];
          const std::string key = keys_[below(keys_.size())];
          ExpectSameLevel(Query(memory_, rule, key).level, Query(redis_.store(), rule, key).level);
          break;
        }
        default: {
          // Each bucket at most once in an acquisition.
          std::vector<store::Charge> charges;
          size_t bucket = below(4);
          while (bucket < rules_.size() * keys_.size() && charges.size() < 4) {
            charges.push_back({rules_[bucket % rules_.size()].get(), keys_[bucket / rules_.size()],
                               1 + below(4)});
            bucket += 1 + below(8);
          }
          Take(charges, below(3) == 0);
        }
      }
    }
  }

  size_t denied() const { return denied_; }
  size_t granted() const { return granted_; }

 private:
  struct Open {
    std::vector<store::Charge> charges;
    uint64_t memory = 0;
    uint64_t redis = 0;
  };

  void Add(const algorithm::Parameters& parameters, bool shadow = false) {
    rules_.push_back(MakeRule(static_cast<uint32_t>(rules_.size()), parameters, shadow));
    memory_.Register(rules_.back());
    redis_.store().Register(rules_.back());
  }

  void Take(const std::vector<store::Charge>& charges, bool want_receipt) {
    const AcquireOptions options{.want_receipt = want_receipt};
    const Acquired memory = Acquire(memory_, charges, options);
    const Acquired redis = Acquire(redis_.store(), charges, options);
    ++(memory.granted() ? granted_ : denied_);
    EXPECT_EQ(memory.outcome, redis.outcome);
    EXPECT_EQ(memory.retry_after_ns, redis.retry_after_ns);
    EXPECT_EQ(memory.receipt_id != 0, redis.receipt_id != 0);
    for (size_t c = 0; c < charges.size(); ++c) {
      SCOPED_TRACE("charge " + std::to_string(c) + " of " + charges[c].rule->limit_name);
      EXPECT_EQ(memory.charges[c].reason, redis.charges[c].reason);
      EXPECT_EQ(redis.charges[c].debited_before_ns, 0);
      ExpectSameLevel(memory.charges[c].level, redis.charges[c].level);
    }
    if (memory.receipt_id != 0) open_.push_back({charges, memory.receipt_id, redis.receipt_id});
  }

  void GiveBack(size_t i) {
    const Open open = open_[i];
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(i));
    const Refunded memory = Refund(memory_, open.memory, open.charges);
    const Refunded redis = Refund(redis_.store(), open.redis, open.charges);
    EXPECT_EQ(memory.outcome, redis.outcome);
    EXPECT_EQ(memory.permits, redis.permits);
  }

  const std::vector<std::string> keys_ = {"", "a", "b", "c{x}", "d{x}"};
  RedisStoreUnderTest redis_;
  common::FakeClock clock_;
  store::MemoryStore memory_;
  std::vector<std::shared_ptr<const store::Rule>> rules_;
  std::vector<Open> open_;
  size_t granted_ = 0;
  size_t denied_ = 0;
};

TEST(RedisClusterDifferentialTest, DecidesAsMemoryStoreDoes) {
  RedisCluster cluster;
  size_t granted = 0;
  size_t denied = 0;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    cluster.CallAll({"FLUSHALL"});
    Histories histories(cluster);
    histories.Run(seed, 1000);
    granted += histories.granted();
    denied += histories.denied();
  }
  EXPECT_GT(granted, 500u);
  EXPECT_GT(denied, 500u);
}

}  // namespace
}  // namespace sluice::testing
