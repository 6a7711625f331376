// Copies are written while threads take permits and limits change.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/memory/memory_store.h"
#include "tests/unit/state/state_scene.h"

namespace sluice::store {
namespace {

using testing::Acquire;
using testing::MakeRule;

// So slow that nothing comes back while the test runs: a permit takes nine hours.
constexpr int64_t kYearNs = int64_t{366} * 24 * 3600 * 1'000'000'000;
constexpr uint64_t kRate = 1000;
constexpr uint64_t kBurst = 10'000;
constexpr uint64_t kTaken = 10;  // of each bucket, before the first copy

TEST(StateCopyTest, EachBucketIsVisitedAsItWasAtSomeMomentOfTheCopy) {
  constexpr int kKeys = 2000;
  constexpr int kThreads = 3;
  const common::SystemClock clock;
  MemoryStore store(clock, {.seed = 1});
  // Each revision converts all buckets.
  std::vector<std::shared_ptr<const Rule>> revisions;
  for (uint64_t i = 0; i < 4; ++i) {
    revisions.push_back(
        MakeRule(1, *algorithm::MakeTokenBucket({kRate, kYearNs}, kBurst, /*debt=*/i)));
    store.Register(revisions.back());
  }
  const auto log = MakeRule(2, *algorithm::MakeSlidingLog({kBurst, kYearNs}));
  const auto receipts =
      MakeRule(3, *algorithm::MakeTokenBucket({kRate, kYearNs}, kBurst, /*debt=*/0));
  store.Register(log);
  store.Register(receipts);
  const auto key = [](int i) { return "key " + std::to_string(i); };
  for (int i = 0; i < kKeys; ++i) {
    for (const Rule* rule : {revisions[0].get(), log.get()}) {
      ASSERT_TRUE(Acquire(store, *rule, key(i), kTaken).granted());
    }
    ASSERT_TRUE(Acquire(store, *receipts, key(i), kTaken, {.want_receipt = true}).granted());
  }

  std::atomic<bool> stop{false};
  std::atomic<size_t> revision{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; !stop; i = (i + 7) % kKeys) {
        const Rule& rule = *revisions[revision];
        const Outcome outcome = Acquire(store, rule, key(i)).outcome;
        ASSERT_TRUE(outcome == Outcome::kGranted || outcome == Outcome::kStaleRule);
        ASSERT_TRUE(Acquire(store, *log, key(i)).granted());
        ASSERT_TRUE(Acquire(store, *receipts, key(i), 1, {.want_receipt = true}).granted());
        // New buckets grow the tables.
        ASSERT_TRUE(Acquire(store, *receipts, key(i) + " " + std::to_string(t)).granted());
        store.Maintain();
      }
    });
  }
  for (size_t copy = 0; copy < 4; ++copy) {
    revision = copy;
    std::map<std::pair<uint32_t, std::string>, int64_t> remaining;
    for (size_t part = 0; part < MemoryStore::kSavedParts; ++part) {
      store.ForEachBucket(part, [&](const MemoryStore::SavedBucket& bucket) {
        const Rule& rule = *bucket.rule;
        const auto state = bucket.image == nullptr
                               ? algorithm::BucketState::FromTat(bucket.tat)
                               : algorithm::BucketState::FromImage(rule.parameters, *bucket.image);
        remaining[{rule.limit_id, std::string(bucket.key)}] =
            state.LevelAt(rule.parameters, {clock.NowNs(), clock.WallNs()}).remaining;
      });
    }
    for (int i = 0; i < kKeys; ++i) {
      for (const Rule* rule : {revisions[0].get(), log.get(), receipts.get()}) {
        const auto found = remaining.find({rule->limit_id, key(i)});
        // What was there before the copy is in it.
        EXPECT_TRUE(found != remaining.end() &&
                    found->second <= static_cast<int64_t>(kBurst - kTaken))
            << copy << " " << rule->limit_id << " " << key(i);
      }
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(StateCopyTest, ABucketThatIsConvertedBeforeItsVisitIsVisited) {
  const common::SystemClock clock;
  MemoryStore store(clock, {.seed = 1});
  std::vector<std::shared_ptr<const Rule>> revisions;
  for (uint64_t debt = 0; debt < 2; ++debt) {
    revisions.push_back(MakeRule(1, *algorithm::MakeTokenBucket({kRate, kYearNs}, kBurst, debt)));
    store.Register(revisions.back());
  }
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(Acquire(store, *revisions[0], std::to_string(i)).granted());
  }
  std::vector<std::string> keys;
  store.ForEachBucket(
      0, [&](const MemoryStore::SavedBucket& bucket) { keys.emplace_back(bucket.key); });
  ASSERT_GE(keys.size(), 2u);

  std::map<std::string, uint32_t> rules;
  store.ForEachBucket(0, [&](const MemoryStore::SavedBucket& bucket) {
    if (rules.empty()) {
      // The others, and this one, are replaced by records of the newer rule.
      std::thread([&] {
        for (const std::string& key : keys) testing::Query(store, *revisions[1], key);
      }).join();
    }
    rules[std::string(bucket.key)] = bucket.rule->id;
  });
  EXPECT_EQ(rules.size(), keys.size());
  for (const auto& [key, rule] : rules) EXPECT_EQ(rule, revisions[1]->id) << key;
}

}  // namespace
}  // namespace sluice::store
