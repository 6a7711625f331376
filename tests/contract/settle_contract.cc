// The contract of Settle: an acquisition counts as its work took, whenever and however often that
// is said. The property tests of server/algorithm and the differential tests of the Redis store
// cover random histories; here is what a store adds to them.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/contract/store_contract.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::Outcome;
using store::RefundOutcome;
using store::Rule;
using store::SettledPermits;
using store::SettleOperation;
using store::SettleOutcome;
using RulePtr = std::shared_ptr<const Rule>;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kHour = 3600 * kSecond;
constexpr uint64_t kAsTaken = SettleOperation::kAsTaken;

bool Changed(const SettledPermits& of, uint64_t given_back, uint64_t charged, uint64_t forgiven) {
  return of.given_back == given_back && of.charged == charged && of.forgiven == forgiven;
}

TEST_P(SettleContractTest, LessComesBackAndMoreIsOwed) {
  for (const RulePtr& rule : AllRates()) {
    SCOPED_TRACE(rule->limit_name);
    const Acquired less = Estimate(*rule, 6);
    ASSERT_TRUE(less.granted());
    Settled settled = SettleOne(*rule, less, 6, 2);
    EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
    EXPECT_TRUE(Changed(settled.permits[0], 4, 0, 0));
    EXPECT_EQ(Remaining(*rule, "k"), 8);
    const Acquired more = Estimate(*rule, 6);
    settled = SettleOne(*rule, more, 6, 20);
    EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
    EXPECT_TRUE(Changed(settled.permits[0], 0, 7, 7)) << settled.permits[0].charged;
    EXPECT_EQ(Remaining(*rule, "k"), -5);
  }
}

TEST_P(SettleContractTest, TheSameCallAgainGetsTheSameAnswer) {
  for (const RulePtr& rule : AllRates()) {
    SCOPED_TRACE(rule->limit_name);
    const Acquired estimate = Estimate(*rule, 6);
    for (int i = 0; i < 3; ++i) {
      const Settled settled = SettleOne(*rule, estimate, 6, 2);
      EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
      EXPECT_TRUE(Changed(settled.permits[0], 4, 0, 0));
    }
    EXPECT_EQ(SettleOne(*rule, estimate, 6, 3).outcome, SettleOutcome::kAlreadySettled);
    EXPECT_EQ(Refund(store(), estimate.receipt_id, {{rule.get(), "k", 6}}).outcome,
              RefundOutcome::kSettled);
    EXPECT_EQ(Remaining(*rule, "k"), 8);
  }
}

TEST_P(SettleContractTest, MoreChargesAtOnceAndTheLastCallGivesBack) {
  for (const RulePtr& rule : AllRates()) {
    SCOPED_TRACE(rule->limit_name);
    const Acquired estimate = Estimate(*rule, 4, kSecond);
    Advance(kSecond / 2);
    EXPECT_EQ(SettleOne(*rule, estimate, 4, 1, /*more=*/true).outcome, SettleOutcome::kSettled);
    EXPECT_EQ(Remaining(*rule, "k"), 6) << "nothing comes back before the end";
    Advance(kSecond - 1);
    EXPECT_EQ(SettleOne(*rule, estimate, 4, 7, /*more=*/true).outcome, SettleOutcome::kSettled);
    EXPECT_EQ(Remaining(*rule, "k"), 3);
    EXPECT_EQ(SettleOne(*rule, estimate, 4, 6).outcome, SettleOutcome::kActualDecreased);
    EXPECT_EQ(SettleOne(*rule, estimate, 4, kAsTaken).outcome, SettleOutcome::kSettled);
    EXPECT_EQ(Remaining(*rule, "k"), 3);
  }
}

