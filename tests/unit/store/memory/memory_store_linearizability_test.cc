// Small random histories of several threads, on a clock that stands still, must be explained by
// some order of their operations, one at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/linearizability.h"
#include "tests/support/store_calls.h"
#include "tests/support/threads.h"

namespace sluice::store {
namespace {

using test_support::Timed;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kBuckets = 5;  // one of each algorithm
constexpr size_t kSlots = 4;
constexpr int kThreads = 3;
constexpr int kOperations = 6;  // of each thread

// Stands still, and lets another thread run, now and then, whenever it is read: within each
// operation, and for a fixed window while the locks are held. So operations overlap also where one
// core runs all threads.
class YieldingClock final : public common::Clock {
 public:
  int64_t NowNs() const override {
    MaybeYield();
    return kSecond;
  }
  int64_t WallNs() const override {
    MaybeYield();
    return 1000 * kSecond;
  }

 private:
  static void MaybeYield() {
    thread_local std::minstd_rand random(
        static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
    if (random() % 2 == 0) std::this_thread::yield();
  }
};

struct Operation {
  enum Kind : uint8_t { kAcquire, kQuery, kRefund, kRenew } kind = kAcquire;
  // What was asked for: permits of each bucket; for kQuery, of which one.
  std::array<uint64_t, kBuckets> permits{};
  int bucket = 0;
  // What was answered.
  bool granted = false;
  std::array<int64_t, kBuckets> remaining{};
  bool refunded = false;                   // or renewed
  std::array<uint64_t, kBuckets> given{};  // back
  uint64_t receipt_id = 0;
};

// Buckets are counters when time stands still. How much a receipt is worth is another test's
// affair: here it is that each is refunded once, and that what was given is there from then on.
struct Model {
  std::array<int64_t, kBuckets> remaining{};
  std::vector<uint64_t> refunded;

  friend bool operator<(const Model& a, const Model& b) {
    return std::tie(a.remaining, a.refunded) < std::tie(b.remaining, b.refunded);
  }

