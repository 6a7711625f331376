// When Redis loses its data, no window exceeds its limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/grant_history.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

using store::Outcome;

constexpr int64_t kSecond = 1'000'000'000;

std::shared_ptr<const store::Rule> SlowRule(uint64_t burst = 10) {
  return MakeRule(1, algorithm::MakeTokenBucket({1, 3600 * kSecond}, burst, 0).value());
}

// Retries until Redis decides.
Acquired AcquireWhenBack(RedisNode& node, const store::Rule& rule, std::string_view key) {
  for (int i = 0;; ++i) {
    const Acquired acquired = Acquire(node.store(), rule, key);
    if (acquired.outcome != Outcome::kUnavailable || i == 2000) return acquired;
    PassTime(std::chrono::milliseconds(5));
  }
}

std::vector<std::string> ThreeTimes(const std::string& url) { return {url, url, url}; }

TEST(RedisDataLossTest, FlushFillsNoBucket) {
  RedisServer server;
  SharedLoad load(ThreeTimes(server.url()));
  RedisCalls calls(server);
  ASSERT_TRUE(load.AwaitGrants(2000));
  for (int i = 0; i < 3; ++i) {
    calls.Call({"FLUSHALL"});
    // Windows count as full for a period.
    ASSERT_TRUE(load.AwaitGrants(200, 0));
    ASSERT_TRUE(load.AwaitGrants(100, 3));
  }
  EXPECT_EQ(load.Check(), "");
}

TEST(RedisDataLossTest, RestartWithoutFileFillsNoBucket) {
  RedisServer server;
  SharedLoad load(ThreeTimes(server.url()));
  ASSERT_TRUE(load.AwaitGrants(2000));
  for (int i = 0; i < 2; ++i) {
    server.Kill();
    server.Start();
    ASSERT_TRUE(load.AwaitGrants(200, 0));
    ASSERT_TRUE(load.AwaitGrants(100, 3));
  }
  EXPECT_EQ(load.Check(), "");
}

// The file lacks up to a second of writes.
TEST(RedisDataLossTest, RestartWithOlderFileFillsNoBucket) {
  RedisServer server({"--appendonly", "yes", "--appendfsync", "everysec"});
  SharedLoad load(ThreeTimes(server.url()));
  ASSERT_TRUE(load.AwaitGrants(2000));
  server.Kill();
  server.Start();
  ASSERT_TRUE(load.AwaitGrants(200, 0));
  EXPECT_EQ(load.Check(), "");
}

TEST(RedisDataLossTest, RestartWithCompleteFileKeepsState) {
  RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
  RedisNode node(server.url());
  const auto rule = SlowRule();
  node.store().Register(rule);
  EXPECT_EQ(Acquire(node.store(), *rule, "k", 4).charges[0].level.remaining, 6);
  server.Kill();
  server.Start();
  const Acquired after = AcquireWhenBack(node, *rule, "k");
  EXPECT_EQ(after.outcome, Outcome::kGranted);
  EXPECT_EQ(after.charges[0].level.remaining, 5);
  EXPECT_EQ(AcquireWhenBack(node, *rule, "other").charges[0].level.remaining, 9);
}

TEST(RedisDataLossTest, BucketsStartEmptyAndReportNextPermit) {
  RedisServer server;
  RedisNode node(server.url());
  const auto bucket = SlowRule();
  const auto log = MakeRule(2, algorithm::MakeSlidingLog({10, 3600 * kSecond}).value());
  node.store().Register(bucket);
  node.store().Register(log);
  ASSERT_TRUE(Acquire(node.store(), *bucket, "k").granted());
  RedisCalls(server).Call({"FLUSHALL"});
  const Acquired denied = Acquire(node.store(), *bucket, "new");
  EXPECT_EQ(denied.outcome, Outcome::kDenied);
  EXPECT_EQ(denied.charges[0].level.remaining, 0);
  EXPECT_GT(denied.retry_after_ns, 3590 * kSecond);
  EXPECT_LE(denied.retry_after_ns, 3600 * kSecond);
  const store::QueryItem seen = Query(node.store(), *log, "k");
  EXPECT_EQ(seen.level.remaining, 0);
  EXPECT_EQ(seen.level.capacity, 10u);
  EXPECT_GT(seen.level.next_permit_after_ns, 3590 * kSecond);
  EXPECT_LE(seen.level.next_permit_after_ns, 3600 * kSecond);
  const Acquired full = Acquire(node.store(), *log, "k");
  EXPECT_EQ(full.outcome, Outcome::kDenied);
  EXPECT_GT(full.retry_after_ns, 3590 * kSecond);

  // A node that starts now learns it from Redis.
  RedisNode late(server.url());
  late.store().Register(bucket);
  EXPECT_EQ(Acquire(late.store(), *bucket, "another").outcome, Outcome::kDenied);
}

