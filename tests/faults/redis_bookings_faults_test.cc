// Bookings of several nodes on one Redis: under contention, with lost replies, after a node stops.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/grant_history.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::Outcome;
using store::RefundOutcome;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kHour = 3600 * kSecond;

// Each client reserves on a channel and on the limit that all channels share, takes without
// waiting, and cancels. The grants that were not cancelled exceed no window of any bucket, past or
// future, and the grant times of each client are in the order of its calls.
TEST(RedisBookingsFaultsTest, CompetingNodesNeverGiveGrantTimeTwice) {
  RedisServer server;
  const std::vector<algorithm::Parameters> limits = {
      algorithm::MakeTokenBucket({400, kSecond}, 20, 0).value(),
      algorithm::MakeSlidingLog({100, kSecond}).value(),
      algorithm::MakeSlidingWindow({150, kSecond}, 10).value(),
      algorithm::MakeFixedWindow({120, kSecond}, 0).value()};
  std::vector<std::shared_ptr<const store::Rule>> rules;
  std::vector<std::unique_ptr<GrantHistory>> histories;
  for (size_t i = 0; i < limits.size(); ++i) {
    rules.push_back(MakeRule(static_cast<uint32_t>(i), limits[i]));
    histories.push_back(std::make_unique<GrantHistory>(limits[i]));
  }
  std::vector<std::unique_ptr<RedisNode>> nodes;
  for (int n = 0; n < 3; ++n) {
    nodes.push_back(std::make_unique<RedisNode>(server.url()));
    for (const auto& rule : rules) nodes.back()->store().Register(rule);
  }
  std::atomic<int> reserved{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> unavailable{0};
  std::vector<std::thread> clients;
  for (size_t c = 0; c < 24; ++c) {
    clients.emplace_back([&, c] {
      store::RedisStore& store = nodes[c % nodes.size()]->store();
      std::mt19937_64 random(c + 1);
      const size_t channel = 1 + c % 3;
      const std::vector<Charge> charges = {{rules[channel].get(), "", 1}, {rules[0].get(), "", 1}};
      int64_t last_ns = 0;
      for (int i = 0; i < 75; ++i) {
        const bool waits = random() % 4 != 0;
        const Acquired acquired =
            Acquire(store, charges, {.max_wait_ns = waits ? 20 * kSecond : 0});
        unavailable += acquired.outcome == Outcome::kUnavailable ? 1 : 0;
        if (!acquired.granted()) continue;
        const int64_t grant_time_ns = acquired.now_ns + acquired.wait_ns;
        EXPECT_GE(grant_time_ns, last_ns);
        reserved += acquired.wait_ns > 0 ? 1 : 0;
        if (acquired.wait_ns > kSecond / 2 && random() % 8 == 0) {
          // Half a second ahead: the refund arrives before the grant time, also on a slow machine.
          const Refunded refunded =
              Refund(store, acquired.receipt_id, charges, acquired.grant_time_ns());
          if (refunded.outcome == RefundOutcome::kRefunded) {
            ++cancelled;
            continue;
          }
        }
        last_ns = grant_time_ns;
        for (const Charge& charge : charges) {
          histories[charge.rule == rules[0].get() ? 0 : channel]->Add(grant_time_ns, 1);
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (const auto& history : histories) EXPECT_EQ(history->Check(), "");
  EXPECT_GT(reserved.load(), 100);
  EXPECT_GT(cancelled.load(), 0);
  EXPECT_EQ(unavailable.load(), 0);
}

// A booking whose reply is lost stays booked, once, and is spent at its grant time.
TEST(RedisBookingsFaultsTest, LostReplyToBookingCountsAsSpent) {
  RedisServer server;
  const std::string path = server.folder() + "/proxy.sock";
  FaultProxy proxy(server.socket_path(), path);
  RedisNode node("unix://" + path);
  ASSERT_TRUE(node.connected().ok());
  RedisNode other(server.url());
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, kHour}, 1, 0).value());
  node.store().Register(rule);
  other.store().Register(rule);
  // So far ahead that later grant times of the limit are promised already.
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Acquire(node.store(), *rule, "far", 1, {.max_wait_ns = 24 * kHour}).granted());
  }
  ASSERT_TRUE(Acquire(node.store(), *rule, "k").granted());
  ASSERT_TRUE(Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour}).granted());
  // The node knows that the bucket has bookings: it reads, decides, replaces.
  proxy.Inject(FaultProxy::Fault::kLoseReply, /*times=*/1, /*skipped=*/1);
  const Acquired lost = Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour});
  EXPECT_EQ(lost.outcome, Outcome::kUnavailable);
  EXPECT_TRUE(lost.may_be_debited);
  EXPECT_EQ(lost.receipt_id, 0u);
  EXPECT_TRUE(proxy.injected());
  EXPECT_EQ(Query(other.store(), *rule, "k").waiting, 2u);
  const Acquired next = Acquire(other.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour});
  EXPECT_GT(next.wait_ns, 2 * kHour);
  EXPECT_LE(next.wait_ns, 3 * kHour);
  // If the reply to the read is lost, nothing was replaced.
  while (Query(node.store(), *rule, "k").unavailable) std::this_thread::yield();
  proxy.Inject(FaultProxy::Fault::kLoseReply);
  const Acquired unread = Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour});
  EXPECT_EQ(unread.outcome, Outcome::kUnavailable);
  EXPECT_FALSE(unread.may_be_debited);
  EXPECT_EQ(Query(other.store(), *rule, "k").waiting, 3u);
}

