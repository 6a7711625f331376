// Quotas stay exact when a primary of a Redis Cluster loses its data or its slots move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/pass_time.h"
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

TEST_F(RedisClusterFenceTest, OnlyLimitsWithFarBookingsStayClosedAtTheServerThatLostThem) {
  constexpr int64_t kSecond = 1'000'000'000;
  RedisNode node(cluster_.url());
  const auto booked = MakeRule(31, algorithm::MakeTokenBucket({1, 600 * kSecond}, 1, 0).value());
  const auto other = MakeRule(32, algorithm::MakeTokenBucket({1000, kSecond}, 1000, 0).value());
  for (const auto& rule : {booked, other}) node.store().Register(rule);
  const std::string lost = KeyAt(cluster_, *booked, 0);
  const std::string kept = KeyAt(cluster_, *booked, 1);
  const std::string other_key = KeyAt(cluster_, *other, 0);
  int64_t last_ns = 0;
  for (int i = 0; i < 2; ++i) {
    const Acquired one =
        Acquire(node.store(), *booked, lost, 1, {.max_wait_ns = int64_t{3600} * kSecond});
    ASSERT_TRUE(one.granted());
    last_ns = one.now_ns + one.wait_ns;
  }
  cluster_.Call(0, {"FLUSHALL"});
  const auto await_grant = [&](RedisNode& asked) {
    while (!AcquireWhenBack(asked, *other, other_key).granted()) {
      PassTime(std::chrono::milliseconds(10));
    }
  };
  await_grant(node);
  const auto closed = [&](RedisNode& asked, const store::Rule& rule, const std::string& key) {
    const Acquired acquired = AcquireWhenBack(asked, rule, key);
    return !acquired.granted() && acquired.now_ns + acquired.retry_after_ns >= last_ns;
  };
  EXPECT_TRUE(closed(node, *booked, lost));
  EXPECT_TRUE(AcquireWhenBack(node, *booked, kept).granted());
  // Slots take the floors of limits along.
  cluster_.Move(SlotOfBucket(*booked, lost), 0, 2);
  cluster_.Move(SlotOfBucket(*other, other_key), 0, 2);
  RedisNode late(cluster_.url());
  for (const auto& rule : {booked, other}) late.store().Register(rule);
  for (RedisNode* asked : {&node, &late}) {
    EXPECT_TRUE(closed(*asked, *booked, lost));
    // Closed too until the node has read what the slot brought.
    await_grant(*asked);
  }
  Notification done;
  std::optional<int64_t> lifted;
  late.store().LiftFloor(booked->limit_name, [&](std::optional<int64_t> floor_wall_ns) {
    lifted = floor_wall_ns;
    done.Notify();
  });
  done.Wait();
  EXPECT_GE(lifted.value_or(0), last_ns);
  for (RedisNode* asked : {&node, &late}) {
    while (closed(*asked, *booked, lost)) PassTime(std::chrono::milliseconds(10));
  }
}

// Closed until grant times that were lost with the first server, whose slot then moved.
TEST_F(RedisClusterFenceTest, FloorsThatCameAlongWithASlotOutliveTheLossOfItsNextServer) {
  constexpr int64_t kSecond = 1'000'000'000;
  RedisNode node(cluster_.url());
  const auto booked = MakeRule(51, algorithm::MakeTokenBucket({1, 600 * kSecond}, 1, 0).value());
  node.store().Register(booked);
  const std::string key = KeyAt(cluster_, *booked, 0);
  int64_t last_ns = 0;
  for (int i = 0; i < 2; ++i) {
    const Acquired one =
        Acquire(node.store(), *booked, key, 1, {.max_wait_ns = int64_t{3600} * kSecond});
    ASSERT_TRUE(one.granted());
    last_ns = one.now_ns + one.wait_ns;
  }
  const auto closed = [&](RedisNode& asked) {
    const Acquired acquired = AcquireWhenBack(asked, *booked, key);
    return !acquired.granted() && acquired.now_ns + acquired.retry_after_ns >= last_ns;
  };
  cluster_.Call(0, {"FLUSHALL"});
  EXPECT_TRUE(closed(node));
  cluster_.Move(SlotOfBucket(*booked, key), 0, 2);
  EXPECT_TRUE(closed(node));
  cluster_.Call(2, {"FLUSHALL"});
  EXPECT_TRUE(closed(node));
  RedisNode late(cluster_.url());
  late.store().Register(booked);
  EXPECT_TRUE(closed(late));
}

