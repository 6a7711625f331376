// Slots on several nodes of one Redis, and when Redis loses its data.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/jumping_clock.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"
#include "tests/support/threads.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::Renewal;
using store::RenewOutcome;
using store::Rule;

constexpr int64_t kSecond = 1'000'000'000;

Renewal Renew(RedisNode& node, uint64_t receipt_id, const std::vector<Charge>& charges) {
  struct Operation final : store::RenewOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  Operation operation;
  Renewal item;
  item.receipt_id = receipt_id;
  item.charges = charges;
  operation.items = absl::MakeSpan(&item, 1);
  node.store().Renew(&operation);
  operation.done.Wait();
  return item;
}

class RedisSlotsTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Rule> Register(uint64_t permits, int64_t hold_for_ns) {
    auto rule = MakeRule(1, *algorithm::MakeConcurrency(permits, hold_for_ns));
    one_.store().Register(rule);
    two_.store().Register(rule);
    return rule;
  }
  static Acquired Take(RedisNode& node, const Rule& rule) {
    return Acquire(node.store(), rule, "k", 1, {.want_receipt = true});
  }

  RedisServer server_;
  RedisNode one_{server_.url()};
  RedisNode two_{server_.url()};
};

TEST_F(RedisSlotsTest, NodesShareTheSlotsAndRenewEachOthersReceipts) {
  const auto rule = Register(2, 60 * kSecond);
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  const Acquired first = Take(one_, *rule);
  const Acquired second = Take(two_, *rule);
  ASSERT_TRUE(first.granted());
  ASSERT_TRUE(second.granted());
  EXPECT_NE(first.receipt_id, second.receipt_id);
  EXPECT_EQ(Take(one_, *rule).outcome, store::Outcome::kDenied);
  EXPECT_EQ(Take(two_, *rule).outcome, store::Outcome::kDenied);
  for (int i = 0; i < 20; ++i) {
    for (RedisNode* node : {&one_, &two_}) {
      EXPECT_EQ(Renew(*node, first.receipt_id, charges).outcome, RenewOutcome::kRenewed);
      EXPECT_EQ(Renew(*node, second.receipt_id, charges).outcome, RenewOutcome::kRenewed);
    }
  }
  EXPECT_EQ(Query(one_.store(), *rule, "k").holds, 2u);
  // The other node ends it, once.
  EXPECT_EQ(Refund(two_.store(), first.receipt_id, charges).outcome,
            store::RefundOutcome::kRefunded);
  EXPECT_EQ(Refund(one_.store(), first.receipt_id, charges).outcome,
            store::RefundOutcome::kAlreadyRefunded);
  EXPECT_EQ(Renew(one_, first.receipt_id, charges).outcome, RenewOutcome::kGone);
  EXPECT_TRUE(Take(one_, *rule).granted());
}

