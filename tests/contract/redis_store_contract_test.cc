// The contract on one redis-server.
#include <memory>

#include "tests/contract/redis_store_under_test.h"
#include "tests/contract/store_contract.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

// One server for all tests; each test empties it first.
RedisServer* server = nullptr;

class StartRedis final : public ::testing::Environment {
 public:
  void SetUp() override { server = new RedisServer; }
  void TearDown() override { delete server; }
};
const ::testing::Environment* const start_redis =
    ::testing::AddGlobalTestEnvironment(new StartRedis);

std::unique_ptr<StoreUnderTest> MakeRedisStore(const StoreOptions&) {
  RedisCalls(*server).Call({"FLUSHALL"});
  return std::make_unique<RedisStoreUnderTest>(server->url());
}

INSTANTIATE_TEST_SUITE_P(Redis, StoreContractTest, ::testing::Values(&MakeRedisStore));
INSTANTIATE_TEST_SUITE_P(Redis, ReservationContractTest, ::testing::Values(&MakeRedisStore));
INSTANTIATE_TEST_SUITE_P(Redis, OnceContractTest, ::testing::Values(&MakeRedisStore));
INSTANTIATE_TEST_SUITE_P(Redis, RebookContractTest, ::testing::Values(&MakeRedisStore));
INSTANTIATE_TEST_SUITE_P(Redis, SlotsContractTest, ::testing::Values(&MakeRedisStore));
INSTANTIATE_TEST_SUITE_P(Redis, SettleContractTest, ::testing::Values(&MakeRedisStore));
INSTANTIATE_TEST_SUITE_P(Redis, SettleSeveralContractTest, ::testing::Values(&MakeRedisStore));

}  // namespace
}  // namespace sluice::testing