TEST(RedisDataLossTest, NeverGivesPromisedGrantTimesAgain) {
  RedisServer server;
  RedisNode one(server.url());
  RedisNode two(server.url());
  const std::vector<algorithm::Parameters> limits = {
      algorithm::MakeTokenBucket({1, 60 * kSecond}, 1, 0).value(),
      algorithm::MakeSlidingLog({1, 60 * kSecond}).value()};
  for (size_t i = 0; i < limits.size(); ++i) {
    const auto rule = MakeRule(static_cast<uint32_t>(10 + i), limits[i]);
    for (RedisNode* node : {&one, &two}) node->store().Register(rule);
    GrantHistory history(limits[i]);
    const auto book = [&](RedisNode& node) {
      const Acquired booked =
          Acquire(node.store(), *rule, "k", 1, {.max_wait_ns = 24 * 3600 * kSecond});
      EXPECT_TRUE(booked.granted());
      history.Add(booked.now_ns + booked.wait_ns, 1);
      return booked.now_ns + booked.wait_ns;
    };
    int64_t last_ns = 0;
    for (int n = 0; n < 20; ++n) last_ns = book(one);
    RedisCalls(server).Call({"FLUSHALL"});
    // No caller uses the node that promised.
    const Acquired denied = AcquireWhenBack(two, *rule, "k");
    EXPECT_EQ(denied.outcome, Outcome::kDenied);
    if (i == 0) {
      // The floor leaves the other node time to publish its promises.
      EXPECT_GT(denied.retry_after_ns, kSecond);
    }
    ASSERT_EQ(AcquireWhenBack(one, *rule, "k").outcome, Outcome::kDenied);
    EXPECT_GT(book(two), last_ns);
    EXPECT_GT(book(one), last_ns);
    EXPECT_EQ(history.Check(), "");
  }
}

TEST(RedisDataLossTest, BucketsStartFullIfConfigured) {
  RedisServer server;
  store::RedisStoreOptions options = PatientOptions();
  options.after_data_loss = store::redis::AfterLoss::kFull;
  RedisNode node(server.url(), options);
  const auto rule = SlowRule();
  node.store().Register(rule);
  ASSERT_TRUE(Acquire(node.store(), *rule, "k", 10).granted());
  RedisCalls(server).Call({"FLUSHALL"});
  EXPECT_EQ(Acquire(node.store(), *rule, "k").charges[0].level.remaining, 9);
}

TEST(RedisDataLossTest, ReceiptFromBeforeLossIsWorthNothing) {
  RedisServer server;
  RedisNode node(server.url());
  const auto rule = SlowRule();
  node.store().Register(rule);
  const Acquired before = Acquire(node.store(), *rule, "k", 8, {.want_receipt = true});
  ASSERT_TRUE(before.granted());
  // Only the fence is lost: the bucket may lack some of the permits that were spent.
  RedisCalls(server).Call({"DEL", "sluice:identity"});
  RedisCalls calls(server);
  const RedisValue words = calls.Call({"KEYS", "sluice:identity:*"});
  for (const RedisValue& word : words.elements) calls.Call({"DEL", word.text});
  ASSERT_EQ(Acquire(node.store(), *rule, "k").outcome, Outcome::kDenied);
  Refund(node.store(), before.receipt_id, {{rule.get(), "k", 8}});
  EXPECT_EQ(Acquire(node.store(), *rule, "k").outcome, Outcome::kDenied);
}

