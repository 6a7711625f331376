// The contract of Rebook: the same result as if its callers asked again one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/contract/store_contract.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::ChargeResult;
using store::Reason;
using store::Rebooking;
using store::RebookStatus;
using store::RefundOutcome;
using store::Rule;

constexpr int64_t kMinute = 60'000'000'000;

struct RebookCall final : store::RebookOperation {
  void Done() override { done.Notify(); }
  Notification done;
};

RebookStatus Rebook(store::Store& store, std::vector<Rebooking>* items) {
  RebookCall call;
  call.items = absl::MakeSpan(*items);
  store.Rebook(&call);
  call.done.Wait();
  return call.status;
}

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
  item.grant_time_ns = waiting.booked.grant_time_ns();
  item.until_ns = until_ns;
  return item;
}

// Each caller gets what it would get if all had cancelled and then asked again in their order with
// no other caller: the earliest grant time that the order allows.
TEST_P(RebookContractTest, GivesWhatAskingAgainInOrderWouldGive) {
  // Fewer cases for a store across a socket, which is slower.
  const int rounds = under_test_->knows_what_it_holds() ? 400 : 40;
  for (int round = 0; round < rounds; ++round) {
    random_.seed(static_cast<uint64_t>(round));
    const uint64_t kinds[] = {random_() % 4, random_() % 4, random_() % 4};
    // The same three limits twice: bookings on the first three are rebooked, bookings on the others
    // are cancelled and made again.
    const Rule* limits[2][3];
    const auto id = [&](size_t side, uint32_t limit) {
      return static_cast<uint32_t>(1 + 6 * round) + static_cast<uint32_t>(3 * side) + limit;
    };
    const auto add = [&](uint32_t limit, uint64_t kind) {
      const algorithm::Parameters parameters = Random(kind);
      for (size_t s = 0; s < 2; ++s) limits[s][limit] = &Add(id(s, limit), parameters);
    };
    for (uint32_t i = 0; i < 3; ++i) add(i, kinds[i]);
    // Bookings that stay keep their grant times, and are in both afterwards.
    std::vector<Waiting> held[2];
    bool any_told = false;
    for (int n = 0; n < 30; ++n) {
      const uint64_t which = random_() % 3;
      const uint64_t permits = 1 + random_() % 2;
      const bool told = round % 2 == 0 && random_() % 8 == 0;
      for (size_t s = 0; s < 2; ++s) {
        std::vector<Charge> charges{{limits[s][0], "", permits}};
        if (which > 0) charges.push_back({limits[s][which], "", permits});
        Waiting waiting{charges, Acquire(store(), charges, {.max_wait_ns = kMinute}), {}};
        ASSERT_TRUE(waiting.booked.granted());
        if (waiting.booked.wait_ns == 0) continue;
        any_told |= told;
        if (!told) held[s].push_back(std::move(waiting));
      }
      if (random_() % 4 == 0) Advance(static_cast<int64_t>(random_() % (kSecond / 20)));
    }
    ASSERT_EQ(held[0].size(), held[1].size());
    Advance(static_cast<int64_t>(random_() % kSecond));
    // New parameters, for the same algorithm or another.
    for (uint32_t i = 0; i < 3; ++i) {
      if (random_() % 3 > 0) add(i, random_() % 2 ? kinds[i] : random_() % 4);
    }
    for (size_t s = 0; s < 2; ++s) {
      for (Waiting& waiting : held[s]) {
        for (Charge& charge : waiting.charges) {
          for (const Rule* limit : limits[s]) {
            if (limit->limit_id == charge.rule->limit_id) charge.rule = limit;
          }
        }
      }
    }
    const int64_t until_ns = NowNs() + static_cast<int64_t>(random_() % (20 * kSecond));
    std::vector<Rebooking> items;
    for (Waiting& waiting : held[0]) items.push_back(ItemOf(waiting, until_ns));
    ASSERT_EQ(Rebook(store(), &items), RebookStatus::kDone);

    std::vector<bool> gone(held[1].size());
    for (size_t i = held[1].size(); i-- > 0;) {
      gone[i] = Cancel(held[1][i].booked, held[1][i].charges).outcome != RefundOutcome::kRefunded;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const Rebooking& item = items[i];
      const bool is_gone = item.outcome == Rebooking::Outcome::kGone;
      if (!under_test_->knows_what_it_holds() && gone[i] && !is_gone) {
        // Debited since: when the bookings behind it were cancelled one by one its bucket was full,
        // and a store that drops full buckets drops their receipts.
        ASSERT_LE(held[1][i].booked.grant_time_ns(), NowNs());
        break;
      }
      ASSERT_EQ(is_gone, gone[i]) << round << " " << i;
      if (gone[i]) continue;
      if (any_told) {
        // Rebook may place these before fixed bookings of their set; a new request cannot.
        if (item.outcome == Rebooking::Outcome::kBooked) {
          EXPECT_LE(item.grant_time_ns, until_ns);
        }
        continue;
      }
      const Acquired again =
          Acquire(store(), held[1][i].charges, {.max_wait_ns = until_ns - NowNs()});
      ASSERT_EQ(item.outcome == Rebooking::Outcome::kBooked, again.granted()) << round << " " << i;
      if (again.granted()) {
        EXPECT_EQ(item.grant_time_ns, again.now_ns + again.wait_ns) << round << " " << i;
      } else {
        EXPECT_EQ(item.retry_after_ns, again.retry_after_ns) << round << " " << i;
        EXPECT_EQ(item.results[0].reason, Reason::kNotEnough);
      }
    }
    Advance(kMinute);
  }
}