TEST(RedisBookingsFaultsTest, BooksNothingWhileRedisIsDown) {
  RedisServer server;
  RedisNode node(server.url());
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, kHour}, 1, 0).value());
  node.store().Register(rule);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k").granted());
  server.Kill();
  for (int i = 0; i < 3; ++i) {
    const Acquired away = Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = kHour});
    EXPECT_EQ(away.outcome, Outcome::kUnavailable);
    EXPECT_EQ(away.source, store::Source::kStoreUnavailable);
  }
}

TEST(RedisBookingsFaultsTest, BooksFlushedBucketFromScratch) {
  RedisServer server;
  store::RedisStoreOptions options = PatientOptions();
  options.after_data_loss = store::redis::AfterLoss::kFull;
  RedisNode node(server.url(), options);
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, kHour}, 1, 0).value());
  node.store().Register(rule);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k").granted());
  const Acquired first = Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour});
  ASSERT_TRUE(first.granted());
  RedisCalls calls(server);
  calls.Call({"SCRIPT", "FLUSH"});
  EXPECT_EQ(Query(node.store(), *rule, "k").waiting, 1u);
  calls.Call({"FLUSHALL"});
  // The node's copy of the bucket is invalid.
  EXPECT_TRUE(Acquire(node.store(), *rule, "k").granted());
  const std::vector<Charge> charges = {{rule.get(), "k", 1}};
  EXPECT_EQ(Refund(node.store(), first.receipt_id, charges, first.grant_time_ns()).outcome,
            RefundOutcome::kExpired);
  EXPECT_EQ(Query(node.store(), *rule, "k").waiting, 0u);
}

// ---- Rebook ----

struct RebookCall final : store::RebookOperation {
  void Done() override { done.Notify(); }
  Notification done;
};

// Callers that one node holds behind a spent bucket.
struct HeldCallers {
  HeldCallers(RedisNode& at, std::shared_ptr<const store::Rule> held_by, size_t count)
      : node(at), rule(std::move(held_by)), charge({{rule.get(), "k", 1}}), results(count) {
    node.store().Register(rule);
    EXPECT_TRUE(Acquire(node.store(), *rule, "k").granted());
    for (size_t i = 0; i < count; ++i) {
      const Acquired booked = Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour});
      EXPECT_GT(booked.wait_ns, 0);
      store::Rebooking& item = items.emplace_back();
      item.receipt_id = booked.receipt_id;
      item.charges = charge;
      item.results = &results[i];
      item.grant_time_ns = booked.grant_time_ns();
      item.until_ns = booked.now_ns + 24 * kHour;
    }
  }
  store::RebookStatus Rebook() {
    RebookCall call;
    call.items = absl::MakeSpan(items);
    node.store().Rebook(&call);
    call.done.Wait();
    return call.status;
  }

  RedisNode& node;
  const std::shared_ptr<const store::Rule> rule;
  const std::vector<Charge> charge;
  std::vector<store::ChargeResult> results;
  std::vector<store::Rebooking> items;
};

// While one node rebooks its callers again and again, another node always sees their bookings: it
// is denied each time, and its own bookings come after them.
TEST(RedisBookingsFaultsTest, OtherNodesNeverSeePartOfRebooking) {
  RedisServer server;
  RedisNode node(server.url());
  RedisNode other(server.url());
  HeldCallers held(node, MakeRule(1, algorithm::MakeTokenBucket({1, kHour}, 1, 0).value()), 5);
  const auto rule = MakeRule(1, held.rule->parameters);
  other.store().Register(rule);
  const int64_t last_ns = held.items.back().grant_time_ns;
  std::atomic<bool> stop{false};
  std::atomic<int> booked{0};
  std::thread asks([&] {
    for (int i = 0; !stop.load(); ++i) {
      EXPECT_EQ(Acquire(other.store(), *rule, "k").outcome, Outcome::kDenied);
      const uint64_t waiting = Query(other.store(), *rule, "k").waiting;
      EXPECT_EQ(waiting, 5u + static_cast<uint64_t>(booked.load()));
      if (i % 8 != 0 || booked.load() >= 10) continue;
      const Acquired one = Acquire(other.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour});
      // The other node may be first too often. Then nothing is booked.
      if (!one.granted()) continue;
      EXPECT_GT(one.grant_time_ns(), last_ns);
      ++booked;
    }
  });
  for (int i = 0; i < 200 || booked.load() < 10; ++i) {
    ASSERT_EQ(held.Rebook(), store::RebookStatus::kDone);
    for (const store::Rebooking& item : held.items) {
      EXPECT_EQ(item.outcome, store::Rebooking::Outcome::kBooked);
    }
    EXPECT_EQ(held.items.back().grant_time_ns, last_ns);
  }
  stop.store(true);
  asks.join();
}

