#include "common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/contract/store_contract.h"

namespace sluice::testing {
namespace {

class MemoryStoreUnderTest final : public StoreUnderTest {
 public:
  explicit MemoryStoreUnderTest(const StoreOptions& options)
      : store_(clock_, {.max_buckets = options.max_buckets,
                        .overflow = options.allow_on_overflow ? store::OverflowPolicy::kAllow
                                                              : store::OverflowPolicy::kDeny}) {}

  store::Store& store() override { return store_; }
  int64_t NowNs() override { return clock_.NowNs(); }
  void Advance(int64_t by_ns) override { clock_.Advance(by_ns); }
  void AdvanceWallOnly(int64_t by_ns) override { clock_.SetWall(clock_.WallNs() + by_ns); }
  int64_t WallNs() override { return clock_.WallNs(); }
  bool bounded() const override { return true; }

 private:
  common::FakeClock clock_;
  store::MemoryStore store_;
};

std::unique_ptr<StoreUnderTest> MakeMemoryStore(const StoreOptions& options) {
  return std::make_unique<MemoryStoreUnderTest>(options);
}

INSTANTIATE_TEST_SUITE_P(Memory, StoreContractTest, ::testing::Values(&MakeMemoryStore));
INSTANTIATE_TEST_SUITE_P(Memory, ReservationContractTest, ::testing::Values(&MakeMemoryStore));
INSTANTIATE_TEST_SUITE_P(Memory, OnceContractTest, ::testing::Values(&MakeMemoryStore));
INSTANTIATE_TEST_SUITE_P(Memory, RebookContractTest, ::testing::Values(&MakeMemoryStore));
INSTANTIATE_TEST_SUITE_P(Memory, SlotsContractTest, ::testing::Values(&MakeMemoryStore));
INSTANTIATE_TEST_SUITE_P(Memory, SettleContractTest, ::testing::Values(&MakeMemoryStore));
INSTANTIATE_TEST_SUITE_P(Memory, SettleSeveralContractTest, ::testing::Values(&MakeMemoryStore));

}  // namespace
}  // namespace sluice::testing
