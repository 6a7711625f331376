// Several connections to one server, and callers that wait while all have max_in_flight commands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/redis/shard/batch_turns.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

store::RedisStoreOptions NarrowOptions() {
  store::RedisStoreOptions options = PatientOptions();
  options.max_in_flight = 2;
  options.max_connections = 3;
  // Many commands.
  options.max_script_runs = 1;
  return options;
}

size_t Connections(RedisServer& server) {
  const std::string list = RedisCalls(server).Call({"CLIENT", "LIST"}).text;
  // Without the test's own.
  return static_cast<size_t>(std::count(list.begin(), list.end(), '\n')) - 1;
}

std::shared_ptr<const store::Rule> ThreeAnHour() {
  return MakeRule(1, algorithm::MakeTokenBucket({3, 3'600'000'000'000}, 3, 0).value());
}

// Four callers for each of these buckets, in turns.
std::vector<std::vector<store::Charge>> FourOfEach(const store::Rule& rule,
                                                   const std::vector<std::string>& keys) {
  std::vector<std::vector<store::Charge>> batch;
  for (int turn = 0; turn < 4; ++turn) {
    for (const std::string& key : keys) batch.push_back({{&rule, key, 1}});
  }
  return batch;
}

std::vector<std::string> Keys(const std::string& prefix, int count) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back(absl::StrCat(prefix, i));
  return keys;
}

TEST(RedisConnectionsTest, OpensMoreConnectionsWhenFullAndKeepsOrderPerBucket) {
  RedisServer server;
  RedisNode node(server.url(), NarrowOptions());
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  ASSERT_EQ(Connections(server), 1u);
  int round = 0;
  do {
    const std::vector<std::string> keys = Keys(absl::StrCat("round", round++, ":"), 100);
    const std::vector<Acquired> answers = AcquireBatch(node.store(), FourOfEach(*rule, keys));
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_EQ(answers[i].granted(), i < 3 * keys.size()) << "caller " << i / keys.size();
      ASSERT_EQ(answers[i].source, store::Source::kStore);
    }
  } while (Connections(server) < 3);
  // And no more than max_connections.
  AcquireBatch(node.store(), FourOfEach(*rule, Keys("last:", 100)));
  EXPECT_EQ(Connections(server), 3u);
}

TEST(RedisConnectionsTest, KeepsServingWhenExtraConnectionBreaks) {
  RedisServer server;
  RedisNode node(server.url(), NarrowOptions());
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  for (int round = 0; Connections(server) < 3; ++round) {
    AcquireBatch(node.store(), FourOfEach(*rule, Keys(absl::StrCat("round", round, ":"), 100)));
  }
  // The newest connection of a node is an extra one.
  const std::string list = RedisCalls(server).Call({"CLIENT", "LIST"}).text;
  std::vector<std::string> ids;
  for (size_t at = 0; (at = list.find("id=", at)) != list.npos; at += 3) {
    if (at == 0 || list[at - 1] == '\n')
      ids.push_back(list.substr(at + 3, list.find(' ', at) - at - 3));
  }
  ASSERT_EQ(RedisCalls(server).Call({"CLIENT", "KILL", "ID", ids[2]}).integer, 1);
  EXPECT_TRUE(Acquire(node.store(), *rule, "k").granted());
  for (int round = 0; Connections(server) < 3; ++round) {
    AcquireBatch(node.store(), FourOfEach(*rule, Keys(absl::StrCat("again", round, ":"), 100)));
  }
}

