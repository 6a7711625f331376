// What becomes of quotas when another server takes the primary's place, by Sentinel or by hand:
// no window holds more than it may, though the promoted one lacks the last writes, and though the
// old one may go on for a while.
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
#include "server/store/redis/wire/stored_bucket.h"
#include "tests/support/grant_history.h"
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

void PassTime(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

std::string Info(RedisServer& server) {
  return RedisCalls(server).Call({"INFO", "replication"}).text;
}

// False: it did not come about in 20 s.
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
// It stays what it is, and hears no more of its primary.
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
    // One of them is never there.
    return absl::StrCat("redis-sentinel://127.0.0.1:1,127.0.0.1:", sentinel.port(), "/primary");
  }
  // Until it could be promoted.
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

TEST_F(RedisFailoverTest, SentinelPromotesAReplicaThatLags) {
  RedisSentinel sentinel(primary_.port());
  AwaitReplicas(sentinel);
  SharedLoad load(std::vector<std::string>(3, SentinelUrl(sentinel)));
  ASSERT_TRUE(load.AwaitGrants(1000));
  const auto hourly = HourlyRule();
  for (size_t n = 0; n < 3; ++n) load.node(n).store().Register(hourly);
  CutOff(first_);
  // What is granted now the promoted one will not know.
  ASSERT_TRUE(Acquire(load.node(0).store(), *hourly, "k", 10).granted());
  ASSERT_TRUE(load.AwaitGrants(500));
  primary_.Kill();
  ASSERT_TRUE(AwaitInfo(first_, "role:master"));
  // Of the bucket and of a window: what is granted is granted by the new primary.
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.unavailable(), 0u);
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(Acquire(load.node(n).store(), *hourly, "k").outcome, store::Outcome::kDenied);
  }
}

// Waits until Redis decides.
Acquired Book(RedisNode& node, const store::Rule& rule) {
  for (int i = 0;; ++i) {
    const Acquired booked =
        Acquire(node.store(), rule, "k", 1, {.max_wait_ns = 24 * 3600 * kSecond});
    // Nobody books without Redis.
    const bool away = booked.outcome == store::Outcome::kUnavailable ||
                      booked.outcome == store::Outcome::kUnsupported;
    if (!away || i == 4000) return booked;
    PassTime(std::chrono::milliseconds(5));
  }
}

TEST_F(RedisFailoverTest, MomentsThatThePromotedServerLacksAreNotGivenAgain) {
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
  // These the promoted one will have, though not who made them.
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

// Who promised is gone, and what was promised is in the fence that the promoted server has.
TEST_F(RedisFailoverTest, TheFloorIsNotBeforeTheLastPromise) {
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

// Some nodes move to the promoted server, and one is answered by the old one for as long as that
// goes on: the two sides hear of each other no more, neither of buckets nor of shares.
TEST_F(RedisFailoverTest, TheOldPrimaryGoesOnForAWhile) {
  RedisCalls(primary_).Call({"CONFIG", "SET", "min-replicas-max-lag", "2"});
  const std::string path = primary_.folder() + "/leads.sock";
  std::filesystem::create_symlink(primary_.socket_path(), path);
  LoadOptions options;
  options.several_charges = false;  // of a limit that is split and one that is not
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
  // Stays connected, and says nothing more: for its max-lag the old primary counts on it.
  second_.Pause();
  const uint64_t before = load.granted(0);
  Promote(first_);
  // A replica of its own, without which it would not serve.
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
  // Now that it has stopped the others take the share of the one that it served.
  for (size_t n = 1; n < 3; ++n) await_divisor(n, 2);
  EXPECT_TRUE(load.AwaitGrants(300, exact));
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.granted_locally(), 0u);
}

TEST_F(RedisFailoverTest, TheSameServerIsDemotedAndPromotedAgain) {
  SharedLoad load(std::vector<std::string>(3, "unix://" + primary_.socket_path()));
  ASSERT_TRUE(load.AwaitGrants(1000));
  CutOff(first_);
  ASSERT_TRUE(load.AwaitGrants(500));
  // It takes over what the lagging one has, and comes back with that.
  ReplicaOf(primary_, "127.0.0.1", first_.port());
  Promote(first_);
  ASSERT_TRUE(AwaitInfo(primary_, "master_link_status:up"));
  Promote(primary_);
  ASSERT_TRUE(AwaitInfo(primary_, "min_slaves_good_slaves:1"));
  EXPECT_TRUE(load.AwaitGrants(300, 0));
  EXPECT_TRUE(load.AwaitGrants(100, 3));
  EXPECT_EQ(load.Check(), "");
}

TEST_F(RedisFailoverTest, AnIdleNodeNoticesThatItsServerWasAway) {
  RedisNode node("unix://" + primary_.socket_path());
  const auto rule = HourlyRule();
  node.store().Register(rule);
  CutOff(first_);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k", 10).granted());
  // Nobody asks meanwhile, and Redis breaks no connection.
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

TEST_F(RedisFailoverTest, WithoutReplicasNothingIsDebited) {
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

TEST_F(RedisFailoverTest, SaysWhatIsWrongWithTheTopology) {
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

TEST(RedisSentinelTest, SaysWhatIsWrongWithTheSentinels) {
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

  // It has no replicas yet, but would get them by Sentinel.
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
