// A Redis Cluster that serves without some of its slots (cluster-require-full-coverage no) while a
// primary is down: the state of its keys, and that the keys of the other primaries stay available.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/store/redis/commands/heartbeat.h"
#include "server/store/redis/wire/hash_slot.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/shared_load.h"

namespace sluice::testing {
namespace {

constexpr size_t kServers = 3;
// A node that was paused for most of it loses its share: it is longer than a busy machine delays a
// thread.
constexpr int64_t kTtlNs = 4 * kNodeTtlNs;

class RedisClusterPartialTest : public ::testing::Test {
 protected:
  // Load by nodes that share limits of each algorithm on each server.
  LoadOptions Load(store::Sharing sharing, bool split_on_failure) {
    LoadOptions options = LoadOfNodes(sharing, split_on_failure);
    options.store.budget_ns = 200'000'000;
    options.store.node_ttl_ns = kTtlNs;
    options.several_charges = false;
    options.pause_ns = 5'000'000;
    const std::vector<LoadedLimit> kinds = std::move(options.limits);
    options.limits.clear();
    for (size_t server = 0; server < kServers; ++server) {
      for (LoadedLimit limit : kinds) {
        limit.name = NameAt(limit.name, server);
        options.limits.push_back(std::move(limit));
      }
    }
    kinds_ = kinds.size();
    return options;
  }
  std::vector<std::string> ThreeTimes() { return std::vector<std::string>(3, cluster_.url()); }

  // The name of a limit whose bucket is on that server.
  std::string NameAt(const std::string& kind, size_t server) {
    for (int i = 0;; ++i) {
      std::string name = kind + std::to_string(server) + "-" + std::to_string(i);
      const auto slot = store::redis::SlotOf(store::redis::KeysOf("sluice", name, "k0")[0]);
      if (cluster_.OwnerOf(slot) == server) return name;
    }
  }

  // Waits for as many grants of each limit on that server.
  bool AwaitGrantsAt(const SharedLoad& load, size_t server, uint64_t more) const {
    for (size_t i = 0; i < kinds_; ++i) {
      if (!load.AwaitGrants(more, server * kinds_ + i)) return false;
    }
    return true;
  }
  bool AwaitGrantsByRedisAt(const SharedLoad& load, size_t server, uint64_t more) const {
    for (size_t i = 0; i < kinds_; ++i) {
      if (!load.AwaitGrantsByRedis(more, server * kinds_ + i)) return false;
    }
    return true;
  }
  uint64_t GrantedAt(const SharedLoad& load, size_t server) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < kinds_; ++i) sum += load.granted(server * kinds_ + i);
    return sum;
  }

  // The server of the nodes' heartbeats.
  size_t HeartbeatServer() {
    return cluster_.OwnerOf(store::redis::SlotOf(store::redis::NodesKey("sluice")));
  }
  static size_t After(size_t server) { return (server + 1) % kServers; }

  RedisCluster cluster_{{.arguments = {"--cluster-require-full-coverage", "no"}}};

 private:
  size_t kinds_ = 0;
};

TEST_F(RedisClusterPartialTest, DeniesOnlyKeysOfDeadPrimary) {
  SharedLoad load(ThreeTimes(), Load(store::Sharing::kExact, false));
  for (size_t server = 0; server < kServers; ++server) {
    ASSERT_TRUE(AwaitGrantsAt(load, server, 20));
  }
  cluster_.server(0).Kill();
  ASSERT_TRUE(cluster_.AwaitFailure(0, 1));
  const uint64_t before = GrantedAt(load, 0);
  const uint64_t unavailable = load.unavailable();
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, 1, 50));
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, 2, 50));
  EXPECT_EQ(GrantedAt(load, 0), before);
  EXPECT_GT(load.unavailable(), unavailable);
  // It restarts without its data.
  cluster_.server(0).Start();
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, 0, 50));
  EXPECT_EQ(load.Check(), "");
  EXPECT_EQ(load.granted_while_unavailable(), 0u);
}

// All nodes reach the primary of their heartbeats, so Redis counts as available.
TEST_F(RedisClusterPartialTest, SplitOnFailureUsesRedisWhileHeartbeatPrimaryIsUp) {
  SharedLoad load(ThreeTimes(), Load(store::Sharing::kExact, true));
  const size_t heartbeats = HeartbeatServer();
  const size_t dead = After(heartbeats);
  for (size_t server = 0; server < kServers; ++server) {
    ASSERT_TRUE(AwaitGrantsByRedisAt(load, server, 20));
  }
  cluster_.server(dead).Kill();
  ASSERT_TRUE(cluster_.AwaitFailure(dead, heartbeats));
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, heartbeats, 50));
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, After(dead), 50));
  cluster_.server(dead).Start();
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, dead, 50));
  EXPECT_EQ(load.Check(), "");
}

