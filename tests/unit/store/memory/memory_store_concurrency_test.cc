// Threads against each other. On a clock that stands still the number granted must be exactly what
// one thread alone would have got; on one that moves, every window of the recorded history must
// hold. Run under ThreadSanitizer by ./dev tsan.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/store_calls.h"
#include "tests/support/threads.h"
#include "tests/support/window_checker.h"

namespace sluice::store {
namespace {

using test_support::RunThreads;
using testing::Acquire;
using testing::AcquireBatch;
using testing::Acquired;
using testing::MakeRule;
using testing::Query;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kThreads = 4;

algorithm::Parameters AnyAlgorithm(int which, uint64_t permits) {
  switch (which % 4) {
    case 0:
      return algorithm::MakeTokenBucket({permits, kSecond}, permits, 0).value();
    case 1:
      return algorithm::MakeSlidingLog({permits, kSecond}).value();
    case 2:
      return algorithm::MakeSlidingWindow({permits, kSecond}, 10).value();
    default:
      return algorithm::MakeFixedWindow({permits, 3600 * kSecond}, 0).value();
  }
}

class MemoryStoreConcurrencyTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Rule> Register(uint32_t limit_id, const algorithm::Parameters& parameters) {
    auto rule = MakeRule(limit_id, parameters);
    store_.Register(rule);
    return rule;
  }