TEST(RedisConnectionsTest, OneAcquisitionDoesNotWaitForManyBatchesBeforeIt) {
  struct Operation final : store::AcquireOperation {
    void Done() override { on_done(); }
    std::vector<store::Charge> charges;
    std::vector<store::ChargeResult> results;
    std::vector<store::Acquisition> all;
    std::function<void()> on_done = [] {};
  };
  constexpr size_t kBatches = 64;
  constexpr size_t kEach = 1024;
  RedisServer server;
  RedisNode node(server.url());
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  const std::vector<std::string> keys = Keys("k", kBatches * kEach + 2);
  const auto prepare = [&](Operation& operation, size_t first, size_t count) {
    operation.results.resize(count);
    operation.all.resize(count);
    for (size_t i = 0; i < count; ++i)
      operation.charges.push_back({rule.get(), keys[first + i], 1});
    for (size_t i = 0; i < count; ++i) {
      operation.all[i].charges = absl::MakeConstSpan(&operation.charges[i], 1);
      operation.all[i].results = &operation.results[i];
    }
    operation.acquisitions = absl::MakeSpan(operation.all);
  };
  std::vector<Operation> batches(kBatches);
  for (size_t b = 0; b < kBatches; ++b) prepare(batches[b], b * kEach, kEach);
  Operation one;
  Operation first;
  prepare(one, kBatches * kEach, 1);
  prepare(first, kBatches * kEach + 1, 1);
  size_t left = kBatches + 1;
  Notification all_done;
  const auto on_done = [&] {
    if (--left == 0) all_done.Notify();
  };
  size_t decided_before = 0;
  // All begins and ends are on the store's loop.
  first.on_done = [&] {
    for (Operation& batch : batches) {
      batch.on_done = on_done;
      node.store().Acquire(&batch);
    }
    one.on_done = [&] {
      for (const Operation& batch : batches) {
        for (const store::Acquisition& acquisition : batch.all) {
          decided_before += acquisition.outcome == store::Outcome::kPending ? 0 : 1;
        }
      }
      on_done();
    };
    node.store().Acquire(&one);
  };
  node.store().Acquire(&first);
  all_done.Wait();
  EXPECT_EQ(one.all[0].outcome, store::Outcome::kGranted);
  EXPECT_LE(decided_before, 2 * store::redis::BatchTurns::kMost);
  for (const Operation& batch : batches) {
    for (const store::Acquisition& acquisition : batch.all) {
      ASSERT_EQ(acquisition.outcome, store::Outcome::kGranted);
    }
  }
}

// Acquisitions of one permit of each key, that have been started together.
struct BatchUnderWay final : store::AcquireOperation {
  BatchUnderWay(store::Store& store, const store::Rule& rule, const std::vector<std::string>& keys)
      : results(keys.size()), all(keys.size()) {
    for (const std::string& key : keys) charges.push_back({&rule, key, 1});
    for (size_t i = 0; i < keys.size(); ++i) {
      all[i].charges = absl::MakeConstSpan(&charges[i], 1);
      all[i].results = &results[i];
    }
    acquisitions = absl::MakeSpan(all);
    store.Acquire(this);
  }
  void Done() override { done.Notify(); }

  std::vector<store::Charge> charges;
  std::vector<store::ChargeResult> results;
  std::vector<store::Acquisition> all;
  Notification done;
};

