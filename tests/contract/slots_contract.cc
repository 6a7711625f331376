// The contract of slots: at no moment of the store's clock do grants that have not ended hold more
// than the limit's permits.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/store_contract.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::HoldsOperation;
using store::Reason;
using store::Renewal;
using store::RenewOutcome;
using store::Rule;
using RulePtr = std::shared_ptr<const Rule>;

constexpr int64_t kSecond = 1'000'000'000;

std::vector<Renewal> RenewAll(store::Store& store, std::vector<Renewal> items) {
  struct Operation final : store::RenewOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  Operation operation;
  operation.items = absl::MakeSpan(items);
  store.Renew(&operation);
  operation.done.Wait();
  EXPECT_EQ(operation.undecided, 0u);
  return items;
}

Renewal Renew(store::Store& store, uint64_t receipt_id, const std::vector<Charge>& charges) {
  Renewal item;
  item.receipt_id = receipt_id;
  item.charges = charges;
  return RenewAll(store, {item})[0];
}

// To be used once.
struct HoldsCall final : HoldsOperation {
  HoldsCall(const Rule& of, uint64_t end) {
    rule = &of;
    key = "k";
    receipt_id = end;
    most_listed = 10;
  }
  void Done() override { done.Notify(); }
  Notification done;
};

HoldsOperation::Outcome Holds(store::Store& store, HoldsCall* asked) {
  store.Holds(asked);
  asked->done.Wait();
  return asked->outcome;
}

// All grants of one slot bucket that have not ended.
class Slots {
 public:
  uint64_t InUse(int64_t now_ns) const {
    uint64_t sum = 0;
    for (const auto& [id, hold] : holds_) sum += hold.end_ns > now_ns ? hold.permits : 0;
    return sum;
  }
  size_t Count(int64_t now_ns) const {
    return static_cast<size_t>(std::count_if(
        holds_.begin(), holds_.end(), [&](const auto& one) { return one.second.end_ns > now_ns; }));
  }
  bool Holds(uint64_t id, int64_t now_ns) const {
    const auto hold = holds_.find(id);
    return hold != holds_.end() && hold->second.end_ns > now_ns;
  }
  void Take(uint64_t id, uint64_t permits, int64_t end_ns) { holds_[id] = {permits, end_ns}; }
  void Renew(uint64_t id, int64_t end_ns) {
    holds_[id].end_ns = std::max(holds_[id].end_ns, end_ns);
  }
  int64_t EndOf(uint64_t id) const { return holds_.at(id).end_ns; }
  void End(uint64_t id) { holds_.erase(id); }
  void Clear() { holds_.clear(); }

 private:
  struct Hold {
    uint64_t permits = 0;
    int64_t end_ns = 0;
  };
  std::map<uint64_t, Hold> holds_;
};

// Random histories on two limits of slots and a rate.
class History {
 public:
  History(StoreUnderTest& under_test, uint32_t first_limit, uint64_t seed)
      : under_test_(under_test), first_limit_(first_limit), random_(seed) {
    for (int i = 0; i < 2; ++i) Change(i);
    rate_ = MakeRule(first_limit + 2,
                     *algorithm::MakeTokenBucket({5, kSecond}, /*burst=*/8, /*debt=*/0),
                     /*shadow=*/false, /*max_owed=*/{}, under_test.hash_tag());
    store().Register(rate_);
  }

  void Step() {
    if (Below(3) == 0) under_test_.Advance(static_cast<int64_t>(Below(3)) * kSecond / 4);
    switch (Below(12)) {
      case 0:
        return Change(static_cast<int>(Below(2)));
      case 1: {
        const int i = static_cast<int>(Below(2));
        Reset(store(), *rules_[i], "k");
        return slots_[i].Clear();
      }
      case 2:
      case 3:
        return Refund();
      case 4:
      case 5:
        return Renew();
      default:
        return Take();
    }
  }

