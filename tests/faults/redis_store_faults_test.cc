// When Redis or the connection to it fails, no window exceeds its limit and no caller waits for
// long.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kRate = 1000;
constexpr uint64_t kBurst = 50;

std::shared_ptr<const store::Rule> RuleOf(bool allow_on_failure = false) {
  auto rule = std::make_shared<store::Rule>(
      *MakeRule(1, algorithm::MakeTokenBucket({kRate, kSecond}, kBurst, 0).value()));
  rule->limit_name = "api";
  rule->allow_when_store_unavailable = allow_on_failure;
  return rule;
}

// Load by three nodes.
std::unique_ptr<SharedLoad> LoadOn(const std::string& url, LoadOptions options = {}) {
  return std::make_unique<SharedLoad>(std::vector<std::string>(3, url), std::move(options));
}
// With a budget that no busy machine exceeds.
LoadOptions PatientLoad() {
  LoadOptions options;
  options.store.budget_ns = 60 * kSecond;
  return options;
}

TEST(RedisStoreFaultsTest, NoWindowExceedsLimitWithoutFaults) {
  RedisServer server;
  const auto load = LoadOn(server.url(), PatientLoad());
  EXPECT_TRUE(load->AwaitGrants(3000));
  EXPECT_EQ(load->Check(), "");
  EXPECT_EQ(load->unavailable(), 0u);
}

TEST(RedisStoreFaultsTest, PausedRedisBlocksNoCaller) {
  RedisServer server;
  const auto load = LoadOn(server.url());
  ASSERT_TRUE(load->AwaitGrants(500));
  server.Pause();
  // ./dev faults: as long as a real pause.
  PassTime(std::chrono::seconds(std::getenv("SLUICE_LONG_FAULTS") != nullptr ? 5 : 1));
  EXPECT_GT(load->unavailable(), 100u);
  server.Resume();
  EXPECT_TRUE(load->AwaitGrants(1000));
  EXPECT_EQ(load->Check(), "");
  EXPECT_LT(load->longest_ns(), kSecond);
}

TEST(RedisStoreFaultsTest, RestartedRedisWithCompleteFileKeepsState) {
  RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
  const auto load = LoadOn(server.url());
  ASSERT_TRUE(load->AwaitGrants(500));
  server.Kill();
  PassTime(std::chrono::milliseconds(300));
  server.Start();
  EXPECT_TRUE(load->AwaitGrants(1000));
  EXPECT_EQ(load->Check(), "");
  EXPECT_GT(load->unavailable(), 0u);
}

TEST(RedisStoreFaultsTest, ReloadsFlushedScriptsWithoutError) {
  RedisServer server;
  const auto load = LoadOn(server.url(), PatientLoad());
  RedisCalls calls(server);
  for (int i = 0; i < 20; ++i) {
    calls.Call({"SCRIPT", "FLUSH"});
    ASSERT_TRUE(load->AwaitGrants(100));
  }
  EXPECT_EQ(load->Check(), "");
  EXPECT_EQ(load->unavailable(), 0u);
}

TEST(RedisStoreFaultsTest, LostRepliesCountAsSpent) {
  RedisServer server;
  const std::string path = server.folder() + "/proxy.sock";
  FaultProxy proxy(server.socket_path(), path);
  const auto load = LoadOn("unix://" + path);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(load->AwaitGrants(100));
    proxy.Inject(FaultProxy::Fault::kLoseReply);
  }
  ASSERT_TRUE(load->AwaitGrants(500));
  EXPECT_TRUE(proxy.injected());
  EXPECT_EQ(load->Check(), "");
  EXPECT_GT(load->unavailable(), 0u);
}