// All nodes judge by that primary, so that no node is exact while another is not.
TEST_F(RedisClusterPartialTest, SplitOnFailureUsesSharesWhileHeartbeatPrimaryIsDown) {
  SharedLoad load(ThreeTimes(), Load(store::Sharing::kExact, true));
  const size_t heartbeats = HeartbeatServer();
  for (size_t server = 0; server < kServers; ++server) {
    ASSERT_TRUE(AwaitGrantsByRedisAt(load, server, 20));
  }
  cluster_.server(heartbeats).Kill();
  ASSERT_TRUE(cluster_.AwaitFailure(heartbeats, After(heartbeats)));
  const uint64_t away = load.granted_while_unavailable();
  for (size_t server = 0; server < kServers; ++server) {
    EXPECT_TRUE(AwaitGrantsAt(load, server, 50));
  }
  EXPECT_GT(load.granted_while_unavailable(), away);
  cluster_.server(heartbeats).Start();
  for (size_t server = 0; server < kServers; ++server) {
    EXPECT_TRUE(AwaitGrantsByRedisAt(load, server, 50));
  }
  EXPECT_EQ(load.Check(), "");
}

// The nodes cannot report the permits that they granted meanwhile for the paused primary's keys.
// They use shares until those buckets have refilled: less, and a window from the start would hold
// too much; more is not needed. The slow limit refills in 3 s.
TEST_F(RedisClusterPartialTest, PausedPrimaryDelaysReturnToRedisOnlyUntilItsBucketsRefill) {
  const size_t heartbeats = HeartbeatServer();
  const size_t dead = After(heartbeats);
  LoadOptions options = Load(store::Sharing::kExact, true);
  options.limits.push_back(
      {NameAt("slow", dead), algorithm::MakeTokenBucket({300, 1'000'000'000}, 900, 0).value(), 3});
  options.limits.back().split_on_failure = true;
  const size_t slow = options.limits.size() - 1;
  SharedLoad load(ThreeTimes(), options);
  ASSERT_TRUE(load.AwaitGrantsByRedis(100, slow));
  for (size_t server = 0; server < kServers; ++server) {
    ASSERT_TRUE(AwaitGrantsByRedisAt(load, server, 20));
  }
  // Without a majority the Cluster serves no key.
  cluster_.server(heartbeats).Pause();
  cluster_.server(dead).Pause();
  const uint64_t away = load.granted_while_unavailable();
  ASSERT_TRUE(load.AwaitGrants(150, slow));
  ASSERT_GT(load.granted_while_unavailable(), away);
  cluster_.server(heartbeats).Resume();
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, heartbeats, 50));
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, After(dead), 50));
  cluster_.server(dead).Resume();
  EXPECT_TRUE(AwaitGrantsByRedisAt(load, dead, 50));
  EXPECT_TRUE(load.AwaitGrantsByRedis(50, slow));
  EXPECT_EQ(load.Check(), "");
}

TEST_F(RedisClusterPartialTest, SharesLastWhileHeartbeatPrimaryIsUp) {
  SharedLoad load(ThreeTimes(), Load(store::Sharing::kSplit, false));
  const size_t heartbeats = HeartbeatServer();
  const size_t dead = After(heartbeats);
  for (size_t server = 0; server < kServers; ++server) {
    ASSERT_TRUE(AwaitGrantsAt(load, server, 20));
  }
  cluster_.server(dead).Kill();
  ASSERT_TRUE(cluster_.AwaitFailure(dead, heartbeats));
  for (size_t server = 0; server < kServers; ++server) {
    EXPECT_TRUE(AwaitGrantsAt(load, server, 50));
  }
  cluster_.server(heartbeats).Kill();
  // Shares are lost with the heartbeats, after 7/8 of a time to live.
  PassTime(std::chrono::nanoseconds(2 * kTtlNs));
  const uint64_t before = load.granted();
  PassTime(std::chrono::nanoseconds(kTtlNs / 2));
  EXPECT_EQ(load.granted(), before);
  cluster_.server(heartbeats).Start();
  for (size_t server = 0; server < kServers; ++server) {
    EXPECT_TRUE(AwaitGrantsAt(load, server, 50));
  }
  EXPECT_EQ(load.Check(), "");
  EXPECT_EQ(load.node(0).store().Stats().decisions, 0u);
}

}  // namespace
}  // namespace sluice::testing