TEST_P(SettleContractTest, LateGivesNothingBackAndChargesOnce) {
  for (const RulePtr& rule : AllRates()) {
    SCOPED_TRACE(rule->limit_name);
    const Acquired less = Estimate(*rule, 2, kSecond);
    const Acquired more = Estimate(*rule, 2, kSecond);
    Advance(2 * kSecond);
    EXPECT_EQ(SettleOne(*rule, less, 2, 1).outcome, SettleOutcome::kLate);
    EXPECT_EQ(Remaining(*rule, "k"), 6);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(SettleOne(*rule, more, 2, 3).outcome, SettleOutcome::kLate);
      EXPECT_EQ(Remaining(*rule, "k"), 5);
    }
  }
}

TEST_P(SettleContractTest, IsForgottenTenMinutesAfterTheEnd) {
  for (const RulePtr& rule : AllRates()) {
    SCOPED_TRACE(rule->limit_name);
    const Acquired estimate = Estimate(*rule, 2, kSecond);
    Advance(601 * kSecond);
    EXPECT_EQ(SettleOne(*rule, estimate, 2, 3).outcome, SettleOutcome::kLate);
    Advance(1);
    // Removes those that are over.
    Acquire(store(), *rule, "k", 1, {.want_receipt = true});
    EXPECT_EQ(SettleOne(*rule, estimate, 2, 9).outcome, SettleOutcome::kUnknown);
  }
}

TEST_P(SettleContractTest, IsForgottenTenMinutesAfterTheEndThoughNobodyElseCalled) {
  for (const RulePtr& rule : AllRates()) {
    SCOPED_TRACE(rule->limit_name);
    const Acquired estimate = Estimate(*rule, 2, kSecond);
    Advance(601 * kSecond + 1);
    const int64_t remaining = Remaining(*rule, "k");
    EXPECT_EQ(SettleOne(*rule, estimate, 2, 9).outcome, SettleOutcome::kUnknown);
    EXPECT_EQ(Remaining(*rule, "k"), remaining);
  }
}

TEST_P(SettleContractTest, RefundedIsNotSettled) {
  const RulePtr rule = AllRates()[0];
  const Acquired estimate = Estimate(*rule, 6);
  EXPECT_EQ(Refund(store(), estimate.receipt_id, {{rule.get(), "k", 6}}).outcome,
            RefundOutcome::kRefunded);
  EXPECT_EQ(SettleOne(*rule, estimate, 6, 2).outcome, SettleOutcome::kRefunded);
  EXPECT_EQ(Remaining(*rule, "k"), 10);
}

TEST_P(SettleContractTest, ResetAndOtherParametersKeepTheAccount) {
  for (const RulePtr& rule : AllRates()) {
    SCOPED_TRACE(rule->limit_name);
    const Acquired reset = Estimate(*rule, 6);
    ASSERT_TRUE(Reset(store(), *rule, "k"));
    EXPECT_EQ(SettleOne(*rule, reset, 6, 2).outcome, SettleOutcome::kSettled);
    EXPECT_EQ(Remaining(*rule, "k"), 10);
    const Acquired converted = Estimate(*rule, 6);
    const RulePtr other =
        Register(rule->limit_id, algorithm::MakeSlidingLog({20, 24 * kHour}), /*shadow=*/false, 5);
    EXPECT_EQ(SettleOne(*other, converted, 6, 9).outcome, SettleOutcome::kSettled);
    EXPECT_EQ(SettleOne(*other, converted, 6, 9).outcome, SettleOutcome::kSettled);
  }
}

TEST_P(SettleContractTest, ManyAreSettledInAnyOrder) {
  const RulePtr rule =
      Register(1, algorithm::MakeTokenBucket({1000, 24 * kHour}, 1000, 0), false, 500);
  std::vector<Acquired> open;
  for (int i = 0; i < 300; ++i) open.push_back(Estimate(*rule, 3));
  EXPECT_EQ(Remaining(*rule, "k"), 100);
  for (size_t i = 0; i < open.size(); ++i) {
    const Acquired& one = open[i * 7 % open.size()];
    ASSERT_EQ(SettleOne(*rule, one, 3, i % 2 == 0 ? 2 : 4).outcome, SettleOutcome::kSettled) << i;
  }
  EXPECT_EQ(Remaining(*rule, "k"), 100);
  for (size_t i = 0; i < open.size(); ++i) {
    const Acquired& one = open[i * 7 % open.size()];
    ASSERT_EQ(SettleOne(*rule, one, 3, i % 2 == 0 ? 2 : 4).outcome, SettleOutcome::kSettled) << i;
  }
  EXPECT_EQ(Remaining(*rule, "k"), 100);
}

