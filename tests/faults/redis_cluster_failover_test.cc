// What becomes of quotas when a primary of a Redis Cluster fails: no window holds more than it may,
// and other primaries' buckets go on.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "server/store/redis/bucket_wire.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;

TEST(RedisClusterFailoverTest, AReplicaThatLagsIsPromotedAndFillsNoBucket) {
  constexpr size_t kLagging = 3;
  constexpr size_t kOther = 4;
  RedisCluster cluster({.replicas = 2});
  cluster.Call(kOther, {"CONFIG", "SET", "cluster-replica-no-failover", "yes"});
  LoadOptions options;
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

}  // namespace
}  // namespace sluice::testing
