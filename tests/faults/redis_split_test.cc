// Limits that nodes divide among them: the sum of all nodes' grants stays within the limit while
// nodes and Redis come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"

namespace sluice::testing {
namespace {

TEST(RedisSplitTest, NeverGrantsMoreWhileNodesJoinAndLeave) {
  RedisServer server;
  SharedLoad load({server.url(), server.url()}, LoadOfNodes(store::Sharing::kSplit, false));
  ASSERT_TRUE(load.AwaitGrants(300));
  EXPECT_EQ(load.node(0).store().Stats().decisions, 0u);  // Redis decided none
  load.AddNode(server.url());
  ASSERT_TRUE(load.AwaitGrants(300));
  load.RemoveNode(0, /*leaves=*/true);
  ASSERT_TRUE(load.AwaitGrants(300));
  load.RemoveNode(1, /*leaves=*/false);
  ASSERT_TRUE(load.AwaitGrants(500));
  const store::StoreHealth health = load.node(2).store().Health();
  EXPECT_GE(health.nodes.size(), 1u);
  EXPECT_TRUE(health.nodes[0].self);
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.granted_locally(), 0u);
}

TEST(RedisSplitTest, StopsWhileRedisIsDownForLongAndResumes) {
  RedisServer server;
  SharedLoad load({server.url(), server.url(), server.url()},
                  LoadOfNodes(store::Sharing::kSplit, false));
  ASSERT_TRUE(load.AwaitGrants(300));
  server.Kill();
  PassTime(std::chrono::nanoseconds(2 * kNodeTtlNs));
  const uint64_t before = load.granted();
  PassTime(std::chrono::nanoseconds(kNodeTtlNs / 2));
  EXPECT_EQ(load.granted(), before);
  EXPECT_GT(load.unavailable(), 0u);
  server.Start();
  ASSERT_TRUE(load.AwaitGrants(300));
  EXPECT_EQ(load.Check(), "");
}

TEST(RedisSplitTest, ContinuesWithoutRedisIfConfigured) {
  RedisServer server;
  SharedLoad load({server.url(), server.url(), server.url()},
                  LoadOfNodes(store::Sharing::kSplit, true));
  ASSERT_TRUE(load.AwaitGrants(300));
  server.Kill();
  PassTime(std::chrono::nanoseconds(2 * kNodeTtlNs));  // longer than a share lasts
  ASSERT_TRUE(load.AwaitGrants(300));
  server.Start();
  ASSERT_TRUE(load.AwaitGrants(1000));
  server.Pause();
  PassTime(std::chrono::nanoseconds(2 * kNodeTtlNs));
  ASSERT_TRUE(load.AwaitGrants(300));
  server.Resume();
  ASSERT_TRUE(load.AwaitGrants(500));
  EXPECT_EQ(load.Check(), "");
}

}  // namespace
}  // namespace sluice::testing