  common::FakeClock clock_;
  MemoryStore store_{clock_};
};

TEST_F(MemoryStoreConcurrencyTest, SharedBucketGrantsExactlyItsPermits) {
  for (int algorithm = 0; algorithm < 4; ++algorithm) {
    const auto rule = Register(static_cast<uint32_t>(algorithm + 1), AnyAlgorithm(algorithm, 5000));
    std::atomic<int> granted{0};
    RunThreads(kThreads, [&](int) {
      for (int i = 0; i < 2000; ++i) granted += Acquire(store_, *rule, "hot").granted();
    });
    EXPECT_EQ(granted, 5000) << algorithm;
    EXPECT_EQ(Query(store_, *rule, "hot").level.remaining, 0);
  }
}

TEST_F(MemoryStoreConcurrencyTest, PermitsOfManySizesAddUp) {
  const auto rule = Register(1, AnyAlgorithm(0, 10'000));
  std::atomic<uint64_t> granted{0};
  RunThreads(kThreads, [&](int thread) {
    for (uint64_t i = 0; i < 2000; ++i) {
      const uint64_t permits = (i + static_cast<uint64_t>(thread)) % 7 + 1;
      if (Acquire(store_, *rule, "hot", permits).granted()) granted += permits;
    }
  });
  EXPECT_EQ(granted, 10'000u);
}

TEST_F(MemoryStoreConcurrencyTest, BatchesSinglesAndMultipleChargesShareABucketExactly) {
  const auto overall = Register(1, AnyAlgorithm(0, 6000));
  const auto user = Register(2, AnyAlgorithm(0, 1000));
  const auto log = Register(3, AnyAlgorithm(1, 3000));
  std::atomic<int> overall_granted{0};
  std::atomic<int> user_granted[4] = {};
  std::atomic<int> log_granted{0};
  RunThreads(kThreads, [&](int thread) {
    for (int i = 0; i < 1500; ++i) {
      const int u = (i + thread) % 4;
      const std::string key = "user" + std::to_string(u);
      switch (i % 3) {
        case 0:
          overall_granted += Acquire(store_, *overall, "").granted();
          break;
        case 1:
          if (Acquire(store_, {{user.get(), key, 1}, {overall.get(), "", 1}}).granted()) {
            ++overall_granted;
            ++user_granted[u];
          }
          break;
        case 2: {
          const auto answers = AcquireBatch(
              store_, {{{overall.get(), "", 1}},
                       {{overall.get(), "", 1}, {log.get(), "", 1}, {user.get(), key, 1}},
                       {{user.get(), key, 1}}});
          overall_granted += answers[0].granted() + answers[1].granted();
          log_granted += answers[1].granted();
          user_granted[u] += answers[1].granted() + answers[2].granted();
          break;
        }
      }
    }
  });
  // The last caller takes all that is left: the recorded permits must equal the debited ones.
  const auto drain = [&](const Rule& rule, const std::string& key) {
    int n = 0;
    while (Acquire(store_, rule, key).granted()) ++n;
    return n;
  };
  EXPECT_EQ(overall_granted + drain(*overall, ""), 6000);
  EXPECT_EQ(log_granted + drain(*log, ""), 3000);
  for (int u = 0; u < 4; ++u) {
    EXPECT_EQ(user_granted[u] + drain(*user, "user" + std::to_string(u)), 1000) << u;
  }
}

TEST_F(MemoryStoreConcurrencyTest, EachNewKeyIsCreatedOnce) {
  const auto rule = Register(1, AnyAlgorithm(0, 3));
  constexpr int kKeys = 20'000;
  std::vector<std::atomic<int>> granted(kKeys);
  RunThreads(kThreads, [&](int) {
    for (int i = 0; i < kKeys; ++i) {
      granted[static_cast<size_t>(i)] += Acquire(store_, *rule, std::to_string(i)).granted();
    }
  });
  for (const auto& g : granted) ASSERT_EQ(g, 3);
  EXPECT_EQ(store_.Stats().buckets, static_cast<uint64_t>(kKeys));
  EXPECT_EQ(store_.Stats().created, static_cast<uint64_t>(kKeys));
}

TEST_F(MemoryStoreConcurrencyTest, BucketsUnderConstantDropsNeverGrantTooMuch) {
  // Full again after a few steps of the clock, so each is dropped and made again thousands of
  // times while others decide on it.
  constexpr int kKeys = 3;
  const auto bucket =
      Register(1, algorithm::MakeTokenBucket({100'000, kSecond}, 1, 0).value());  // 10 us a permit
  const auto log = Register(2, algorithm::MakeSlidingLog({2, 1'000'000}).value());
  struct History {
    std::mutex mu;
    std::vector<test_support::Grant> grants;
  };
  History histories[2][kKeys];
  RunThreads(kThreads, [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    for (int i = 0; i < 3000; ++i) {
      // Past the moment at which a bucket is full, and sometimes a log empty, but just so.
      if (random() % 4 == 0) clock_.Advance(random() % 32 == 0 ? 1'020'000 : 10'003);
      if (random() % 4 == 0) store_.Maintain();
      if (random() % 16 == 0) std::this_thread::yield();
      const int k = (i + thread) % kKeys;
      const std::string key = std::to_string(k);
      if (i % 4 == 0) {
        const Acquired both = Acquire(store_, {{bucket.get(), key, 1}, {log.get(), key, 1}});
        if (!both.granted()) continue;
        for (auto& of_rule : histories) {
          const std::scoped_lock lock(of_rule[k].mu);
          of_rule[k].grants.push_back({both.now_ns, 1});
        }
      } else {
        const Acquired one = Acquire(store_, i % 2 ? *bucket : *log, key);
        if (!one.granted()) continue;
        History& history = histories[i % 2 ? 0 : 1][k];
        const std::scoped_lock lock(history.mu);
        history.grants.push_back({one.now_ns, 1});
      }
    }
  });
  EXPECT_GE(store_.Stats().dropped, 500u);
  for (int k = 0; k < kKeys; ++k) {
    std::vector<test_support::Grant> grants = histories[0][k].grants;
    std::sort(grants.begin(), grants.end(),
              [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
    EXPECT_EQ(test_support::CheckRateInEveryWindow(grants, 100'000, kSecond, 1), "");
    EXPECT_EQ(test_support::CheckCountInEveryWindow(histories[1][k].grants, 1'000'000, 2), "");
  }
}

TEST_F(MemoryStoreConcurrencyTest, ConstantRuleChangesGrantExactlyTheSame) {
  // Each revision has the same parameters, so converting must neither lose nor make a permit.
  for (int algorithm = 0; algorithm < 3; ++algorithm) {
    const auto limit_id = static_cast<uint32_t>(algorithm + 1);
    const algorithm::Parameters parameters = AnyAlgorithm(algorithm, 4000);
    std::mutex mu;
    std::shared_ptr<const Rule> current = Register(limit_id, parameters);
    std::atomic<int> granted{0};
    std::atomic<int> running{kThreads};
    RunThreads(kThreads + 2, [&](int thread) {
      if (thread == kThreads) {
        while (running > 0) {
          auto next = Register(limit_id, parameters);
          const std::scoped_lock lock(mu);
          current = std::move(next);
        }
        return;
      }
      if (thread == kThreads + 1) {
        while (running > 0) store_.Maintain();
        return;
      }
      for (int i = 0; i < 2000;) {
        std::shared_ptr<const Rule> rule;
        {
          const std::scoped_lock lock(mu);
          rule = current;
        }
        const std::vector<Charge> charges =
            i % 3 == 0 ? std::vector<Charge>{{rule.get(), "a", 1}, {rule.get(), "b", 1}}
                       : std::vector<Charge>{{rule.get(), i % 3 == 1 ? "a" : "b", 1}};
        const Acquired acquired = Acquire(store_, charges);
        if (acquired.outcome == Outcome::kStaleRule) continue;
        if (acquired.granted()) granted += static_cast<int>(charges.size());
        ++i;
      }
      --running;
    });
    const std::shared_ptr<const Rule> last = Register(limit_id, parameters);
    for (const char* key : {"a", "b"}) {
      while (Acquire(store_, *last, key).granted()) ++granted;
    }
    EXPECT_EQ(granted, 8000) << algorithm;
  }
}

TEST_F(MemoryStoreConcurrencyTest, ConcurrentRefundsGiveBackExactlyOnce) {
  const auto bucket = Register(1, AnyAlgorithm(0, 1000));
  const auto log = Register(2, AnyAlgorithm(1, 1000));
  std::atomic<uint64_t> refunded{0};
  std::atomic<uint64_t> receipts{0};
  const std::vector<Charge> charges{{bucket.get(), "", 1}, {log.get(), "", 1}};
  RunThreads(kThreads, [&](int) {
    for (int i = 0; i < 400; ++i) {
      const Acquired taken = Acquire(store_, charges, {.want_receipt = true});
      if (!taken.granted()) continue;
      if (i % 2 == 0) continue;
      receipts += 1;
      // Two threads with the same receipt: only one may get the refund.
      std::atomic<int> times{0};
      std::thread other([&] {
        times +=
            testing::Refund(store_, taken.receipt_id, charges).outcome == RefundOutcome::kRefunded;
      });
      const testing::Refunded mine = testing::Refund(store_, taken.receipt_id, charges);
      times += mine.outcome == RefundOutcome::kRefunded;
      if (mine.outcome != RefundOutcome::kRefunded) {
        EXPECT_EQ(mine.outcome, RefundOutcome::kAlreadyRefunded);
      }
      other.join();
      EXPECT_EQ(times, 1);
      refunded += 1;
    }
  });
  EXPECT_EQ(refunded, receipts);
  EXPECT_EQ(Query(store_, *bucket, "").level.remaining, 1000 - kThreads * 200);
  EXPECT_EQ(Query(store_, *log, "").level.remaining, 1000 - kThreads * 200);
}

TEST(MemoryStoreBoundTest, ThreadsTogetherNeverExceedMaxBuckets) {
  common::FakeClock clock;
  MemoryStore store(clock, {.max_buckets = 500});
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, kSecond}, 2, 0).value());
  store.Register(rule);
  std::atomic<int> granted{0};
  std::atomic<bool> over{false};
  RunThreads(kThreads, [&](int thread) {
    for (int i = 0; i < 1000; ++i) {
      granted += Acquire(store, *rule, std::to_string(i * kThreads + thread)).granted();
      // A reservation that is taken back counts for an instant.
      if (store.Stats().buckets > 500 + kThreads) over = true;
    }
  });
  EXPECT_EQ(granted, 500);
  EXPECT_FALSE(over);
  EXPECT_EQ(store.Stats().buckets, 500u);
  EXPECT_EQ(store.Stats().overflow_denied, 3500u);
}

TEST_F(MemoryStoreConcurrencyTest, TablesGrowAndShrinkUnderReaders) {
  const auto rule = Register(1, algorithm::MakeTokenBucket({1, kSecond}, 1'000'000, 0).value());
  const auto short_lived =
      Register(2, algorithm::MakeTokenBucket({1'000'000, kSecond}, 1, 0).value());
  ASSERT_TRUE(Acquire(store_, *rule, "stays", 500'000).granted());
  std::atomic<int> running{2};
  RunThreads(kThreads, [&](int thread) {
    if (thread >= 2) {
      while (running > 0) {
        EXPECT_TRUE(Query(store_, *rule, "stays").exists);
        EXPECT_NE(Acquire(store_, *rule, "stays").outcome, Outcome::kStaleRule);
      }
      return;
    }
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 15'000; ++i) {
        Acquire(store_, *short_lived, std::to_string(thread) + ":" + std::to_string(i));
      }
      clock_.Advance(1'000'000);
      for (int i = 0; i < 40; ++i) store_.Maintain();
    }
    --running;
  });
  EXPECT_GT(store_.Stats().dropped, 50'000u);
}

}  // namespace
}  // namespace sluice::store
