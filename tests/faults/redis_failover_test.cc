// When another server takes the primary's place, through Sentinel or by hand, no window exceeds its
// limit, even though the promoted server lacks the last writes and the old primary serves on for a
// while.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/support/grant_history.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

using ::testing::HasSubstr;
using ::testing::Not;

std::shared_ptr<const store::Rule> HourlyRule() {
  return MakeRule(1, algorithm::MakeTokenBucket({1, 3'600'000'000'000}, 10, 0).value());
}

std::string Info(RedisServer& server) {
  return RedisCalls(server).Call({"INFO", "replication"}).text;
}

// Returns false after 20 s.
bool AwaitInfo(RedisServer& server, const std::string& text) {
  for (int i = 0; i < 2000; ++i) {
    if (absl::StrContains(Info(server), text)) return true;
    PassTime(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << text << " is not in " << Info(server);
  return false;
}

void ReplicaOf(RedisServer& server, const std::string& host, int port) {
  RedisCalls(server).Call({"REPLICAOF", host, port == 0 ? "ONE" : absl::StrCat(port)});
}
void Promote(RedisServer& server) { ReplicaOf(server, "NO", 0); }
// It keeps its role, and receives nothing more from its primary.
void CutOff(RedisServer& server) { ReplicaOf(server, "127.0.0.1", 1); }

// A primary and two replicas, `first` and `second`; Sentinel promotes the first.
class RedisFailoverTest : public ::testing::Test {
 protected:
  static std::vector<std::string> Guarded() {
    return {"--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"};
  }
  static std::vector<std::string> NeverPromoted() {
    std::vector<std::string> arguments = Guarded();
    arguments.insert(arguments.end(), {"--replica-priority", "0"});
    return arguments;
  }

  void SetUp() override { ASSERT_TRUE(AwaitInfo(primary_, "min_slaves_good_slaves:2")); }

  static std::string Url(const ReplicatedServer& server) {
    return absl::StrCat("redis://127.0.0.1:", server.port());
  }
  std::string SentinelUrl(const RedisSentinel& sentinel) const {
    // The first address has no Sentinel.
    return absl::StrCat("redis-sentinel://127.0.0.1:1,127.0.0.1:", sentinel.port(), "/primary");
  }
  // Waits until the Sentinel sees both replicas in sync.
  static void AwaitReplicas(RedisSentinel& sentinel) {
    RedisCalls calls(sentinel);
    for (int i = 0; i < 2000; ++i) {
      const RedisValue replicas = calls.Call({"SENTINEL", "REPLICAS", "primary"});
      int good = 0;
      for (const RedisValue& replica : replicas.elements) {
        for (size_t w = 0; w + 1 < replica.elements.size(); w += 2) {
          if (replica.elements[w].text == "master-link-status") {
            good += replica.elements[w + 1].text == "ok";
          }
        }
      }
      if (good == 2) return;
      PassTime(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "the Sentinel finds no replicas";
  }

  ReplicatedServer primary_{0, Guarded()};
  ReplicatedServer first_{primary_.port(), Guarded()};
  ReplicatedServer second_{primary_.port(), NeverPromoted()};
};

TEST_F(RedisFailoverTest, PromotedLaggingReplicaFillsNoBucket) {
  RedisSentinel sentinel(primary_.port());
  AwaitReplicas(sentinel);
  SharedLoad load(std::vector<std::string>(3, SentinelUrl(sentinel)));
  ASSERT_TRUE(load.AwaitGrants(1000));
  const auto hourly = HourlyRule();
  for (size_t n = 0; n < 3; ++n) load.node(n).store().Register(hourly);
  CutOff(first_);
  // The promoted server will not know of grants from now on.
  ASSERT_TRUE(Acquire(load.node(0).store(), *hourly, "k", 10).granted());
  ASSERT_TRUE(load.AwaitGrants(500));
  primary_.Kill();
  ASSERT_TRUE(AwaitInfo(first_, "role:master"));
  // By the new primary, of a bucket and of a window.
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.unavailable(), 0u);
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(Acquire(load.node(n).store(), *hourly, "k").outcome, store::Outcome::kDenied);
  }
}

TEST_F(RedisFailoverTest, PromotedLaggingReplicaGrantsNoSlotsUntilLostHoldsHaveEnded) {
  RedisSentinel sentinel(primary_.port());
  AwaitReplicas(sentinel);
  RedisNode node(SentinelUrl(sentinel));
  const auto slots = MakeRule(5, algorithm::MakeConcurrency(2, 6 * kSecond).value());
  node.store().Register(slots);
  const auto take = [&](const char* key) {
    return Acquire(node.store(), *slots, key, 1, {.want_receipt = true});
  };
  ASSERT_TRUE(take("k").granted());
  CutOff(first_);
  // The promoted server will know of one hold at most, and of none of the other key.
  int64_t last_end_ns = 0;
  for (const char* key : {"k", "other", "other"}) {
    const Acquired taken = take(key);
    ASSERT_TRUE(taken.granted());
    last_end_ns = taken.now_ns + 6 * kSecond;
  }
  primary_.Kill();
  ASSERT_TRUE(AwaitInfo(first_, "role:master"));
  for (const char* key : {"k", "other"}) {
    for (int tries = 0;; ++tries) {
      ASSERT_LT(tries, 4000);
      const Acquired taken = take(key);
      if (taken.granted()) {
        EXPECT_GE(taken.now_ns, last_end_ns) << key;
        break;
      }
      PassTime(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(take(key).granted());
    EXPECT_EQ(take(key).outcome, store::Outcome::kDenied);
  }
}

TEST_F(RedisFailoverTest, SettlesOnceBeforeAndAfterThePromotion) {
  RedisSentinel sentinel(primary_.port());
  AwaitReplicas(sentinel);
  RedisNode node(SentinelUrl(sentinel));
  const auto hourly = HourlyRule();
  node.store().Register(hourly);
  const auto take = [&] {
    return Acquire(node.store(), *hourly, "k", 4, {.settle_within_ns = 3600 * kSecond});
  };
  // Retries until Redis decides.
  const auto settle = [&](const Acquired& of, uint64_t actual) {
    for (int tries = 0;; ++tries) {
      const Settled settled =
          Settle(node.store(), of.receipt_id, {{hourly.get(), "k", 4}}, {actual});
      if (settled.outcome != store::SettleOutcome::kUnavailable || tries == 4000) return settled;
      PassTime(std::chrono::milliseconds(5));
    }
  };
  const Acquired before = take();
  const Acquired after = take();
  ASSERT_TRUE(before.granted());
  ASSERT_TRUE(after.granted());
  EXPECT_EQ(settle(before, 1).outcome, store::SettleOutcome::kSettled);
  RedisCalls calls(primary_);
  calls.Call({"SET", "behind:all", "1"});
  ASSERT_EQ(calls.Call({"WAIT", "2", "20000"}).integer, 2);
  primary_.Kill();
  ASSERT_TRUE(AwaitInfo(first_, "role:master"));
  const Settled again = settle(before, 1);
  EXPECT_EQ(again.outcome, store::SettleOutcome::kSettled);
  EXPECT_EQ(again.permits[0].given_back, 3u) << "the same answer";
  EXPECT_EQ(settle(before, 2).outcome, store::SettleOutcome::kAlreadySettled);
  EXPECT_EQ(settle(after, 4).outcome, store::SettleOutcome::kSettled);
  EXPECT_EQ(settle(after, 3).outcome, store::SettleOutcome::kAlreadySettled);
}

// Retries until Redis decides.
Acquired Book(RedisNode& node, const store::Rule& rule) {
  for (int i = 0;; ++i) {
    const Acquired booked =
        Acquire(node.store(), rule, "k", 1, {.max_wait_ns = 24 * 3600 * kSecond});
    // No node books without Redis.
    const bool away = booked.outcome == store::Outcome::kUnavailable ||
                      booked.outcome == store::Outcome::kUnsupported;
    if (!away || i == 4000) return booked;
    PassTime(std::chrono::milliseconds(5));
  }
}

TEST_F(RedisFailoverTest, PromotedServerNeverRepeatsLostGrantTimes) {
  RedisSentinel sentinel(primary_.port());
  AwaitReplicas(sentinel);
  RedisNode node(SentinelUrl(sentinel));
  auto gone = std::make_unique<RedisNode>(SentinelUrl(sentinel));
  const auto rule = MakeRule(2, algorithm::MakeTokenBucket({1, 60 * kSecond}, 1, 0).value());
  const auto other = MakeRule(3, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 1, 0).value());
  GrantHistory history(rule->parameters);
  const auto record = [&](const Acquired& booked) {
    EXPECT_TRUE(booked.granted());
    history.Add(booked.now_ns + booked.wait_ns, 1);
    return booked.now_ns + booked.wait_ns;
  };
  for (RedisNode* one : {&node, gone.get()}) {
    one->store().Register(rule);
    one->store().Register(other);
  }
  // The promoted server will have these, but their node is gone.
  ASSERT_TRUE(Book(*gone, *other).granted());
  const Acquired hourly = Book(*gone, *other);
  ASSERT_TRUE(hourly.granted());
  const std::string key = store::redis::KeysOf("sluice", other->limit_name, "k")[2];
  for (int i = 0; i < 2000; ++i) {
    if (RedisCalls(first_).Call({"EXISTS", key}).integer == 1) break;
    PassTime(std::chrono::milliseconds(5));
  }
  gone.reset();
  CutOff(first_);
  int64_t last_ns = 0;
  for (int i = 0; i < 90; ++i) last_ns = record(Book(node, *rule));
  EXPECT_GT(last_ns, hourly.now_ns + hourly.wait_ns);
  primary_.Kill();
  ASSERT_TRUE(AwaitInfo(first_, "role:master"));
  EXPECT_GT(record(Book(node, *rule)), last_ns);
  RedisNode late(SentinelUrl(sentinel));
  late.store().Register(rule);
  EXPECT_GT(record(Book(late, *rule)), last_ns);
  EXPECT_EQ(history.Check(), "");
}

// The node that promised is gone. Its promise is in the fence, which the promoted server has.
TEST_F(RedisFailoverTest, FloorIsAfterLastPromisedGrantTime) {
  RedisSentinel sentinel(primary_.port());
  AwaitReplicas(sentinel);
  const auto rule = MakeRule(4, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 1, 0).value());
  int64_t grant_time_ns = 0;
  {
    RedisNode gone(SentinelUrl(sentinel));
    gone.store().Register(rule);
    ASSERT_TRUE(Book(gone, *rule).granted());
    const Acquired booked = Book(gone, *rule);
    ASSERT_GT(booked.wait_ns, 0);
    grant_time_ns = booked.now_ns + booked.wait_ns;
  }
  const std::string key = store::redis::KeysOf("sluice", rule->limit_name, "k")[2];
  for (int i = 0; i < 2000; ++i) {
    if (RedisCalls(first_).Call({"EXISTS", key}).integer == 1) break;
    PassTime(std::chrono::milliseconds(5));
  }
  primary_.Kill();
  ASSERT_TRUE(AwaitInfo(first_, "role:master"));
  RedisNode late(SentinelUrl(sentinel));
  late.store().Register(rule);
  Acquired acquired;
  do {
    acquired = Acquire(late.store(), *rule, "another");
    PassTime(std::chrono::milliseconds(5));
  } while (acquired.outcome == store::Outcome::kUnavailable);
  EXPECT_EQ(acquired.outcome, store::Outcome::kDenied);
  EXPECT_GT(acquired.now_ns + acquired.retry_after_ns, grant_time_ns);
}

// Two nodes move to the promoted server, and one stays on the old primary while that still serves:
// the two sides see neither each other's buckets nor each other's shares.
TEST_F(RedisFailoverTest, NoWindowExceedsLimitWhileOldPrimaryStillServes) {
  RedisCalls(primary_).Call({"CONFIG", "SET", "min-replicas-max-lag", "2"});
  const std::string path = primary_.folder() + "/leads.sock";
  std::filesystem::create_symlink(primary_.socket_path(), path);
  LoadOptions options;
  options.several_charges = false;  // no acquisition of a split and an exact limit
  options.store.node_ttl_ns = 400'000'000;
  const size_t exact = options.limits.size();
  for (LoadedLimit& limit : LimitsOfNodes(store::Sharing::kSplit, false)) {
    limit.name = "split-" + limit.name;
    options.limits.push_back(std::move(limit));
  }
  SharedLoad load({"unix://" + primary_.socket_path(), "unix://" + path, "unix://" + path},
                  options);
  const auto await_divisor = [&](size_t n, uint32_t divisor) {
    while (load.node(n).store().Health().nodes[0].divisor != divisor) {
      ASSERT_TRUE(load.AwaitGrants(10));
    }
  };
  for (size_t n = 0; n < 3; ++n) await_divisor(n, 3);
  ASSERT_TRUE(load.AwaitGrants(1000));
  // Stays connected and is silent: the old primary counts it as good for its max-lag.
  second_.Pause();
  const uint64_t before = load.granted(0);
  Promote(first_);
  // Without a replica the promoted server would not serve.
  ReplicatedServer third(first_.port());
  std::filesystem::remove(path);
  std::filesystem::create_symlink(first_.socket_path(), path);
  RedisCalls(primary_).Call({"CLIENT", "KILL", "TYPE", "normal"});
  PassTime(std::chrono::milliseconds(500));
  EXPECT_GT(load.granted(0), before);
  ASSERT_TRUE(AwaitInfo(first_, "min_slaves_good_slaves:1"));
  ASSERT_TRUE(AwaitInfo(primary_, "min_slaves_good_slaves:0"));
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  // The old primary has stopped: the other nodes take the share of its node.
  for (size_t n = 1; n < 3; ++n) await_divisor(n, 2);
  EXPECT_TRUE(load.AwaitGrants(300, exact));
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.granted_locally(), 0u);
}

TEST_F(RedisFailoverTest, DetectsServerThatIsDemotedAndPromotedAgain) {
  SharedLoad load(std::vector<std::string>(3, "unix://" + primary_.socket_path()));
  ASSERT_TRUE(load.AwaitGrants(1000));
  CutOff(first_);
  ASSERT_TRUE(load.AwaitGrants(500));
  // It copies the lagging replica's data, and is promoted with that.
  ReplicaOf(primary_, "127.0.0.1", first_.port());
  Promote(first_);
  ASSERT_TRUE(AwaitInfo(primary_, "master_link_status:up"));
  Promote(primary_);
  ASSERT_TRUE(AwaitInfo(primary_, "min_slaves_good_slaves:1"));
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_EQ(load.Check(), "");
}

TEST_F(RedisFailoverTest, IdleNodeDetectsThatServerWasDemoted) {
  RedisNode node("unix://" + primary_.socket_path());
  const auto rule = HourlyRule();
  node.store().Register(rule);
  CutOff(first_);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k", 10).granted());
  // No caller asks meanwhile, and Redis closes no connection.
  ReplicaOf(primary_, "127.0.0.1", first_.port());
  Promote(first_);
  ASSERT_TRUE(AwaitInfo(primary_, "master_link_status:up"));
  Promote(primary_);
  ASSERT_TRUE(AwaitInfo(primary_, "min_slaves_good_slaves:1"));
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(Acquire(node.store(), *rule, "k").granted());
    PassTime(std::chrono::milliseconds(5));
  }
}

