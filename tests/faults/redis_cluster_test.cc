// A Redis Cluster that changes under load: slots move, a primary is killed.
#include "tests/support/redis_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/free_port.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_node.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMillisecond = 1'000'000;

// One Cluster for all tests. Each leaves it as it was, except the last one, RedisClusterEndTest.
RedisCluster* shared_cluster = nullptr;

class StopCluster final : public ::testing::Environment {
 public:
  void TearDown() override { delete shared_cluster; }
};
const ::testing::Environment* const stop_cluster =
    ::testing::AddGlobalTestEnvironment(new StopCluster);

RedisCluster& Cluster() {
  if (shared_cluster == nullptr) shared_cluster = new RedisCluster({.replicas = 2, .spares = 1});
  return *shared_cluster;
}

TEST(RedisClusterTest, DecidesOnAllServers) {
  RedisNode node(Cluster().url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = Hourly(101, 2);
  node.store().Register(rule);
  for (size_t server = 0; server < 3; ++server) {
    const std::string key = KeyAt(Cluster(), *rule, server);
    EXPECT_TRUE(Acquire(node.store(), *rule, key).granted());
    EXPECT_TRUE(Acquire(node.store(), *rule, key).granted());
    EXPECT_EQ(Acquire(node.store(), *rule, key).outcome, Outcome::kDenied);
    EXPECT_EQ(Query(node.store(), *rule, key).level.remaining, 0);
    EXPECT_TRUE(Reset(node.store(), *rule, key));
  }
}

uint16_t SlotOfBucket(std::string_view limit, std::string_view key) {
  return store::redis::SlotOf(store::redis::KeysOf("sluice", limit, key)[0]);
}

TEST(RedisClusterTest, FindsMovedSlotAtOnce) {
  RedisNode node(Cluster().url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = Hourly(102, 10);
  node.store().Register(rule);
  for (int64_t left = 9; left >= 5; --left) {
    const uint16_t slot = SlotOfBucket(rule->limit_name, "k");
    const size_t from = Cluster().OwnerOf(slot);
    ASSERT_EQ(Acquire(node.store(), *rule, "k").charges[0].level.remaining, left);
    Cluster().Move(slot, from, (from + 1) % 3);
  }
  EXPECT_EQ(Query(node.store(), *rule, "k").level.remaining, 5);
}

TEST(RedisClusterTest, BothServersServeSlotDuringMove) {
  RedisNode node(Cluster().url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = Hourly(103, 10);
  node.store().Register(rule);
  // Two buckets in one slot.
  const uint16_t slot = SlotOfBucket(rule->limit_name, "{k}1");
  const size_t from = Cluster().OwnerOf(slot);
  const size_t to = (from + 1) % 3;
  ASSERT_TRUE(Acquire(node.store(), *rule, "{k}1").granted());
  Cluster().BeginMove(slot, from, to);
  // A bucket that stays, one created on the target (ASK), and one that was moved.
  EXPECT_EQ(Acquire(node.store(), *rule, "{k}1").charges[0].level.remaining, 8);
  EXPECT_EQ(Acquire(node.store(), *rule, "{k}2").charges[0].level.remaining, 9);
  EXPECT_EQ(Acquire(node.store(), *rule, "{k}2").charges[0].level.remaining, 8);
  while (Cluster().MoveKeys(slot, from, to, 100) > 0) {
  }
  EXPECT_EQ(Acquire(node.store(), *rule, "{k}1").charges[0].level.remaining, 7);
  Cluster().EndMove(slot, from, to);
  EXPECT_EQ(Acquire(node.store(), *rule, "{k}1").charges[0].level.remaining, 6);
  EXPECT_EQ(Acquire(node.store(), *rule, "{k}2").charges[0].level.remaining, 7);
}

// They share a script, whose buckets may be in any slot of the server.
TEST(RedisClusterTest, BucketsOfSeveralSlotsAreDecidedTogetherDuringMove) {
  RedisNode node(Cluster().url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = Hourly(111, 10);
  node.store().Register(rule);
  const uint16_t slot = SlotOfBucket(rule->limit_name, "{k}0");
  const size_t from = Cluster().OwnerOf(slot);
  const size_t to = (from + 1) % 3;
  // Of the slot that moves, of the server that it leaves, and of the one that it comes to.
  std::vector<std::string> keys = {"{k}0", "{k}1", "{k}2"};
  for (int i = 0; keys.size() < 9; ++i) {
    std::string key = absl::StrCat("key", i);
    const size_t owner = Cluster().OwnerOf(SlotOfBucket(rule->limit_name, key));
    if (owner == from || owner == to) keys.push_back(std::move(key));
  }
  const auto scripts = [&] {
    uint64_t calls = 0;
    for (const size_t server : {from, to}) {
      const std::string stats = Cluster().Call(server, {"INFO", "commandstats"}).text;
      const size_t at = stats.find("cmdstat_evalsha:calls=");
      if (at != std::string::npos) calls += std::stoull(stats.substr(at + 22));
    }
    return calls;
  };
  int64_t left = 10;
  const auto take = [&](size_t first) {
    std::vector<std::vector<store::Charge>> batch;
    for (size_t i = first; i < keys.size(); ++i) batch.push_back({{rule.get(), keys[i], 1}});
    --left;
    const std::vector<Acquired> acquired = AcquireBatch(node.store(), batch);
    for (size_t i = first; i < keys.size(); ++i) {
      EXPECT_TRUE(acquired[i - first].granted()) << keys[i];
      EXPECT_EQ(acquired[i - first].charges[0].level.remaining, left) << keys[i];
    }
  };
  const uint64_t before = scripts();
  take(0);
  if (PatientOptions().max_script_runs > 1) {
    EXPECT_LE(scripts() - before, 4u);
  }
  Cluster().BeginMove(slot, from, to);
  take(0);
  ASSERT_EQ(Cluster().MoveKeys(slot, from, to, 1), 1u) << "one of three is moved";
  take(0);
  while (Cluster().MoveKeys(slot, from, to, 100) > 0) {
  }
  take(0);
  Cluster().EndMove(slot, from, to);
  take(0);
  take(0);
  // A node that is not told asks the server that has it no longer.
  Cluster().Move(slot, to, from);
  take(0);
  for (const std::string& key : keys) {
    EXPECT_EQ(Query(node.store(), *rule, key).level.remaining, left) << key;
  }
}

TEST(RedisClusterTest, BucketOfSeveralKeysWaitsForEndOfMove) {
  RedisNode node(Cluster().url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto log = MakeRule(104, algorithm::MakeSlidingLog({10, 3600 * kSecond}).value());
  node.store().Register(log);
  const uint16_t slot = SlotOfBucket(log->limit_name, "k");
  const size_t from = Cluster().OwnerOf(slot);
  const size_t to = (from + 1) % 3;
  ASSERT_EQ(Acquire(node.store(), *log, "k").charges[0].level.remaining, 9);
  Cluster().BeginMove(slot, from, to);
  std::thread mover([&] {
    PassTime(std::chrono::milliseconds(50));
    while (Cluster().MoveKeys(slot, from, to, 100) > 0) {
    }
    Cluster().EndMove(slot, from, to);
  });
  EXPECT_EQ(Acquire(node.store(), *log, "k").charges[0].level.remaining, 8);
  mover.join();
}

TEST(RedisClusterTest, BucketInHalfMovedSlotIsUnavailableAndKeepsItsState) {
  store::RedisStoreOptions brisk = PatientOptions();
  brisk.budget_ns = 100 * kMillisecond;
  RedisNode node(Cluster().url(), brisk);
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto log = MakeRule(105, algorithm::MakeSlidingLog({10, 3600 * kSecond}).value());
  const auto bucket = Hourly(106, 10);
  node.store().Register(log);
  node.store().Register(bucket);
  const uint16_t slot = SlotOfBucket(log->limit_name, "{k}");
  const size_t from = Cluster().OwnerOf(slot);
  const size_t to = (from + 1) % 3;
  ASSERT_EQ(Acquire(node.store(), *log, "{k}").charges[0].level.remaining, 9);
  Cluster().BeginMove(slot, from, to);
  EXPECT_EQ(Acquire(node.store(), *log, "{k}").outcome, Outcome::kUnavailable);
  // That opened no circuit breaker.
  EXPECT_TRUE(Acquire(node.store(), *bucket, "{k}").granted());
  while (Cluster().MoveKeys(slot, from, to, 100) > 0) {
  }
  Cluster().EndMove(slot, from, to);
  EXPECT_EQ(Acquire(node.store(), *log, "{k}").charges[0].level.remaining, 8);
}

TEST(RedisClusterTest, ReloadsFlushedScripts) {
  RedisNode node(Cluster().url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = Hourly(107, 10);
  node.store().Register(rule);
  for (size_t server = 0; server < 3; ++server) {
    Cluster().Call(server, {"SCRIPT", "FLUSH"});
    EXPECT_TRUE(Acquire(node.store(), *rule, KeyAt(Cluster(), *rule, server)).granted());
  }
}

TEST(RedisClusterTest, ConnectsToUnknownServerBeforeAnswering) {
  RedisCluster& cluster = Cluster();
  RedisNode node(cluster.url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = Hourly(109, 10);
  node.store().Register(rule);
  const uint16_t slot = SlotOfBucket(rule->limit_name, "k");
  ASSERT_EQ(Acquire(node.store(), *rule, "k").charges[0].level.remaining, 9);
  const size_t owner = cluster.OwnerOf(slot);
  const size_t spare = cluster.size() - 1;
  cluster.Move(slot, owner, spare);
  EXPECT_EQ(Acquire(node.store(), *rule, "k").charges[0].level.remaining, 8);
  cluster.Move(slot, spare, owner);
  EXPECT_EQ(Acquire(node.store(), *rule, "k").charges[0].level.remaining, 7);
}

TEST(RedisClusterTest, SlotWithoutOwnerIsUnavailableUntilAssigned) {
  RedisNode node(Cluster().url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = Hourly(110, 10);
  node.store().Register(rule);
  const std::string slot = std::to_string(SlotOfBucket(rule->limit_name, "k"));
  const size_t owner = Cluster().OwnerOf(SlotOfBucket(rule->limit_name, "k"));
  ASSERT_EQ(Acquire(node.store(), *rule, "k").charges[0].level.remaining, 9);
  // CLUSTERDOWN.
  ASSERT_EQ(Cluster().Call(owner, {"CLUSTER", "DELSLOTS", slot}).text, "OK");
  EXPECT_EQ(Acquire(node.store(), *rule, "k").outcome, Outcome::kUnavailable);
  ASSERT_EQ(Cluster().Call(owner, {"CLUSTER", "ADDSLOTS", slot}).text, "OK");
  Acquired acquired;
  for (int i = 0; i < 2000 && !acquired.granted(); ++i) {
    PassTime(std::chrono::milliseconds(5));
    acquired = Acquire(node.store(), *rule, "k");
  }
  ASSERT_TRUE(acquired.granted());
  EXPECT_EQ(acquired.charges[0].level.remaining, 8);
}

TEST(RedisClusterTest, NoWindowExceedsLimitWhileSlotsMoveUnderLoad) {
  // Some acquisitions charge two limits, mostly on different servers.
  SharedLoad load(std::vector<std::string>(3, Cluster().url()));
  ASSERT_TRUE(load.AwaitGrants(200));
  for (int round = 0; round < 6; ++round) {
    for (const LoadedLimit& limit : LimitsOfAllKinds()) {
      const uint16_t slot = SlotOfBucket(limit.name, "k0");
      const size_t from = Cluster().OwnerOf(slot);
      Cluster().Move(slot, from, (from + 1) % 3);
    }
    EXPECT_TRUE(load.AwaitGrants(100));
  }
  EXPECT_EQ(load.Check(), "");
}

absl::Status Connected(const std::string& url) { return RedisNode(url).connected(); }

TEST(RedisClusterStartTest, SuggestsCorrectUrl) {
  const std::string one = "127.0.0.1:" + std::to_string(Cluster().port(0));
  absl::Status status = Connected("redis://" + one);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("write redis-cluster://" + one));

  const std::string port = std::to_string(FreePort());
  RedisServer single({"--port", port});
  status = Connected("redis-cluster://127.0.0.1:" + port);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("write redis://127.0.0.1:" + port));

  status = Connected("redis-cluster://127.0.0.1:1,127.0.0.1:2");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(RedisClusterStartTest, NeedsOnlyDocumentedPermissions) {
  Cluster().CallAll({"ACL",     "SETUSER",       "node",    "on",           ">pass",    "~sluice:*",
                     "+info",   "+ping",         "+select", "+script|load", "+evalsha", "+time",
                     "+get",    "+set",          "+del",    "+exists",      "+pexpire", "+lrange",
                     "+llen",   "+rpush",        "+ltrim",  "+lset",        "+object",  "+append",
                     "+asking", "+cluster|slots"});
  std::string url = Cluster().url();
  url.insert(url.find("//") + 2, "node:pass@");
  RedisNode node(url);
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto bucket = Hourly(111, 10);
  const auto log = MakeRule(112, algorithm::MakeSlidingLog({5, kSecond}).value());
  for (const auto& rule : {bucket, log}) node.store().Register(rule);
  for (int i = 0; i < 3; ++i) {
    const std::string key = std::to_string(i);
    EXPECT_TRUE(Acquire(node.store(), {{bucket.get(), key, 1}, {log.get(), key, 1}}).granted());
  }
}

TEST(RedisClusterStartTest, ConnectsThroughAnySeedThatAnswers) {
  const std::string one = "127.0.0.1:" + std::to_string(Cluster().port(2));
  EXPECT_TRUE(Connected("redis-cluster://127.0.0.1:1," + one).ok());
}

TEST(RedisClusterEndTest, DeadPrimaryLeavesOtherKeysAvailable) {
  RedisCluster& cluster = Cluster();
  store::RedisStoreOptions brisk = PatientOptions();
  brisk.budget_ns = 200 * kMillisecond;
  RedisNode node(cluster.url(), brisk);
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = Hourly(108, 1000);
  node.store().Register(rule);
  std::vector<std::string> keys;
  for (size_t server = 0; server < 3; ++server) keys.push_back(KeyAt(cluster, *rule, server));
  for (const std::string& key : keys) ASSERT_TRUE(Acquire(node.store(), *rule, key).granted());
  cluster.Kill(0);
  EXPECT_EQ(Acquire(node.store(), *rule, keys[0]).outcome, Outcome::kUnavailable);
  EXPECT_TRUE(Acquire(node.store(), *rule, keys[1]).granted());
  EXPECT_TRUE(Acquire(node.store(), *rule, keys[2]).granted());
  // The node finds the promoted replica without a redirection, since it reads the slot map while a
  // primary is down. The replica's data may be incomplete.
  Outcome outcome = Outcome::kUnavailable;
  for (int i = 0; i < 2000 && outcome == Outcome::kUnavailable; ++i) {
    outcome = Acquire(node.store(), *rule, keys[0]).outcome;
    if (outcome == Outcome::kUnavailable) PassTime(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(outcome, Outcome::kDenied);
  EXPECT_EQ(Query(node.store(), *rule, keys[1]).level.remaining, 998);
}

}  // namespace
}  // namespace sluice::testing
