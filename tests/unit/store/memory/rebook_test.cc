// Rebook against the same callers asking one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/store_calls.h"

namespace sluice::store {
namespace {

using testing::Acquired;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMinute = 60 * kSecond;

struct RebookCall final : RebookOperation {
  void Done() override { ++done; }
  int done = 0;
};

struct Waiting {
  std::vector<Charge> charges;
  Acquired booked;
  std::vector<ChargeResult> results;
};

Rebooking ItemOf(Waiting& waiting, int64_t until_ns) {
  Rebooking item;
  item.receipt_id = waiting.booked.receipt_id;
  item.charges = waiting.charges;
  waiting.results.resize(waiting.charges.size());
  item.results = waiting.results.data();
  item.moment_ns = waiting.booked.moment_ns();
  item.until_ns = until_ns;
  return item;
}

class RebookTest : public ::testing::Test {
 protected:
  const Rule& Add(uint32_t limit_id, const algorithm::Parameters& parameters) {
    rules_.push_back(testing::MakeRule(limit_id, parameters));
    for (MemoryStore* store : {&store_, &model_}) store->Register(rules_.back());
    return *rules_.back();
  }
  algorithm::Parameters Random(uint64_t kind) {
    const uint64_t permits = 2 + random_() % 6;
    switch (kind) {
      case 0:
        return algorithm::MakeTokenBucket({permits, kSecond}, 2 + random_() % 3, random_() % 3)
            .value();
      case 1:
        return algorithm::MakeSlidingLog({permits, kSecond}).value();
      case 2:
        return algorithm::MakeSlidingWindow({permits, kSecond}, 4).value();
      default:
        return algorithm::MakeFixedWindow({permits, kSecond}, 0).value();
    }
  }