TEST(RedisBookingsFaultsTest, LostReplyToRebookingLeavesEachCallerBookedOnce) {
  RedisServer server;
  const std::string path = server.folder() + "/proxy.sock";
  FaultProxy proxy(server.socket_path(), path);
  RedisNode node("unix://" + path);
  ASSERT_TRUE(node.connected().ok());
  RedisNode other(server.url());
  HeldCallers held(node, MakeRule(1, algorithm::MakeTokenBucket({1, kHour}, 1, 0).value()), 5);
  other.store().Register(held.rule);
  // The first reply is of the read, the second of the replacement.
  for (int after = 0; after < 2; ++after) {
    proxy.Inject(FaultProxy::Fault::kLoseReply, /*times=*/1, /*skipped=*/after);
    EXPECT_EQ(held.Rebook(), store::RebookStatus::kDone);
    EXPECT_TRUE(proxy.injected());
    for (const store::Rebooking& item : held.items) {
      EXPECT_EQ(item.outcome, store::Rebooking::Outcome::kPending) << "not known";
    }
    EXPECT_EQ(Query(other.store(), *held.rule, "k").waiting, 5u);
    // The node reconnects.
    while (Query(node.store(), *held.rule, "k").unavailable) std::this_thread::yield();
  }
  EXPECT_EQ(held.Rebook(), store::RebookStatus::kDone);
  EXPECT_EQ(held.items[4].outcome, store::Rebooking::Outcome::kBooked);
}

TEST(RedisBookingsFaultsTest, RebookReturnsAtOnceWhileRedisIsDown) {
  RedisServer server;
  RedisNode node(server.url());
  HeldCallers held(node, MakeRule(1, algorithm::MakeTokenBucket({1, kHour}, 1, 0).value()), 2);
  server.Kill();
  held.Rebook();
  EXPECT_EQ(held.items[0].outcome, store::Rebooking::Outcome::kPending);
  EXPECT_EQ(held.items[1].outcome, store::Rebooking::Outcome::kPending);
}

// The bookings of a stopped node stay in force for the others.
TEST(RedisBookingsFaultsTest, BookingsOutliveTheirNode) {
  RedisServer server;
  RedisNode node(server.url());
  const auto rule = MakeRule(1, algorithm::MakeSlidingLog({1, kHour}).value());
  node.store().Register(rule);
  {
    RedisNode gone(server.url());
    gone.store().Register(rule);
    ASSERT_TRUE(Acquire(gone.store(), *rule, "k").granted());
    ASSERT_TRUE(Acquire(gone.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour}).granted());
  }
  EXPECT_EQ(Query(node.store(), *rule, "k").waiting, 1u);
  EXPECT_GT(Acquire(node.store(), *rule, "k").retry_after_ns, 0);
  const Acquired next = Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour});
  EXPECT_GT(next.wait_ns, kHour);
  RedisCalls calls(server);
  const auto keys = calls.Call({"KEYS", "sluice:{*"});
  ASSERT_EQ(keys.elements.size(), 2u);
  for (const RedisValue& key : keys.elements) {
    // Until a window after the last grant time.
    EXPECT_GT(calls.Call({"PTTL", key.text}).integer, 2 * 3600 * 1000);
  }
}

