// Quotas stay exact when a primary of a Redis Cluster loses its data or its slots move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;
using ::testing::HasSubstr;

class RedisClusterFenceTest : public ::testing::Test {
 protected:
  // The last slot of the first server, before any move.
  static constexpr uint16_t kHighest = 16384 / 3 - 1;

  std::vector<std::string> Fences(size_t server) {
    std::vector<std::string> keys;
    for (const RedisValue& key : cluster_.Call(server, {"KEYS", "sluice:identity:{*}"}).elements) {
      keys.push_back(key.text);
    }
    return keys;
  }

  static void SetUpTestSuite() { the_cluster = new RedisCluster; }
  static void TearDownTestSuite() { delete the_cluster; }

  static RedisCluster* the_cluster;
  RedisCluster& cluster_ = *the_cluster;
};
RedisCluster* RedisClusterFenceTest::the_cluster = nullptr;

TEST_F(RedisClusterFenceTest, MovingSlotWithFenceIsNotDataLoss) {
  RedisNode node(cluster_.url());
  const auto hourly = Hourly(2);
  node.store().Register(hourly);
  std::vector<std::string> keys;
  for (size_t server = 0; server < 3; ++server) {
    keys.push_back(KeyAt(cluster_, *hourly, server));
    ASSERT_TRUE(Acquire(node.store(), *hourly, keys.back(), 4).granted());
    ASSERT_EQ(Fences(server).size(), 1u);
  }
  ASSERT_EQ(store::redis::SlotOf(Fences(0)[0]), kHighest);
  cluster_.Move(kHighest, 0, 1);
  for (const std::string& key : keys) {
    EXPECT_EQ(AcquireWhenBack(node, *hourly, key).charges[0].level.remaining, 5);
  }
  ASSERT_EQ(Fences(0).size(), 1u);
  EXPECT_NE(store::redis::SlotOf(Fences(0)[0]), kHighest);
  RedisNode late(cluster_.url());
  late.store().Register(hourly);
  for (const std::string& key : keys) {
    EXPECT_EQ(AcquireWhenBack(late, *hourly, key).charges[0].level.remaining, 4);
  }
  // The same for a slot with a bucket and without the fence.
  const uint16_t slot = SlotOfBucket(*hourly, keys[0]);
  cluster_.Move(slot, 0, 2);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, keys[0]).charges[0].level.remaining, 3);
  EXPECT_EQ(AcquireWhenBack(late, *hourly, keys[0]).charges[0].level.remaining, 2);
}

TEST_F(RedisClusterFenceTest, FlushOfOneServerFillsNoBucketAndEmptiesNoOther) {
  LoadOptions options;
  options.limits = LimitsOnFirstServer(cluster_);
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
  // The loss moves with the slot.
  cluster_.Move(SlotOfBucket(*hourly, lost), 0, 2);
  RedisNode late(cluster_.url());
  late.store().Register(hourly);
  EXPECT_EQ(AcquireWhenBack(late, *hourly, lost).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, lost).outcome, Outcome::kDenied);
  EXPECT_EQ(load.Check(), "");
}

TEST(RedisClusterGuardTest, RefusesPrimaryThatServesWithoutReplicas) {
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

}  // namespace
}  // namespace sluice::testing
