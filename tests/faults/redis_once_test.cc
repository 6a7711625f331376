// Acquisitions with request ids take their permits once, whatever is lost between the caller, its
// node and Redis.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDay = 24 * 3600 * kSecond;

std::shared_ptr<const store::Rule> RuleOf(uint64_t burst, int64_t period_ns = 3600 * kSecond) {
  return MakeRule(1, algorithm::MakeTokenBucket({1, period_ns}, burst, 0).value());
}

store::Once IdOf(uint64_t number) {
  store::Once once;
  once.id = {{number, 1}};
  once.fingerprint = 1;
  return once;
}

Acquired Ask(RedisNode& node, const store::Rule& rule, uint64_t id, AcquireOptions options = {}) {
  store::Once once = IdOf(id);
  options.once = &once;
  return Acquire(node.store(), rule, "k", 1, options);
}

// A node behind a proxy that loses answers, and a second one that is asked again.
class RedisOnceTest : public ::testing::Test {
 protected:
  void Use(const std::shared_ptr<const store::Rule>& rule) {
    ASSERT_TRUE(first_.connected().ok()) << first_.connected();
    ASSERT_TRUE(second_.connected().ok()) << second_.connected();
    first_.store().Register(rule);
    second_.store().Register(rule);
  }

  RedisServer server_;
  const std::string path_ = server_.folder() + "/proxy.sock";
  FaultProxy proxy_{server_.socket_path(), path_};
  RedisNode first_{"unix://" + path_};
  RedisNode second_{server_.url()};
};

TEST_F(RedisOnceTest, LostAnswersAreRepeatedByAnotherNode) {
  constexpr uint64_t kCalls = 1000;
  const auto rule = RuleOf(10 * kCalls);
  Use(rule);
  uint64_t lost = 0;
  uint64_t repeated = 0;
  for (uint64_t id = 0; id < kCalls; ++id) {
    if (id % 10 == 0) {
      proxy_.Inject(id % 20 == 0 ? FaultProxy::Fault::kLoseReply : FaultProxy::Fault::kReset);
    }
    const bool want_receipt = id % 3 == 0;
    const Acquired first = Ask(first_, *rule, id, {.want_receipt = want_receipt});
    if (first.granted()) {
      EXPECT_FALSE(first.repeated);
      continue;
    }
    ASSERT_EQ(first.outcome, Outcome::kUnavailable);
    ++lost;
    const Acquired second = Ask(second_, *rule, id, {.want_receipt = want_receipt});
    ASSERT_TRUE(second.granted());
    EXPECT_EQ(second.receipt_id != 0, want_receipt);
    repeated += second.repeated ? 1 : 0;
    // Nothing was sent twice because of that.
    EXPECT_TRUE(Ask(second_, *rule, id, {.want_receipt = want_receipt}).repeated);
  }
  EXPECT_GT(lost, 0u);
  EXPECT_GT(repeated, 0u);
  EXPECT_EQ(Query(second_.store(), *rule, "k").level.remaining, static_cast<int64_t>(9 * kCalls));
}

TEST_F(RedisOnceTest, LostReservationsAreRepeatedByAnotherNode) {
  constexpr uint64_t kCalls = 300;
  const auto rule = RuleOf(1, kSecond);
  Use(rule);
  uint64_t repeated = 0;
  const AcquireOptions ahead = {.max_wait_ns = kDay};
  for (uint64_t id = 0; id < kCalls; ++id) {
    // The reading or the replacement.
    if (id % 5 == 0) proxy_.Inject(FaultProxy::Fault::kLoseReply, 1, static_cast<int>(id / 5 % 2));
    if (Ask(first_, *rule, id, ahead).granted()) continue;
    const Acquired second = Ask(second_, *rule, id, ahead);
    ASSERT_TRUE(second.granted());
    repeated += second.repeated ? 1 : 0;
  }
  EXPECT_GT(repeated, 0u);
  // One in each second.
  const store::QueryItem item = Query(second_.store(), *rule, "k");
  EXPECT_LE(item.waiting, kCalls - 1);
  EXPECT_LE(item.level.reset_after_ns, static_cast<int64_t>(kCalls) * kSecond);
}

