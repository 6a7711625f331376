// Threads that ask with the same request ids.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/store_calls.h"

namespace sluice::store {
namespace {

using testing::Acquire;
using testing::Acquired;
using testing::AcquireOptions;
using testing::MakeRule;

constexpr int64_t kSecond = 1'000'000'000;

Once IdOf(uint64_t number, uint64_t fingerprint) {
  Once once;
  once.id = {{number, number * 31}};
  once.fingerprint = fingerprint;
  return once;
}

// All threads ask with the same ids, in orders of their own.
TEST(MemoryStoreOnceTest, ThreadsWithTheSameIdsTakePermitsOnce) {
  constexpr size_t kThreads = 16;
  constexpr uint64_t kIds = 512;
  constexpr uint64_t kKeys = 4;
  const common::SystemClock clock;
  MemoryStore store(clock, {.seed = 1});
  // Nothing comes back within the test.
  const auto token =
      MakeRule(1, *algorithm::MakeTokenBucket({1, 24 * 3600 * kSecond}, 20'000, /*debt=*/0));
  const auto log = MakeRule(2, *algorithm::MakeSlidingLog({1'000'000, 24 * 3600 * kSecond}));
  store.Register(token);
  store.Register(log);
  std::atomic<uint64_t> taken{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      std::vector<uint64_t> ids(kIds);
      for (uint64_t i = 0; i < kIds; ++i) ids[i] = i;
      std::shuffle(ids.begin(), ids.end(), random);
      for (const uint64_t id : ids) {
        const std::string key = std::to_string(id % kKeys);
        std::vector<Charge> charges = {{token.get(), key, 1}};
        if (id % 3 == 0) charges.push_back({log.get(), key, 1});
        Once once = IdOf(id, id);
        AcquireOptions options;
        options.once = &once;
        options.want_receipt = id % 5 == 0;
        const Acquired got = Acquire(store, charges, options);
        ASSERT_TRUE(got.granted());
        if (!got.repeated) taken.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken.load(), kIds);
  int64_t left = 0;
  for (uint64_t k = 0; k < kKeys; ++k) {
    left += testing::Query(store, *token, std::to_string(k)).level.remaining;
  }
  EXPECT_EQ(left, static_cast<int64_t>(kKeys * 20'000 - kIds));
}

}  // namespace
}  // namespace sluice::store