TEST_P(SettleSeveralContractTest, ParentTakesTheSumAndForgivesWhatItsChildForgave) {
  const RulePtr child = Register(1, algorithm::MakeTokenBucket({10, 24 * kHour}, 10, 0), false, 5);
  const RulePtr other = Register(2, algorithm::MakeTokenBucket({10, 24 * kHour}, 10, 0), false, 5);
  const RulePtr parent =
      Register(3, algorithm::MakeTokenBucket({100, 24 * kHour}, 100, 0), false, 50);
  const std::vector<Charge> charges = {
      {child.get(), "k", 5}, {other.get(), "k", 5}, {parent.get(), "", 10}};
  const std::vector<uint16_t> by = {0, 0, 3};
  const Acquired estimate =
      Acquire(store(), charges, {.charged_by = by, .settle_within_ns = kHour});
  ASSERT_TRUE(estimate.granted());
  const Settled settled =
      Settle(store(), estimate.receipt_id, charges, {3, 17, kAsTaken}, {.charged_by = by});
  EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
  EXPECT_TRUE(Changed(settled.permits[0], 2, 0, 0));
  EXPECT_TRUE(Changed(settled.permits[1], 0, 10, 2));
  EXPECT_EQ(Remaining(*child, "k"), 7);
  EXPECT_EQ(Remaining(*other, "k"), -5);
  EXPECT_EQ(Remaining(*parent, ""), 82);
}

TEST_P(SettleSeveralContractTest, SettlesAReservationFromItsGrantTimeOn) {
  const RulePtr rule = TokenBucket(1, 1, 2);
  ASSERT_TRUE(Acquire(store(), *rule, "k", 2).granted());
  const Acquired booked =
      Acquire(store(), *rule, "k", 2, {.max_wait_ns = 10 * kSecond, .settle_within_ns = kSecond});
  ASSERT_EQ(booked.wait_ns, 2 * kSecond);
  const auto settle = [&](uint64_t actual) {
    return Settle(store(), booked.receipt_id, {{rule.get(), "k", 2}}, {actual},
                  {.grant_time_ns = booked.grant_time_ns()});
  };
  Advance(2 * kSecond - 1);
  EXPECT_EQ(settle(1).outcome, SettleOutcome::kTooEarly);
  Advance(1);
  const Settled settled = settle(1);
  EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
  EXPECT_TRUE(Changed(settled.permits[0], 1, 0, 0));
  EXPECT_EQ(Remaining(*rule, "k"), 1);
}