  bool Apply(const Operation& operation) {
    switch (operation.kind) {
      case Operation::kQuery:
        return operation.remaining[static_cast<size_t>(operation.bucket)] ==
               remaining[static_cast<size_t>(operation.bucket)];
      case Operation::kAcquire: {
        bool fits = true;
        for (size_t b = 0; b < kBuckets; ++b) {
          fits &= remaining[b] >= static_cast<int64_t>(operation.permits[b]);
        }
        if (fits != operation.granted) return false;
        for (size_t b = 0; b < kBuckets; ++b) {
          if (operation.permits[b] == 0) continue;
          if (fits) remaining[b] -= static_cast<int64_t>(operation.permits[b]);
          if (operation.remaining[b] != remaining[b]) return false;
        }
        return true;
      }
      case Operation::kRenew:
        return operation.refunded ==
               !std::binary_search(refunded.begin(), refunded.end(), operation.receipt_id);
      case Operation::kRefund: {
        const bool first =
            std::find(refunded.begin(), refunded.end(), operation.receipt_id) == refunded.end();
        if (first != operation.refunded) return false;
        if (!first) return true;
        refunded.insert(std::upper_bound(refunded.begin(), refunded.end(), operation.receipt_id),
                        operation.receipt_id);
        for (size_t b = 0; b < kBuckets; ++b) {
          if (operation.given[b] > operation.permits[b]) return false;
          remaining[b] += static_cast<int64_t>(operation.given[b]);
        }
        return true;
      }
    }
    return false;
  }
};

bool Renewed(MemoryStore& store, uint64_t receipt_id, const Charge& slots) {
  struct Renewing final : RenewOperation {
    void Done() override {}
  } operation;
  Renewal renewal;
  renewal.receipt_id = receipt_id;
  renewal.charges = absl::MakeConstSpan(&slots, 1);
  operation.items = absl::MakeSpan(&renewal, 1);
  store.Renew(&operation);
  return renewal.outcome == RenewOutcome::kRenewed;
}

std::string Text(const std::vector<Timed<Operation>>& history) {
  static constexpr const char* kNames[] = {"acquire", "query", "refund", "renew"};
  std::string text;
  for (const auto& [called, returned, operation] : history) {
    text += "[" + std::to_string(called) + "," + std::to_string(returned) + "] " +
            kNames[operation.kind] + " permits";
    for (uint64_t permits : operation.permits) text += " " + std::to_string(permits);
    text += operation.kind >= Operation::kRefund ? (operation.refunded ? " done" : " not")
            : operation.granted                  ? " granted"
                                                 : " denied";
    text += " receipt " + std::to_string(operation.receipt_id) + " remaining";
    for (int64_t remaining : operation.remaining) text += " " + std::to_string(remaining);
    text += "\n";
  }
  return text;
}

using Checker = test_support::LinearizabilityChecker<Model, Operation>;

TEST(LinearizabilityCheckerTest, AcceptsAHistoryThatSomeOrderExplains) {
  Model one;
  one.remaining = {1, 0, 0, 0};
  Operation granted;
  granted.permits = {1, 0, 0, 0};
  granted.granted = true;
  Operation denied = granted;
  denied.granted = false;
  // They overlap, so the one that returned first may have come second.
  EXPECT_TRUE(Checker::Check({{1, 3, denied}, {2, 4, granted}}, one));
}

TEST(LinearizabilityCheckerTest, RejectsAHistoryThatNoOrderExplains) {
  Model one;
  one.remaining = {1, 0, 0, 0};
  Operation granted;
  granted.permits = {1, 0, 0, 0};
  granted.granted = true;
  Operation denied = granted;
  denied.granted = false;
  denied.remaining = {0, 0, 0, 0};
  // Denied before any permit was taken.
  EXPECT_FALSE(Checker::Check({{1, 2, denied}, {3, 4, granted}}, one));
  // Granted twice.
  EXPECT_FALSE(Checker::Check({{1, 3, granted}, {2, 4, granted}}, one));
  // Denied because of another denied request.
  Operation both;
  both.permits = {1, 1, 0, 0};
  both.remaining = {1, 0, 0, 0};
  denied.remaining = {0, 0, 0, 0};
  EXPECT_FALSE(Checker::Check({{1, 3, both}, {2, 4, denied}}, one));
}

TEST(MemoryStoreLinearizabilityTest, RandomHistoriesWithSeveralChargesAreLinearizable) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kHistories = 500;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
  constexpr int kHistories = 500;
#else
  constexpr int kHistories = 5000;
#endif
#else
  constexpr int kHistories = 5000;
#endif
  const YieldingClock clock;
  MemoryStore store(clock);
  constexpr uint64_t kPermits = 5;
  const algorithm::Parameters parameters[kBuckets] = {
      algorithm::MakeTokenBucket({kPermits, kSecond}, kPermits, 0).value(),
      algorithm::MakeSlidingLog({kPermits, kSecond}).value(),
      algorithm::MakeSlidingWindow({kPermits, kSecond}, 10).value(),
      algorithm::MakeFixedWindow({kPermits, 3600 * kSecond}, 0).value(),
      algorithm::MakeConcurrency(kPermits, 3600 * kSecond).value()};
  std::shared_ptr<const Rule> rules[kBuckets];
  for (size_t b = 0; b < kBuckets; ++b) {
    rules[b] = testing::MakeRule(static_cast<uint32_t>(b + 1), parameters[b]);
    store.Register(rules[b]);
  }
  std::atomic<uint64_t> counter{1};
  std::vector<Timed<Operation>> recorded[kThreads];
  test_support::Barrier barrier(kThreads);
  int overlapping = 0;
  test_support::RunThreads(kThreads, [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread) * 1000 + 17);
    for (int history = 0; history < kHistories; ++history) {
      const std::string key = std::to_string(history);
      std::vector<Timed<Operation>>& mine = recorded[thread];
      mine.clear();
      std::vector<Operation> receipts;
      barrier.Wait();
      for (int n = 0; n < kOperations; ++n) {
        // Let the threads' operations mix also where one core runs them all.
        if (random() % 2 == 0) std::this_thread::yield();
        Timed<Operation> timed;
        Operation& operation = timed.operation;
        const unsigned what = random() % 11;
        if (what == 0) {
          operation.kind = Operation::kQuery;
          operation.bucket = static_cast<int>(random() % kBuckets);
          const auto b = static_cast<size_t>(operation.bucket);
          timed.called = counter.fetch_add(1);
          operation.remaining[b] = testing::Query(store, *rules[b], key).level.remaining;
          timed.returned = counter.fetch_add(1);
        } else {
          std::vector<Charge> charges;
          const bool refund = (what <= 2 || what == 10) && !receipts.empty();
          if (refund) {
            operation = receipts[random() % receipts.size()];
            // Only slots can be renewed.
            operation.kind = what == 10 && operation.permits[kSlots] > 0 ? Operation::kRenew
                                                                         : Operation::kRefund;
          } else {
            const unsigned set = random() % ((1u << kBuckets) - 1) + 1;
            for (unsigned b = 0; b < kBuckets; ++b) {
              if (set >> b & 1) operation.permits[b] = random() % 3 + 1;
            }
          }
          for (size_t b = 0; b < kBuckets; ++b) {
            if (operation.permits[b] > 0)
              charges.push_back({rules[b].get(), key, operation.permits[b]});
          }
          if (operation.kind == Operation::kRenew) {
            timed.called = counter.fetch_add(1);
            operation.refunded = Renewed(store, operation.receipt_id, charges.back());
            timed.returned = counter.fetch_add(1);
          } else if (refund) {
            timed.called = counter.fetch_add(1);
            const testing::Refunded refunded =
                testing::Refund(store, operation.receipt_id, charges);
            timed.returned = counter.fetch_add(1);
            operation.refunded = refunded.outcome == RefundOutcome::kRefunded;
            size_t c = 0;
            for (size_t b = 0; b < kBuckets; ++b) {
              if (operation.permits[b] > 0) operation.given[b] = refunded.permits[c++];
            }
          } else {
            const bool want_receipt = random() % 3 == 0 || operation.permits[kSlots] > 0;
            timed.called = counter.fetch_add(1);
            const testing::Acquired acquired =
                testing::Acquire(store, charges, {.want_receipt = want_receipt});
            timed.returned = counter.fetch_add(1);
            operation.granted = acquired.granted();
            operation.receipt_id = acquired.receipt_id;
            size_t c = 0;
            for (size_t b = 0; b < kBuckets; ++b) {
              if (operation.permits[b] > 0) {
                operation.remaining[b] = acquired.charges[c++].level.remaining;
              }
            }
            if (operation.receipt_id != 0) receipts.push_back(operation);
          }
        }
        mine.push_back(timed);
      }
      barrier.Wait();
      if (thread == 0) {
        std::vector<Timed<Operation>> all;
        for (const auto& of_thread : recorded) {
          all.insert(all.end(), of_thread.begin(), of_thread.end());
        }
        for (const auto& a : all) {
          for (const auto& b : all) overlapping += a.called < b.called && b.called < a.returned;
        }
        Model full;
        full.remaining.fill(kPermits);
        EXPECT_TRUE(Checker::Check(all, full)) << "history " << history << "\n" << Text(all);
      }
      barrier.Wait();
    }
  });
  // Otherwise nothing was tested.
  EXPECT_GT(overlapping, kHistories / 10);
}

}  // namespace
}  // namespace sluice::store
