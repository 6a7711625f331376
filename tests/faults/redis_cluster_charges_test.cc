// Acquisitions with several charges whose buckets are in different slots of a Redis Cluster.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/faults/cluster_keys.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;

constexpr int64_t kSecond = 1'000'000'000;

class RedisClusterChargesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { cluster_ = new RedisCluster; }
  static void TearDownTestSuite() { delete cluster_; }

  void SetUp() override { cluster_->CallAll({"FLUSHALL"}); }

  static size_t ServerOf(const store::Rule& rule, std::string_view key) {
    return cluster_->OwnerOf(
        store::redis::SlotOf(store::redis::KeysOf("sluice", rule.limit_name, key)[0]));
  }
  static std::string KeyAt(const store::Rule& rule, size_t server) {
    for (int i = 0;; ++i) {
      std::string key = "at" + std::to_string(i);
      if (ServerOf(rule, key) == server) return key;
    }
  }
  // Whether Redis has the bucket's key number `which`.
  static bool Exists(const store::Rule& rule, std::string_view key, size_t which) {
    const std::string name = store::redis::KeysOf("sluice", rule.limit_name, key)[which];
    return cluster_->Call(ServerOf(rule, key), {"EXISTS", name}).integer == 1;
  }

  static RedisCluster* cluster_;
};
RedisCluster* RedisClusterChargesTest::cluster_ = nullptr;

TEST_F(RedisClusterChargesTest, TakesAllChargesOrNone) {
  RedisNode node(cluster_->url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto five = Hourly(1, 5);
  const auto two = Hourly(2, 2);
  for (const auto& rule : {five, two}) node.store().Register(rule);
  // Once each server first.
  for (size_t server : {0, 2}) {
    const std::string first = KeyAt(*five, server);
    const std::string second = KeyAt(*two, 1);
    const std::vector<store::Charge> charges = {{five.get(), first, 1}, {two.get(), second, 1}};
    EXPECT_TRUE(Acquire(node.store(), charges).granted());
    EXPECT_TRUE(Acquire(node.store(), charges).granted());
    const Acquired denied = Acquire(node.store(), charges);
    EXPECT_EQ(denied.outcome, Outcome::kDenied);
    EXPECT_EQ(denied.charges[0].level.remaining, 3);
    EXPECT_EQ(denied.charges[0].reason, store::Reason::kNone);
    EXPECT_EQ(denied.charges[1].reason, store::Reason::kNotEnough);
    EXPECT_GT(denied.retry_after_ns, 3000 * kSecond);
    EXPECT_EQ(Query(node.store(), *five, first).level.remaining, 3);
    EXPECT_TRUE(Reset(node.store(), *two, second));
  }
}

TEST_F(RedisClusterChargesTest, ClosesReceiptsThatNoCallerWanted) {
  RedisNode node(cluster_->url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto bucket = Hourly(3, 100);
  const auto log = MakeRule(4, algorithm::MakeSlidingLog({100, 3600 * kSecond}).value());
  for (const auto& rule : {bucket, log}) node.store().Register(rule);
  const std::string one = KeyAt(*bucket, 0);
  const std::string other = KeyAt(*log, 1);
  const std::vector<store::Charge> charges = {{bucket.get(), one, 1}, {log.get(), other, 1}};
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Acquire(node.store(), charges).granted());
  // Receipts are closed after the reply, before later commands on the same connection.
  EXPECT_EQ(Query(node.store(), *bucket, one).level.remaining, 80);
  EXPECT_EQ(Query(node.store(), *log, other).level.remaining, 80);
  while (Exists(*bucket, one, 2) || Exists(*log, other, 2)) std::this_thread::yield();

  // A caller that wants a receipt gets it, in every bucket.
  const Acquired kept = Acquire(node.store(), charges, {.want_receipt = true});
  ASSERT_TRUE(kept.granted());
  EXPECT_TRUE(Exists(*bucket, one, 2));
  EXPECT_TRUE(Exists(*log, other, 2));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Acquire(node.store(), charges).granted());
  const Refunded refunded = Refund(node.store(), kept.receipt_id, charges);
  EXPECT_EQ(refunded.outcome, store::RefundOutcome::kRefunded);
  EXPECT_EQ(refunded.permits, (std::vector<uint64_t>{1, 1}));
  EXPECT_EQ(Refund(node.store(), kept.receipt_id, charges).outcome,
            store::RefundOutcome::kAlreadyRefunded);
  EXPECT_EQ(Query(node.store(), *bucket, one).level.remaining, 60);
}

