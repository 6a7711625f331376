// The contract on a Redis Cluster.
#include <memory>

#include "tests/contract/redis_store_under_test.h"
#include "tests/contract/store_contract.h"
#include "tests/support/redis_cluster.h"

namespace sluice::testing {
namespace {

// One Cluster for all tests; each test empties it first.
RedisCluster* cluster = nullptr;

class StartCluster final : public ::testing::Environment {
 public:
  void SetUp() override { cluster = new RedisCluster; }
  void TearDown() override { delete cluster; }
};
const ::testing::Environment* const start_cluster =
    ::testing::AddGlobalTestEnvironment(new StartCluster);

std::unique_ptr<StoreUnderTest> MakeClusterStore(const StoreOptions&) {
  cluster->CallAll({"FLUSHALL"});
  return std::make_unique<RedisStoreUnderTest>(cluster->url());
}

INSTANTIATE_TEST_SUITE_P(RedisCluster, StoreContractTest, ::testing::Values(&MakeClusterStore));

TEST_P(StoreContractTest, BooksAheadWithinOneSlot) {
  const auto rule = TokenBucket(1, 1, 1);
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  EXPECT_EQ(Acquire(store(), *rule, "k", 1, {.max_wait_ns = kSecond}).wait_ns, kSecond);
  EXPECT_EQ(Query(store(), *rule, "k").waiting, 1u);
}

}  // namespace
}  // namespace sluice::testing