TEST(RedisStoreFaultsTest, NeverRetriesAfterLostReply) {
  RedisServer server;
  const std::string path = server.folder() + "/proxy.sock";
  FaultProxy proxy(server.socket_path(), path);
  RedisNode node("unix://" + path);
  ASSERT_TRUE(node.connected().ok());
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 10, 0).value());
  node.store().Register(rule);
  EXPECT_TRUE(Acquire(node.store(), *rule, "k", 2).granted());
  proxy.Inject(FaultProxy::Fault::kLoseReply);
  const Acquired lost = Acquire(node.store(), *rule, "k", 3);
  EXPECT_EQ(lost.outcome, Outcome::kUnavailable);
  EXPECT_TRUE(lost.may_be_debited);
  RedisNode other(server.url());
  other.store().Register(rule);
  // 10 - 2 - 3: once, and not given back.
  EXPECT_EQ(Query(other.store(), *rule, "k").level.remaining, 5);
}

TEST(RedisStoreFaultsTest, ResetReportsWhetherItHappened) {
  RedisServer server;
  const std::string path = server.folder() + "/proxy.sock";
  FaultProxy proxy(server.socket_path(), path);
  RedisNode node("unix://" + path);
  ASSERT_TRUE(node.connected().ok());
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 10, 0).value());
  node.store().Register(rule);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k").granted());
  proxy.Inject(FaultProxy::Fault::kLoseReply);
  EXPECT_EQ(ResetKey(node.store(), *rule, "k"), store::ResetOutcome::kUnknown);
  while (Query(node.store(), *rule, "k").unavailable) std::this_thread::yield();
  EXPECT_EQ(ResetKey(node.store(), *rule, "k"), store::ResetOutcome::kNotInUse);
  server.Kill();
  // The first failed command opens the circuit breaker.
  while (!Query(node.store(), *rule, "k").unavailable) std::this_thread::yield();
  EXPECT_EQ(ResetKey(node.store(), *rule, "k"), store::ResetOutcome::kUnavailable);
}

TEST(RedisStoreFaultsTest, AllowOnFailureGrantsWhileRedisIsDown) {
  RedisServer server;
  RedisNode node(server.url());
  const auto allow = RuleOf(/*allow_on_failure=*/true);
  const auto deny = RuleOf();
  node.store().Register(allow);
  node.store().Register(deny);
  ASSERT_TRUE(Acquire(node.store(), *allow, "a").granted());
  server.Kill();
  const Acquired away = Acquire(node.store(), *allow, "a");
  EXPECT_TRUE(away.granted());
  EXPECT_EQ(away.source, store::Source::kStoreUnavailable);
  EXPECT_EQ(away.charges[0].reason, store::Reason::kStoreUnavailable);
  EXPECT_EQ(Acquire(node.store(), *deny, "d").outcome, Outcome::kUnavailable);
  EXPECT_EQ(Acquire(node.store(), {{allow.get(), "a", 1}, {deny.get(), "d", 1}}).outcome,
            Outcome::kUnavailable);
  EXPECT_TRUE(Query(node.store(), *allow, "a").unavailable);
}

TEST(RedisStoreFaultsTest, AnswersAtDeadline) {
  RedisServer server;
  store::RedisStoreOptions options = PatientOptions();
  options.budget_ns = 60 * kSecond;
  RedisNode node(server.url(), options);
  const auto rule = RuleOf();
  node.store().Register(rule);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k").granted());
  server.Pause();
  const auto outcome = [&] {
    return Acquire(node.store(), *rule, "k", 1, {.deadline_ns = node.clock().NowNs() + kSecond})
        .outcome;
  };
  // The first is in flight and may be executed; the second waits behind it.
  const uint64_t sent = node.store().Stats().commands;
  std::thread first([&] { EXPECT_EQ(outcome(), Outcome::kUnavailable); });
  while (node.store().Stats().commands == sent) std::this_thread::yield();
  EXPECT_EQ(outcome(), Outcome::kDeadlineExceeded);
  first.join();
  server.Resume();
}