TEST_F(RedisFailoverTest, DebitsNothingWithoutReplicas) {
  RedisNode node("unix://" + primary_.socket_path());
  const auto rule = HourlyRule();
  node.store().Register(rule);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k", 4).granted());
  CutOff(first_);
  CutOff(second_);
  ASSERT_TRUE(AwaitInfo(primary_, "min_slaves_good_slaves:0"));
  EXPECT_EQ(Acquire(node.store(), *rule, "k").outcome, store::Outcome::kUnavailable);
  EXPECT_EQ(Acquire(node.store(), *rule, "k").outcome, store::Outcome::kUnavailable);
  ReplicaOf(second_, "127.0.0.1", primary_.port());
  ASSERT_TRUE(AwaitInfo(primary_, "min_slaves_good_slaves:1"));
  Acquired after;
  for (int i = 0; i < 2000 && !after.granted(); ++i) {
    after = Acquire(node.store(), *rule, "k");
    PassTime(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(after.charges[0].level.remaining, 5);
}

// ---- Topologies that will not do ----

absl::Status Connected(const std::string& url,
                       store::RedisStoreOptions options = PatientOptions()) {
  return RedisNode(url, options).connected();
}

TEST_F(RedisFailoverTest, ExplainsWrongTopology) {
  absl::Status status = Connected("unix://" + first_.socket_path());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(primary_.port())));

  RedisCalls(primary_).Call({"CONFIG", "SET", "min-replicas-to-write", "0"});
  status = Connected("unix://" + primary_.socket_path());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("min-replicas-to-write to 1"));
  store::RedisStoreOptions told = PatientOptions();
  told.allow_unguarded = true;
  EXPECT_TRUE(Connected("unix://" + primary_.socket_path(), told).ok());
}

TEST(RedisSentinelTest, ExplainsWrongSentinels) {
  ReplicatedServer alone;
  RedisSentinel sentinel(alone.port(), "secret");
  const std::string at = absl::StrCat("127.0.0.1:", sentinel.port());

  absl::Status status = Connected("redis-sentinel://127.0.0.1:1,127.0.0.1:2/primary");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1, 127.0.0.1:2"));

  status = Connected(absl::StrCat("redis-sentinel://127.0.0.1:1,", at, "/primary"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sentinel_password"));

  status = Connected(absl::StrCat("redis-sentinel://", at, "/primary?sentinel_password=guess"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("guess")));

  status = Connected(absl::StrCat("redis-sentinel://", at, "/other?sentinel_password=secret"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"other\""));

  status = Connected(absl::StrCat("redis-sentinel://127.0.0.1:", alone.port(), "/primary"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no Sentinel"));

  // It has no replicas yet, but could get them through Sentinel.
  const std::string good =
      absl::StrCat("redis-sentinel://", at, "/primary?sentinel_password=secret");
  status = Connected(good);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("min-replicas-to-write"));
  store::RedisStoreOptions told = PatientOptions();
  told.allow_unguarded = true;
  status = Connected(good, told);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace sluice::testing