  void CheckLevels() {
    const int64_t now_ns = under_test_.NowNs();
    for (int i = 0; i < 2; ++i) {
      const store::QueryItem item = Query(store(), *rules_[i], "k");
      const auto permits = static_cast<int64_t>(rules_[i]->parameters.concurrency.permits);
      ASSERT_EQ(item.level.remaining, permits - static_cast<int64_t>(slots_[i].InUse(now_ns)));
      ASSERT_EQ(item.holds, slots_[i].Count(now_ns));
    }
  }

 private:
  struct Grant {
    uint64_t id = 0;
    int64_t grant_time_ns = 0;
    bool takes[2] = {};
    std::vector<std::pair<int, uint64_t>> charges;  // limit (2: the rate) and permits
  };

  store::Store& store() { return under_test_.store(); }
  uint64_t Below(uint64_t n) { return random_() % n; }

  void Change(int i) {
    rules_[i] =
        MakeRule(first_limit_ + static_cast<uint32_t>(i),
                 *algorithm::MakeConcurrency(
                     1 + Below(8), kSecond / 4 + static_cast<int64_t>(Below(8)) * kSecond / 4),
                 /*shadow=*/false, /*max_owed=*/{}, under_test_.hash_tag());
    store().Register(rules_[i]);
  }

  const Rule& RuleOf(int limit) const { return limit == 2 ? *rate_ : *rules_[limit]; }
  std::vector<Charge> ChargesOf(const Grant& grant, bool slots_only) const {
    std::vector<Charge> charges;
    for (const auto& [limit, permits] : grant.charges) {
      if (limit != 2 || !slots_only) charges.push_back({&RuleOf(limit), "k", permits});
    }
    return charges;
  }

  void Take() {
    Grant grant;
    for (int limit = 0; limit < 3; ++limit) {
      if (Below(2) == 0) grant.charges.emplace_back(limit, 1 + Below(3));
    }
    for (const auto& [limit, permits] : grant.charges) {
      if (permits > algorithm::MaxGrant(RuleOf(limit).parameters)) return;
      if (limit != 2) grant.takes[limit] = true;
    }
    if (!grant.takes[0] && !grant.takes[1]) return;
    const int64_t max_wait_ns = Below(3) == 0 ? kSecond : 0;
    const int64_t rate_before = Query(store(), *rate_, "k").level.remaining;
    const Acquired acquired = Acquire(store(), ChargesOf(grant, false),
                                      {.want_receipt = true, .max_wait_ns = max_wait_ns});
    const int64_t now_ns = acquired.now_ns;
    bool fit = true;
    for (const auto& [limit, permits] : grant.charges) {
      if (limit == 2) continue;
      fit &= slots_[limit].InUse(now_ns) + permits <= rules_[limit]->parameters.concurrency.permits;
    }
    ASSERT_TRUE(fit || !acquired.granted());
    if (!acquired.granted()) {
      ASSERT_EQ(Query(store(), *rate_, "k").level.remaining, rate_before);
      ASSERT_EQ(acquired.receipt_id, 0u);
      ASSERT_GT(acquired.retry_after_ns, 0);
      return;
    }
    grant.id = acquired.receipt_id;
    ASSERT_NE(grant.id, 0u);
    grant.grant_time_ns = acquired.grant_time_ns();
    for (const auto& [limit, permits] : grant.charges) {
      if (limit == 2) continue;
      slots_[limit].Take(
          grant.id, permits,
          now_ns + acquired.wait_ns + rules_[limit]->parameters.concurrency.hold_for_ns);
    }
    grants_.push_back(grant);
  }

  void Refund() {
    if (grants_.empty()) return;
    const Grant& grant = grants_[Below(grants_.size())];
    const Refunded refunded =
        testing::Refund(store(), grant.id, ChargesOf(grant, false), grant.grant_time_ns);
    const int64_t now_ns = under_test_.NowNs();
    for (size_t c = 0; c < grant.charges.size(); ++c) {
      const auto& [limit, permits] = grant.charges[c];
      if (limit == 2) continue;
      const bool held = slots_[limit].Holds(grant.id, now_ns);
      ASSERT_EQ(refunded.permits[c], held ? permits : 0);
      slots_[limit].End(grant.id);
    }
  }