TEST(RedisStoreFaultsTest, RedisOutOfMemoryDebitsNothingAndRecovers) {
  RedisServer server;
  RedisNode node(server.url());
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 10, 0).value());
  node.store().Register(rule);
  RedisCalls calls(server);
  calls.Call({"CONFIG", "SET", "maxmemory", "1"});
  const Acquired refused = Acquire(node.store(), *rule, "k");
  EXPECT_EQ(refused.outcome, Outcome::kUnavailable);
  EXPECT_FALSE(refused.may_be_debited);
  calls.Call({"CONFIG", "SET", "maxmemory", "0"});
  const Acquired acquired = Acquire(node.store(), *rule, "k");
  EXPECT_TRUE(acquired.granted());
  EXPECT_EQ(acquired.charges[0].level.remaining, 9);
}

TEST(RedisStoreFaultsTest, NoWindowExceedsLimitWhenRedisRunsOutOfMemory) {
  RedisServer server;
  const auto load = LoadOn(server.url());
  RedisCalls calls(server);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(load->AwaitGrants(500));
    const uint64_t before = load->unavailable();
    calls.Call({"CONFIG", "SET", "maxmemory", "1"});
    while (load->unavailable() < before + 100) PassTime(std::chrono::milliseconds(1));
    calls.Call({"CONFIG", "SET", "maxmemory", "0"});
  }
  EXPECT_TRUE(load->AwaitGrants(500));
  EXPECT_EQ(load->Check(), "");
}

TEST(RedisStoreFaultsTest, LeavesKeyOfAnotherTypeUnchanged) {
  RedisServer server;
  RedisNode node(server.url());
  const auto rule = RuleOf();
  node.store().Register(rule);
  RedisCalls calls(server);
  const std::string list = store::redis::KeysOf("sluice", "api", "list")[0];
  const std::string text = store::redis::KeysOf("sluice", "api", "text")[0];
  calls.Call({"RPUSH", list, "theirs"});
  calls.Call({"SET", text, "theirs"});
  EXPECT_EQ(Acquire(node.store(), *rule, "list").outcome, Outcome::kUnavailable);
  EXPECT_EQ(Acquire(node.store(), *rule, "text").outcome, Outcome::kUnavailable);
  EXPECT_EQ(calls.Call({"GET", text}).text, "theirs");
  EXPECT_TRUE(Acquire(node.store(), *rule, "other").granted());
}

TEST(RedisStoreFaultsTest, NodesWithDifferentParametersConvertAndNeverGrantMore) {
  RedisServer server;
  RedisNode one(server.url());
  RedisNode two(server.url());
  const auto ten = MakeRule(1, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 10, 0).value());
  const auto twenty = MakeRule(1, algorithm::MakeTokenBucket({2, 3600 * kSecond}, 20, 0).value());
  one.store().Register(ten);
  two.store().Register(twenty);
  EXPECT_TRUE(Acquire(one.store(), *ten, "k", 5).granted());
  EXPECT_EQ(Acquire(two.store(), *twenty, "k", 4).charges[0].level.remaining, 6);
  EXPECT_EQ(Acquire(one.store(), *ten, "k", 3).charges[0].level.remaining, 0);
  EXPECT_FALSE(Acquire(two.store(), *twenty, "k").granted());
}

// ---- Servers that are refused ----

absl::Status Connected(const std::string& url) {
  RedisNode node(url);
  return node.connected();
}

TEST(RedisStoreStartTest, RefusesEveryPolicyThatCanEvictBuckets) {
  RedisServer server({"--maxmemory", "100mb"});
  RedisCalls calls(server);
  for (const char* policy : {"volatile-lru", "allkeys-lru", "volatile-lfu", "allkeys-lfu",
                             "volatile-random", "allkeys-random", "volatile-ttl"}) {
    ASSERT_EQ(calls.Call({"CONFIG", "SET", "maxmemory-policy", policy}).text, "OK");
    const absl::Status status = Connected(server.url());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << policy;
    EXPECT_THAT(std::string(status.message()), HasSubstr(policy));
  }
  calls.Call({"CONFIG", "SET", "maxmemory-policy", "noeviction"});
  EXPECT_TRUE(Connected(server.url()).ok());
}

