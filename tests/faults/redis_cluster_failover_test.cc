// What becomes of quotas when a primary of a Redis Cluster fails, loses its data or gives slots
// away: no window holds more than it may, and other primaries' buckets go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "server/algorithm/make.h"
#include "server/store/redis/bucket_wire.h"
#include "server/store/redis/slots.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

void PassTime(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

std::shared_ptr<const store::Rule> Hourly(uint32_t limit_id) {
  return MakeRule(limit_id, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 10, 0).value());
}

uint16_t SlotOfBucket(const store::Rule& rule, std::string_view key) {
  return store::redis::SlotOf(store::redis::KeysOf("sluice", rule.limit_name, key)[0]);
}

// A key whose bucket under this limit is at that server. One of `number`.
std::string KeyAt(RedisCluster& cluster, const store::Rule& rule, size_t server, int number = 0) {
  for (int i = 0;; ++i) {
    std::string key = "at" + std::to_string(i);
    if (cluster.OwnerOf(SlotOfBucket(rule, key), 1) == server && number-- == 0) return key;
  }
}

// Asks until somebody decides.
Acquired AcquireWhenBack(RedisNode& node, const store::Rule& rule, std::string_view key) {
  for (int i = 0;; ++i) {
    const Acquired acquired = Acquire(node.store(), rule, key);
    if (acquired.outcome != Outcome::kUnavailable || i == 4000) return acquired;
    PassTime(std::chrono::milliseconds(5));
  }
}

// Of each algorithm one that refills at once, at the first server.
std::vector<LoadedLimit> LimitsAtTheFirst(RedisCluster& cluster) {
  std::vector<LoadedLimit> limits = LimitsOfAllKinds();
  for (LoadedLimit& limit : limits) {
    if (limit.keys > 1) continue;
    const std::string name = limit.name;
    for (int i = 0;; ++i) {
      limit.name = name + std::to_string(i);
      const auto slot = store::redis::SlotOf(store::redis::KeysOf("sluice", limit.name, "k0")[0]);
      if (cluster.OwnerOf(slot) == 0) break;
    }
  }
  return limits;
}

TEST(RedisClusterFailoverTest, AReplicaThatLagsIsPromotedAndFillsNoBucket) {
  constexpr size_t kLagging = 3;
  constexpr size_t kOther = 4;
  RedisCluster cluster({.replicas = 2});
  cluster.Call(kOther, {"CONFIG", "SET", "cluster-replica-no-failover", "yes"});
  LoadOptions options;
  options.clients = 4;
  options.limits = LimitsAtTheFirst(cluster);
  SharedLoad load(std::vector<std::string>(3, cluster.url()), options);
  ASSERT_TRUE(load.AwaitGrants(1000));
  const auto hourly = Hourly(1);
  for (size_t n = 0; n < 3; ++n) load.node(n).store().Register(hourly);
  const std::string spent = KeyAt(cluster, *hourly, 0);
  const std::string moved = KeyAt(cluster, *hourly, 0, 1);
  const std::string others = KeyAt(cluster, *hourly, 1);
  // From now on one replica hears nothing.
  cluster.server(kLagging).Pause();
  cluster.Call(0, {"CLIENT", "KILL", "TYPE", "replica"});
  ASSERT_TRUE(cluster.AwaitInfo(0, "min_slaves_good_slaves:1"));
  RedisNode& node = load.node(0);
  ASSERT_TRUE(load.AwaitGrants(200, 0));
  for (const std::string& key : {spent, moved}) {
    ASSERT_EQ(AcquireWhenBack(node, *hourly, key).outcome, Outcome::kGranted);
    ASSERT_TRUE(Acquire(node.store(), *hourly, key, 9).granted());
  }
  ASSERT_TRUE(Acquire(node.store(), *hourly, others, 4).granted());
  cluster.Kill(0);
  cluster.server(kLagging).Resume();
  ASSERT_TRUE(cluster.AwaitPromotion(kLagging));
  // It does lack the last writes.
  EXPECT_EQ(
      cluster
          .Call(kLagging, {"EXISTS", store::redis::KeysOf("sluice", hourly->limit_name, spent)[0]})
          .integer,
      0);
  // A slot that leaves it takes the floor along, also for a node that knows nothing of all this.
  EXPECT_EQ(AcquireWhenBack(node, *hourly, moved).outcome, Outcome::kDenied);
  cluster.Move(SlotOfBucket(*hourly, moved), kLagging, 1);
  RedisNode late(cluster.url());
  late.store().Register(hourly);
  EXPECT_EQ(AcquireWhenBack(late, *hourly, moved).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(late, *hourly, spent).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, moved).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, spent).outcome, Outcome::kDenied);
  // What another primary has is as it was.
  EXPECT_EQ(AcquireWhenBack(late, *hourly, others).charges[0].level.remaining, 5);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, others).charges[0].level.remaining, 4);
  // Of the bucket and of a window.
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.unavailable(), 0u);
}