TEST_F(RedisSlotsTest, StaysClosedUntilEveryHoldThatWasLostHasEnded) {
  const int64_t hold_for_ns = kSecond;
  const auto rule = Register(3, hold_for_ns);
  int64_t last_end_ns = 0;
  for (int i = 0; i < 3; ++i) {
    const Acquired taken = Take(i % 2 == 0 ? one_ : two_, *rule);
    ASSERT_TRUE(taken.granted());
    last_end_ns = taken.now_ns + hold_for_ns;
  }
  RedisCalls(server_).Call({"FLUSHALL"});
  // Each grant is behind the ends of all before.
  for (int tries = 0;; ++tries) {
    ASSERT_LT(tries, 2000);
    const Acquired taken = Take(tries % 2 == 0 ? two_ : one_, *rule);
    if (taken.granted()) {
      EXPECT_GE(taken.now_ns, last_end_ns);
      break;
    }
    PassTime(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(Take(one_, *rule).granted());
  EXPECT_TRUE(Take(two_, *rule).granted());
  EXPECT_EQ(Take(one_, *rule).outcome, store::Outcome::kDenied);
}

// Longer than a store that granted slots is closed after any loss.
constexpr int64_t kLongHoldNs = 5 * kSecond;

// The first grant after a loss is not before the moment, and there are no more than `permits`.
void ExpectClosedUntil(int64_t end_ns, RedisNode& node, const Rule& rule, int permits) {
  Acquired taken = Acquire(node.store(), rule, "k", 1, {.want_receipt = true});
  for (int tries = 0; !taken.granted(); ++tries) {
    ASSERT_LT(tries, 3000);
    PassTime(std::chrono::milliseconds(10));
    taken = Acquire(node.store(), rule, "k", 1, {.want_receipt = true});
  }
  EXPECT_GE(taken.now_ns, end_ns);
  for (int i = 1; i < permits; ++i) {
    EXPECT_TRUE(Acquire(node.store(), rule, "k", 1, {.want_receipt = true}).granted());
  }
  EXPECT_FALSE(Acquire(node.store(), rule, "k", 1, {.want_receipt = true}).granted());
}

TEST_F(RedisSlotsTest, StaysClosedUntilHoldsFromBeforeHaveEnded) {
  const auto rule = Register(2, kLongHoldNs);
  ASSERT_TRUE(Take(one_, *rule).granted());
  const Acquired last = Take(two_, *rule);
  ASSERT_TRUE(last.granted());
  // The bucket is not used between the lowering and the loss.
  const auto lowered = Register(2, kSecond);
  RedisCalls(server_).Call({"FLUSHALL"});
  ExpectClosedUntil(last.now_ns + kLongHoldNs, two_, *lowered, 2);
}

TEST_F(RedisSlotsTest, StaysClosedOnANodeThatNeverSawTheOldHoldFor) {
  int64_t end_ns = 0;
  {
    RedisNode old(server_.url());
    const auto before = MakeRule(1, *algorithm::MakeConcurrency(2, kLongHoldNs));
    old.store().Register(before);
    const Acquired taken = Take(old, *before);
    ASSERT_TRUE(taken.granted());
    end_ns = taken.now_ns + kLongHoldNs;
  }
  const auto lowered = MakeRule(1, *algorithm::MakeConcurrency(2, kSecond));
  RedisNode after(server_.url());
  after.store().Register(lowered);
  one_.Stop();
  two_.Stop();
  RedisCalls(server_).Call({"FLUSHALL"});
  ExpectClosedUntil(end_ns, after, *lowered, 2);
}

// More than the fence has room for.
TEST_F(RedisSlotsTest, CoversManyLimits) {
  constexpr uint32_t kLimits = 300;
  std::vector<std::shared_ptr<const Rule>> rules;
  std::vector<int64_t> ends_ns;
  for (uint32_t i = 0; i < kLimits; ++i) {
    rules.push_back(MakeRule(i, *algorithm::MakeConcurrency(1, kLongHoldNs)));
    one_.store().Register(rules.back());
    const Acquired taken = Take(one_, *rules.back());
    ASSERT_TRUE(taken.granted());
    ends_ns.push_back(taken.now_ns + kLongHoldNs);
  }
  for (uint32_t i = 0; i < kLimits; ++i) {
    rules[i] = MakeRule(i, *algorithm::MakeConcurrency(1, kSecond));
    one_.store().Register(rules[i]);
  }
  RedisCalls(server_).Call({"FLUSHALL"});
  for (uint32_t i = 0; i < kLimits; ++i) ExpectClosedUntil(ends_ns[i], one_, *rules[i], 1);
}

TEST_F(RedisSlotsTest, LimitsThatAreUsedAtOnceLeaveHalfOfTheFenceToGrantTimes) {
  std::vector<std::shared_ptr<const Rule>> rules;
  std::vector<std::vector<Charge>> batch;
  for (uint32_t i = 0; i < 300; ++i) {
    rules.push_back(MakeRule(i, *algorithm::MakeConcurrency(1, kLongHoldNs)));
    one_.store().Register(rules.back());
    batch.push_back({{rules.back().get(), "k", 1}});
  }
  for (const Acquired& taken : AcquireBatch(one_.store(), batch, {.want_receipt = true})) {
    EXPECT_TRUE(taken.granted());
  }
  const std::string fence = RedisCalls(server_).Call({"GET", "sluice:identity"}).text;
  const auto ends = static_cast<size_t>(std::count(fence.begin(), fence.end(), '#'));
  EXPECT_GT(ends, 1u);
  // And the one for the further limits.
  EXPECT_LE(ends, common::bounds::kMaxLimitsPromised / 2 + 1);
}

TEST_F(RedisSlotsTest, NodesRenewOneReceiptAtTheSameTime) {
  const auto rule = Register(2, 60 * kSecond);
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  const Acquired taken = Take(one_, *rule);
  ASSERT_TRUE(taken.granted());
  std::atomic<int> renewed{0};
  test_support::RunThreads(4, [&](int thread) {
    RedisNode& node = thread % 2 == 0 ? one_ : two_;
    for (int i = 0; i < 100; ++i) {
      const Renewal renewal = Renew(node, taken.receipt_id, charges);
      EXPECT_EQ(renewal.outcome, RenewOutcome::kRenewed);
      // Not less, also if the other node was first.
      EXPECT_GE(renewal.held_for_ns, 60 * kSecond);
      renewed += renewal.outcome == RenewOutcome::kRenewed ? 1 : 0;
    }
  });
  EXPECT_EQ(renewed.load(), 400);
  const store::QueryItem item = Query(one_.store(), *rule, "k");
  EXPECT_EQ(item.holds, 1u);
  EXPECT_EQ(item.level.remaining, 1);
  EXPECT_TRUE(Take(two_, *rule).granted());
  EXPECT_EQ(Take(one_, *rule).outcome, store::Outcome::kDenied);
}

// In the middle of a Renew its node loses Redis. What the caller was told before stays true, and
// another node goes on.
TEST_F(RedisSlotsTest, HoldOutlivesARenewalWhoseRequestOrAnswerIsLost) {
  using Fault = FaultProxy::Fault;
  const std::string path = server_.folder() + "/proxy.sock";
  FaultProxy proxy(server_.socket_path(), path);
  const auto rule = Register(1, 600 * kSecond);
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  const Acquired taken = Take(one_, *rule);
  ASSERT_TRUE(taken.granted());
  for (const Fault fault : {Fault::kLoseReply, Fault::kCutReply, Fault::kReset}) {
    // The request that reads the bucket is hit, or the one that replaces it.
    for (const int skipped : {0, 1}) {
      SCOPED_TRACE(static_cast<int>(fault) * 10 + skipped);
      RedisNode hit("unix://" + path);
      hit.store().Register(rule);
      ASSERT_EQ(Renew(hit, taken.receipt_id, charges).outcome, RenewOutcome::kRenewed);
      proxy.Inject(fault, 1, skipped);
      for (int i = 0; i < 10 && !proxy.injected(); ++i) {
        const Renewal renewal = Renew(hit, taken.receipt_id, charges);
        EXPECT_TRUE(renewal.outcome == RenewOutcome::kRenewed ||
                    renewal.outcome == RenewOutcome::kUnavailable);
      }
      EXPECT_TRUE(proxy.injected());
      EXPECT_EQ(Take(two_, *rule).outcome, store::Outcome::kDenied);
      const Renewal again = Renew(two_, taken.receipt_id, charges);
      EXPECT_EQ(again.outcome, RenewOutcome::kRenewed);
      EXPECT_EQ(again.held_for_ns, 600 * kSecond);
      EXPECT_EQ(Query(one_.store(), *rule, "k").holds, 1u);
    }
  }
  EXPECT_EQ(Refund(one_.store(), taken.receipt_id, charges).outcome,
            store::RefundOutcome::kRefunded);
  EXPECT_TRUE(Take(two_, *rule).granted());
}

// In the middle of renewals Redis is killed, and starts again with its data.
TEST(RedisSlotsRestartTest, HoldOutlivesARedisThatIsKilledWhileItIsRenewed) {
  RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
  RedisNode one(server.url());
  RedisNode two(server.url());
  const auto rule = MakeRule(1, *algorithm::MakeConcurrency(1, 600 * kSecond));
  one.store().Register(rule);
  two.store().Register(rule);
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  const Acquired taken = Acquire(one.store(), *rule, "k", 1, {.want_receipt = true});
  ASSERT_TRUE(taken.granted());
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> renewed{0};
    std::thread killer([&] {
      while (renewed.load() < 20) std::this_thread::yield();
      server.Kill();
    });
    test_support::RunThreads(4, [&](int thread) {
      Renewal renewal;
      do {
        renewal = Renew(thread % 2 == 0 ? one : two, taken.receipt_id, charges);
        EXPECT_NE(renewal.outcome, RenewOutcome::kGone);
        ++renewed;
      } while (renewal.outcome == RenewOutcome::kRenewed);
    });
    killer.join();
    server.Start();
    Renewal again = Renew(two, taken.receipt_id, charges);
    while (again.outcome == RenewOutcome::kUnavailable) {
      again = Renew(two, taken.receipt_id, charges);
    }
    EXPECT_EQ(again.outcome, RenewOutcome::kRenewed);
    EXPECT_EQ(again.held_for_ns, 600 * kSecond);
    Acquired other = Acquire(one.store(), *rule, "k");
    while (other.outcome == store::Outcome::kUnavailable) {
      other = Acquire(one.store(), *rule, "k");
    }
    EXPECT_EQ(other.outcome, store::Outcome::kDenied);
  }
  EXPECT_EQ(Refund(one.store(), taken.receipt_id, charges).outcome,
            store::RefundOutcome::kRefunded);
  EXPECT_TRUE(Acquire(two.store(), *rule, "k", 1, {.want_receipt = true}).granted());
}

// Holds end by the clock of Redis.
TEST_F(RedisSlotsTest, ClockJumpOfNodeNeitherEndsNorProlongsAHold) {
  JumpingClock clock;
  RedisNode jumping(server_.url(), PatientOptions(), &clock);
  const auto rule = Register(1, 600 * kSecond);
  jumping.store().Register(rule);
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  for (const int64_t hours : {1, -2, 1000, -999}) {
    SCOPED_TRACE(hours);
    const Acquired taken = Take(jumping, *rule);
    ASSERT_TRUE(taken.granted());
    clock.Jump(hours * 3600 * kSecond);
    EXPECT_EQ(Take(jumping, *rule).outcome, store::Outcome::kDenied);
    EXPECT_EQ(Take(one_, *rule).outcome, store::Outcome::kDenied);
    EXPECT_LE(Query(jumping.store(), *rule, "k").next_end_after_ns, 600 * kSecond);
    for (RedisNode* const node : {&jumping, &two_}) {
      const Renewal renewal = Renew(*node, taken.receipt_id, charges);
      EXPECT_EQ(renewal.outcome, RenewOutcome::kRenewed);
      EXPECT_EQ(renewal.held_for_ns, 600 * kSecond);
    }
    EXPECT_EQ(Refund(one_.store(), taken.receipt_id, charges).outcome,
              store::RefundOutcome::kRefunded);
  }
  const auto brief = MakeRule(2, *algorithm::MakeConcurrency(1, kSecond));
  one_.store().Register(brief);
  jumping.store().Register(brief);
  const Acquired taken = Take(jumping, *brief);
  ASSERT_TRUE(taken.granted());
  clock.Jump(-3600 * kSecond);
  Acquired next = Take(jumping, *brief);
  while (!next.granted()) {
    PassTime(std::chrono::milliseconds(10));
    next = Take(jumping, *brief);
  }
  EXPECT_GE(next.now_ns, taken.now_ns + kSecond);
}

// Two nodes contend for a bucket, and each hold lasts a moment.
TEST_F(RedisSlotsTest, NeverHoldsMoreThanThePermitsUnderContention) {
  const auto rule = Register(5, 60 * kSecond);
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  std::vector<uint64_t> held;
  for (int i = 0; i < 300; ++i) {
    const Acquired taken = Take(i % 2 == 0 ? one_ : two_, *rule);
    EXPECT_EQ(taken.granted(), held.size() < 5) << i;
    if (taken.granted()) held.push_back(taken.receipt_id);
    if (held.size() == 5 && i % 3 == 0) {
      const uint64_t receipt_id = held[static_cast<size_t>(i) % held.size()];
      EXPECT_EQ(Refund((i % 4 < 2 ? one_ : two_).store(), receipt_id, charges).outcome,
                store::RefundOutcome::kRefunded);
      std::erase(held, receipt_id);
    }
  }
}

}  // namespace
}  // namespace sluice::testing