TEST(RedisStoreStartTest, ExplainsWrongServer) {
  RedisServer evicting({"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"});
  absl::Status status = Connected(evicting.url());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("allkeys-lru"));
  store::RedisStoreOptions told = PatientOptions();
  told.allow_eviction = true;
  EXPECT_TRUE(RedisNode(evicting.url(), told).connected().ok());

  RedisServer replica({"--replicaof", "127.0.0.1", "1"});
  status = Connected(replica.url());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));

  status = Connected("unix:///nowhere/redis.sock");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

// Several event loops, each with a thread that Begin starts.
class LateLoops {
 public:
  LateLoops(const std::string& url, size_t count) : threads_(count) {
    store::RedisStoreOptions options = PatientOptions();
    options.url = store::redis::RedisUrl::Parse(url).value();
    std::vector<net::EventLoop*> each;
    for (size_t i = 0; i < count; ++i) {
      loops_.push_back(net::EventLoop::Create(clock_).value());
      each.push_back(loops_.back().get());
    }
    store_ = store::RedisStore::Create(clock_, each, resolver_, options, nullptr).value();
  }
  ~LateLoops() {
    for (size_t i = 0; i < loops_.size(); ++i) {
      loops_[i]->Stop();
      if (threads_[i].joinable()) threads_[i].join();
    }
  }
  void Begin(size_t loop) {
    threads_[loop] = std::thread([this, loop] { loops_[loop]->Run(); });
  }
  store::RedisStore& store() { return *store_; }

 private:
  const common::SystemClock clock_;
  std::vector<std::unique_ptr<net::EventLoop>> loops_;
  net::Resolver resolver_;
  std::unique_ptr<store::RedisStore> store_;
  std::vector<std::thread> threads_;
};

TEST(RedisStoreStartTest, CallerBeforeFirstConnectionWaitsForIt) {
  RedisServer server;
  LateLoops loops(server.url(), 1);
  const auto rule = RuleOf();
  loops.store().Register(rule);
  Outcome outcome = Outcome::kUnavailable;
  std::atomic<bool> asked = false;
  std::thread caller([&] {
    asked = true;
    outcome = Acquire(loops.store(), *rule, "k").outcome;
  });
  // Leaves the caller time to ask before the loop runs.
  while (!asked) std::this_thread::yield();
  PassTime(std::chrono::milliseconds(10));
  loops.Begin(0);
  caller.join();
  EXPECT_EQ(outcome, Outcome::kGranted);
}

TEST(RedisStoreStartTest, AwaitsFirstConnectionOfEachLoop) {
  RedisServer server;
  LateLoops loops(server.url(), 3);
  std::atomic<bool> awaited = false;
  std::thread waiter([&] {
    EXPECT_TRUE(loops.store().AwaitFirstConnections().ok());
    awaited = true;
  });
  loops.Begin(0);
  loops.Begin(2);
  PassTime(std::chrono::milliseconds(50));
  EXPECT_FALSE(awaited);
  loops.Begin(1);
  waiter.join();
}

