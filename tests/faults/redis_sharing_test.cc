// Limits that nodes decide by shares while Redis is down, or before they report to it: the sum of
// all nodes' grants stays within the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/sharing/relaxed_buckets.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"

namespace sluice::testing {
namespace {

// Exact; while Redis is down each node decides by its share.
TEST(RedisSharingTest, DebitsGrantsMadeWhileRedisWasDown) {
  RedisServer server;
  LoadOptions options = LoadOfNodes(store::Sharing::kExact, true);
  SharedLoad load({server.url(), server.url(), server.url()}, options);
  ASSERT_TRUE(load.AwaitGrants(300));
  for (size_t n = 0; n < 3; ++n) {
    while (load.node(n).store().Health().nodes[0].divisor != 3) ASSERT_TRUE(load.AwaitGrants(10));
  }
  uint64_t away = load.granted_while_unavailable();
  server.Pause();
  ASSERT_TRUE(load.AwaitGrants(300));
  EXPECT_GT(load.granted_while_unavailable(), away);
  server.Resume();
  ASSERT_TRUE(load.AwaitGrants(500));
  // Redis decides again.
  const auto decisions = [&] { return load.node(0).store().Stats().decisions; };
  const uint64_t decided = decisions();
  while (decisions() == decided) ASSERT_TRUE(load.AwaitGrants(100));
  // Redis restarts without its data.
  away = load.granted_while_unavailable();
  server.Kill();
  ASSERT_TRUE(load.AwaitGrants(300));
  EXPECT_GT(load.granted_while_unavailable(), away);
  server.Start();
  ASSERT_TRUE(load.AwaitGrants(1000));
  EXPECT_EQ(load.Check(), "");
}

TEST(RedisSharingTest, RelaxedOvershootStaysInBound) {
  RedisServer server;
  constexpr size_t kNodes = 2;
  LoadOptions options = LoadOfNodes(store::Sharing::kRelaxed, false);
  options.several_charges = false;
  options.refunds = false;
  // Checked against the limit plus all permits that may be unreported.
  for (LoadedLimit& limit : options.limits) limit.most = 1;
  SharedLoad load({server.url(), server.url()}, options);
  ASSERT_TRUE(load.AwaitGrants(1500));
  EXPECT_GT(load.granted_locally(), 0u);
  load.Stop();
  uint64_t over = 0;
  for (size_t l = 0; l < options.limits.size(); ++l) {
    for (size_t n = 0; n < kNodes; ++n) {
      over += load.node(n).store().OvershootPermits(load.rule(l)->limit_id);
    }
  }
  std::printf("  overshoot as reported: %llu permits\n", static_cast<unsigned long long>(over));
  for (size_t l = 0; l < options.limits.size(); ++l) {
    const algorithm::Parameters& parameters = options.limits[l].parameters;
    // Before a node has seen the other it acts as the only one.
    const uint64_t most = kNodes * store::redis::MaxUndebited(parameters, 1, 1);
    EXPECT_EQ(load.CheckBeyond(l, most), "") << options.limits[l].name;
  }
}

}  // namespace
}  // namespace sluice::testing