  void Renew() {
    if (grants_.empty()) return;
    // Also several at once, and one of them twice.
    std::vector<Grant> some;
    for (size_t n = 1 + Below(6); n > 0; --n) some.push_back(grants_[Below(grants_.size())]);
    std::vector<std::vector<Charge>> charges;
    std::vector<Renewal> items;
    for (const Grant& grant : some) charges.push_back(ChargesOf(grant, true));
    for (size_t i = 0; i < some.size(); ++i) {
      items.emplace_back().receipt_id = some[i].id;
      items.back().charges = charges[i];
    }
    items = RenewAll(store(), std::move(items));
    const int64_t now_ns = under_test_.NowNs();
    for (size_t i = 0; i < some.size(); ++i) {
      bool all = true;
      for (const auto& [limit, permits] : some[i].charges) {
        if (limit != 2) all &= slots_[limit].Holds(some[i].id, now_ns);
      }
      ASSERT_EQ(items[i].outcome, all ? RenewOutcome::kRenewed : RenewOutcome::kGone);
      if (!all) continue;
      int64_t least_ns = algorithm::kNeverNs;
      for (const auto& [limit, permits] : some[i].charges) {
        if (limit == 2) continue;
        slots_[limit].Renew(some[i].id, now_ns + rules_[limit]->parameters.concurrency.hold_for_ns);
        least_ns = std::min(least_ns, slots_[limit].EndOf(some[i].id) - now_ns);
      }
      ASSERT_EQ(items[i].held_for_ns, least_ns);
    }
  }

  StoreUnderTest& under_test_;
  const uint32_t first_limit_;
  std::mt19937_64 random_;
  RulePtr rules_[2];
  RulePtr rate_;
  Slots slots_[2];
  std::vector<Grant> grants_;
};