TEST_F(RedisClusterChargesTest, DecidesChargesOfOneHashTagAtOnce) {
  RedisNode node(cluster_->url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto one = Hourly(5, 10);
  const auto other = Hourly(6, 1);
  for (const auto& rule : {one, other}) node.store().Register(rule);
  const std::vector<store::Charge> charges = {{one.get(), "a{t}", 1}, {other.get(), "b{t}", 1}};
  const Acquired granted = Acquire(node.store(), charges);
  ASSERT_TRUE(granted.granted());
  EXPECT_EQ(granted.charges[0].debited_before_ns, 0);
  EXPECT_FALSE(Acquire(node.store(), charges).granted());
  EXPECT_FALSE(Exists(*one, "a{t}", 2));  // no receipt was needed
  EXPECT_EQ(Query(node.store(), *one, "a{t}").level.remaining, 9);
}

TEST_F(RedisClusterChargesTest, GrantsLastPermitsToOneOfCompetingCallers) {
  constexpr int kNodes = 3;
  constexpr int kRounds = 20;
  std::vector<std::unique_ptr<RedisNode>> nodes;
  std::vector<std::shared_ptr<const store::Rule>> rules;
  for (uint32_t i = 0; i < 3; ++i) rules.push_back(Hourly(10 + i, 1));
  for (int n = 0; n < kNodes; ++n) {
    nodes.push_back(std::make_unique<RedisNode>(cluster_->url()));
    for (const auto& rule : rules) nodes.back()->store().Register(rule);
  }
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::string> keys;
    for (size_t i = 0; i < 3; ++i) keys.push_back(std::to_string(round) + KeyAt(*rules[i], i));
    std::atomic<int> granted{0};
    std::vector<std::thread> threads;
    for (int n = 0; n < kNodes; ++n) {
      threads.emplace_back([&, n] {
        // Each thread gives them in another order; they are taken in one order.
        std::vector<store::Charge> charges;
        for (size_t i = 0; i < 3; ++i) {
          const size_t c = (i + static_cast<size_t>(n)) % 3;
          charges.push_back({rules[c].get(), keys[c], 1});
        }
        if (Acquire(nodes[static_cast<size_t>(n)]->store(), charges).granted()) ++granted;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(granted.load(), 1) << round;
  }
}

TEST_F(RedisClusterChargesTest, RequestIdsAreRememberedInOneSlotAndRefusedAcrossSlots) {
  RedisNode node(cluster_->url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto one = Hourly(22, 10);
  const auto other = Hourly(23, 10);
  for (const auto& rule : {one, other}) node.store().Register(rule);
  store::Once once;
  once.id = {{1, 2}};
  const AcquireOptions options = {.once = &once};
  const std::vector<store::Charge> same = {{one.get(), "a{t}", 1}, {other.get(), "b{t}", 1}};
  for (int i = 0; i < 3; ++i) {
    const Acquired got = Acquire(node.store(), same, options);
    EXPECT_TRUE(got.granted());
    EXPECT_EQ(got.repeated, i > 0);
  }
  EXPECT_EQ(Query(node.store(), *one, "a{t}").level.remaining, 9);
  const std::vector<store::Charge> several = {{one.get(), "a{t}", 1}, {other.get(), "c{u}", 1}};
  EXPECT_EQ(Acquire(node.store(), several, options).outcome, Outcome::kSeveralSlots);
  EXPECT_EQ(Query(node.store(), *one, "a{t}").level.remaining, 9);
}

TEST_F(RedisClusterChargesTest, ReservationAcrossSlotsNamesChargesInOtherSlots) {
  RedisNode node(cluster_->url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto one = Hourly(20, 10);
  const auto other = Hourly(21, 10);
  for (const auto& rule : {one, other}) node.store().Register(rule);
  struct Operation final : store::AcquireOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  Operation operation;
  const store::Charge charges[] = {
      {one.get(), "a{t}", 1}, {other.get(), "b{t}", 1}, {other.get(), "c{u}", 1}};
  store::ChargeResult results[3];
  store::Acquisition acquisition;
  acquisition.charges = charges;
  acquisition.results = results;
  acquisition.max_wait_ns = kSecond;
  operation.acquisitions = absl::MakeSpan(&acquisition, 1);
  node.store().Acquire(&operation);
  operation.done.Wait();
  EXPECT_EQ(acquisition.outcome, Outcome::kSeveralSlots);
  EXPECT_EQ(acquisition.other_slot_charge, 2u);
}

TEST_F(RedisClusterChargesTest, ReservesChargesOfLimitsWithOneHashTagTogether) {
  RedisNode node(cluster_->url());
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto tagged = [&](uint32_t id, const algorithm::Parameters& parameters) {
    auto rule = std::make_shared<store::Rule>(*MakeRule(id, parameters));
    rule->hash_tag = "orders";
    node.store().Register(rule);
    return rule;
  };
  const auto one = tagged(40, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 1, 0).value());
  const auto overall = tagged(41, algorithm::MakeSlidingLog({1, 1800 * kSecond}).value());
  // Keys of any kind, also keys with tags, and the limit's shared bucket.
  const std::vector<store::Charge> charges = {
      {one.get(), "a{t}", 1}, {one.get(), "b", 1}, {overall.get(), "", 1}};
  const Acquired granted = Acquire(node.store(), charges);
  ASSERT_TRUE(granted.granted());
  for (const store::ChargeResult& charge : granted.charges) EXPECT_EQ(charge.debited_before_ns, 0);
  const Acquired booked = Acquire(node.store(), charges, {.max_wait_ns = 24 * 3600 * kSecond});
  ASSERT_TRUE(booked.granted());
  EXPECT_GT(booked.wait_ns, 3500 * kSecond);
  EXPECT_LE(booked.wait_ns, 3600 * kSecond);
  EXPECT_EQ(Query(node.store(), *overall, "").waiting, 1u);
}

TEST_F(RedisClusterChargesTest, NoWindowExceedsLimitUnderLoad) {
  // Every client charges two limits, and many are denied by one of them.
  LoadOptions options;
  options.several_charges = true;
  options.store = PatientOptions();
  for (LoadedLimit& limit : options.limits) limit.keys = limit.keys > 1 ? 64 : 1;
  SharedLoad load(std::vector<std::string>(3, cluster_->url()), options);
  EXPECT_TRUE(load.AwaitGrants(3000));
  EXPECT_EQ(load.Check(), "");
  EXPECT_EQ(load.unavailable(), 0u);
}

// Destroys the Cluster: the last one.
TEST_F(RedisClusterChargesTest, GivesPermitsBackWhenAnotherServerIsDown) {
  store::RedisStoreOptions brisk = PatientOptions();
  brisk.budget_ns = 200'000'000;
  RedisNode node(cluster_->url(), brisk);
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto one = Hourly(30, 10);
  node.store().Register(one);
  // The limit's shared bucket is taken last.
  const auto shared = Hourly(31, 10);
  node.store().Register(shared);
  const size_t dead = ServerOf(*shared, "");
  const std::string key = KeyAt(*one, (dead + 1) % 3);
  const std::vector<store::Charge> charges = {{shared.get(), "", 1}, {one.get(), key, 1}};
  ASSERT_TRUE(Acquire(node.store(), charges).granted());
  cluster_->Kill(dead);
  EXPECT_EQ(Acquire(node.store(), charges).outcome, Outcome::kUnavailable);
  EXPECT_EQ(Acquire(node.store(), charges).outcome, Outcome::kUnavailable);
  EXPECT_EQ(Query(node.store(), *one, key).level.remaining, 9);
}

}  // namespace
}  // namespace sluice::testing
