// What holds of the memory store alone; what holds of every store is in tests/contract.
#include "server/store/memory/memory_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/bounds.h"
#include "tests/support/store_calls.h"

namespace sluice::store {
namespace {

using testing::Acquire;
using testing::Acquired;
using testing::MakeRule;
using testing::Query;

constexpr int64_t kSecond = 1'000'000'000;

class MemoryStoreTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Rule> TokenBucket(uint32_t limit_id, uint64_t permits, uint64_t burst) {
    auto rule =
        MakeRule(limit_id, algorithm::MakeTokenBucket({permits, kSecond}, burst, 0).value());
    store_.Register(rule);
    return rule;
  }
  void MaintainRound() {
    for (int i = 0; i < 2000; ++i) store_.Maintain();
  }

  common::FakeClock clock_;
  MemoryStore store_{clock_};
};

TEST_F(MemoryStoreTest, EmptyStoreIsSmall) {
  EXPECT_LT(store_.Stats().memory_bytes, 1u << 20);
  EXPECT_EQ(store_.Kind(), "memory");
}

TEST_F(MemoryStoreTest, TokenBucketTakesAtMostFortyBytesBesideItsKey) {
  const auto rule = TokenBucket(1, 1, 1'000'000);
  constexpr uint64_t kKeys = 1'000'000;
  const uint64_t before = store_.Stats().memory_bytes;
  uint64_t key_bytes = 0;
  for (uint64_t i = 0; i < kKeys; ++i) {
    const std::string key = "user:" + std::to_string(i);
    key_bytes += key.size();
    ASSERT_TRUE(Acquire(store_, *rule, key).granted());
  }
  const uint64_t each = (store_.Stats().memory_bytes - before - key_bytes) / kKeys;
  EXPECT_LE(each, 40u);
}

// One bucket in 50 stays, so that it keeps a slab from being returned.
TEST_F(MemoryStoreTest, KeysOfManyLengthsTakeNoMoreMemoryThanTheTableMay) {
  constexpr uint64_t kMaxBytes = uint64_t{32} << 20;
  MemoryStore store(clock_, {.max_bytes = kMaxBytes});
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, kSecond}, 1000, 0).value());
  store.Register(rule);
  std::vector<std::string> stay;
  uint64_t made = 0;
  for (size_t key_bytes = 512; key_bytes > 256; key_bytes -= 16) {
    for (int i = 0;; ++i) {
      std::string key = std::to_string(i);
      key.resize(key_bytes, 'k');
      const bool stays = i % 50 == 0;
      if (!Acquire(store, *rule, key, stays ? 1000 : 1).granted()) break;
      ++made;
      if (stays) stay.push_back(std::move(key));
    }
    EXPECT_LE(store.Stats().memory_bytes, kMaxBytes * 3 / 2);
    clock_.Advance(2 * kSecond);
    for (int i = 0; i < 2000; ++i) store.Maintain();
  }
  EXPECT_GT(made, 16 * kMaxBytes / 1024);
  EXPECT_LE(store.Stats().memory_bytes, kMaxBytes);
  for (const std::string& key : stay) {
    EXPECT_LT(Query(store, *rule, key).level.remaining, 100) << key;
  }
}

// A settlement that finds a bucket missing locks all of them twice, and the first time makes the
// other bucket plain.
TEST_F(MemoryStoreTest, CountsReceiptsOnceThatASettlementCloses) {
  const auto slots = MakeRule(1, algorithm::MakeConcurrency(1, 3600 * kSecond).value());
  store_.Register(slots);
  const auto other = TokenBucket(2, 1000, 1000);
  const auto missing = TokenBucket(3, 1, 100);
  const std::vector<Charge> charges = {
      {slots.get(), "k", 1}, {other.get(), "k", 1}, {missing.get(), "k", 1}};
  const Acquired held = Acquire(store_, charges, {.want_receipt = true});
  ASSERT_TRUE(held.granted());
  clock_.Advance(2 * kSecond);
  MaintainRound();
  EXPECT_EQ(store_.Stats().buckets, 1u);
  for (int i = 0; i < 1000; ++i) Acquire(store_, *other, "k", 1, {.want_receipt = true});
  EXPECT_GE(store_.Stats().open_receipts, 1000u);
  clock_.Advance(2 * kSecond);
  EXPECT_EQ(
      testing::Settle(store_, held.receipt_id, charges, {1, 1, 5}, {.estimate = false}).outcome,
      SettleOutcome::kSettled);
  const uint64_t open = store_.Stats().open_receipts;
  EXPECT_LE(open, 3u);
  Acquire(store_, *other, "another", 1, {.want_receipt = true});
  EXPECT_EQ(store_.Stats().open_receipts, open + 1);
}

