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

// All buckets are in one slot.
std::unique_ptr<StoreUnderTest> MakeTaggedClusterStore(const StoreOptions&) {
  cluster->CallAll({"FLUSHALL"});
  return std::make_unique<RedisStoreUnderTest>(cluster->url(), "tag");
}

INSTANTIATE_TEST_SUITE_P(RedisCluster, StoreContractTest, ::testing::Values(&MakeClusterStore));
INSTANTIATE_TEST_SUITE_P(RedisCluster, OnceContractTest, ::testing::Values(&MakeClusterStore));
INSTANTIATE_TEST_SUITE_P(RedisCluster, SettleContractTest, ::testing::Values(&MakeClusterStore));
INSTANTIATE_TEST_SUITE_P(RedisCluster, SettleSeveralContractTest,
                         ::testing::Values(&MakeTaggedClusterStore));
INSTANTIATE_TEST_SUITE_P(RedisCluster, SlotsContractTest,
                         ::testing::Values(&MakeTaggedClusterStore));

TEST_P(StoreContractTest, BooksAheadWithinOneSlot) {
  const auto rule = TokenBucket(1, 1, 1);
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  EXPECT_EQ(Acquire(store(), *rule, "k", 1, {.max_wait_ns = kSecond}).wait_ns, kSecond);
  EXPECT_EQ(Query(store(), *rule, "k").waiting, 1u);
}

TEST_P(SettleContractTest, EstimateDoesNotSpanSlots) {
  const auto one = TokenBucket(1, 1, 10);
  const auto other = TokenBucket(2, 1, 10);
  const std::vector<store::Charge> charges = {{one.get(), "a", 1}, {other.get(), "b", 1}};
  const Acquired estimate = Acquire(store(), charges, {.settle_within_ns = kSecond});
  EXPECT_EQ(estimate.outcome, store::Outcome::kSeveralSlots);
  EXPECT_EQ(Remaining(*one, "a"), 10);
}

TEST_P(SettleContractTest, SlotsInSeveralSlotsOfTheClusterEnd) {
  const auto slots = Register(1, algorithm::MakeConcurrency(2, 30 * kSecond));
  const auto rate = TokenBucket(2, 1, 10);
  const std::vector<store::Charge> charges = {{slots.get(), "a", 1}, {rate.get(), "b", 4}};
  const Acquired taken = Acquire(store(), charges, {.want_receipt = true});
  ASSERT_TRUE(taken.granted());
  constexpr uint64_t kAsTaken = store::SettleOperation::kAsTaken;
  const auto settle = [&](uint64_t actual) {
    return Settle(store(), taken.receipt_id, charges, {kAsTaken, actual}, {.estimate = false})
        .outcome;
  };
  EXPECT_EQ(settle(1), store::SettleOutcome::kSeveralSlots);
  EXPECT_EQ(Remaining(*slots, "a"), 1);
  EXPECT_EQ(settle(kAsTaken), store::SettleOutcome::kSettled);
  EXPECT_EQ(Remaining(*slots, "a"), 2);
  EXPECT_EQ(Remaining(*rate, "b"), 6);
  EXPECT_EQ(settle(kAsTaken), store::SettleOutcome::kSettled);
  EXPECT_EQ(Refund(store(), taken.receipt_id, charges).outcome, store::RefundOutcome::kSettled);
}

// A script does not close receipts of a bucket with bookings.
TEST_P(SettleContractTest, SettledSlotsInSeveralSlotsOfTheClusterAreNotRefundedFromABookedBucket) {
  const auto slots = Register(1, algorithm::MakeConcurrency(2, 30 * kSecond));
  const auto rate = TokenBucket(2, 1, 10);
  const std::vector<store::Charge> charges = {{slots.get(), "a", 1}, {rate.get(), "b", 4}};
  const Acquired taken = Acquire(store(), charges, {.want_receipt = true});
  ASSERT_TRUE(taken.granted());
  ASSERT_TRUE(Acquire(store(), *rate, "b", 8, {.max_wait_ns = 10 * kSecond}).granted());
  const int64_t before = Remaining(*rate, "b");
  EXPECT_EQ(Settle(store(), taken.receipt_id, charges,
                   {store::SettleOperation::kAsTaken, store::SettleOperation::kAsTaken},
                   {.estimate = false})
                .outcome,
            store::SettleOutcome::kSettled);
  EXPECT_EQ(Refund(store(), taken.receipt_id, charges).outcome, store::RefundOutcome::kSettled);
  EXPECT_EQ(Remaining(*rate, "b"), before);
}

}  // namespace
}  // namespace sluice::testing