TEST_P(SlotsContractTest, HoldsAtMostThePermitsInRandomHistories) {
  // Fewer for a store across a socket, which is slower.
  const bool quick = under_test_->knows_what_it_holds();
  for (uint32_t round = 0; round < (quick ? 300u : 20u); ++round) {
    SCOPED_TRACE(round);
    History history(*under_test_, 1 + 3 * round, round);
    for (int step = 0; step < 150; ++step) {
      ASSERT_NO_FATAL_FAILURE(history.Step());
      if (step % (quick ? 1 : 8) == 0) {
        ASSERT_NO_FATAL_FAILURE(history.CheckLevels());
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SlotsContractTest, KeepsThousandsOfHolds) {
  constexpr uint64_t kHolds = 3000;
  const RulePtr rule = Register(1, algorithm::MakeConcurrency(kHolds, 10 * kSecond));
  const std::vector<Charge> charge = {{rule.get(), "k", 1}};
  std::vector<std::vector<Charge>> batch(kHolds, charge);
  std::vector<Acquired> acquired = AcquireBatch(store(), batch, {.want_receipt = true});
  for (const Acquired& one : acquired) ASSERT_TRUE(one.granted());
  EXPECT_FALSE(Acquire(store(), charge, {.want_receipt = true}).granted());
  Advance(5 * kSecond);
  // Each second one is renewed, in another order.
  std::vector<Renewal> items;
  for (uint64_t i = 0; i < kHolds; i += 2) {
    items.emplace_back().receipt_id = acquired[i * 7 % kHolds & ~uint64_t{1}].receipt_id;
    items.back().charges = charge;
  }
  size_t renewed = 0;
  for (const Renewal& item : RenewAll(store(), items)) {
    ASSERT_EQ(item.outcome, RenewOutcome::kRenewed);
    ++renewed;
  }
  ASSERT_GT(renewed, 0u);
  HoldsCall asked(*rule, /*end=*/0);
  ASSERT_EQ(Holds(store(), &asked), HoldsOperation::Outcome::kDone);
  EXPECT_EQ(asked.holds, kHolds);
  ASSERT_EQ(asked.listed.size(), 10u);
  EXPECT_EQ(asked.listed[0].ends_in_ns, 5 * kSecond);
  Advance(5 * kSecond);
  const store::QueryItem item = Query(store(), *rule, "k");
  EXPECT_EQ(item.level.remaining, static_cast<int64_t>(kHolds - item.holds));
  EXPECT_EQ(item.next_end_after_ns, 5 * kSecond);
  Advance(5 * kSecond);
  EXPECT_EQ(Remaining(*rule, "k"), static_cast<int64_t>(kHolds));
}

TEST_P(SlotsContractTest, AdminEndsOneHold) {
  const RulePtr rule = Register(1, algorithm::MakeConcurrency(2, 10 * kSecond));
  const std::vector<Charge> charge = {{rule.get(), "k", 1}};
  const Acquired first = Acquire(store(), charge, {.want_receipt = true});
  Advance(kSecond);
  const Acquired second = Acquire(store(), charge, {.want_receipt = true});
  for (const bool ends : {true, false}) {
    HoldsCall asked(*rule, first.receipt_id);
    ASSERT_EQ(Holds(store(), &asked), HoldsOperation::Outcome::kDone);
    EXPECT_EQ(asked.ended, ends);
  }
  EXPECT_EQ(Renew(store(), first.receipt_id, charge).outcome, RenewOutcome::kGone);
  const Renewal kept = Renew(store(), second.receipt_id, charge);
  EXPECT_EQ(kept.outcome, RenewOutcome::kRenewed);
  EXPECT_EQ(kept.held_for_ns, 10 * kSecond);
  EXPECT_EQ(Remaining(*rule, "k"), 1);
}

TEST_P(SlotsContractTest, StaleRuleRenewsNothing) {
  const RulePtr before = Register(1, algorithm::MakeConcurrency(2, 10 * kSecond));
  const std::vector<Charge> charge = {{before.get(), "k", 1}};
  const Acquired taken = Acquire(store(), charge, {.want_receipt = true});
  const RulePtr after = Register(1, algorithm::MakeConcurrency(1, 20 * kSecond));
  const std::vector<Charge> now = {{after.get(), "k", 1}};
  EXPECT_EQ(Renew(store(), taken.receipt_id, now).held_for_ns, 20 * kSecond);
  EXPECT_EQ(Renew(store(), taken.receipt_id, charge).outcome, RenewOutcome::kStaleRule);
  EXPECT_FALSE(Acquire(store(), now, {.want_receipt = true}).granted());
}

TEST_P(SlotsContractTest, ChangeToAndFromARateEndsHolds) {
  const RulePtr slots = Register(1, algorithm::MakeConcurrency(2, 10 * kSecond));
  const Acquired taken = Acquire(store(), {{slots.get(), "k", 2}}, {.want_receipt = true});
  ASSERT_TRUE(taken.granted());
  const RulePtr rate = TokenBucket(1, 1, 5);
  EXPECT_TRUE(Acquire(store(), *rate, "k", 5).granted());
  const RulePtr again = Register(1, algorithm::MakeConcurrency(3, 10 * kSecond));
  EXPECT_TRUE(Acquire(store(), {{again.get(), "k", 3}}, {.want_receipt = true}).granted());
  EXPECT_EQ(Renew(store(), taken.receipt_id, {{again.get(), "k", 2}}).outcome, RenewOutcome::kGone);
}

TEST_P(SlotsContractTest, DeniesSlotsThatFoundNoRoomAlsoIfOthersAreAllowed) {
  if (!under_test_->bounded()) return;
  Start({.max_buckets = 4, .allow_on_overflow = true});
  const RulePtr rate = TokenBucket(1, 1, 100);
  for (int i = 0; i < 100; ++i) Acquire(store(), *rate, "key" + std::to_string(i), 100);
  const RulePtr slots = Register(2, algorithm::MakeConcurrency(1, kSecond));
  int granted = 0;
  for (int i = 0; i < 10; ++i) {
    const Acquired taken = Acquire(store(), {{slots.get(), "k", 1}}, {.want_receipt = true});
    if (!taken.granted()) {
      EXPECT_NE(taken.charges[0].reason, Reason::kNone);
    }
    granted += taken.granted() ? 1 : 0;
  }
  EXPECT_LE(granted, 1);
}

}  // namespace
}  // namespace sluice::testing
