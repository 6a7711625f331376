// Small random histories of several threads, on a clock that stands still, must be explained by
// some order of their operations, one at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/linearizability.h"
#include "tests/support/store_calls.h"
#include "tests/support/threads.h"
#include "tests/unit/store/memory/linear_model.h"

namespace sluice::store {
namespace {

using linear::kBuckets;
using linear::kMaxOwed;
using linear::kPermits;
using linear::kSlots;
using linear::Model;
using linear::Operation;
using linear::Text;
using test_support::Timed;

constexpr int64_t kSecond = 1'000'000'000;
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

using Checker = test_support::LinearizabilityChecker<Model, Operation>;

TEST(LinearizabilityCheckerTest, AcceptsAHistoryThatSomeOrderExplains) {
  Model one;
  one.remaining = {1};
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
  one.remaining = {1};
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

// Settled once, whatever the order: the second is refused, or is the first one again.
TEST(LinearizabilityCheckerTest, KnowsSettlementsAndForcedDebits) {
  Model model;
  model.remaining = {1};
  Operation forced;
  forced.kind = Operation::kForce;
  forced.permits = {6};
  forced.granted = forced.estimate = true;
  forced.receipt_id = 1;
  forced.forgiven = {2};
  forced.remaining = {-3};
  Operation settled = forced;
  settled.kind = Operation::kSettle;
  settled.actual = {5};
  settled.given = {1};
  settled.settled = SettleOutcome::kSettled;
  Operation again = settled;
  again.given = {};
  EXPECT_TRUE(Checker::Check({{1, 2, forced}, {3, 5, settled}, {4, 6, again}}, model));
  EXPECT_FALSE(Checker::Check({{1, 2, forced}, {3, 5, settled}, {4, 6, settled}}, model));
  again.actual = {4};
  EXPECT_FALSE(Checker::Check({{1, 2, forced}, {3, 5, settled}, {4, 6, again}}, model));
  again.settled = SettleOutcome::kAlreadySettled;
  EXPECT_TRUE(Checker::Check({{1, 2, forced}, {3, 5, settled}, {4, 6, again}}, model));
  forced.forgiven = {1};
  EXPECT_FALSE(Checker::Check({{1, 2, forced}}, model));
}

TEST(LinearizabilityCheckerTest, KnowsRequestIds) {
  Model model;
  model.remaining = {3};
  Operation first;
  first.permits = {2};
  first.granted = true;
  first.request = 7;
  first.receipt_id = 1;
  first.remaining = {1};
  Operation again = first;
  again.repeated = true;
  EXPECT_TRUE(Checker::Check({{1, 2, first}, {3, 4, again}}, model));
  // Which one came first is open only while they overlap.
  EXPECT_TRUE(Checker::Check({{1, 3, again}, {2, 4, first}}, model));
  EXPECT_FALSE(Checker::Check({{1, 2, again}, {3, 4, first}}, model));
  EXPECT_FALSE(Checker::Check({{1, 3, first}, {2, 4, first}}, model)) << "granted twice";
  Operation refunded = first;
  refunded.kind = Operation::kRefund;
  refunded.done = true;
  refunded.given = {2};
  EXPECT_FALSE(Checker::Check({{1, 2, first}, {3, 4, refunded}, {5, 6, again}}, model));
  again.granted = again.repeated = false;
  again.over = true;
  EXPECT_TRUE(Checker::Check({{1, 2, first}, {3, 4, refunded}, {5, 6, again}}, model));
}

TEST(LinearizabilityCheckerTest, KnowsSettlementsOfWorkThatGoesOn) {
  Model model;
  model.remaining = {5};
  Operation taken;
  taken.permits = {2};
  taken.granted = taken.estimate = true;
  taken.receipt_id = 1;
  taken.remaining = {3};
  Operation more = taken;
  more.kind = Operation::kSettle;
  more.more = true;
  more.actual = {4};
  more.charged = {2};
  more.settled = SettleOutcome::kSettled;
  Operation last = more;
  last.more = false;
  last.actual = {5};
  last.charged = {1};
  EXPECT_TRUE(Checker::Check({{1, 2, taken}, {3, 4, more}, {5, 6, last}}, model));
  last.charged = {3};
  EXPECT_FALSE(Checker::Check({{1, 2, taken}, {3, 4, more}, {5, 6, last}}, model))
      << "charged twice";
  last.charged = {};
  last.actual = {3};
  last.settled = SettleOutcome::kActualDecreased;
  EXPECT_TRUE(Checker::Check({{1, 2, taken}, {3, 4, more}, {5, 6, last}}, model));
  last.settled = SettleOutcome::kSettled;
  EXPECT_FALSE(Checker::Check({{1, 2, taken}, {3, 4, more}, {5, 6, last}}, model));
}

// One bucket of each algorithm, for each key.
class Buckets {
 public:
  explicit Buckets(MemoryStore& store) : store_(store) {
    const algorithm::Parameters parameters[kBuckets] = {
        algorithm::MakeTokenBucket({kPermits, kSecond}, kPermits, 0).value(),
        algorithm::MakeSlidingLog({kPermits, kSecond}).value(),
        algorithm::MakeSlidingWindow({kPermits, kSecond}, 10).value(),
        algorithm::MakeFixedWindow({kPermits, 3600 * kSecond}, 0).value(),
        algorithm::MakeConcurrency(kPermits, 3600 * kSecond).value()};
    for (size_t b = 0; b < kBuckets; ++b) {
      std::optional<uint64_t> max_owed;
      if (b != kSlots) max_owed = kMaxOwed;
      rules_[b] = testing::MakeRule(static_cast<uint32_t>(b + 1), parameters[b], false, max_owed);
      store_.Register(rules_[b]);
    }
  }

  // Carries it out, and writes the answer.
  void Run(const std::string& key, bool want_receipt, Operation* operation) const {
    std::vector<Charge> charges;
    std::vector<size_t> of;
    for (size_t b = 0; b < kBuckets; ++b) {
      if (operation->permits[b] == 0) continue;
      charges.push_back({rules_[b].get(), key, operation->permits[b]});
      of.push_back(b);
    }
    switch (operation->kind) {
      case Operation::kQuery: {
        const auto b = static_cast<size_t>(operation->bucket);
        operation->remaining[b] = testing::Query(store_, *rules_[b], key).level.remaining;
        return;
      }
      case Operation::kAcquire:
      case Operation::kForce: {
        testing::AcquireOptions options = {.want_receipt = want_receipt};
        Once once = OnceOf(key, *operation);
        if (operation->request != 0) options.once = &once;
        if (operation->kind == Operation::kForce) options.debit = Debit::kForced;
        if (operation->estimate) options.settle_within_ns = 3600 * kSecond;
        const testing::Acquired acquired = testing::Acquire(store_, charges, options);
        operation->granted = acquired.granted();
        operation->repeated = acquired.repeated;
        operation->over = acquired.outcome == Outcome::kEnded;
        operation->receipt_id = acquired.receipt_id;
        for (size_t c = 0; c < of.size(); ++c) {
          operation->remaining[of[c]] = acquired.charges[c].level.remaining;
          operation->forgiven[of[c]] = acquired.charges[c].forgiven;
        }
        return;
      }
      case Operation::kRefund: {
        const Once once = OnceOf(key, *operation);
        const testing::Refunded refunded =
            testing::Refund(store_, operation->receipt_id, charges, /*grant_time_ns=*/0,
                            operation->request != 0 ? &once : nullptr);
        operation->done = refunded.outcome == RefundOutcome::kRefunded;
        for (size_t c = 0; c < of.size(); ++c) operation->given[of[c]] = refunded.permits[c];
        return;
      }
      case Operation::kSettle: {
        std::vector<uint64_t> actual;
        for (const size_t b : of) {
          actual.push_back(b == kSlots ? SettleOperation::kAsTaken : operation->actual[b]);
        }
        const testing::Settled settled =
            testing::Settle(store_, operation->receipt_id, charges, actual,
                            {.more = operation->more, .estimate = operation->estimate});
        operation->settled = settled.outcome;
        for (size_t c = 0; c < of.size(); ++c) {
          operation->given[of[c]] = settled.permits[c].given_back_now;
          operation->charged[of[c]] = settled.permits[c].charged_now;
        }
        return;
      }
      case Operation::kRenew:
        operation->done = Renewed(store_, operation->receipt_id, charges.back());
        return;
    }
  }

 private:
  static Once OnceOf(const std::string& key, const Operation& operation) {
    Once once;
    once.id = {{std::stoull(key), operation.request}};
    return once;
  }

  MemoryStore& store_;
  std::shared_ptr<const Rule> rules_[kBuckets];
};

// What one thread calls next.
class Caller {
 public:
  explicit Caller(unsigned seed) : random_(seed) {}

  void Begin(unsigned history) {
    history_ = history;
    receipts_.clear();
  }

  Timed<Operation> Next(const Buckets& buckets, const std::string& key,
                        std::atomic<uint64_t>& counter) {
    // Let the threads' operations mix also where one core runs them all.
    if (random_() % 2 == 0) std::this_thread::yield();
    Timed<Operation> timed;
    timed.operation = Choose();
    Operation& operation = timed.operation;
    const bool want_receipt = operation.estimate || operation.permits[kSlots] > 0 ||
                              operation.request != 0 || random_() % 3 == 0;
    timed.called = counter.fetch_add(1);
    buckets.Run(key, want_receipt, &operation);
    timed.returned = counter.fetch_add(1);
    const bool acquired =
        operation.kind == Operation::kAcquire || operation.kind == Operation::kForce;
    if (acquired && operation.receipt_id != 0) receipts_.push_back(operation);
    return timed;
  }

 private:
  Operation Choose() {
    const unsigned what = random_() % 12;
    if (what < 5 && !receipts_.empty()) return OfReceipt(what);
    Operation operation;
    if (what == 5) {
      operation.kind = Operation::kQuery;
      operation.bucket = static_cast<int>(random_() % kBuckets);
      return operation;
    }
    if (what <= 7) return Acquisition(random_, /*force=*/true);
    if (what <= 9) return Acquisition(random_, /*force=*/false);
    // Each thread may ask for it.
    const unsigned request = random_() % 2 + 1;
    std::mt19937 of_request(2 * history_ + request);
    operation = Acquisition(of_request, /*force=*/of_request() % 2 == 0);
    operation.request = request;
    return operation;
  }

  static Operation Acquisition(std::mt19937& random, bool force) {
    Operation operation;
    operation.kind = force ? Operation::kForce : Operation::kAcquire;
    // Slots cannot be forced.
    const unsigned sets = (1u << (force ? kSlots : kBuckets)) - 1;
    const unsigned set = random() % sets + 1;
    for (unsigned b = 0; b < kBuckets; ++b) {
      if (set >> b & 1) operation.permits[b] = random() % 3 + 1;
    }
    operation.estimate = set != 1u << kSlots && random() % 2 == 0;
    return operation;
  }

  Operation OfReceipt(unsigned what) {
    const Operation& of = receipts_[random_() % receipts_.size()];
    Operation operation;
    operation.permits = of.permits;
    operation.estimate = of.estimate;
    operation.request = of.request;
    operation.receipt_id = of.receipt_id;
    const bool slots = of.permits[kSlots] > 0;
    operation.kind = Operation::kRefund;
    if (what == 0 && slots) operation.kind = Operation::kRenew;
    // Without an account, only slots are settled.
    const bool only_slots = of.permits == JustSlots(of.permits[kSlots]);
    if (what >= 2 && (of.estimate || only_slots)) {
      operation.kind = Operation::kSettle;
      operation.more = of.estimate && random_() % 2 == 0;
      for (size_t b = 0; b < kSlots; ++b) {
        if (of.permits[b] > 0) operation.actual[b] = random_() % 6;
      }
    }
    return operation;
  }

  static std::array<uint64_t, kBuckets> JustSlots(uint64_t permits) {
    std::array<uint64_t, kBuckets> only{};
    only[kSlots] = permits;
    return only;
  }

  std::mt19937 random_;
  unsigned history_ = 0;
  std::vector<Operation> receipts_;
};

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
  const Buckets buckets(store);
  std::atomic<uint64_t> counter{1};
  std::vector<Timed<Operation>> recorded[kThreads];
  test_support::Barrier barrier(kThreads);
  int overlapping = 0;
  std::map<SettleOutcome, int> settlements;
  int repeated = 0;
  int over = 0;
  int continued = 0;
  test_support::RunThreads(kThreads, [&](int thread) {
    Caller caller(static_cast<unsigned>(thread) * 1000 + 17);
    for (int history = 0; history < kHistories; ++history) {
      const std::string key = std::to_string(history);
      std::vector<Timed<Operation>>& mine = recorded[thread];
      mine.clear();
      caller.Begin(static_cast<unsigned>(history));
      barrier.Wait();
      for (int n = 0; n < kOperations; ++n) mine.push_back(caller.Next(buckets, key, counter));
      barrier.Wait();
      if (thread == 0) {
        std::vector<Timed<Operation>> all;
        for (const auto& of_thread : recorded) {
          all.insert(all.end(), of_thread.begin(), of_thread.end());
        }
        for (const auto& a : all) {
          ++settlements[a.operation.settled];
          repeated += a.operation.repeated;
          over += a.operation.over;
          continued += a.operation.more && a.operation.settled == SettleOutcome::kSettled;
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
  for (const SettleOutcome outcome : {SettleOutcome::kSettled, SettleOutcome::kAlreadySettled,
                                      SettleOutcome::kRefunded, SettleOutcome::kActualDecreased}) {
    EXPECT_GT(settlements[outcome], 0) << static_cast<int>(outcome);
  }
  EXPECT_GT(repeated, 0);
  EXPECT_GT(over, 0);
  EXPECT_GT(continued, 0);
}

}  // namespace
}  // namespace sluice::store