  common::FakeClock clock_{1000 * kSecond};
  MemoryStore store_{clock_};
  MemoryStore model_{clock_};
  std::mt19937_64 random_{1};
  std::vector<std::shared_ptr<const Rule>> rules_;
};

// What each gets is what it would get if all had left before, and then asked again in their order
// with nobody else there: so it is the earliest that the order allows.
TEST_F(RebookTest, GivesWhatAskingAgainInOrderWouldGive) {
  for (int round = 0; round < 400; ++round) {
    random_.seed(static_cast<uint64_t>(round));
    const auto id = static_cast<uint32_t>(1 + 3 * round);
    const uint64_t kinds[] = {random_() % 4, random_() % 4, random_() % 4};
    const Rule* limits[3];
    for (uint32_t i = 0; i < 3; ++i) limits[i] = &Add(id + i, Random(kinds[i]));
    const auto charges_on = [&](uint64_t which, uint64_t permits) {
      std::vector<Charge> charges{{limits[0], "", permits}};
      if (which > 0) charges.push_back({limits[which], "", permits});
      return charges;
    };
    // The same in both; what stands is told, and is there in both afterwards.
    std::vector<Waiting> held[2];
    bool any_told = false;
    for (int n = 0; n < 30; ++n) {
      const std::vector<Charge> charges = charges_on(random_() % 3, 1 + random_() % 2);
      const bool told = round % 2 == 0 && random_() % 8 == 0;
      for (int s = 0; s < 2; ++s) {
        Waiting waiting{
            charges,
            testing::Acquire(s == 0 ? store_ : model_, charges, {.max_wait_ns = kMinute}),
            {}};
        ASSERT_TRUE(waiting.booked.granted());
        if (waiting.booked.wait_ns == 0) continue;
        any_told |= told;
        if (!told) held[s].push_back(std::move(waiting));
      }
      if (random_() % 4 == 0) clock_.Advance(static_cast<int64_t>(random_() % (kSecond / 20)));
    }
    ASSERT_EQ(held[0].size(), held[1].size());
    clock_.Advance(static_cast<int64_t>(random_() % kSecond));
    // New figures, of the same algorithm or another.
    for (uint32_t i = 0; i < 3; ++i) {
      if (random_() % 3 > 0)
        limits[i] = &Add(id + i, Random(random_() % 2 ? kinds[i] : random_() % 4));
    }
    const auto renew = [&](Waiting& waiting) {
      for (size_t c = 0; c < waiting.charges.size(); ++c) {
        for (const Rule* limit : limits) {
          if (limit->limit_id == waiting.charges[c].rule->limit_id) waiting.charges[c].rule = limit;
        }
      }
    };
    const int64_t until_ns = clock_.NowNs() + static_cast<int64_t>(random_() % (20 * kSecond));
    std::vector<Rebooking> items;
    for (Waiting& waiting : held[0]) {
      renew(waiting);
      items.push_back(ItemOf(waiting, until_ns));
    }
    RebookCall call;
    call.items = absl::MakeSpan(items);
    store_.Rebook(&call);
    ASSERT_EQ(call.done, 1);
    ASSERT_EQ(call.status, RebookStatus::kDone);

    std::vector<bool> gone(held[1].size());
    for (size_t i = held[1].size(); i-- > 0;) {
      renew(held[1][i]);
      gone[i] = testing::Refund(model_, held[1][i].booked.receipt_id, held[1][i].charges,
                                held[1][i].booked.moment_ns())
                    .outcome != RefundOutcome::kRefunded;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const Rebooking& item = items[i];
      ASSERT_EQ(item.outcome == Rebooking::Outcome::kGone, gone[i]) << round << " " << i;
      if (gone[i]) continue;
      if (any_told) {
        // Those may be put before what is told of their set, which asking again cannot.
        if (item.outcome == Rebooking::Outcome::kBooked) {
          EXPECT_LE(item.moment_ns, until_ns);
        }
        continue;
      }
      const Acquired again =
          testing::Acquire(model_, held[1][i].charges, {.max_wait_ns = until_ns - clock_.NowNs()});
      ASSERT_EQ(item.outcome == Rebooking::Outcome::kBooked, again.granted()) << round << " " << i;
      if (again.granted()) {
        EXPECT_EQ(item.moment_ns, again.now_ns + again.wait_ns) << round << " " << i;
      } else {
        EXPECT_EQ(item.retry_after_ns, again.retry_after_ns) << round << " " << i;
        EXPECT_EQ(item.results[0].reason, Reason::kNotEnough);
      }
    }
    clock_.Advance(kMinute);
  }
}

TEST_F(RebookTest, StandsBehindWhatWasToldBeforeItAndBeforeWhatWasToldAfter) {
  const Rule* rule = &Add(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0).value());
  ASSERT_TRUE(testing::Acquire(store_, *rule, "k").granted());
  std::vector<Waiting> all;
  for (int i = 0; i < 5; ++i) {
    const std::vector<Charge> charges{{rule, "k", 1}};
    all.push_back({charges, testing::Acquire(store_, charges, {.max_wait_ns = kMinute}), {}});
  }
  const int64_t start_ns = clock_.NowNs();
  // The third was told; all the others are booked anew, twice as fast.
  rule = &Add(1, algorithm::MakeTokenBucket({2, kSecond}, 1, 0).value());
  std::vector<Rebooking> items;
  for (size_t i : {0, 1, 3, 4}) {
    all[i].charges[0].rule = rule;
    items.push_back(ItemOf(all[i], start_ns + kMinute));
  }
  RebookCall call;
  call.items = absl::MakeSpan(items);
  store_.Rebook(&call);
  ASSERT_EQ(call.status, RebookStatus::kDone);
  EXPECT_EQ(items[0].moment_ns, start_ns + kSecond / 2);
  EXPECT_EQ(items[1].moment_ns, start_ns + kSecond);
  EXPECT_EQ(items[2].moment_ns, start_ns + 3 * kSecond + kSecond / 2);
  EXPECT_EQ(items[3].moment_ns, start_ns + 4 * kSecond);
}

TEST_F(RebookTest, WithAnOlderRuleNothingIsChanged) {
  const Rule& old = Add(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0).value());
  ASSERT_TRUE(testing::Acquire(store_, old, "k").granted());
  Waiting waiting{{{&old, "k", 1}}, {}, {}};
  waiting.booked = testing::Acquire(store_, waiting.charges, {.max_wait_ns = kMinute});
  const Rule& now = Add(1, algorithm::MakeTokenBucket({2, kSecond}, 1, 0).value());
  EXPECT_FALSE(testing::Acquire(store_, now, "k").granted());
  std::vector<Rebooking> items{ItemOf(waiting, clock_.NowNs() + kMinute)};
  RebookCall call;
  call.items = absl::MakeSpan(items);
  store_.Rebook(&call);
  EXPECT_EQ(call.status, RebookStatus::kStaleRule);
  EXPECT_EQ(testing::Query(store_, now, "k").waiting, 1u);
}

}  // namespace
}  // namespace sluice::store
