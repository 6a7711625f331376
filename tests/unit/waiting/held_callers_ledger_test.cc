// Callers that cancel at random charge a second limit, the ledger, which never runs out and counts
// every permit debited during the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "server/store/memory/memory_store.h"
#include "tests/support/late_store.h"
#include "tests/unit/waiting/waiting_scene.h"

namespace sluice::waiting {
namespace {

constexpr uint64_t kLedger = 1'000'000;

struct Books {
  uint64_t booked = 0;
  uint64_t granted = 0;
  uint64_t refunded = 0;
};

// `late`: the store answers later.
void KeepBooks(uint64_t seed, bool late, bool change_limits) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  common::FakeClock clock{1000 * kSecond};
  store::MemoryStore memory(clock);
  testing::LateStore later(memory, {.in_order = true, .rebooks = true}, seed);
  store::Store& store = late ? static_cast<store::Store&>(later) : memory;
  Limits limits(store);
  ManualAlarm alarm;
  HeldCallers held_callers(store, clock, limits, alarm);
  const Rule* pace = &limits.Set(1, PerSecond(20, 4));
  const Rule& ledger =
      limits.Set(2, algorithm::MakeSlidingLog({kLedger, 24 * 3600 * kSecond}).value());
  std::vector<std::unique_ptr<Caller>> callers;
  uint64_t at_once = 0;
  const auto advance = [&](int64_t by_ns) {
    clock.Advance(by_ns);
    // Bounded: Advance can ask to be called again while an operation is pending.
    for (int i = 0; i < 100 && held_callers.Advance() <= clock.NowNs(); ++i) {
    }
  };
  for (int step = 0; step < 1500; ++step) {
    for (int64_t n = below(4); late && n > 0; --n) later.Step();
    switch (below(6)) {
      case 0:
        advance(below(kSecond / 5));
        break;
      case 1:
        if (!callers.empty()) {
          // In any state.
          held_callers.Cancel(callers[static_cast<size_t>(below(callers.size()))].get());
        }
        break;
      case 2:
        if (change_limits && below(20) == 0) {
          pace = &limits.Set(1, PerSecond(5 + random() % 40, 4));
          held_callers.LimitsChanged();
        }
        break;
      default: {
        const auto permits = static_cast<uint64_t>(1 + below(3));
        auto caller = std::make_unique<Caller>(
            clock, std::vector<Charge>{{pace, "", permits}, {&ledger, "", permits}});
        caller->decided_.max_wait_ns = 10 * kSecond;
        Decide(memory, caller->decided_);
        if (caller->decided_.outcome != Outcome::kGranted) break;
        if (caller->decided_.wait_ns == 0) {
          at_once += permits;
          break;
        }
        caller->since_ns = clock.NowNs();
        caller->until_ns = caller->since_ns + 10 * kSecond;
        caller->generation = limits.Generation();
        ASSERT_TRUE(held_callers.Hold(caller.get()));
        callers.push_back(std::move(caller));
        break;
      }
    }
  }
  for (int i = 0; i < 100'000 && (held_callers.size() > 0 || later.under_way() > 0); ++i) {
    later.Step();
    if (i % 8 == 0) advance(kSecond / 20);
  }
  ASSERT_EQ(held_callers.size(), 0u);
  ASSERT_EQ(later.under_way(), 0u);
  Books books;
  for (const auto& caller : callers) {
    ASSERT_EQ(caller->answers_.size(), 1u);
    const uint64_t permits = caller->charges_[0].permits;
    books.booked += permits;
    (caller->answers_[0] == HeldOutcome::kGrantTime ? books.granted : books.refunded) += permits;
  }
  EXPECT_GT(books.granted, 0u);
  EXPECT_GT(books.refunded, 0u);
  EXPECT_EQ(books.granted + books.refunded, books.booked);
  // Exactly the granted permits are debited.
  const store::QueryItem counted = testing::Query(memory, ledger, "");
  EXPECT_EQ(counted.waiting, 0u);
  EXPECT_EQ(kLedger - static_cast<uint64_t>(counted.level.remaining), at_once + books.granted)
      << "seed " << seed;
}

TEST(HeldCallersLedgerTest, GrantsAndRefundsAddUpToTheDebits) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    KeepBooks(seed, /*late=*/false, /*change_limits=*/false);
}

TEST(HeldCallersLedgerTest, GrantsAndRefundsAddUpOnASlowStore) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    KeepBooks(seed, /*late=*/true, /*change_limits=*/false);
}

TEST(HeldCallersLedgerTest, GrantsAndRefundsAddUpWhileLimitsChange) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    KeepBooks(seed, /*late=*/seed % 2 == 0, /*change_limits=*/true);
  }
}

}  // namespace
}  // namespace sluice::waiting