TEST(RedisConnectionsTest, BatchOfSplitLimitsDoesNotWaitForBatchesThatNeedRedis) {
  RedisServer server;
  store::RedisStoreOptions options = PatientOptions();
  options.budget_ns = 20'000'000'000;
  // A share lasts while Redis is paused.
  options.node_ttl_ns = 4'000'000'000;
  RedisNode node(server.url(), options);
  const auto rule = ThreeAnHour();
  const auto per_second = algorithm::MakeTokenBucket({1000, 1'000'000'000}, 1000, 0).value();
  auto split = std::make_shared<store::Rule>(*MakeRule(2, per_second));
  split->sharing = store::Sharing::kSplit;
  for (const auto& one : {rule, std::shared_ptr<const store::Rule>(split)}) {
    node.store().Register(one);
  }
  node.store().AwaitNodes();
  for (int tries = 0; !Acquire(node.store(), *split, "first").granted(); ++tries) {
    ASSERT_LT(tries, 2000);
    PassTime(std::chrono::milliseconds(10));
  }
  std::vector<std::vector<store::Charge>> batch;
  const std::vector<std::string> split_keys = Keys("s", store::redis::BatchTurns::kFew + 1);
  for (const std::string& key : split_keys) batch.push_back({{split.get(), key, 1}});
  const std::vector<std::string> keys = Keys("k", store::redis::BatchTurns::kMost + 1);
  server.Pause();
  BatchUnderWay waiting(node.store(), *rule, keys);
  AcquireOptions within;
  within.deadline_ns = node.clock().NowNs() + 3'000'000'000;
  for (const Acquired& answer : AcquireBatch(node.store(), batch, within)) {
    EXPECT_EQ(answer.outcome, store::Outcome::kGranted);
    EXPECT_EQ(answer.source, store::Source::kLocal);
  }
  server.Resume();
  waiting.done.Wait();
  for (const store::Acquisition& one : waiting.all) {
    ASSERT_EQ(one.outcome, store::Outcome::kGranted);
  }
}

// Room for one command and one connection.
store::RedisStoreOptions OneAtATime() {
  store::RedisStoreOptions options = PatientOptions();
  options.max_in_flight = 1;
  options.max_connections = 1;
  options.max_script_runs = 1;
  return options;
}

AcquireOptions Within(const RedisNode& node, int64_t ns) {
  AcquireOptions options;
  options.deadline_ns = node.clock().NowNs() + ns;
  return options;
}

// Ten times a second the node checks the fence, on the callers' connection. A caller that finds
// only that command in flight must still be sent.
TEST(RedisConnectionsTest, FenceChecksDoNotStarveCallers) {
  RedisServer server;
  RedisNode node(server.url(), OneAtATime());
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  // The number of INFO commands without this test's own.
  int own = 0;
  const auto asked = [&] {
    const std::string stats = RedisCalls(server).Call({"INFO", "commandstats"}).text;
    const size_t at = stats.find("cmdstat_info:calls=");
    return at == stats.npos ? 0 : std::stoi(stats.substr(at + 19)) - own++;
  };
  for (int round = 0; asked() < 30; ++round) {
    const std::vector<std::string> keys = Keys(absl::StrCat("round", round, ":"), 10);
    for (const Acquired& answer :
         AcquireBatch(node.store(), FourOfEach(*rule, keys), Within(node, 10'000'000'000))) {
      ASSERT_NE(answer.outcome, store::Outcome::kDeadlineExceeded);
    }
  }
}

// An acquisition of one permit that has been started.
struct UnderWay final : store::AcquireOperation {
  UnderWay(store::Store& store, const store::Rule& rule, std::string_view key,
           const AcquireOptions& options)
      : charge{&rule, key, 1} {
    acquisition.charges = absl::MakeConstSpan(&charge, 1);
    acquisition.results = &result;
    acquisitions = absl::MakeSpan(&acquisition, 1);
    deadline_ns = options.deadline_ns;
    store.Acquire(this);
  }
  void Done() override { done.Notify(); }
  store::Outcome Await() {
    done.Wait();
    return acquisition.outcome;
  }

  store::Charge charge;
  store::ChargeResult result;
  store::Acquisition acquisition;
  Notification done;
};

// A queued caller that times out passes its turn to the next.
// The fault tests run once more with one command in flight, so that scripts decide several buckets,
// and once more so that none does.
TEST(RedisConnectionsTest, CallersWhoComeWhileOneCommandIsInFlightShareAScript) {
  for (const bool together : {true, false}) {
    RedisServer server;
    LoadOptions options;
    options.clients = 32;
    options.store = OneAtATime();
    if (together) options.store.max_script_runs = store::RedisStoreOptions().max_script_runs;
    options.limits = {{"many", algorithm::MakeTokenBucket({1, 3'600'000'000'000}, 10, 0).value(),
                       /*most=*/1, /*keys=*/4096}};
    options.several_charges = false;
    options.refunds = false;
    SharedLoad load({server.url()}, options);
    EXPECT_TRUE(load.AwaitGrants(5000));
    EXPECT_EQ(load.Check(), "");
    const std::string stats = RedisCalls(server).Call({"INFO", "commandstats"}).text;
    const size_t at = stats.find("cmdstat_evalsha:calls=");
    ASSERT_NE(at, std::string::npos) << stats;
    const double scripts = std::stod(stats.substr(at + 22));
    const double decisions = static_cast<double>(load.node(0).store().Stats().decisions);
    if (together) {
      EXPECT_GT(decisions, 2 * scripts);
    } else {
      EXPECT_LT(decisions, 1.2 * scripts);
    }
  }
}

TEST(RedisConnectionsTest, CallerPastItsDeadlineDoesNotBlockQueue) {
  RedisServer server;
  RedisNode node(server.url(), OneAtATime());
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  server.Pause();
  UnderWay sent(node.store(), *rule, "sent", Within(node, 10'000'000'000));
  UnderWay left(node.store(), *rule, "left", Within(node, 100'000'000));
  UnderWay behind(node.store(), *rule, "behind", Within(node, 10'000'000'000));
  EXPECT_EQ(left.Await(), store::Outcome::kDeadlineExceeded);
  server.Resume();
  EXPECT_EQ(sent.Await(), store::Outcome::kGranted);
  EXPECT_EQ(behind.Await(), store::Outcome::kGranted);
}

// A query of several buckets, as one operation.
struct Questions final : store::QueryOperation {
  Questions(const store::Rule& rule, std::vector<std::string> of_keys)
      : keys(std::move(of_keys)), answers(keys.size()) {
    for (size_t i = 0; i < keys.size(); ++i) {
      answers[i].rule = &rule;
      answers[i].key = keys[i];
    }
    items = absl::MakeSpan(answers);
  }
  void Done() override { done.Notify(); }

  const std::vector<std::string> keys;
  std::vector<store::QueryItem> answers;
  Notification done;
};

// As many buckets as a node asks for at once, and one that has room for one command.
TEST(RedisConnectionsTest, QueriesAndRefundsWaitForRoomInOrder) {
  struct Refunding final : store::RefundOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  RedisServer server;
  RedisNode node(server.url(), OneAtATime());
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  const std::vector<std::string> keys = Keys("k", 64);
  AcquireOptions options;
  options.want_receipt = true;
  std::vector<std::vector<store::Charge>> charges;
  for (const std::string& key : keys) charges.push_back({{rule.get(), key, 2}});
  const std::vector<Acquired> acquired = AcquireBatch(node.store(), charges, options);

  Questions questions(*rule, keys);
  node.store().Query(&questions);
  std::vector<Refunding> refunds(keys.size());
  std::vector<uint64_t> refunded(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    refunds[i].receipt_id = acquired[i].receipt_id;
    refunds[i].charges = charges[i];
    refunds[i].refunded = &refunded[i];
    node.store().Refund(&refunds[i]);
  }
  questions.done.Wait();
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_FALSE(questions.answers[i].unavailable) << keys[i];
    // The query came before the refund.
    EXPECT_EQ(questions.answers[i].level.remaining, 1) << keys[i];
    refunds[i].done.Wait();
    EXPECT_EQ(refunds[i].outcome, store::RefundOutcome::kRefunded) << keys[i];
    EXPECT_EQ(Query(node.store(), *rule, keys[i]).level.remaining, 3) << keys[i];
  }
}

TEST(RedisConnectionsTest, DropsQueriesPastTheirDeadline) {
  RedisServer server;
  RedisNode node(server.url(), OneAtATime());
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  // After the first reply the node has identified its server.
  Query(node.store(), *rule, "first");
  RedisCalls calls(server);
  calls.Call({"CONFIG", "RESETSTAT"});
  server.Pause();
  Questions sent(*rule, {"sent"});
  Questions left(*rule, {"left"});
  left.deadline_ns = node.clock().NowNs() + 1'000'000;
  Questions behind(*rule, {"behind"});
  for (Questions* questions : {&sent, &left, &behind}) node.store().Query(questions);
  while (node.clock().NowNs() <= left.deadline_ns) {
  }
  server.Resume();
  for (Questions* questions : {&sent, &left, &behind}) questions->done.Wait();
  EXPECT_FALSE(sent.answers[0].unavailable);
  EXPECT_TRUE(left.answers[0].unavailable);
  EXPECT_FALSE(behind.answers[0].unavailable);
  EXPECT_THAT(calls.Call({"INFO", "commandstats"}).text,
              ::testing::HasSubstr("cmdstat_evalsha:calls=2,"));
}

// One is sent and ten wait; the others are rejected.
TEST(RedisConnectionsTest, RejectsCallersBeyondMaxWaiting) {
  RedisServer server;
  store::RedisStoreOptions options = OneAtATime();
  options.max_waiting = 10;
  RedisNode node(server.url(), options);
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  server.Pause();
  Questions questions(*rule, Keys("k", 100));
  Questions later(*rule, Keys("later", 1));
  node.store().Query(&questions);
  node.store().Query(&later);
  later.done.Wait();
  EXPECT_TRUE(later.answers[0].unavailable);
  server.Resume();
  questions.done.Wait();
  for (size_t i = 0; i < questions.answers.size(); ++i) {
    EXPECT_EQ(questions.answers[i].unavailable, i >= 11) << i;
  }
}

// A node with many queries keeps its shares of limits.
TEST(RedisConnectionsTest, HeartbeatsOvertakeCallersThatWaitForRoom) {
  RedisServer server;
  store::RedisStoreOptions options = OneAtATime();
  options.node_ttl_ns = 400'000'000;
  RedisNode node(server.url(), options);
  const auto rule = ThreeAnHour();
  auto split = std::make_shared<store::Rule>(*ThreeAnHour());
  split->sharing = store::Sharing::kSplit;
  node.store().Register(rule);
  node.store().Register(split);
  node.store().AwaitNodes();
  RedisCalls calls(server);
  calls.Call({"CONFIG", "RESETSTAT"});
  const std::vector<std::string> keys = Keys("k", 20'000);
  Questions questions(*rule, keys);
  node.store().Query(&questions);
  questions.done.Wait();
  // Heartbeats are an eighth of the time to live apart, and the queries take much longer.
  EXPECT_THAT(calls.Call({"INFO", "commandstats"}).text,
              ::testing::ContainsRegex("cmdstat_hset:calls=([3-9]|[0-9][0-9])"));
}

// Every waiting query is answered when the server goes down or the node stops.
TEST(RedisConnectionsTest, AnswersWaitingQueriesWhenServerOrNodeStops) {
  RedisServer server;
  const auto rule = ThreeAnHour();
  const std::vector<std::string> keys = Keys("k", 100);
  for (const int64_t budget_ns : {int64_t{50'000'000}, int64_t{20'000'000'000}}) {
    store::RedisStoreOptions options = OneAtATime();
    options.budget_ns = budget_ns;
    RedisNode node(server.url(), options);
    node.store().Register(rule);
    server.Pause();
    Questions questions(*rule, keys);
    node.store().Query(&questions);
    if (budget_ns > 1'000'000'000) node.Stop();
    questions.done.Wait();
    for (const store::QueryItem& item : questions.answers)
      EXPECT_TRUE(item.unavailable) << item.key;
    server.Resume();
  }
}

// On two servers of a Cluster; the callers of the paused one came first.
TEST(RedisConnectionsTest, FullServerDoesNotBlockCallersOfAnother) {
  RedisCluster cluster({.node_timeout_ms = 15'000});
  store::RedisStoreOptions options = OneAtATime();
  options.budget_ns = 15'000'000'000;
  RedisNode node(cluster.url(), options);
  const auto rule = Hourly(1);
  node.store().Register(rule);
  std::vector<std::string> at_paused;
  std::vector<std::string> at_other;
  for (int i = 0; i < 3; ++i) {
    at_paused.push_back(KeyAt(cluster, *rule, 0, i));
    at_other.push_back(KeyAt(cluster, *rule, 1, i));
  }
  cluster.server(0).Pause();
  std::vector<std::unique_ptr<UnderWay>> paused;
  std::vector<std::unique_ptr<UnderWay>> other;
  for (const std::string& key : at_paused) {
    paused.push_back(
        std::make_unique<UnderWay>(node.store(), *rule, key, Within(node, 14'000'000'000)));
  }
  for (const std::string& key : at_other) {
    other.push_back(
        std::make_unique<UnderWay>(node.store(), *rule, key, Within(node, 10'000'000'000)));
  }
  for (const auto& one : other) EXPECT_EQ(one->Await(), store::Outcome::kGranted);
  cluster.server(0).Resume();
  for (const auto& one : paused) EXPECT_EQ(one->Await(), store::Outcome::kGranted);
}

TEST(RedisConnectionsTest, AnswersAllWaitingCallersWhenServerGoesDown) {
  RedisServer server;
  store::RedisStoreOptions options = NarrowOptions();
  options.budget_ns = 50'000'000;
  RedisNode node(server.url(), options);
  const auto rule = ThreeAnHour();
  node.store().Register(rule);
  server.Pause();
  const std::vector<std::string> keys = Keys("k", 100);
  for (const Acquired& answer : AcquireBatch(node.store(), FourOfEach(*rule, keys))) {
    EXPECT_EQ(answer.outcome, store::Outcome::kUnavailable);
  }
  server.Resume();
  while (Acquire(node.store(), *rule, "other").outcome == store::Outcome::kUnavailable) {
  }
  // Two batches were sent. The others were never debited, as a node with a longer budget shows.
  RedisNode patient(server.url());
  patient.store().Register(rule);
  int granted = 0;
  for (const Acquired& answer : AcquireBatch(patient.store(), FourOfEach(*rule, keys))) {
    granted += answer.granted() ? 1 : 0;
  }
  EXPECT_GE(granted, 3 * 100 - 2 * 4);
}

}  // namespace
}  // namespace sluice::testing
