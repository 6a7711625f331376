// Limits that nodes decide locally, on a Redis Cluster: all heartbeats are in one slot, the buckets
// in any.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "server/store/redis/commands/heartbeat.h"
#include "server/store/redis/sharing/relaxed_buckets.h"
#include "server/store/redis/wire/hash_slot.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/shared_load.h"

namespace sluice::testing {
namespace {

class RedisClusterSharingTest : public ::testing::Test {
 protected:
  std::vector<std::string> ThreeTimes() { return std::vector<std::string>(3, cluster_.url()); }
  static void AwaitDivisor(SharedLoad& load, uint32_t divisor) {
    for (size_t n = 0; n < 3; ++n) {
      while (load.node(n).store().Health().nodes[0].divisor != divisor) {
        ASSERT_TRUE(load.AwaitGrants(10));
      }
    }
  }
  // The owner of the heartbeats' slot.
  size_t HeartbeatServer() { return cluster_.OwnerOf(kSlot, 1); }

  static void SetUpTestSuite() { the_cluster = new RedisCluster; }
  static void TearDownTestSuite() { delete the_cluster; }

  static const uint16_t kSlot;
  static RedisCluster* the_cluster;
  RedisCluster& cluster_ = *the_cluster;
};
RedisCluster* RedisClusterSharingTest::the_cluster = nullptr;
const uint16_t RedisClusterSharingTest::kSlot =
    store::redis::SlotOf(store::redis::NodesKey("sluice"));

TEST_F(RedisClusterSharingTest, SharesLastWhileHeartbeatSlotMoves) {
  SharedLoad load(ThreeTimes(), LoadOfNodes(store::Sharing::kSplit, false));
  AwaitDivisor(load, 3);
  for (int round = 0; round < 3; ++round) {
    const size_t from = HeartbeatServer();
    const size_t to = (from + 1) % 3;
    cluster_.BeginMove(kSlot, from, to);
    // The slot is half moved for longer than a share lasts without heartbeats.
    PassTime(std::chrono::nanoseconds(kNodeTtlNs));
    ASSERT_TRUE(load.AwaitGrants(100));
    while (cluster_.MoveKeys(kSlot, from, to, 100) > 0) {
    }
    ASSERT_TRUE(load.AwaitGrants(100));
    cluster_.EndMove(kSlot, from, to);
    ASSERT_TRUE(load.AwaitGrants(100));
    AwaitDivisor(load, 3);
  }
  EXPECT_EQ(load.Check(), "");
  EXPECT_EQ(load.unavailable(), 0u);  // no node lost its share
  EXPECT_EQ(load.node(0).store().Stats().decisions, 0u);
}

// A Cluster with a primary down serves no key (cluster-require-full-coverage): all nodes decide by
// their shares, and debit what they granted when it is back.
TEST_F(RedisClusterSharingTest, DebitsGrantsMadeWhileHeartbeatPrimaryWasDown) {
  SharedLoad load(ThreeTimes(), LoadOfNodes(store::Sharing::kExact, true));
  AwaitDivisor(load, 3);
  ASSERT_TRUE(load.AwaitGrants(300));
  const uint64_t away = load.granted_while_unavailable();
  const size_t owner = HeartbeatServer();
  cluster_.server(owner).Pause();
  while (load.granted_while_unavailable() < away + 100) ASSERT_TRUE(load.AwaitGrants(10));
  cluster_.server(owner).Resume();
  const auto decisions = [&] { return load.node(0).store().Stats().decisions; };
  const uint64_t decided = decisions();
  while (decisions() < decided + 300) ASSERT_TRUE(load.AwaitGrants(50));
  EXPECT_EQ(load.Check(), "");
}

TEST_F(RedisClusterSharingTest, RelaxedOvershootStaysInBoundWhileSlotsMove) {
  LoadOptions options = LoadOfNodes(store::Sharing::kRelaxed, false);
  options.several_charges = false;
  options.refunds = false;
  options.store.budget_ns = 500'000'000;
  for (LoadedLimit& limit : options.limits) limit.most = 1;
  SharedLoad load(ThreeTimes(), options);
  ASSERT_TRUE(load.AwaitGrants(300));
  std::vector<uint16_t> slots = {kSlot};
  for (const LoadedLimit& limit : options.limits) {
    slots.push_back(store::redis::SlotOf(store::redis::KeysOf("sluice", limit.name, "k0")[0]));
  }
  for (const uint16_t slot : slots) {
    const size_t from = cluster_.OwnerOf(slot);
    cluster_.Move(slot, from, (from + 1) % 3);
    ASSERT_TRUE(load.AwaitGrants(100));
  }
  EXPECT_GT(load.granted_locally(), 0u);
  load.Stop();
  for (size_t l = 0; l < options.limits.size(); ++l) {
    // Before a node has seen the others it acts as the only one.
    const uint64_t most = 3 * store::redis::MaxUndebited(options.limits[l].parameters, 1, 1);
    EXPECT_EQ(load.CheckBeyond(l, most), "") << options.limits[l].name;
  }
}

}  // namespace
}  // namespace sluice::testing