// Their acquisitions and ids are gone when Redis' answer comes.
TEST_F(RedisOnceTest, CallersWhoseDeadlinesPassAreAnsweredByTheNextAttempt) {
  const auto rule = RuleOf(1'000);
  Use(rule);
  const AcquireOptions forms[] = {{}, {.want_receipt = true}, {.max_wait_ns = kSecond}};
  uint64_t late = 0;
  uint64_t id = 0;
  for (int round = 0; round < 6; ++round) {
    const AcquireOptions& form = forms[round % 3];
    proxy_.Inject(FaultProxy::Fault::kDelay);
    std::vector<std::thread> threads;
    std::atomic<uint64_t> unanswered{0};
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, mine = id + static_cast<uint64_t>(t)] {
        AcquireOptions options = form;
        options.deadline_ns = first_.clock().NowNs() + kSecond / 20;
        const Acquired got = Ask(first_, *rule, mine, options);
        if (!got.granted()) unanswered.fetch_add(1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    late += unanswered.load();
    // The delayed answers come before these.
    for (int t = 0; t < 4; ++t) {
      ASSERT_TRUE(Ask(first_, *rule, id + static_cast<uint64_t>(t), form).granted());
      ASSERT_TRUE(Ask(second_, *rule, id + static_cast<uint64_t>(t), form).repeated);
    }
    id += 4;
  }
  EXPECT_GT(late, 0u);
  EXPECT_EQ(Query(second_.store(), *rule, "k").level.remaining, 1'000 - static_cast<int64_t>(id));
}

TEST_F(RedisOnceTest, NodesThatRaceTakePermitsOnce) {
  constexpr uint64_t kIds = 400;
  const auto rule = RuleOf(10 * kIds);
  Use(rule);
  for (const int64_t max_wait_ns : {int64_t{0}, kSecond}) {
    const int64_t before = Query(second_.store(), *rule, "k").level.remaining;
    std::atomic<uint64_t> taken{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        RedisNode& node = t % 2 == 0 ? first_ : second_;
        for (uint64_t id = 0; id < kIds; ++id) {
          const Acquired got = Ask(node, *rule, id + (max_wait_ns == 0 ? 0 : kIds),
                                   {.want_receipt = t < 2, .max_wait_ns = max_wait_ns});
          ASSERT_TRUE(got.granted());
          if (!got.repeated) taken.fetch_add(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(taken.load(), kIds);
    EXPECT_EQ(Query(second_.store(), *rule, "k").level.remaining,
              before - static_cast<int64_t>(kIds));
  }
}

// Callers gather while a command of theirs is in flight. Some have ids.
TEST_F(RedisOnceTest, GatheredCallersWithAndWithoutIdsAreDecidedTogether) {
  const auto rule = RuleOf(100'000);
  Use(rule);
  uint64_t expected = 0;
  for (uint64_t round = 0; round < 20; ++round) {
    std::vector<store::Once> ids;
    std::vector<std::vector<store::Charge>> batch;
    for (uint64_t i = 0; i < 300; ++i) {
      ids.push_back(IdOf(1000 * round + i / 3));
      batch.push_back({{rule.get(), "k", 1}});
    }
    AcquireOptions options;
    options.once = ids.data();
    std::thread other([&] {
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(Acquire(first_.store(), *rule, "k").granted());
    });
    uint64_t taken = 0;
    for (const Acquired& one : AcquireBatch(first_.store(), batch, options)) {
      EXPECT_TRUE(one.granted());
      taken += one.repeated ? 0 : 1;
    }
    other.join();
    EXPECT_EQ(taken, 100u);
    expected += 200;
  }
  EXPECT_EQ(Query(second_.store(), *rule, "k").level.remaining,
            static_cast<int64_t>(100'000 - expected));
}

TEST(RedisOnceRestartTest, GrantsAreRememberedWithTheBuckets) {
  RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
  RedisNode node(server.url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = RuleOf(100);
  node.store().Register(rule);
  for (uint64_t id = 0; id < 20; ++id) ASSERT_TRUE(Ask(node, *rule, id).granted());
  server.Kill();
  while (Ask(node, *rule, 0).outcome != Outcome::kUnavailable) std::this_thread::yield();
  server.Start();
  while (Query(node.store(), *rule, "k").unavailable) std::this_thread::yield();
  for (uint64_t id = 0; id < 20; ++id) {
    Acquired again = Ask(node, *rule, id);
    while (again.outcome == Outcome::kUnavailable) again = Ask(node, *rule, id);
    EXPECT_TRUE(again.repeated) << id;
  }
  EXPECT_EQ(Query(node.store(), *rule, "k").level.remaining, 80);
}

TEST(RedisOnceRestartTest, KeysEndAfterAMinute) {
  RedisServer server;
  RedisNode node(server.url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = RuleOf(100);
  node.store().Register(rule);
  ASSERT_TRUE(Ask(node, *rule, 1).granted());
  ASSERT_TRUE(Ask(node, *rule, 2, {.max_wait_ns = kSecond}).granted());
  RedisCalls calls(server);
  const RedisValue keys = calls.Call({"KEYS", "sluice:once:*"});
  ASSERT_EQ(keys.elements.size(), 2u);
  for (const RedisValue& key : keys.elements) {
    const int64_t left_ms = calls.Call({"PTTL", key.text}).integer;
    EXPECT_GT(left_ms, 30'000);
    EXPECT_LE(left_ms, 60'000);
    calls.Call({"DEL", key.text});
  }
  EXPECT_FALSE(Ask(node, *rule, 1).repeated);
  EXPECT_EQ(Query(node.store(), *rule, "k").level.remaining, 97);
}

}  // namespace
}  // namespace sluice::testing
