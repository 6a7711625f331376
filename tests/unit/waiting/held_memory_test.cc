// What a held caller is counted with covers what it makes the process allocate.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/bounds.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/counted_allocations.h"
#include "tests/unit/waiting/waiting_scene.h"

namespace sluice::waiting {
namespace {

TEST(HeldMemoryTest, ChangeOfLimitsTakesNoMoreThanWasCounted) {
  common::FakeClock clock(1000 * kSecond);
  store::MemoryStore store(clock);
  Limits limits(store);
  ManualAlarm alarm;
  std::vector<std::unique_ptr<Caller>> callers;
  HeldCallers held_callers(store, clock, limits, alarm);
  std::vector<const Rule*> rules;
  for (uint32_t limit = 1; limit <= common::bounds::kMaxCharges; ++limit) {
    rules.push_back(&limits.Set(limit, PerSecond(1)));
  }
  int64_t counted = 0;
  std::vector<std::string> keys(500);
  for (std::string& key : keys) {
    key = std::to_string(callers.size());
    key.resize(common::bounds::kMaxKeyBytes, 'k');
    std::vector<Charge> charges;
    for (const Rule* const rule : rules) charges.push_back({rule, key, 1});
    ASSERT_TRUE(testing::Acquire(store, charges).granted());
    counted += static_cast<int64_t>(HeldCallers::MemoryFor(charges));
    auto caller = std::make_unique<Caller>(clock, std::move(charges));
    caller->decided_.max_wait_ns = kMinute;
    Decide(store, caller->decided_);
    ASSERT_EQ(caller->decided_.wait_ns, kSecond);
    caller->since_ns = clock.NowNs();
    caller->until_ns = caller->since_ns + kMinute;
    caller->generation = limits.Generation();
    callers.push_back(std::move(caller));
  }
  const int64_t before = allocated_bytes;
  for (const auto& caller : callers) ASSERT_TRUE(held_callers.Hold(caller.get()));
  for (uint32_t limit = 1; limit <= common::bounds::kMaxCharges; ++limit) {
    limits.Set(limit, PerSecond(2));
  }
  most_allocated = allocated_bytes;
  held_callers.Advance();
  for (const auto& caller : callers) ASSERT_LT(caller->decided_.wait_ns, kSecond);
  const int64_t taken = most_allocated - before;
  EXPECT_LE(taken, counted);
  EXPECT_GT(taken, counted / 2);
}

}  // namespace
}  // namespace sluice::waiting