// Each reading takes its time, as under load.
class SlowClock final : public common::Clock {
 public:
  int64_t NowNs() const override { return Read(); }
  int64_t WallNs() const override { return Read() + kAheadNs; }

  static constexpr int64_t kAheadNs = 1'700'000'000 * kSecond;

 private:
  int64_t Read() const { return time_ns_ += 20'000; }

  mutable int64_t time_ns_ = kSecond;
};

TEST(MemoryStoreClockTest, OperationThatTakesLongBooksNoWindowTwice) {
  const SlowClock clock;
  MemoryStore store(clock);
  constexpr uint64_t kPermits = 10;
  const auto rule = MakeRule(1, algorithm::MakeFixedWindow({kPermits, kSecond}, 0).value());
  store.Register(rule);
  std::map<int64_t, uint64_t> of_window;
  const auto count = [&](const Acquired& acquired) {
    ASSERT_TRUE(acquired.granted());
    const int64_t wall_ns = acquired.now_ns + acquired.wait_ns + SlowClock::kAheadNs;
    EXPECT_LE(++of_window[wall_ns / kSecond], kPermits);
  };
  count(Acquire(store, *rule, "k"));
  const store::Charge charge{rule.get(), "k", 1};
  for (int batch = 0; batch < 3; ++batch) {
    const auto all = testing::AcquireBatch(store, std::vector<std::vector<Charge>>(300, {charge}),
                                           {.max_wait_ns = 3600 * kSecond});
    for (const Acquired& one : all) ASSERT_NO_FATAL_FAILURE(count(one));
  }
  EXPECT_EQ(of_window.size(), 91u);
}

// To make one of them looks for full ones to drop, as the other still is: with bad luck of the hash
// each dropped the other again and again.
TEST_F(MemoryStoreTest, CreatesTwoBucketsOfOneAcquisitionInOneSmallTable) {
  const auto one = TokenBucket(1, 1, 1);
  const auto other = TokenBucket(2, 1, 1);
  for (int i = 0; i < 100'000; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_TRUE(Acquire(store_, {{one.get(), key, 1}, {other.get(), key, 1}}).granted());
    // Both are full again, and dropped by and by, so that tables stay small.
    clock_.Advance(2 * kSecond);
  }
}

TEST_F(MemoryStoreTest, BucketIsPlainAgainWhenItsLastReceiptIsClosed) {
  const auto rule = TokenBucket(1, 1, 10);
  Acquire(store_, *rule, "k");
  const uint64_t plain = store_.Stats().memory_bytes;
  const Acquired taken = Acquire(store_, *rule, "k", 2, {.want_receipt = true});
  EXPECT_GT(store_.Stats().memory_bytes, plain);
  testing::Refund(store_, taken.receipt_id, {{rule.get(), "k", 2}});
  // What remains is the memory of the used receipt.
  EXPECT_LT(store_.Stats().memory_bytes, plain + 100);
  Acquire(store_, *rule, "k", 1, {.want_receipt = true});
  clock_.Advance(20 * kSecond);
  Acquire(store_, *rule, "k");
  EXPECT_EQ(store_.Stats().open_receipts, 0u);
}

TEST_F(MemoryStoreTest, ForgetsOldRulesWithTheirLastBucket) {
  std::weak_ptr<const Rule> old_rule;
  {
    const auto first = TokenBucket(1, 1, 10);
    old_rule = first;
    Acquire(store_, *first, "a");
    Acquire(store_, *first, "b");
  }
  const auto second = TokenBucket(1, 1, 10);
  Acquire(store_, *second, "a");
  MaintainRound();
  EXPECT_FALSE(old_rule.expired());
  EXPECT_EQ(Query(store_, *second, "b").level.remaining, 9);
  MaintainRound();
  EXPECT_TRUE(old_rule.expired());
}

TEST_F(MemoryStoreTest, ManyReloadsLeakNoMemory) {
  uint64_t bytes_before = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto rule = TokenBucket(1, 1, 1000);
    Acquire(store_, *rule, "k");
    if (i % 10 == 0) store_.Maintain();
    if (i == 1000) bytes_before = store_.Stats().memory_bytes;
  }
  EXPECT_EQ(store_.Stats().buckets, 1u);
  EXPECT_LE(store_.Stats().memory_bytes, bytes_before + 128 * 1024);
}