TEST_P(SettleSeveralContractTest, EndsSlotsAndSettlesRatesThatWereNoEstimate) {
  const RulePtr slots = Register(1, algorithm::MakeConcurrency(2, 30 * kSecond));
  const RulePtr rate = Register(2, algorithm::MakeTokenBucket({10, 24 * kHour}, 10, 0), false, 5);
  const std::vector<Charge> charges = {{slots.get(), "k", 1}, {rate.get(), "k", 6}};
  const auto take = [&](int64_t within_ns = 0) {
    return Acquire(store(), charges, {.want_receipt = true, .settle_within_ns = within_ns});
  };
  const auto settle = [&](const Acquired& of, uint64_t actual, bool estimate) {
    return Settle(store(), of.receipt_id, charges, {kAsTaken, actual}, {.estimate = estimate})
        .outcome;
  };
  // As it was taken: no account is kept, but the same call gets the same answer.
  const Acquired first = take();
  ASSERT_TRUE(first.granted());
  EXPECT_EQ(settle(first, kAsTaken, false), SettleOutcome::kSettled);
  EXPECT_EQ(settle(first, kAsTaken, false), SettleOutcome::kSettled);
  EXPECT_EQ(settle(first, 1, false), SettleOutcome::kAlreadySettled);
  EXPECT_EQ(Refund(store(), first.receipt_id, charges).outcome, RefundOutcome::kSettled);
  EXPECT_EQ(Remaining(*slots, "k"), 2);
  EXPECT_EQ(Remaining(*rate, "k"), 4);
  ASSERT_TRUE(Reset(store(), *rate, "k"));
  // By actual.
  const Acquired second = take();
  EXPECT_EQ(settle(second, 1, false), SettleOutcome::kSettled);
  EXPECT_EQ(settle(second, 1, false), SettleOutcome::kSettled);
  EXPECT_EQ(settle(second, 2, false), SettleOutcome::kAlreadySettled);
  EXPECT_EQ(Remaining(*slots, "k"), 2);
  EXPECT_EQ(Remaining(*rate, "k"), 9);
  // An estimate, whose slots run out.
  const Acquired third = take(kHour);
  Advance(31 * kSecond);
  EXPECT_EQ(settle(third, 1, true), SettleOutcome::kSettled);
  EXPECT_EQ(Remaining(*rate, "k"), 8);
  // Without slots and settle_within nothing shows that it is the first settlement.
  const Acquired fourth = take();
  Advance(31 * kSecond);
  EXPECT_EQ(settle(fourth, 1, false), SettleOutcome::kUnknown);
  EXPECT_EQ(Remaining(*rate, "k"), 2);
  ASSERT_TRUE(Reset(store(), *rate, "k"));
  const Acquired fifth = take();
  EXPECT_EQ(Refund(store(), fifth.receipt_id, charges).outcome, RefundOutcome::kRefunded);
  EXPECT_EQ(settle(fifth, kAsTaken, false), SettleOutcome::kRefunded);
  EXPECT_EQ(settle(fifth, 1, false), SettleOutcome::kRefunded);
}

// With `more`, the excess of a child may reach the parent later.
TEST_P(SettleSeveralContractTest, ParentForgivesLaterWhatItsChildForgaveBefore) {
  const RulePtr child = Register(1, algorithm::MakeTokenBucket({5, 24 * kHour}, 5, 0), false, 1);
  const RulePtr other = Register(2, algorithm::MakeTokenBucket({10, 24 * kHour}, 10, 0), false, 5);
  const RulePtr parent =
      Register(3, algorithm::MakeTokenBucket({100, 24 * kHour}, 100, 0), false, 50);
  const std::vector<Charge> charges = {
      {child.get(), "k", 5}, {other.get(), "k", 5}, {parent.get(), "", 10}};
  const std::vector<uint16_t> by = {0, 0, 3};
  const Acquired estimate =
      Acquire(store(), charges, {.charged_by = by, .settle_within_ns = kHour});
  ASSERT_TRUE(estimate.granted());
  Settled settled = Settle(store(), estimate.receipt_id, charges, {8, 2, kAsTaken},
                           {.more = true, .charged_by = by});
  ASSERT_EQ(settled.outcome, SettleOutcome::kSettled);
  EXPECT_TRUE(Changed(settled.permits[0], 0, 1, 2));
  EXPECT_EQ(Remaining(*parent, ""), 90);
  // The parent's excess is the child's 3, of which the child counted 1.
  settled = Settle(store(), estimate.receipt_id, charges, {8, 5, kAsTaken}, {.charged_by = by});
  EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
  EXPECT_TRUE(Changed(settled.permits[1], 0, 0, 0));
  EXPECT_TRUE(Changed(settled.permits[2], 0, 1, 2)) << settled.permits[2].charged;
  EXPECT_EQ(Remaining(*parent, ""), 89);
}