TEST(RedisStoreStartTest, LogsInAndNamesMissingPermission) {
  RedisServer server({"--requirepass", "secret"});
  const std::string path = server.socket_path();
  EXPECT_EQ(Connected(server.url()).code(), absl::StatusCode::kUnauthenticated);
  const absl::Status wrong = Connected("unix://:guess@" + path);
  EXPECT_EQ(wrong.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(wrong.message().find("guess"), absl::string_view::npos);
  EXPECT_TRUE(Connected("unix://:secret@" + path + "?db=3").ok());
  EXPECT_FALSE(Connected("unix://:secret@" + path + "?db=99").ok());

  RedisCalls calls(server);
  calls.Call({"AUTH", "secret"});
  calls.Call({"ACL", "SETUSER", "limited", "on", ">pass", "~sluice:*", "+info"});
  const absl::Status limited = Connected("unix://limited:pass@" + path);
  EXPECT_EQ(limited.code(), absl::StatusCode::kPermissionDenied) << limited;
  EXPECT_THAT(std::string(limited.message()), HasSubstr("+evalsha"));
  calls.Call({"ACL",      "SETUSER", "node",    "on",           ">pass",    "~sluice:*",
              "+info",    "+ping",   "+select", "+script|load", "+evalsha", "+time",
              "+get",     "+mget",   "+set",    "+setrange",    "+del",     "+exists",
              "+pexpire", "+lrange", "+llen",   "+rpush",       "+ltrim",   "+lset",
              "+object",  "+append", "+hget",   "+hmget",       "+hset",    "+hdel"});
  RedisNode node("unix://node:pass@" + path);
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto bucket = RuleOf();
  const auto log = MakeRule(2, algorithm::MakeSlidingLog({5, kSecond}).value());
  node.store().Register(bucket);
  node.store().Register(log);
  const Acquired taken =
      Acquire(node.store(), {{bucket.get(), "a", 1}, {log.get(), "a", 1}}, {.want_receipt = true});
  EXPECT_TRUE(taken.granted());
  EXPECT_EQ(
      Refund(node.store(), taken.receipt_id, {{bucket.get(), "a", 1}, {log.get(), "a", 1}}).outcome,
      store::RefundOutcome::kRefunded);
  // Bookings, by a node that does not know the bucket and by one that does.
  RedisNode other("unix://node:pass@" + path);
  other.store().Register(log);
  for (RedisNode* one : {&node, &other, &node}) {
    EXPECT_TRUE(
        Acquire(one->store(), {{log.get(), "later", 5}}, {.max_wait_ns = 9 * kSecond}).granted());
  }
  // A bucket that still exists when it is reset, which needs DEL.
  const auto slow = MakeRule(3, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 5, 0).value());
  node.store().Register(slow);
  EXPECT_TRUE(Acquire(node.store(), *slow, "a").granted());
  EXPECT_TRUE(Reset(node.store(), *slow, "a"));
}

TEST(RedisStoreStartTest, DecidesWithoutTheRightsToMgetAndSetrangeAndSaysSoOnce) {
  RedisServer server;
  RedisCalls calls(server);
  calls.Call({"ACL", "SETUSER", "node", "on", ">pass", "~sluice:*", "+@all", "-mget", "-setrange"});
  const std::string url = "unix://node:pass@" + server.socket_path();
  int log_pipe[2];
  ASSERT_EQ(pipe2(log_pipe, O_NONBLOCK | O_CLOEXEC), 0);
  const common::SystemClock clock;
  common::Log log(clock, common::LogLevel::kInfo, log_pipe[1]);
  for (int i = 0; i < 2; ++i) {
    RedisNode node(url, PatientOptions(), &clock, &log);
    ASSERT_TRUE(node.connected().ok()) << node.connected();
    const auto rule = RuleOf();
    node.store().Register(rule);
    std::vector<std::vector<store::Charge>> batch;
    for (const char* const key : {"a", "b", "c"}) batch.push_back({{rule.get(), key, 1}});
    for (const Acquired& acquired : AcquireBatch(node.store(), batch)) {
      EXPECT_TRUE(acquired.granted());
    }
  }
  char logged[8192] = {};
  ASSERT_GT(read(log_pipe[0], logged, sizeof(logged) - 1), 0);
  close(log_pipe[0]);
  close(log_pipe[1]);
  const std::string_view lines(logged);
  const size_t first = lines.find("redis_missing_rights");
  ASSERT_NE(first, std::string_view::npos) << lines;
  EXPECT_EQ(lines.find("redis_missing_rights", first + 1), std::string_view::npos) << lines;
}

}  // namespace
}  // namespace sluice::testing