// A node that does not know the buckets reads and decides them in several turns of its loop.
TEST(RedisBookingsFaultsTest, NodeDecidesThousandsOfBookingsThatOthersMade) {
  RedisServer server;
  constexpr size_t kBookings = 5000;
  const std::vector<std::shared_ptr<const store::Rule>> rules = {
      MakeRule(1, algorithm::MakeTokenBucket({10, kSecond}, 1, 0).value()),
      MakeRule(2, algorithm::MakeSlidingLog({10, kSecond}).value())};
  const std::vector<Charge> charges = {{rules[0].get(), "k", 1}, {rules[1].get(), "k", 1}};
  RedisNode one(server.url());
  for (const auto& rule : rules) one.store().Register(rule);
  int64_t last_ns = 0;
  for (size_t i = 0; i < kBookings; i += 1000) {
    for (const Acquired& booked :
         AcquireBatch(one.store(), std::vector(1000, charges), {.max_wait_ns = 24 * kHour})) {
      ASSERT_TRUE(booked.granted());
      last_ns = std::max(last_ns, booked.grant_time_ns());
    }
  }
  {
    RedisNode other(server.url());
    for (const auto& rule : rules) other.store().Register(rule);
    std::vector<std::thread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&] {
        EXPECT_EQ(Acquire(other.store(), charges).outcome, Outcome::kDenied);
        const Acquired booked = Acquire(other.store(), charges, {.max_wait_ns = 24 * kHour});
        ASSERT_TRUE(booked.granted());
        EXPECT_GT(booked.grant_time_ns(), last_ns);
      });
    }
    for (std::thread& client : clients) client.join();
    // Few seconds of them have come.
    EXPECT_GT(Query(other.store(), *rules[1], "k").waiting, kBookings - 1000);
  }
  // The last chunk is read in a later turn.
  RedisCalls calls(server);
  const std::string receipts = store::redis::KeysOf("sluice", rules[0]->limit_name, "k")[2];
  const std::string chunks = calls.Call({"HGET", receipts, "chunks"}).text;
  calls.Call({"HSET", receipts, chunks.substr(chunks.rfind(' ') + 1), "nonsense"});
  RedisNode third(server.url());
  for (const auto& rule : rules) third.store().Register(rule);
  EXPECT_EQ(Acquire(third.store(), charges).outcome, Outcome::kUnavailable);
  EXPECT_EQ(Acquire(third.store(), *rules[1], "k").outcome, Outcome::kDenied);
}

// A bucket whose bookings are damaged or belong to another program is not changed.
TEST(RedisBookingsFaultsTest, LeavesForeignBytesUnchanged) {
  RedisServer server;
  RedisNode node(server.url());
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, kHour}, 1, 0).value());
  node.store().Register(rule);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k").granted());
  ASSERT_TRUE(Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = 24 * kHour}).granted());
  RedisCalls calls(server);
  std::string receipts;
  for (const RedisValue& key : calls.Call({"KEYS", "sluice:{*"}).elements) {
    if (key.text.ends_with(":receipts")) receipts = key.text;
  }
  calls.Call({"SET", receipts, "nonsense"});
  RedisNode other(server.url());
  other.store().Register(rule);
  EXPECT_EQ(Acquire(other.store(), *rule, "k").outcome, Outcome::kUnavailable);
  EXPECT_EQ(Acquire(other.store(), *rule, "k", 1, {.max_wait_ns = kHour}).outcome,
            Outcome::kUnavailable);
  EXPECT_TRUE(Query(other.store(), *rule, "k").unavailable);
  EXPECT_EQ(calls.Call({"GET", receipts}).text, "nonsense");
}

// From the first caller that would wait on, nodes decide a long log, and write only its end.
TEST(RedisBookingsFaultsTest, LongLogStaysExactWhenNodesDecideIt) {
  RedisServer server;
  RedisCalls calls(server);
  RedisNode one(server.url());
  RedisNode other(server.url());
  constexpr uint64_t kPermits = 100'000;
  const auto rule = MakeRule(1, algorithm::MakeSlidingLog({kPermits, 20 * kSecond}).value());
  GrantHistory history(rule->parameters);
  const auto take = [&](RedisNode& node, uint64_t permits, int64_t max_wait_ns = 0) {
    const Acquired got = Acquire(node.store(), *rule, "k", permits, {.max_wait_ns = max_wait_ns});
    if (got.granted()) history.Add(got.now_ns + got.wait_ns, permits);
    return got.granted();
  };
  for (RedisNode* node : {&one, &other}) node->store().Register(rule);
  const auto keys = store::redis::KeysOf("sluice", rule->limit_name, "k");
  uint64_t taken = 0;
  while (calls.Call({"LLEN", keys[1]}).integer < 4500) {
    for (int i = 0; i < 100; ++i) taken += take(one, 1) ? 1 : 0;
  }
  EXPECT_TRUE(take(one, kPermits - taken - 300));
  EXPECT_FALSE(take(one, kPermits, 1));
  const std::string state = calls.Call({"GET", keys[0]}).text;
  EXPECT_NE(state.find(" @"), std::string::npos) << state;
  uint64_t granted = 0;
  for (int i = 0; i < 600; ++i) granted += take(i % 2 == 0 ? one : other, 1) ? 1 : 0;
  EXPECT_GE(granted, 300u);
  EXPECT_TRUE(take(other, 1, 30 * kSecond));
  EXPECT_TRUE(take(one, 1, 30 * kSecond));
  EXPECT_EQ(history.Check(), "");
}

}  // namespace
}  // namespace sluice::testing