TEST_P(RebookContractTest, KeepsOrderWithGrantTimesAlreadyGiven) {
  const Rule* rule = &Add(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0).value());
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  std::vector<Waiting> all;
  for (int i = 0; i < 5; ++i) {
    const std::vector<Charge> charges{{rule, "k", 1}};
    all.push_back({charges, Acquire(store(), charges, {.max_wait_ns = kMinute}), {}});
  }
  const int64_t start_ns = NowNs();
  // The third keeps its grant time; all others are rebooked at twice the rate.
  rule = &Add(1, algorithm::MakeTokenBucket({2, kSecond}, 1, 0).value());
  std::vector<Rebooking> items;
  for (size_t i : {0, 1, 3, 4}) {
    all[i].charges[0].rule = rule;
    items.push_back(ItemOf(all[i], start_ns + kMinute));
  }
  ASSERT_EQ(Rebook(store(), &items), RebookStatus::kDone);
  EXPECT_EQ(items[0].grant_time_ns, start_ns + kSecond / 2);
  EXPECT_EQ(items[1].grant_time_ns, start_ns + kSecond);
  EXPECT_EQ(items[2].grant_time_ns, start_ns + 3 * kSecond + kSecond / 2);
  EXPECT_EQ(items[3].grant_time_ns, start_ns + 4 * kSecond);
}

TEST_P(RebookContractTest, KeepsReceipts) {
  const Rule* rule = &Add(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0).value());
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  Waiting waiting{{{rule, "k", 1}}, {}, {}};
  waiting.booked = Acquire(store(), waiting.charges, {.max_wait_ns = kMinute});
  waiting.charges[0].rule = &Add(1, algorithm::MakeTokenBucket({1, 2 * kSecond}, 1, 0).value());
  std::vector<Rebooking> items{ItemOf(waiting, NowNs() + kMinute)};
  ASSERT_EQ(Rebook(store(), &items), RebookStatus::kDone);
  ASSERT_EQ(items[0].outcome, Rebooking::Outcome::kBooked);
  EXPECT_EQ(items[0].grant_time_ns, NowNs() + 2 * kSecond);
  EXPECT_EQ(Refund(store(), items[0].receipt_id, waiting.charges, items[0].grant_time_ns).outcome,
            RefundOutcome::kRefunded);
  ExpectBookings(0);
}

// Bookings that share no bucket are rebooked independently.
TEST_P(RebookContractTest, RebooksManyKeys) {
  const Rule* rule = &Add(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0).value());
  std::vector<Waiting> all;
  std::vector<std::string> keys;
  for (int i = 0; i < 200; ++i) keys.push_back("k" + std::to_string(i));
  for (const std::string& key : keys) {
    ASSERT_TRUE(Acquire(store(), *rule, key).granted());
    Waiting& waiting = all.emplace_back();
    waiting.charges = {{rule, key, 1}};
    waiting.booked = Acquire(store(), waiting.charges, {.max_wait_ns = kMinute});
  }
  rule = &Add(1, algorithm::MakeTokenBucket({4, kSecond}, 1, 0).value());
  std::vector<Rebooking> items;
  for (Waiting& waiting : all) {
    waiting.charges[0].rule = rule;
    items.push_back(ItemOf(waiting, NowNs() + kMinute));
  }
  ASSERT_EQ(Rebook(store(), &items), RebookStatus::kDone);
  for (const Rebooking& item : items) EXPECT_EQ(item.grant_time_ns, NowNs() + kSecond / 4);
}

TEST_P(RebookContractTest, OlderRuleChangesNothing) {
  const Rule& old = Add(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0).value());
  ASSERT_TRUE(Acquire(store(), old, "k").granted());
  Waiting waiting{{{&old, "k", 1}}, {}, {}};
  waiting.booked = Acquire(store(), waiting.charges, {.max_wait_ns = kMinute});
  const Rule& now = Add(1, algorithm::MakeTokenBucket({2, kSecond}, 1, 0).value());
  // A change of the bucket moves it to the newer rule.
  ASSERT_TRUE(Acquire(store(), now, "k", 1, {.max_wait_ns = kMinute}).granted());
  std::vector<Rebooking> items{ItemOf(waiting, NowNs() + kMinute)};
  EXPECT_EQ(Rebook(store(), &items), RebookStatus::kStaleRule);
  EXPECT_EQ(Query(store(), now, "k").waiting, 2u);
}

}  // namespace
}  // namespace sluice::testing