// c charges api, which charges `overall`, as b does. api takes what it had asked for, since c took
// less; so it forgives nothing, and b's excess is charged to `overall`.
TEST_P(SettleSeveralContractTest, ParentCountsTheExcessBesideAChildWhoseOwnChildTookLess) {
  const algorithm::Rate rate{1000, 24 * kHour};
  std::vector<RulePtr> rules;
  for (uint32_t i = 1; i <= 4; ++i) {
    rules.push_back(Register(i, algorithm::MakeTokenBucket(rate, 1000, 0), false, 1000));
  }
  const std::vector<Charge> charges = {{rules[0].get(), "k", 5},
                                       {rules[1].get(), "k", 10},
                                       {rules[2].get(), "k", 5},
                                       {rules[3].get(), "", 15}};
  const std::vector<uint16_t> by = {0, 1, 0, 7};
  const Acquired estimate =
      Acquire(store(), charges, {.charged_by = by, .settle_within_ns = kHour});
  ASSERT_TRUE(estimate.granted());
  const Settled settled =
      Settle(store(), estimate.receipt_id, charges, {1, 9, 9, kAsTaken}, {.charged_by = by});
  EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
  EXPECT_TRUE(Changed(settled.permits[0], 4, 0, 0));
  EXPECT_TRUE(Changed(settled.permits[1], 0, 0, 0));
  EXPECT_TRUE(Changed(settled.permits[2], 0, 4, 0));
  EXPECT_TRUE(Changed(settled.permits[3], 0, 4, 0)) << settled.permits[3].charged;
  EXPECT_EQ(Remaining(*rules[3], ""), 1000 - 19);
}

TEST_P(SettleSeveralContractTest, ShadowChargeLeftOutByAMoveDoesNotRefuseTheSettlement) {
  const RulePtr enforced = Register(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0));
  const RulePtr shadow = Register(2, algorithm::MakeTokenBucket({1, kSecond}, 1, 0), true);
  const std::vector<Charge> charges = {{enforced.get(), "k", 1}, {shadow.get(), "k", 1}};
  ASSERT_TRUE(Acquire(store(), *enforced, "k").granted());
  const Acquired first = Acquire(store(), *enforced, "k", 1, {.max_wait_ns = kHour});
  ASSERT_EQ(first.wait_ns, kSecond);
  const Acquired second =
      Acquire(store(), charges, {.max_wait_ns = kHour, .settle_within_ns = kHour});
  ASSERT_EQ(second.wait_ns, 2 * kSecond);
  Advance(kSecond / 10);
  ASSERT_TRUE(Acquire(store(), *shadow, "k").granted());
  ASSERT_EQ(
      Refund(store(), first.receipt_id, {{enforced.get(), "k", 1}}, first.grant_time_ns()).outcome,
      RefundOutcome::kRefunded);
  const Moved moved = Move(store(), second.receipt_id, charges, second.grant_time_ns());
  ASSERT_EQ(moved.outcome, store::MoveOutcome::kMoved);
  Advance(kSecond * 9 / 10);
  const Settled settled =
      Settle(store(), second.receipt_id, charges, {0, 0}, {.grant_time_ns = moved.grant_time_ns});
  EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
  EXPECT_EQ(settled.permits[0].given_back, 1u);
}