TEST_F(MemoryStoreTest, BucketCreatedAfterADropIsNotFullerThanTheDroppedOne) {
  const auto rule = TokenBucket(1, 1, 1);
  const int64_t start_ns = clock_.NowNs();
  ASSERT_TRUE(Acquire(store_, *rule, "k").granted());
  clock_.SetNow(start_ns + kSecond);
  MaintainRound();
  ASSERT_EQ(store_.Stats().buckets, 0u);
  // A thread that read the clock before the drop, and decides after it.
  clock_.SetNow(start_ns + kSecond - 1);
  const Acquired late = Acquire(store_, *rule, "k");
  EXPECT_TRUE(late.granted());
  EXPECT_EQ(late.now_ns, start_ns + kSecond);
  EXPECT_FALSE(Acquire(store_, *rule, "k").granted());
}

TEST_F(MemoryStoreTest, ClockThatStepsBackAddsNoPermits) {
  const auto rule = TokenBucket(1, 1, 5);
  ASSERT_TRUE(Acquire(store_, *rule, "k", 5).granted());
  clock_.SetNow(clock_.NowNs() - kSecond / 2);
  EXPECT_FALSE(Acquire(store_, *rule, "k").granted());
  clock_.SetNow(clock_.NowNs() + kSecond / 2 + kSecond);
  EXPECT_TRUE(Acquire(store_, *rule, "k").granted());
  EXPECT_FALSE(Acquire(store_, *rule, "k").granted());
}

