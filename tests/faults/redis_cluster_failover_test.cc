// When a primary of a Redis Cluster fails, no window exceeds its limit, and the buckets of other
// primaries stay available.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/grant_history.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;
using store::redis::KeysOf;

constexpr int64_t kSecond = 1'000'000'000;

TEST(RedisClusterFailoverTest, PromotedLaggingReplicaFillsNoBucket) {
  constexpr size_t kLagging = 3;
  constexpr size_t kOther = 4;
  RedisCluster cluster({.replicas = 2});
  cluster.Call(kOther, {"CONFIG", "SET", "cluster-replica-no-failover", "yes"});
  LoadOptions options;
  options.limits = LimitsOnFirstServer(cluster);
  SharedLoad load(std::vector<std::string>(3, cluster.url()), options);
  ASSERT_TRUE(load.AwaitGrants(1000));
  const auto hourly = Hourly(1);
  for (size_t n = 0; n < 3; ++n) load.node(n).store().Register(hourly);
  const std::string spent = KeyAt(cluster, *hourly, 0);
  const std::string moved = KeyAt(cluster, *hourly, 0, 1);
  const std::string others = KeyAt(cluster, *hourly, 1);
  // From now on one replica receives nothing.
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
  // It lacks the last writes.
  EXPECT_EQ(
      cluster
          .Call(kLagging, {"EXISTS", store::redis::KeysOf("sluice", hourly->limit_name, spent)[0]})
          .integer,
      0);
  // The floor moves with a slot, also for a node that starts now.
  EXPECT_EQ(AcquireWhenBack(node, *hourly, moved).outcome, Outcome::kDenied);
  cluster.Move(SlotOfBucket(*hourly, moved), kLagging, 1);
  RedisNode late(cluster.url());
  late.store().Register(hourly);
  EXPECT_EQ(AcquireWhenBack(late, *hourly, moved).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(late, *hourly, spent).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, moved).outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, spent).outcome, Outcome::kDenied);
  // The buckets of another primary are unchanged.
  EXPECT_EQ(AcquireWhenBack(late, *hourly, others).charges[0].level.remaining, 5);
  EXPECT_EQ(AcquireWhenBack(node, *hourly, others).charges[0].level.remaining, 4);
  // Of a bucket and of a window.
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.unavailable(), 0u);
}