TEST(RedisClusterFailoverTest, APrimaryThatStandsStillIsReplacedAndComesBackAsAReplica) {
  RedisCluster cluster({.replicas = 2});
  LoadOptions options;
  options.clients = 4;
  options.limits = LimitsAtTheFirst(cluster);
  SharedLoad load(std::vector<std::string>(3, cluster.url()), options);
  ASSERT_TRUE(load.AwaitGrants(1000));
  cluster.server(0).Pause();
  const auto promoted = [&] {
    for (size_t i : {3, 4}) {
      if (absl::StrContains(cluster.Call(i, {"INFO", "replication"}).text, "role:master")) return i;
    }
    return size_t{0};
  };
  for (int i = 0; i < 4000 && promoted() == 0; ++i) PassTime(std::chrono::milliseconds(5));
  ASSERT_NE(promoted(), 0u);
  // What was sent to it, and not answered, it executes now.
  cluster.server(0).Resume();
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_TRUE(cluster.AwaitInfo(0, "role:slave"));
  EXPECT_EQ(load.Check(), "");
}

TEST(RedisClusterFailoverTest, APrimaryThatGoesOnWithoutItsReplicasIsRefused) {
  RedisCluster cluster({.replicas = 1, .guarded = false});
  EXPECT_TRUE(cluster.AwaitInfo(0, "connected_slaves:1"));
  const absl::Status status = RedisNode(cluster.url()).connected();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("min-replicas-to-write to 1"));
  store::RedisStoreOptions told = PatientOptions();
  told.allow_unguarded = true;
  RedisNode node(cluster.url(), told);
  EXPECT_TRUE(node.connected().ok()) << node.connected();
}

class RedisClusterMarkerTest : public ::testing::Test {
 protected:
  // Of the first server's slots, as they are at the beginning.
  static constexpr uint16_t kHighest = 16384 / 3 - 1;

  std::vector<std::string> Markers(size_t server) {
    std::vector<std::string> keys;
    for (const RedisValue& key : cluster_.Call(server, {"KEYS", "sluice:identity:{*}"}).elements) {
      keys.push_back(key.text);
    }
    return keys;
  }

  RedisCluster cluster_;
};

TEST_F(RedisClusterMarkerTest, ASlotThatIsMovedIsNoLossEvenIfItHasTheMarker) {
  RedisNode node(cluster_.url());
  const auto hourly = Hourly(2);
  node.store().Register(hourly);
  std::vector<std::string> keys;
  for (size_t server = 0; server < 3; ++server) {
    keys.push_back(KeyAt(cluster_, *hourly, server));
    ASSERT_TRUE(Acquire(node.store(), *hourly, keys.back(), 4).granted());
    ASSERT_EQ(Markers(server).size(), 1u);
  }
  ASSERT_EQ(store::redis::SlotOf(Markers(0)[0]), kHighest);
  cluster_.Move(kHighest, 0, 1);
  for (const std::string& key : keys) {
    EXPECT_EQ(AcquireWhenBack(node, *hourly, key).charges[0].level.remaining, 5);
  }
  ASSERT_EQ(Markers(0).size(), 1u);
  EXPECT_NE(store::redis::SlotOf(Markers(0)[0]), kHighest);
  RedisNode late(cluster_.url());
  late.store().Register(hourly);
  for (const std::string& key : keys) {
    EXPECT_EQ(AcquireWhenBack(late, *hourly, key).charges[0].level.remaining, 4);
  }
  // And one that does not, with a bucket in it.
  const uint16_t slot = SlotOfBucket(*hourly, keys[0]);
  cluster_.Move(slot, 0, 2);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, keys[0]).charges[0].level.remaining, 3);
  EXPECT_EQ(AcquireWhenBack(late, *hourly, keys[0]).charges[0].level.remaining, 2);
}

TEST_F(RedisClusterMarkerTest, FlushallOfOneServerFillsNoBucketAndEmptiesNoOther) {
  LoadOptions options;
  options.clients = 4;
  options.limits = LimitsAtTheFirst(cluster_);
  SharedLoad load(std::vector<std::string>(3, cluster_.url()), options);
  ASSERT_TRUE(load.AwaitGrants(1000));
  const auto hourly = Hourly(3);
  RedisNode& node = load.node(0);
  node.store().Register(hourly);
  const std::string lost = KeyAt(cluster_, *hourly, 0);
  const std::string kept = KeyAt(cluster_, *hourly, 1);
  for (const std::string& key : {lost, kept}) {
    ASSERT_TRUE(Acquire(node.store(), *hourly, key, 4).granted());
  }
  for (int i = 0; i < 3; ++i) {
    cluster_.Call(0, {"FLUSHALL"});
    ASSERT_TRUE(load.AwaitGrants(200, 0));
    ASSERT_TRUE(load.AwaitGrants(100, 3));
  }
  EXPECT_EQ(AcquireWhenBack(node, *hourly, lost).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, kept).charges[0].level.remaining, 5);
  // The slot takes it along.
  cluster_.Move(SlotOfBucket(*hourly, lost), 0, 2);
  RedisNode late(cluster_.url());
  late.store().Register(hourly);
  EXPECT_EQ(AcquireWhenBack(late, *hourly, lost).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, lost).outcome, Outcome::kDenied);
  EXPECT_EQ(load.Check(), "");
}

}  // namespace
}  // namespace sluice::testing