TEST(RedisDataLossTest, ConvertedBucketStaysEmpty) {
  RedisServer server;
  RedisNode one(server.url());
  const auto ten = SlowRule(10);
  one.store().Register(ten);
  ASSERT_TRUE(Acquire(one.store(), *ten, "k").granted());
  RedisCalls calls(server);
  calls.Call(
      {"DEL", calls.Call({"KEYS", "sluice:identity:*"}).elements.at(0).text, "sluice:identity"});
  ASSERT_EQ(Acquire(one.store(), *ten, "k").outcome, Outcome::kDenied);
  const auto twenty = SlowRule(20);
  RedisNode two(server.url());
  two.store().Register(twenty);
  EXPECT_EQ(Acquire(two.store(), *twenty, "k").outcome, Outcome::kDenied);
  EXPECT_EQ(Query(two.store(), *twenty, "k").level.remaining, 0);
}

TEST(RedisDataLossTest, NodesAgreeOnOneFence) {
  RedisServer server;
  std::vector<std::unique_ptr<RedisNode>> nodes;
  const auto rule = SlowRule(1000);
  for (int i = 0; i < 4; ++i) {
    nodes.push_back(std::make_unique<RedisNode>(server.url()));
    nodes.back()->store().Register(rule);
  }
  RedisCalls calls(server);
  for (int round = 0; round < 10; ++round) {
    calls.Call({"FLUSHALL"});
    std::vector<std::thread> threads;
    for (auto& node : nodes) {
      threads.emplace_back(
          [&] { EXPECT_EQ(Acquire(node->store(), *rule, "k").outcome, Outcome::kDenied); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(calls.Call({"KEYS", "sluice:identity:*"}).elements.size(), 1u);
    const std::string fence = calls.Call({"GET", "sluice:identity"}).text;
    for (auto& node : nodes) {
      EXPECT_EQ(Acquire(node->store(), *rule, "k").outcome, Outcome::kDenied);
    }
    EXPECT_EQ(calls.Call({"GET", "sluice:identity"}).text, fence);
  }
}

// ---- Floors of single limits ----

constexpr int64_t kMinute = 60 * kSecond;

std::shared_ptr<const store::Rule> FastRule(uint32_t limit_id) {
  return MakeRule(limit_id, algorithm::MakeTokenBucket({1000, kSecond}, 1000, 0).value());
}

// One permit in ten seconds: bookings soon lie far ahead, and a bucket that starts empty grants
// again ten seconds after its floor.
std::shared_ptr<const store::Rule> BookedRule(uint32_t limit_id) {
  return MakeRule(limit_id, algorithm::MakeTokenBucket({1, 10 * kSecond}, 1, 0).value());
}

// Books `charges` until a grant time lies at least ten minutes ahead. Returns it.
int64_t BookTenMinutes(RedisNode& node, const std::vector<store::Charge>& charges) {
  for (;;) {
    const Acquired booked =
        Acquire(node.store(), charges, {.max_wait_ns = int64_t{3600} * kSecond});
    EXPECT_TRUE(booked.granted());
    if (booked.wait_ns > 10 * kMinute || !booked.granted()) return booked.now_ns + booked.wait_ns;
  }
}

// Until it is granted.
void AwaitGrant(RedisNode& node, const store::Rule& rule, std::string_view key) {
  for (int i = 0; i < 2000; ++i) {
    if (AcquireWhenBack(node, rule, key).granted()) return;
    PassTime(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << rule.limit_name << " stays closed";
}

std::optional<int64_t> LiftFloor(RedisNode& node, const store::Rule& rule) {
  Notification done;
  std::optional<int64_t> lifted;
  node.store().LiftFloor(rule.limit_name, [&](std::optional<int64_t> floor_wall_ns) {
    lifted = floor_wall_ns;
    done.Notify();
  });
  done.Wait();
  return lifted;
}

TEST(RedisDataLossTest, OnlyLimitsWithFarBookingsStayClosed) {
  RedisServer server;
  RedisNode node(server.url());
  const auto booked = BookedRule(1);
  const auto parent = FastRule(2);
  const auto other = FastRule(3);
  for (const auto& rule : {booked, parent, other}) node.store().Register(rule);
  const int64_t last_ns = BookTenMinutes(node, {{booked.get(), "k", 1}, {parent.get(), "", 1}});
  RedisCalls(server).Call({"FLUSHALL"});
  AwaitGrant(node, *other, "k");
  for (RedisNode* asked : {&node, new RedisNode(server.url())}) {
    for (const auto& rule : {booked, parent, other}) asked->store().Register(rule);
    for (const auto& rule : {booked, parent}) {
      const Acquired denied = AcquireWhenBack(*asked, *rule, "another key");
      EXPECT_EQ(denied.outcome, Outcome::kDenied) << rule->limit_name;
      EXPECT_GE(denied.now_ns + denied.retry_after_ns, last_ns);
    }
    // It may be booked again, behind what was promised.
    const Acquired again = Acquire(asked->store(), *booked, "another key", 1,
                                   {.max_wait_ns = int64_t{3600} * kSecond});
    EXPECT_TRUE(again.granted());
    EXPECT_GE(again.now_ns + again.wait_ns, last_ns);
    EXPECT_TRUE(AcquireWhenBack(*asked, *other, "another key").granted());
    if (asked != &node) delete asked;
  }
  // Lost again, with bookings beyond the floor.
  RedisCalls(server).Call({"FLUSHALL"});
  AwaitGrant(node, *other, "k");
  EXPECT_EQ(AcquireWhenBack(node, *booked, "k").outcome, Outcome::kDenied);
  EXPECT_EQ(AcquireWhenBack(node, *parent, "").outcome, Outcome::kDenied);
}

TEST(RedisDataLossTest, FarBookingsOfTooManyLimitsCloseAllLimits) {
  RedisServer server;
  RedisNode node(server.url());
  std::vector<std::shared_ptr<const store::Rule>> booked;
  for (uint32_t id = 1; id <= common::bounds::kMaxLimitsPromised + 1; ++id) {
    booked.push_back(MakeRule(id, algorithm::MakeTokenBucket({1, 11 * kMinute}, 1, 0).value()));
    node.store().Register(booked.back());
  }
  const auto other = FastRule(static_cast<uint32_t>(booked.size()) + 1);
  node.store().Register(other);
  int64_t last_ns = 0;
  for (const auto& rule : booked) last_ns = BookTenMinutes(node, {{rule.get(), "k", 1}});
  RedisCalls(server).Call({"FLUSHALL"});
  for (const auto& rule : {other, booked.front(), booked.back()}) {
    const Acquired denied = AcquireWhenBack(node, *rule, "another key");
    EXPECT_EQ(denied.outcome, Outcome::kDenied) << rule->limit_name;
    EXPECT_GE(denied.now_ns + denied.retry_after_ns, last_ns) << rule->limit_name;
  }
}

TEST(RedisDataLossTest, IdleNodePublishesItsPromisesInTime) {
  RedisServer server;
  RedisNode one(server.url());
  RedisNode two(server.url());
  const auto booked = BookedRule(1);
  for (RedisNode* node : {&one, &two}) node->store().Register(booked);
  const int64_t last_ns = BookTenMinutes(one, {{booked.get(), "k", 1}});
  RedisCalls(server).Call({"FLUSHALL"});
  // `two` sent nothing since it started, and no caller asks `one` again.
  for (;;) {
    const Acquired denied = AcquireWhenBack(two, *booked, "k");
    ASSERT_EQ(denied.outcome, Outcome::kDenied);
    if (denied.now_ns + denied.retry_after_ns >= last_ns) break;
    PassTime(std::chrono::milliseconds(10));
  }
}

TEST(RedisDataLossTest, RaiseThatOnlyOneNodeKnowsIsPublished) {
  RedisServer server;
  RedisNode one(server.url());
  RedisNode two(server.url());
  const auto booked = BookedRule(1);
  const auto other = FastRule(3);
  for (RedisNode* node : {&one, &two}) {
    node->store().Register(booked);
    node->store().Register(other);
  }
  RedisCalls calls(server);
  Acquire(one.store(), *booked, "k", 1, {.max_wait_ns = 60 * kMinute});
  Acquire(one.store(), *booked, "k", 1, {.max_wait_ns = 60 * kMinute});
  // The copy from which the server comes back lacks later raises, and so does the next fence.
  const std::string copy = calls.Call({"GET", "sluice:identity"}).text;
  const int64_t last_ns = BookTenMinutes(one, {{booked.get(), "k", 1}});
  EXPECT_NE(calls.Call({"GET", "sluice:identity"}).text, copy);
  calls.Call({"MULTI"});
  calls.Call({"FLUSHALL"});
  calls.Call({"SET", "sluice:identity", copy});
  calls.Call({"EXEC"});
  for (RedisNode* node : {&two, &one}) {
    while (AcquireWhenBack(*node, *booked, "k").retry_after_ns <
           last_ns - 10 * kSecond - node->clock().WallNs()) {
      PassTime(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(AcquireWhenBack(*node, *booked, "k").outcome, Outcome::kDenied);
    AwaitGrant(*node, *other, "k");
  }
}

TEST(RedisDataLossTest, LiftedFloorOpensOneLimitOnAllNodes) {
  RedisServer server;
  RedisNode one(server.url());
  RedisNode two(server.url());
  const auto booked = BookedRule(1);
  const auto also = BookedRule(2);
  for (RedisNode* node : {&one, &two}) {
    for (const auto& rule : {booked, also}) node->store().Register(rule);
  }
  for (const auto& rule : {booked, also}) BookTenMinutes(one, {{rule.get(), "k", 1}});
  EXPECT_EQ(LiftFloor(one, *booked), 0);
  RedisCalls(server).Call({"FLUSHALL"});
  for (RedisNode* node : {&one, &two}) {
    EXPECT_EQ(AcquireWhenBack(*node, *booked, "k").outcome, Outcome::kDenied);
  }
  while (AcquireWhenBack(two, *booked, "k").retry_after_ns < 9 * kMinute) {
    PassTime(std::chrono::milliseconds(10));
  }
  EXPECT_GT(LiftFloor(two, *booked), one.clock().WallNs() + 9 * kMinute);
  EXPECT_EQ(LiftFloor(two, *booked), 0);
  // A node that starts now, too.
  RedisNode three(server.url());
  for (const auto& rule : {booked, also}) three.store().Register(rule);
  for (RedisNode* node : {&one, &two, &three}) {
    while (AcquireWhenBack(*node, *booked, "k").retry_after_ns > kMinute) {
      PassTime(std::chrono::milliseconds(10));
    }
    EXPECT_GT(AcquireWhenBack(*node, *also, "k").retry_after_ns, 9 * kMinute);
  }
}

TEST(RedisDataLossTest, LiftedFloorOpensBookedBucketThatNodeKnows) {
  RedisServer server;
  RedisNode node(server.url());
  const auto booked = BookedRule(1);
  const auto parent = FastRule(2);
  for (const auto& rule : {booked, parent}) node.store().Register(rule);
  BookTenMinutes(node, {{booked.get(), "k", 1}, {parent.get(), "", 1}});
  // Redis may have lost data; this bucket is still there.
  RedisCalls(server).Call({"DEL", "sluice:identity"});
  while (AcquireWhenBack(node, *parent, "").retry_after_ns < 9 * kMinute) {
    PassTime(std::chrono::milliseconds(10));
  }
  EXPECT_GT(LiftFloor(node, *parent).value_or(0), 0);
  AwaitGrant(node, *parent, "");
}

}  // namespace
}  // namespace sluice::testing