// Until the note of a slot is read, the latest floor of any limit counts in it.
TEST_F(RedisClusterFenceTest, SlotsThatComeTogetherOpenWhenTheirFloorsAreRead) {
  constexpr int64_t kSecond = 1'000'000'000;
  RedisNode node(cluster_.url());
  const auto booked = MakeRule(61, algorithm::MakeTokenBucket({1, 600 * kSecond}, 1, 0).value());
  const auto other = MakeRule(62, algorithm::MakeTokenBucket({1000, kSecond}, 1000, 0).value());
  for (const auto& rule : {booked, other}) node.store().Register(rule);
  const std::string lost = KeyAt(cluster_, *booked, 0);
  for (int i = 0; i < 2; ++i) {
    const AcquireOptions waits = {.max_wait_ns = int64_t{3600} * kSecond};
    ASSERT_TRUE(Acquire(node.store(), *booked, lost, 1, waits).granted());
  }
  cluster_.Call(0, {"FLUSHALL"});
  ASSERT_FALSE(AcquireWhenBack(node, *booked, lost).granted());
  std::vector<std::string> keys;
  std::vector<std::vector<store::Charge>> batch;
  for (int i = 0; i < 8; ++i) keys.push_back(KeyAt(cluster_, *other, 2, i));
  for (const std::string& key : keys) {
    cluster_.Move(SlotOfBucket(*other, key), 2, 1);
    batch.push_back({{other.get(), key, 1}});
  }
  // Server 2 answers MOVED to each, one right after the other.
  AcquireBatch(node.store(), batch);
  for (const std::string& key : keys) {
    int tries = 0;
    while (!AcquireWhenBack(node, *other, key).granted()) {
      ASSERT_LT(++tries, 1000) << key << " stays closed";
      PassTime(std::chrono::milliseconds(10));
    }
  }
}

TEST_F(RedisClusterFenceTest, LiftedFloorOpensAlsoSlotsThatBringEndsOfHoldsAlong) {
  constexpr int64_t kSecond = 1'000'000'000;
  RedisNode node(cluster_.url());
  const auto slots = MakeRule(41, *algorithm::MakeConcurrency(1, 600 * kSecond));
  node.store().Register(slots);
  // Other tests close slots of the first server.
  const std::string key = KeyAt(cluster_, *slots, 1);
  ASSERT_TRUE(Acquire(node.store(), *slots, key, 1, {.want_receipt = true}).granted());
  const auto lowered = MakeRule(41, *algorithm::MakeConcurrency(1, kSecond));
  node.store().Register(lowered);
  cluster_.Call(1, {"FLUSHALL"});
  EXPECT_EQ(AcquireWhenBack(node, *lowered, key).outcome, Outcome::kDenied);
  cluster_.Move(SlotOfBucket(*lowered, key), 1, 2);
  RedisNode late(cluster_.url());
  late.store().Register(lowered);
  const Acquired denied = AcquireWhenBack(late, *lowered, key);
  EXPECT_EQ(denied.outcome, Outcome::kDenied);
  EXPECT_GT(denied.retry_after_ns, 500 * kSecond);
  Notification done;
  late.store().LiftFloor(lowered->limit_name, [&](std::optional<int64_t>) { done.Notify(); });
  done.Wait();
  for (RedisNode* asked : {&late, &node}) {
    int tries = 0;
    while (AcquireWhenBack(*asked, *lowered, key).retry_after_ns > 100 * kSecond) {
      ASSERT_LT(++tries, 1000) << "it stays closed";
      PassTime(std::chrono::milliseconds(10));
    }
  }
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