TEST_F(MemoryStoreTest, MaintainReportsWhenItIsDone) {
  EXPECT_FALSE(store_.Maintain());
  const auto rule = TokenBucket(1, 1, 1);
  for (int i = 0; i < 50'000; ++i) Acquire(store_, *rule, std::to_string(i));
  clock_.Advance(kSecond);
  int steps = 0;
  while (store_.Maintain() || store_.Stats().buckets > 0) ASSERT_LT(++steps, 1000);
  EXPECT_GT(steps, 5);  // small ones
  EXPECT_EQ(store_.Stats().buckets, 0u);
}

TEST_F(MemoryStoreTest, InsertionsAloneKeepShortLivedKeysFew) {
  const auto rule = TokenBucket(1, 1'000'000, 1);
  for (int i = 0; i < 500'000; ++i) {
    Acquire(store_, *rule, std::to_string(i));
    clock_.Advance(1000);
  }
  EXPECT_LT(store_.Stats().buckets, 50'000u);
}

TEST_F(MemoryStoreTest, FreesTheMemoryOfLogs) {
  const auto rule = MakeRule(1, algorithm::MakeSlidingLog({1000, kSecond}).value());
  store_.Register(rule);
  const uint64_t before = store_.Stats().memory_bytes;
  for (int i = 0; i < 1000; ++i) {
    for (int n = 0; n < 20; ++n) {
      Acquire(store_, *rule, std::to_string(i), 1, {.want_receipt = n % 2 == 0});
      clock_.Advance(20'000);
    }
  }
  EXPECT_GT(store_.Stats().memory_bytes, before + 1000 * 50);
  EXPECT_GT(store_.Stats().open_receipts, 0u);
  clock_.Advance(2 * kSecond);
  MaintainRound();
  EXPECT_EQ(store_.Stats().buckets, 0u);
  EXPECT_EQ(store_.Stats().open_receipts, 0u);
  EXPECT_LE(store_.Stats().memory_bytes, before + 16 * 1024);
}

TEST_F(MemoryStoreTest, ReceiptsPerBucketAreBoundedAndEvictionsCounted) {
  const auto rule = TokenBucket(1, 1, 100'000);
  for (size_t i = 0; i < common::bounds::kMaxReceiptsPerBucket + 7; ++i) {
    Acquire(store_, *rule, "k", 1, {.want_receipt = true});
  }
  EXPECT_EQ(store_.Stats().open_receipts, common::bounds::kMaxReceiptsPerBucket);
  EXPECT_EQ(store_.Stats().receipts_evicted, 7u);
}

TEST_F(MemoryStoreTest, HoldsPerBucketAreBoundedAndEndedOnesMakeRoom) {
  const auto rule = MakeRule(1, algorithm::MakeConcurrency(uint64_t{1} << 40, kSecond).value());
  store_.Register(rule);
  const std::vector<Charge> charge = {{rule.get(), "k", 1}};
  const auto take = [&] { return Acquire(store_, charge, {.want_receipt = true}); };
  for (size_t i = 0; i < common::bounds::kMaxHoldsPerBucket; ++i) ASSERT_TRUE(take().granted());
  const Acquired denied = take();
  EXPECT_EQ(denied.outcome, Outcome::kDenied);
  EXPECT_EQ(denied.charges[0].reason, Reason::kOverflow);
  EXPECT_GT(denied.retry_after_ns, 0);
  clock_.Advance(kSecond);
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(take().granted());
  EXPECT_EQ(Query(store_, *rule, "k").holds, 2000u);
}

// What an operation removes at once would take milliseconds.
TEST_F(MemoryStoreTest, ForgetsThousandsOfOldEstimatesInParts) {
  constexpr uint64_t kEstimates = 5000;
  const auto rule = TokenBucket(1, 1, 2 * kEstimates);
  Acquire(store_, *rule, "k");
  const uint64_t before = store_.Stats().memory_bytes;
  for (uint64_t i = 0; i < kEstimates; ++i) {
    ASSERT_TRUE(Acquire(store_, *rule, "k", 1, {.settle_within_ns = kSecond}).granted());
  }
  clock_.Advance(2 * kSecond + algorithm::Estimate::kKeptNs);
  uint64_t left = store_.Stats().open_receipts;
  EXPECT_EQ(left, kEstimates);
  int calls = 0;
  while (left > 0) {
    Query(store_, *rule, "k");
    const uint64_t forgotten = left - store_.Stats().open_receipts;
    EXPECT_GT(forgotten, 0u);
    EXPECT_LE(forgotten, 512u);
    left -= forgotten;
    ASSERT_LT(++calls, 200);
  }
  EXPECT_GT(calls, 20);
  EXPECT_EQ(store_.Stats().buckets, 1u);
  EXPECT_LE(store_.Stats().memory_bytes, before + 100);
}

TEST_F(MemoryStoreTest, DropsABucketOfManyOldEstimates) {
  const auto rule = TokenBucket(1, 1000, 10'000);
  const uint64_t before = store_.Stats().memory_bytes;
  for (int i = 0; i < 5000; ++i) Acquire(store_, *rule, "k", 1, {.settle_within_ns = kSecond});
  EXPECT_GT(store_.Stats().memory_bytes, before + 5000 * sizeof(algorithm::Estimate));
  clock_.Advance(2 * kSecond + algorithm::Estimate::kKeptNs);
  MaintainRound();
  EXPECT_EQ(store_.Stats().buckets, 0u);
  EXPECT_EQ(store_.Stats().open_receipts, 0u);
  EXPECT_LE(store_.Stats().memory_bytes, before + 16 * 1024);
}

TEST_F(MemoryStoreTest, ManyHoldsEndWithAResetOrAnotherAlgorithm) {
  constexpr int kHolds = 5000;
  const auto slots = MakeRule(1, algorithm::MakeConcurrency(kHolds, kSecond).value());
  store_.Register(slots);
  const uint64_t before = store_.Stats().memory_bytes;
  const auto take_all = [&] {
    for (int i = 0; i < kHolds; ++i) {
      ASSERT_TRUE(Acquire(store_, *slots, "k", 1, {.want_receipt = true}).granted());
    }
    ASSERT_FALSE(Acquire(store_, *slots, "k", 1, {.want_receipt = true}).granted());
  };
  take_all();
  EXPECT_TRUE(testing::Reset(store_, *slots, "k"));
  EXPECT_EQ(Query(store_, *slots, "k").holds, 0u);
  take_all();
  const auto rate = TokenBucket(1, 1, 10);
  EXPECT_EQ(Acquire(store_, *rate, "k", 10).charges[0].level.remaining, 0);
  EXPECT_EQ(store_.Stats().open_receipts, 0u);
  clock_.Advance(20 * kSecond);
  MaintainRound();
  EXPECT_EQ(store_.Stats().buckets, 0u);
  EXPECT_LE(store_.Stats().memory_bytes, before + 16 * 1024);
}

TEST_F(MemoryStoreTest, KeysOfOneLimitLeaveTheOtherLimitsTheirParts) {
  MemoryStore store(clock_, {.max_buckets = 2000});
  std::vector<std::shared_ptr<const Rule>> rules;
  for (uint32_t limit_id = 1; limit_id <= 10; ++limit_id) {
    rules.push_back(MakeRule(
        limit_id, algorithm::MakeTokenBucket({10'000, 86'400 * kSecond}, 10'000, 0).value()));
    store.Register(rules.back());
  }
  const auto create = [&](const Rule& rule, int keys) {
    uint64_t granted = 0;
    for (int i = 0; i < keys; ++i) {
      const Acquired acquired = Acquire(store, rule, "key" + std::to_string(i));
      if (acquired.granted()) {
        ++granted;
      } else {
        EXPECT_EQ(acquired.charges[0].reason, Reason::kOverflow);
      }
    }
    return granted;
  };
  EXPECT_EQ(create(*rules[0], 4000), 1100u);  // its part and the rest
  for (int i = 1; i < 10; ++i) {
    EXPECT_EQ(create(*rules[static_cast<size_t>(i)], 200), 100u) << i;
  }
  // A limit that no caller holds any more leaves its part to the others.
  rules[0].reset();
  while (store.Stats().buckets > 900) {
    clock_.Advance(kSecond * 86'400 / 10'000);
    for (int i = 0; i < 100; ++i) store.Maintain();
  }
}

TEST_F(MemoryStoreTest, TableBoundedInBytesHoldsNoMore) {
  constexpr uint64_t kMaxBytes = 16 << 20;
  MemoryStore store(clock_, {.max_bytes = kMaxBytes});
  const uint64_t before = store.Stats().memory_bytes;
  const auto daily =
      MakeRule(1, algorithm::MakeTokenBucket({10'000, 86'400 * kSecond}, 10'000, 0).value());
  const auto log = MakeRule(2, algorithm::MakeSlidingLog({100'000, 60 * kSecond}).value());
  const auto shared = MakeRule(3, algorithm::MakeTokenBucket({10, kSecond}, 10, 0).value());
  for (const auto& rule : {daily, log, shared}) store.Register(rule);
  const std::string padding(400, 'x');
  for (int i = 0; i < 50'000; ++i) {
    Acquire(store, *daily, padding + std::to_string(i), 1, {.want_receipt = i % 4 == 0});
  }
  // Logs that grow: at some time there is no room for another run.
  bool denied = false;
  for (int step = 0; step < 60'000; ++step) {
    clock_.Advance(60 * kSecond / 60'000);
    for (int key = 0; key < 64; ++key) {
      const Acquired acquired = Acquire(store, *log, "key" + std::to_string(key));
      if (acquired.granted()) continue;
      denied = true;
      ASSERT_EQ(acquired.charges[0].reason, Reason::kOverflow);
    }
    if (denied) break;
  }
  EXPECT_TRUE(denied);
  EXPECT_LE(store.Stats().memory_bytes - before, kMaxBytes * 5 / 4);
  // A limit within its part.
  EXPECT_TRUE(Acquire(store, *shared, "").granted());
}

// Two buckets whose gaps miss each other: one budget for the batch, then behind all bookings.
TEST_F(MemoryStoreTest, BatchWithASpentBudgetIsBookedBehindAllBookings) {
  const auto one = TokenBucket(1, 1, 1);
  const auto other = TokenBucket(2, 1, 1);
  const testing::AcquireOptions wait{.max_wait_ns = 86'400 * kSecond};
  const auto book = [&](const Rule& rule, uint64_t first) {
    std::vector<Acquired> booked;
    for (int i = 0; i < 2000; ++i) booked.push_back(Acquire(store_, rule, "k", 1, wait));
    for (uint64_t i = first; i < 1990; i += 2) {
      const std::vector<Charge> charges = {{&rule, "k", 1}};
      testing::Refund(store_, booked[i].receipt_id, charges, booked[i].grant_time_ns());
    }
  };
  book(*one, 20);
  book(*other, 21);

  struct Operation final : AcquireOperation {
    void Done() override {}
  };
  const std::vector<Charge> charges = {{one.get(), "k", 1}, {other.get(), "k", 1}};
  std::vector<ChargeResult> results(2);
  const auto acquire = [&](SearchBudget* budget) {
    Acquisition acquisition;
    acquisition.charges = charges;
    acquisition.results = results.data();
    acquisition.max_wait_ns = wait.max_wait_ns;
    Operation operation;
    operation.acquisitions = absl::MakeSpan(&acquisition, 1);
    operation.search_budget = budget;
    store_.Acquire(&operation);
    EXPECT_EQ(acquisition.outcome, Outcome::kGranted);
    return acquisition.wait_ns;
  };
  SearchBudget budget(1000);
  int64_t last_ns = acquire(&budget);
  EXPECT_TRUE(budget.spent());
  EXPECT_GE(last_ns, 1999 * kSecond);
  for (int i = 0; i < 100; ++i) {
    const int64_t wait_ns = acquire(&budget);
    EXPECT_EQ(wait_ns, last_ns + kSecond);
    last_ns = wait_ns;
  }
}

// Searches for room that find none have one budget for the batch. Where there are full buckets,
// they are found without it.
TEST_F(MemoryStoreTest, BatchOfNewKeysForAFullTableHasASearchBudget) {
  constexpr int kBuckets = 20'000;
  MemoryStore store(clock_, {.max_buckets = kBuckets});
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0).value());
  store.Register(rule);
  int next_key = 0;
  struct Operation final : AcquireOperation {
    void Done() override {}
  };
  // Returns how many new keys were granted.
  const auto take = [&](int count, SearchBudget* budget) {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) keys.push_back(std::to_string(next_key++));
    std::vector<Charge> charges;
    for (const std::string& key : keys) charges.push_back({rule.get(), key, 1});
    std::vector<ChargeResult> results(keys.size());
    std::vector<Acquisition> acquisitions(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      acquisitions[i].charges = absl::MakeSpan(&charges[i], 1);
      acquisitions[i].results = &results[i];
    }
    Operation operation;
    operation.acquisitions = absl::MakeSpan(acquisitions);
    operation.search_budget = budget;
    store.Acquire(&operation);
    return std::ranges::count(acquisitions, Outcome::kGranted, &Acquisition::outcome);
  };
  SearchBudget unused;
  ASSERT_EQ(take(kBuckets, &unused), kBuckets);
  EXPECT_EQ(unused.left(), common::bounds::kMaxSearchSteps);
  SearchBudget budget;
  EXPECT_EQ(take(1000, &budget), 0);
  EXPECT_TRUE(budget.spent());
  EXPECT_GT(budget.left(), -10'000);
  clock_.Advance(2 * kSecond);
  SearchBudget after;
  EXPECT_EQ(take(1000, &after), 1000);
  EXPECT_FALSE(after.spent());
}

// Sends the acquisitions as often as the store leaves some undecided. Returns how often.
int DecideInParts(MemoryStore& store, absl::Span<Acquisition> acquisitions, int64_t most_work) {
  struct Operation final : AcquireOperation {
    void Done() override {}
  };
  SearchBudget budget;
  int parts = 0;
  while (!acquisitions.empty()) {
    Operation operation;
    operation.acquisitions = acquisitions;
    operation.search_budget = &budget;
    operation.most_work = most_work;
    store.Acquire(&operation);
    EXPECT_LE(operation.undecided, acquisitions.size());
    acquisitions.remove_prefix(acquisitions.size() - operation.undecided);
    ++parts;
  }
  return parts;
}

TEST_F(MemoryStoreTest, LeavesAcquisitionsUndecidedWhenItsWorkIsDone) {
  const auto log = MakeRule(1, algorithm::MakeSlidingLog({100, kSecond}).value());
  store_.Register(log);
  constexpr size_t kCount = 1000;
  std::vector<std::string> keys;
  for (size_t i = 0; i < kCount; ++i) keys.push_back(std::to_string(i % 5));
  std::vector<Charge> charges;
  for (const std::string& key : keys) charges.push_back({log.get(), key, 1});
  std::vector<ChargeResult> results(kCount);
  std::vector<Acquisition> acquisitions(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    acquisitions[i].charges = absl::MakeSpan(&charges[i], 1);
    acquisitions[i].results = &results[i];
  }
  const int parts = DecideInParts(store_, absl::MakeSpan(acquisitions), 10'000);
  EXPECT_GT(parts, 10);
  EXPECT_LT(parts, 500);
  // Each was decided once: the first 100 of each key are granted.
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(acquisitions[i].outcome, i < 500 ? Outcome::kGranted : Outcome::kDenied) << i;
  }
}

TEST_F(MemoryStoreTest, FoldsThousandsOfBookingsInParts) {
  constexpr int kBookings = 20'000;
  // One permit in each 100 us.
  const std::vector<std::shared_ptr<const Rule>> rules = {
      MakeRule(1, algorithm::MakeTokenBucket({10'000, kSecond}, 1, 0).value()),
      MakeRule(2, algorithm::MakeSlidingLog({10'000, kSecond}).value()),
      MakeRule(3, algorithm::MakeFixedWindow({10'000, kSecond}, 0).value())};
  MemoryStore whole(clock_);  // folds all at once
  for (const auto& rule : rules) {
    store_.Register(rule);
    whole.Register(rule);
    int64_t last_ns = 0;
    for (int i = 0; i < kBookings; ++i) {
      const Acquired in_parts = Acquire(store_, *rule, "k", 1, {.max_wait_ns = 10 * kSecond});
      const Acquired at_once = Acquire(whole, *rule, "k", 1, {.max_wait_ns = 10 * kSecond});
      ASSERT_EQ(in_parts.wait_ns, at_once.wait_ns);
      last_ns = at_once.wait_ns;
    }
    ASSERT_EQ(store_.Stats().bookings, whole.Stats().bookings);
    clock_.Advance(last_ns + kSecond / 2);
    const Charge charge = {rule.get(), "k", 9000};
    ChargeResult result;
    Acquisition acquisition;
    acquisition.charges = absl::MakeSpan(&charge, 1);
    acquisition.results = &result;
    EXPECT_GT(DecideInParts(store_, absl::MakeSpan(&acquisition, 1), 1), 5);
    const Acquired at_once = Acquire(whole, *rule, "k", 9000);
    EXPECT_EQ(acquisition.outcome, at_once.outcome);
    EXPECT_EQ(acquisition.retry_after_ns, at_once.retry_after_ns);
    EXPECT_EQ(result.level.remaining, at_once.charges[0].level.remaining);
    EXPECT_EQ(result.level.reset_after_ns, at_once.charges[0].level.reset_after_ns);
    EXPECT_EQ(store_.Stats().bookings, 0u);
    EXPECT_EQ(store_.Stats().open_receipts, whole.Stats().open_receipts);
    EXPECT_EQ(store_.Stats().receipts_evicted, whole.Stats().receipts_evicted);
  }
}

TEST_F(MemoryStoreTest, ConvertsThousandsOfBookingsInParts) {
  constexpr int kBookings = 35'000;
  MemoryStore whole(clock_);  // converts all at once
  uint32_t limit_id = 0;
  const auto made = [&](algorithm::Kind kind, uint64_t permits) {
    auto rule =
        MakeRule(limit_id, kind == algorithm::Kind::kTokenBucket
                               ? algorithm::MakeTokenBucket({permits, kSecond}, 1, 0).value()
                           : kind == algorithm::Kind::kSlidingLog
                               ? algorithm::MakeSlidingLog({permits, kSecond}).value()
                               : algorithm::MakeFixedWindow({permits, kSecond}, 0).value());
    store_.Register(rule);
    whole.Register(rule);
    return rule;
  };
  const algorithm::Kind kinds[] = {algorithm::Kind::kTokenBucket, algorithm::Kind::kSlidingLog,
                                   algorithm::Kind::kFixedWindow};
  for (const algorithm::Kind from_kind : kinds) {
    for (const algorithm::Kind to_kind : kinds) {
      ++limit_id;
      const auto from = made(from_kind, 10'000);
      for (int i = 0; i < kBookings; ++i) {
        ASSERT_TRUE(Acquire(store_, *from, "k", 1, {.max_wait_ns = 10 * kSecond}).granted());
        ASSERT_TRUE(Acquire(whole, *from, "k", 1, {.max_wait_ns = 10 * kSecond}).granted());
      }
      clock_.Advance(3 * kSecond / 2);  // 10,000 or more have come
      const auto to = made(to_kind, 9'000);
      const Charge charge = {to.get(), "k", 1};
      ChargeResult result;
      Acquisition acquisition;
      acquisition.charges = absl::MakeSpan(&charge, 1);
      acquisition.results = &result;
      acquisition.max_wait_ns = 100 * kSecond;
      EXPECT_GT(DecideInParts(store_, absl::MakeSpan(&acquisition, 1), 1), 10);
      const Acquired at_once = Acquire(whole, *to, "k", 1, {.max_wait_ns = 100 * kSecond});
      EXPECT_EQ(acquisition.outcome, at_once.outcome);
      EXPECT_EQ(acquisition.wait_ns, at_once.wait_ns);
      EXPECT_EQ(result.level.remaining, at_once.charges[0].level.remaining);
      EXPECT_EQ(result.level.reset_after_ns, at_once.charges[0].level.reset_after_ns);
      EXPECT_EQ(store_.Stats().bookings, whole.Stats().bookings);
      EXPECT_EQ(store_.Stats().open_receipts, whole.Stats().open_receipts);
    }
  }
}

TEST_F(MemoryStoreTest, QueryCountsThePlacesOfClosedReceipts) {
  const auto rule = TokenBucket(1, 10'000, 10'000);
  store_.Register(rule);
  constexpr int kEstimates = 5000;
  std::vector<uint64_t> receipts;
  for (int i = 0; i < kEstimates; ++i) {
    receipts.push_back(
        Acquire(store_, *rule, "k", 1, {.settle_within_ns = 3600 * kSecond}).receipt_id);
  }
  // The first one stays open, and keeps the places of all others.
  for (size_t i = 1; i < receipts.size(); ++i) {
    ASSERT_EQ(testing::Settle(store_, receipts[i], {{rule.get(), "k", 1}}, {1}).outcome,
              SettleOutcome::kSettled);
  }
  struct Operation final : QueryOperation {
    void Done() override {}
  } operation;
  std::vector<QueryItem> items(256, {.rule = rule.get(), .key = "k"});
  operation.items = absl::MakeSpan(items);
  operation.most_work = Operation::kSliceWork;
  store_.Query(&operation);
  EXPECT_EQ(items[0].refundable.receipts, 1u);
  EXPECT_GE(operation.work, kEstimates / 2);
  EXPECT_GT(operation.undecided, items.size() - 16);
}

TEST_F(MemoryStoreTest, ABucketThatIsBeingConvertedDecidesNothing) {
  const auto from = MakeRule(1, algorithm::MakeSlidingLog({10, kSecond}).value());
  store_.Register(from);
  for (int i = 0; i < 5'000; ++i) {
    ASSERT_TRUE(Acquire(store_, *from, "k", 1, {.max_wait_ns = 3600 * kSecond}).granted());
  }
  const auto to = TokenBucket(1, 20, 20);
  struct Operation final : AcquireOperation {
    void Done() override {}
  };
  const auto ask = [&](const Rule& rule) {
    const Charge charge = {&rule, "k", 1};
    ChargeResult result;
    Acquisition acquisition;
    acquisition.charges = absl::MakeSpan(&charge, 1);
    acquisition.results = &result;
    Operation operation;
    operation.acquisitions = absl::MakeSpan(&acquisition, 1);
    operation.most_work = 1;
    store_.Acquire(&operation);
    return operation.undecided == 1 ? Outcome::kPending : acquisition.outcome;
  };
  EXPECT_EQ(ask(*to), Outcome::kPending);
  EXPECT_EQ(ask(*from), Outcome::kStaleRule);
  // The limits change again.
  const auto last = MakeRule(1, algorithm::MakeSlidingLog({5, kSecond}).value());
  store_.Register(last);
  EXPECT_EQ(ask(*last), Outcome::kPending);
  EXPECT_EQ(store_.Stats().bookings, 4'990u);
  int parts = 0;
  while (ask(*last) == Outcome::kPending) ++parts;
  EXPECT_GT(parts, 3);
  EXPECT_EQ(ask(*last), Outcome::kDenied);
  EXPECT_EQ(ask(*to), Outcome::kStaleRule);
  EXPECT_EQ(store_.Stats().bookings, 4'990u);
}

}  // namespace
}  // namespace sluice::store
