// Callers of a client that disconnects at random, with a ledger: a limit that counts every permit
// of the whole test and never runs out, beside the one that makes them wait.
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
  uint64_t let_through = 0;
  uint64_t given_back = 0;
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
  HeldCallers line(store, clock, limits, alarm);
  const Rule* pace = &limits.Set(1, PerSecond(20, 4));
  const Rule& ledger =
      limits.Set(2, algorithm::MakeSlidingLog({kLedger, 24 * 3600 * kSecond}).value());
  std::vector<std::unique_ptr<Caller>> callers;
  uint64_t at_once = 0;
  const auto advance = [&](int64_t by_ns) {
    clock.Advance(by_ns);
    // Not for long: it may be looked for again and again while a step is not through.
    for (int i = 0; i < 100 && line.Advance() <= clock.NowNs(); ++i) {
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
          // Disconnects, whatever it is in the middle of.
          line.Cancel(callers[static_cast<size_t>(below(callers.size()))].get());
        }
        break;
      case 2:
        if (change_limits && below(20) == 0) {
          pace = &limits.Set(1, PerSecond(5 + random() % 40, 4));
          line.LimitsChanged();
        }
        break;
      default: {
        const auto permits = static_cast<uint64_t>(1 + below(3));
        auto caller = std::make_unique<Caller>(
            clock, std::vector<Charge>{{pace, "", permits}, {&ledger, "", permits}});
        caller->decided_.max_wait_ns = 10 * kSecond;
        struct Operation final : store::AcquireOperation {
          void Done() override {}
        } operation;
        operation.acquisitions = absl::MakeSpan(&caller->decided_, 1);
        memory.Acquire(&operation);
        if (caller->decided_.outcome != Outcome::kGranted) break;
        if (caller->decided_.wait_ns == 0) {
          at_once += permits;
          break;
        }
        caller->until_ns = clock.NowNs() + 10 * kSecond;
        caller->generation = limits.Generation();
        ASSERT_TRUE(line.Hold(caller.get()));
        callers.push_back(std::move(caller));
        break;
      }
    }
  }
  for (int i = 0; i < 100'000 && (line.size() > 0 || later.under_way() > 0); ++i) {
    later.Step();
    if (i % 8 == 0) advance(kSecond / 20);
  }
  ASSERT_EQ(line.size(), 0u);
  ASSERT_EQ(later.under_way(), 0u);
  Books books;
  for (const auto& caller : callers) {
    ASSERT_EQ(caller->answers_.size(), 1u);
    const uint64_t permits = caller->charges_[0].permits;
    books.booked += permits;
    (caller->answers_[0] == HeldOutcome::kGrantTime ? books.let_through : books.given_back) +=
        permits;
  }
  EXPECT_GT(books.let_through, 0u);
  EXPECT_GT(books.given_back, 0u);
  EXPECT_EQ(books.let_through + books.given_back, books.booked);
  // To the permit: nothing of what was given back is debited, and all that was let through is.
  const store::QueryItem counted = testing::Query(memory, ledger, "");
  EXPECT_EQ(counted.waiting, 0u);
  EXPECT_EQ(kLedger - static_cast<uint64_t>(counted.level.remaining), at_once + books.let_through)
      << "seed " << seed;
}

TEST(HeldCallersLedgerTest, WhatIsLetThroughAndGivenBackIsWhatWasDebited) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    KeepBooks(seed, /*late=*/false, /*change_limits=*/false);
}

TEST(HeldCallersLedgerTest, AlsoOnAStoreThatAnswersLater) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    KeepBooks(seed, /*late=*/true, /*change_limits=*/false);
}

TEST(HeldCallersLedgerTest, AlsoWhileLimitsChange) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    KeepBooks(seed, /*late=*/seed % 2 == 0, /*change_limits=*/true);
  }
}

}  // namespace
}  // namespace sluice::waiting