TEST_P(SettleSeveralContractTest, RefundedReservationIsNotSettledByTheShadowChargeItLeftOut) {
  const RulePtr enforced = Register(1, algorithm::MakeTokenBucket({1, kSecond}, 1, 0));
  const RulePtr shadow = Register(2, algorithm::MakeTokenBucket({1, kHour}, 1, 0), true);
  const std::vector<Charge> charges = {{shadow.get(), "k", 1}, {enforced.get(), "k", 1}};
  ASSERT_TRUE(Acquire(store(), charges, {}).granted());
  const Acquired reserved =
      Acquire(store(), charges, {.max_wait_ns = kHour, .settle_within_ns = kHour});
  ASSERT_EQ(reserved.wait_ns, kSecond);
  ASSERT_EQ(Refund(store(), reserved.receipt_id, charges, reserved.grant_time_ns()).outcome,
            RefundOutcome::kRefunded);
  Advance(kSecond);
  const Settled settled = Settle(store(), reserved.receipt_id, charges, {kAsTaken, 3},
                                 {.grant_time_ns = reserved.grant_time_ns()});
  EXPECT_EQ(settled.outcome, SettleOutcome::kRefunded);
}

TEST_P(SettleSeveralContractTest, ParentOfSlotsKeepsWhatMoreHasSettled) {
  const RulePtr slots = Register(1, algorithm::MakeConcurrency(2, kHour));
  const RulePtr child = Register(2, algorithm::MakeTokenBucket({20, 24 * kHour}, 20, 0));
  const RulePtr parent = Register(3, algorithm::MakeTokenBucket({100, 24 * kHour}, 100, 0));
  // The request named 2 permits of the parent itself.
  const std::vector<Charge> charges = {
      {slots.get(), "k", 1}, {child.get(), "k", 2}, {parent.get(), "", 5}};
  const std::vector<uint16_t> by = {0, 0, 3};
  const Acquired estimate =
      Acquire(store(), charges, {.charged_by = by, .settle_within_ns = kHour});
  ASSERT_TRUE(estimate.granted());
  const auto more = [&](uint64_t of_child, uint64_t of_parent) {
    return Settle(store(), estimate.receipt_id, charges, {kAsTaken, of_child, of_parent},
                  {.more = true, .charged_by = by})
        .outcome;
  };
  EXPECT_EQ(more(5, 4), SettleOutcome::kSettled);
  EXPECT_EQ(Remaining(*parent, ""), 90);
  EXPECT_EQ(more(6, kAsTaken), SettleOutcome::kSettled);
  EXPECT_EQ(Remaining(*parent, ""), 89);
  EXPECT_EQ(more(6, 3), SettleOutcome::kActualDecreased);
}

TEST_P(SettleSeveralContractTest, ChargesTheExcessToARateThatIsFullAgain) {
  const algorithm::Rate rate{10, kSecond};
  const RulePtr slots = Register(1, algorithm::MakeConcurrency(10, kHour));
  for (const RulePtr& rule : {Register(2, algorithm::MakeTokenBucket(rate, 10, 0), false, 5),
                              Register(3, algorithm::MakeSlidingLog(rate), false, 5),
                              Register(4, algorithm::MakeSlidingWindow(rate, 4), false, 5),
                              Register(5, algorithm::MakeFixedWindow(rate, 0), false, 5)}) {
    SCOPED_TRACE(rule->limit_name);
    const std::vector<Charge> charges = {{slots.get(), "k", 1}, {rule.get(), "k", 6}};
    const Acquired taken = Acquire(store(), charges, {.want_receipt = true});
    ASSERT_TRUE(taken.granted());
    Advance(10 * kSecond);
    // A full bucket is the same as none, so it may be dropped.
    for (int n = 0; n < 1000; ++n) store().Maintain();
    for (int i = 0; i < 2; ++i) {
      const Settled settled =
          Settle(store(), taken.receipt_id, charges, {kAsTaken, 9}, {.estimate = false});
      EXPECT_EQ(settled.outcome, SettleOutcome::kSettled);
      EXPECT_TRUE(Changed(settled.permits[1], 0, 3, 0)) << settled.permits[1].charged;
    }
    EXPECT_EQ(Remaining(*rule, "k"), 7);
    EXPECT_EQ(Remaining(*slots, "k"), 10);
  }
}