// The promoted replica lacks bookings. Their callers proceed at their grant times all the same.
TEST(RedisClusterFailoverTest, PromotedReplicaNeverRepeatsLostGrantTimes) {
  constexpr size_t kLagging = 3;
  RedisCluster cluster({.replicas = 2});
  cluster.Call(4, {"CONFIG", "SET", "cluster-replica-no-failover", "yes"});
  std::vector<std::unique_ptr<RedisNode>> nodes;
  for (int n = 0; n < 3; ++n) nodes.push_back(std::make_unique<RedisNode>(cluster.url()));
  const std::vector<algorithm::Parameters> limits = {
      algorithm::MakeTokenBucket({1, 60 * kSecond}, 1, 0).value(),
      algorithm::MakeSlidingLog({2, 60 * kSecond}).value()};
  std::vector<std::shared_ptr<const store::Rule>> rules;
  std::vector<std::string> keys;
  std::vector<std::unique_ptr<GrantHistory>> histories;
  for (size_t l = 0; l < limits.size(); ++l) {
    rules.push_back(MakeRule(static_cast<uint32_t>(20 + l), limits[l]));
    for (const auto& node : nodes) node->store().Register(rules[l]);
    keys.push_back(KeyAt(cluster, *rules[l], 0));
    histories.push_back(std::make_unique<GrantHistory>(limits[l]));
  }
  // Each client books `each` times on limit `l`. Returns the last grant time.
  const auto book = [&](size_t l, int each) {
    std::atomic<int64_t> last_ns{0};
    std::vector<std::thread> clients;
    for (size_t c = 0; c < 24; ++c) {
      clients.emplace_back([&, c] {
        for (int i = 0; i < each; ++i) {
          Acquired booked;
          for (int tries = 0; tries < 4000; ++tries) {
            booked = Acquire(nodes[c % 3]->store(), *rules[l], keys[l], 1,
                             {.max_wait_ns = 24 * 3600 * kSecond});
            // No node books without Redis.
            if (booked.outcome != Outcome::kUnavailable) break;
            PassTime(std::chrono::milliseconds(5));
          }
          EXPECT_TRUE(booked.granted());
          const int64_t grant_time_ns = booked.now_ns + booked.wait_ns;
          histories[l]->Add(grant_time_ns, 1);
          int64_t last = last_ns.load();
          while (grant_time_ns > last && !last_ns.compare_exchange_weak(last, grant_time_ns)) {
          }
        }
      });
    }
    for (std::thread& client : clients) client.join();
    return last_ns.load();
  };
  for (size_t l = 0; l < limits.size(); ++l) book(l, 1);
  // From now on one replica receives nothing.
  cluster.server(kLagging).Pause();
  cluster.Call(0, {"CLIENT", "KILL", "TYPE", "replica"});
  ASSERT_TRUE(cluster.AwaitInfo(0, "min_slaves_good_slaves:1"));
  std::vector<int64_t> lost_ns;
  for (size_t l = 0; l < limits.size(); ++l) lost_ns.push_back(book(l, 2));
  const auto bookings = [&](size_t server, size_t l) {
    return cluster.Call(server,
                        {"MEMORY", "USAGE", KeysOf("sluice", rules[l]->limit_name, keys[l])[2]});
  };
  const int64_t bytes = bookings(0, 0).integer;
  ASSERT_GT(bytes, 0);
  cluster.Kill(0);
  cluster.server(kLagging).Resume();
  ASSERT_TRUE(cluster.AwaitPromotion(kLagging));
  EXPECT_LT(bookings(kLagging, 0).integer, bytes);  // it lacks them
  for (size_t l = 0; l < limits.size(); ++l) {
    EXPECT_GT(book(l, 1), lost_ns[l]);
    EXPECT_EQ(histories[l]->Check(), "") << l;
  }
}

TEST(RedisClusterFailoverTest, PausedPrimaryIsReplacedAndReturnsAsReplica) {
  RedisCluster cluster({.replicas = 2});
  LoadOptions options;
  options.limits = LimitsOnFirstServer(cluster);
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
  // It now executes the commands that it had not answered.
  cluster.server(0).Resume();
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_TRUE(cluster.AwaitInfo(0, "role:slave"));
  EXPECT_EQ(load.Check(), "");
}

// The other servers lose contact with a primary, and promote a replica. Nodes reach both primaries,
// and so do replicas until they follow the new one.
TEST(RedisClusterFailoverTest, NoWindowExceedsLimitWhilePrimaryIsCutOffFromCluster) {
  RedisCluster cluster({.replicas = 2, .severable = true});
  LoadOptions options;
  options.several_charges = false;  // no acquisition of a split and an exact limit
  options.limits = LimitsOnFirstServer(cluster);
  options.store.node_ttl_ns = 400'000'000;
  const size_t exact = options.limits.size();
  for (LoadedLimit& limit : LimitsOfNodes(store::Sharing::kSplit, false)) {
    limit.name = "split-" + limit.name;
    options.limits.push_back(std::move(limit));
  }
  SharedLoad load(std::vector<std::string>(3, cluster.url()), options);
  ASSERT_TRUE(load.AwaitGrants(1000));
  ASSERT_TRUE(load.AwaitGrants(100, exact));
  cluster.bus().CutOff(0);
  const auto is_primary = [&](size_t i) {
    return absl::StrContains(cluster.Call(i, {"INFO", "replication"}).text, "role:master");
  };
  const auto promoted = [&] { return is_primary(3) || is_primary(4); };
  for (int i = 0; i < 4000 && !promoted(); ++i) PassTime(std::chrono::milliseconds(5));
  ASSERT_TRUE(promoted());
  EXPECT_TRUE(is_primary(0));  // in its own view
  // Of a bucket and a window of the first primary, and of a share.
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_TRUE(load.AwaitGrants(300, exact));
  EXPECT_TRUE(is_primary(0));
  cluster.bus().Heal();
  EXPECT_TRUE(cluster.AwaitInfo(0, "role:slave"));
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.unavailable(), 0u);
}

}  // namespace
}  // namespace sluice::testing