TEST_P(SettleSeveralContractTest, ChargesNoExcessToARateThatIsFullAgainAndAnswersRepetitionsAlike) {
  const RulePtr slots = Register(1, algorithm::MakeConcurrency(10, kHour));
  const RulePtr rate = Register(2, algorithm::MakeTokenBucket({10, kSecond}, 10, 0));
  const std::vector<Charge> charges = {{slots.get(), "k", 1}, {rate.get(), "k", 6}};
  const Acquired taken = Acquire(store(), charges, {.want_receipt = true});
  ASSERT_TRUE(taken.granted());
  Advance(10 * kSecond);
  for (int n = 0; n < 1000; ++n) store().Maintain();
  const uint64_t buckets = store().Stats().buckets;
  const auto settle = [&](uint64_t actual) {
    return Settle(store(), taken.receipt_id, charges, {kAsTaken, actual}, {.estimate = false})
        .outcome;
  };
  EXPECT_EQ(settle(6), SettleOutcome::kSettled);
  EXPECT_LE(store().Stats().buckets, buckets) << "a full bucket needs no account";
  EXPECT_EQ(settle(6), SettleOutcome::kSettled);
  EXPECT_EQ(settle(5), SettleOutcome::kAlreadySettled);
  EXPECT_EQ(settle(6), SettleOutcome::kSettled);
  EXPECT_EQ(Remaining(*rate, "k"), 10);
}

// One of the two rates is full again, and has no account of the settlement.
TEST_P(SettleSeveralContractTest, AnotherActualOfARateWithoutAnAccountIsNotTakenForTheFirst) {
  const RulePtr slots = Register(1, algorithm::MakeConcurrency(10, kHour));
  const RulePtr fast = Register(2, algorithm::MakeTokenBucket({10, kSecond}, 10, 0), false, 100);
  const RulePtr slow = Register(3, algorithm::MakeTokenBucket({10, 24 * kHour}, 10, 0));
  const std::vector<Charge> charges = {
      {slots.get(), "k", 1}, {fast.get(), "k", 6}, {slow.get(), "k", 5}};
  const Acquired taken = Acquire(store(), charges, {.want_receipt = true});
  ASSERT_TRUE(taken.granted());
  Advance(10 * kSecond);
  for (int n = 0; n < 1000; ++n) store().Maintain();
  const auto settle = [&](uint64_t of_fast) {
    return Settle(store(), taken.receipt_id, charges, {kAsTaken, of_fast, 5}, {.estimate = false})
        .outcome;
  };
  EXPECT_EQ(settle(3), SettleOutcome::kSettled);
  EXPECT_EQ(settle(2), SettleOutcome::kAlreadySettled);
  EXPECT_EQ(settle(20), SettleOutcome::kAlreadySettled);
  EXPECT_EQ(settle(3), SettleOutcome::kSettled);
}

TEST_P(SettleSeveralContractTest, RepeatedGrantIsWorthNothingWithoutItsSlots) {
  const RulePtr slots = Register(1, algorithm::MakeConcurrency(2, 30 * kSecond));
  const std::vector<Charge> charges = {{slots.get(), "k", 1}};
  store::Once once;
  once.id = {{7, 9}};
  once.fingerprint = 1;
  const auto ask = [&] { return Acquire(store(), charges, {.want_receipt = true, .once = &once}); };
  const Acquired first = ask();
  ASSERT_TRUE(first.granted());
  Advance(10 * kSecond);
  const Acquired again = ask();
  EXPECT_TRUE(again.granted());
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.receipt_id, first.receipt_id);
  EXPECT_EQ(again.charges[0].debited_before_ns, 10 * kSecond);
  EXPECT_EQ(Settle(store(), first.receipt_id, charges, {kAsTaken}, {.estimate = false}).outcome,
            SettleOutcome::kSettled);
  EXPECT_EQ(ask().outcome, Outcome::kEnded);
  EXPECT_EQ(Remaining(*slots, "k"), 2);
}

}  // namespace
}  // namespace sluice::testing
