#include "tests/contract/store_contract.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

namespace sluice::testing {
namespace {

using store::Charge;
using store::Outcome;
using store::Reason;
using store::RefundOutcome;
using store::Rule;
using store::Source;
using ::testing::ElementsAre;

// ---- One charge on a token bucket ----

TEST_P(StoreContractTest, GrantsUntilBurstIsSpent) {
  const auto rule = TokenBucket(1, 10, 3);
  for (int64_t left = 2; left >= 0; --left) {
    const Acquired acquired = Acquire(store(), *rule, "k");
    EXPECT_TRUE(acquired.granted());
    EXPECT_EQ(acquired.charges[0].level.remaining, left);
    EXPECT_EQ(acquired.charges[0].level.capacity, 3u);
    EXPECT_EQ(acquired.charges[0].reason, Reason::kNone);
  }
  const Acquired denied = Acquire(store(), *rule, "k");
  EXPECT_EQ(denied.outcome, Outcome::kDenied);
  EXPECT_EQ(denied.charges[0].reason, Reason::kNotEnough);
  EXPECT_EQ(denied.charges[0].level.remaining, 0);
  EXPECT_EQ(denied.source, Source::kStore);
}

TEST_P(StoreContractTest, DatesDecisionsByClockOfStore) {
  const auto rule = TokenBucket(1, 10, 3);
  EXPECT_EQ(Acquire(store(), *rule, "k").now_ns, NowNs());
  Advance(123);
  EXPECT_EQ(Acquire(store(), *rule, "k").now_ns, NowNs());
}

TEST_P(StoreContractTest, RetryAfterIsExactToTheNanosecond) {
  const auto rule = TokenBucket(1, 7, 5);
  ASSERT_TRUE(Acquire(store(), *rule, "k", 5).granted());
  Advance(1'234'567);
  const int64_t retry_after_ns = Acquire(store(), *rule, "k", 3).retry_after_ns;
  ASSERT_GT(retry_after_ns, 1);
  Advance(retry_after_ns - 1);
  const Acquired early = Acquire(store(), *rule, "k", 3);
  EXPECT_EQ(early.outcome, Outcome::kDenied);
  EXPECT_EQ(early.retry_after_ns, 1);
  Advance(1);
  EXPECT_TRUE(Acquire(store(), *rule, "k", 3).granted());
}

TEST_P(StoreContractTest, KeysHaveSeparateBuckets) {
  const auto rule = TokenBucket(1, 1, 1);
  EXPECT_TRUE(Acquire(store(), *rule, "a").granted());
  EXPECT_TRUE(Acquire(store(), *rule, "b").granted());
  EXPECT_TRUE(Acquire(store(), *rule, "").granted());
  EXPECT_FALSE(Acquire(store(), *rule, "a").granted());
  EXPECT_FALSE(Acquire(store(), *rule, "").granted());
}

TEST_P(StoreContractTest, LimitsHaveSeparateBucketsForTheSameKey) {
  const auto one = TokenBucket(1, 1, 1);
  const auto two = TokenBucket(2, 1, 1);
  EXPECT_TRUE(Acquire(store(), *one, "k").granted());
  EXPECT_TRUE(Acquire(store(), *two, "k").granted());
  EXPECT_FALSE(Acquire(store(), *one, "k").granted());
}

TEST_P(StoreContractTest, AcceptsKeysOfEveryLengthAndByte) {
  const auto rule = TokenBucket(1, 1, 1);
  for (size_t length = 0; length <= 512; ++length) {
    std::string key(length, '\0');
    for (size_t i = 0; i < length; ++i) key[i] = static_cast<char>(i * 131 + length);
    EXPECT_TRUE(Acquire(store(), *rule, key).granted()) << length;
    EXPECT_FALSE(Acquire(store(), *rule, key).granted()) << length;
  }
}

TEST_P(StoreContractTest, LaterCallersPayDebt) {
  const auto rule = TokenBucket(1, 1, 1, 9);
  const Acquired acquired = Acquire(store(), *rule, "k", 10);
  EXPECT_TRUE(acquired.granted());
  EXPECT_EQ(acquired.charges[0].level.remaining, -9);
  const Acquired denied = Acquire(store(), *rule, "k");
  EXPECT_FALSE(denied.granted());
  EXPECT_EQ(denied.retry_after_ns, 9 * kSecond);
}

TEST_P(StoreContractTest, AccruesFractionsOfPermits) {
  const auto rule = TokenBucket(1, 1, 2);
  ASSERT_TRUE(Acquire(store(), *rule, "k", 2).granted());
  Advance(kSecond * 3 / 2);
  EXPECT_TRUE(Acquire(store(), *rule, "k").granted());
  Advance(kSecond / 2);
  EXPECT_TRUE(Acquire(store(), *rule, "k").granted());
  EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
}

// ---- The other algorithms ----

TEST_P(StoreContractTest, SlidingLogForgetsPermitsAfterAPeriod) {
  const auto rule = Register(1, algorithm::MakeSlidingLog({2, kSecond}));
  EXPECT_TRUE(Acquire(store(), *rule, "k").granted());
  Advance(kSecond / 2);
  EXPECT_TRUE(Acquire(store(), *rule, "k").granted());
  const Acquired denied = Acquire(store(), *rule, "k");
  ASSERT_FALSE(denied.granted());
  Advance(denied.retry_after_ns - 1);
  EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
  Advance(1);
  EXPECT_TRUE(Acquire(store(), *rule, "k").granted());
  EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
}

TEST_P(StoreContractTest, SlidingWindowNeverExceedsItsPermitsInAPeriod) {
  const auto rule = Register(1, algorithm::MakeSlidingWindow({10, kSecond}, 10));
  int granted = 0;
  for (int i = 0; i < 100; ++i) {
    granted += Acquire(store(), *rule, "k").granted();
    Advance(kSecond / 100 - 1);
  }
  EXPECT_EQ(granted, 10);
  const Acquired denied = Acquire(store(), *rule, "k", 10);
  ASSERT_FALSE(denied.granted());
  Advance(denied.retry_after_ns);
  EXPECT_TRUE(Acquire(store(), *rule, "k", 10).granted());
}

TEST_P(StoreContractTest, FixedWindowResetsAtWallClockBoundary) {
  const auto rule = Register(1, algorithm::MakeFixedWindow({3, kSecond}, 0));
  Advance(kSecond - under_test_->WallNs() % kSecond);
  EXPECT_TRUE(Acquire(store(), *rule, "k", 3).granted());
  const Acquired denied = Acquire(store(), *rule, "k");
  ASSERT_FALSE(denied.granted());
  EXPECT_EQ(denied.retry_after_ns, kSecond);
  Advance(kSecond - 1);
  EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
  Advance(1);
  EXPECT_TRUE(Acquire(store(), *rule, "k", 3).granted());
}

TEST_P(StoreContractTest, WallClockJumpGrantsNoWindowTwice) {
  const auto rule = Register(1, algorithm::MakeFixedWindow({3, 10 * kSecond}, 0));
  Advance(10 * kSecond - under_test_->WallNs() % (10 * kSecond));
  EXPECT_TRUE(Acquire(store(), *rule, "k", 3).granted());
  under_test_->AdvanceWallOnly(25 * kSecond);
  for (int i = 0; i < 20; ++i) store().Maintain();
  Query(store(), *rule, "k");
  under_test_->AdvanceWallOnly(-25 * kSecond);
  EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
}

// ---- Several charges ----

TEST_P(StoreContractTest, TakesAllChargesOrNone) {
  const auto user = TokenBucket(1, 1, 2);
  const auto overall = TokenBucket(2, 1, 3);
  const std::vector<Charge> both{{user.get(), "u", 1}, {overall.get(), "", 1}};
  EXPECT_TRUE(Acquire(store(), both).granted());
  EXPECT_TRUE(Acquire(store(), both).granted());
  const Acquired denied = Acquire(store(), both);
  EXPECT_FALSE(denied.granted());
  EXPECT_EQ(denied.charges[0].reason, Reason::kNotEnough);
  EXPECT_EQ(denied.charges[1].reason, Reason::kNone);
  EXPECT_EQ(denied.charges[1].level.remaining, 1);
  EXPECT_EQ(Remaining(*overall, ""), 1);
}

TEST_P(StoreContractTest, RetryAfterOfSeveralChargesIsTheLatest) {
  const auto fast = TokenBucket(1, 10, 1);
  const auto slow = TokenBucket(2, 1, 1);
  const auto log = Register(3, algorithm::MakeSlidingLog({1, kSecond / 2}));
  const std::vector<Charge> all{{fast.get(), "", 1}, {slow.get(), "", 1}, {log.get(), "", 1}};
  ASSERT_TRUE(Acquire(store(), all).granted());
  const Acquired denied = Acquire(store(), all);
  ASSERT_FALSE(denied.granted());
  EXPECT_EQ(denied.retry_after_ns, kSecond);
  Advance(kSecond - 1);
  EXPECT_FALSE(Acquire(store(), all).granted());
  Advance(1);
  EXPECT_TRUE(Acquire(store(), all).granted());
}

TEST_P(StoreContractTest, AcceptsSixteenChargesOfAllAlgorithms) {
  std::vector<std::shared_ptr<const Rule>> rules;
  std::vector<Charge> charges;
  for (uint32_t i = 0; i < 16; ++i) {
    switch (i % 4) {
      case 0:
        rules.push_back(TokenBucket(i + 1, 1, 5));
        break;
      case 1:
        rules.push_back(Register(i + 1, algorithm::MakeSlidingLog({5, kSecond})));
        break;
      case 2:
        rules.push_back(Register(i + 1, algorithm::MakeSlidingWindow({5, kSecond}, 10)));
        break;
      case 3:
        rules.push_back(Register(i + 1, algorithm::MakeFixedWindow({5, 3600 * kSecond}, 0)));
        break;
    }
    charges.push_back({rules.back().get(), "k", 1});
  }
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Acquire(store(), charges).granted());
  EXPECT_FALSE(Acquire(store(), charges).granted());
  for (const auto& rule : rules) EXPECT_EQ(Remaining(*rule, "k"), 0);
}

TEST_P(StoreContractTest, DecidesBatchInOrderAndItemsIndependently) {
  const auto rule = TokenBucket(1, 1, 3);
  const auto answers = AcquireBatch(store(), {{{rule.get(), "k", 2}},
                                              {{rule.get(), "k", 2}},
                                              {{rule.get(), "k", 1}},
                                              {{rule.get(), "k", 1}},
                                              {{rule.get(), "other", 3}}});
  EXPECT_TRUE(answers[0].granted());
  EXPECT_FALSE(answers[1].granted());
  EXPECT_TRUE(answers[2].granted());
  EXPECT_FALSE(answers[3].granted());
  EXPECT_TRUE(answers[4].granted());
}

TEST_P(StoreContractTest, AnswersEachItemOfLargeBatch) {
  const auto rule = TokenBucket(1, 1, 2);
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back("key" + std::to_string(i));
  std::vector<std::vector<Charge>> batch;
  for (int round = 0; round < 3; ++round) {
    for (const std::string& key : keys) batch.push_back({{rule.get(), key, 1}});
  }
  const auto answers = AcquireBatch(store(), batch);
  for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i].granted(), i < 2000) << i;
}

// ---- Forced debits ----

const AcquireOptions kForced{.debit = store::Debit::kForced};

TEST_P(StoreContractTest, ForcedDebitGrantsAndForgivesWhatMayNotBeOwed) {
  const std::vector<std::shared_ptr<const Rule>> rules = {
      Register(1, algorithm::MakeTokenBucket({10, 60 * kSecond}, 10, 0), false, 5),
      Register(2, algorithm::MakeSlidingLog({10, 60 * kSecond}), false, 5),
      Register(3, algorithm::MakeSlidingWindow({10, 60 * kSecond}, 10), false, 5),
      Register(4, algorithm::MakeFixedWindow({10, 60 * kSecond}, 0), false, 5)};
  Advance(60 * kSecond - under_test_->WallNs() % (60 * kSecond));
  for (const auto& rule : rules) {
    const Acquired first = Acquire(store(), *rule, "k", 12, kForced);
    EXPECT_TRUE(first.granted());
    EXPECT_EQ(first.charges[0].level.remaining, -2);
    EXPECT_EQ(first.charges[0].forgiven, 0u);
    EXPECT_EQ(first.charges[0].reason, Reason::kNotEnough);
    const Acquired second = Acquire(store(), *rule, "k", 9, kForced);
    EXPECT_TRUE(second.granted());
    EXPECT_EQ(second.charges[0].level.remaining, -5);
    EXPECT_EQ(second.charges[0].forgiven, 6u);
    const Acquired denied = Acquire(store(), *rule, "k");
    EXPECT_FALSE(denied.granted());
    EXPECT_EQ(denied.charges[0].forgiven, 0u);
    EXPECT_EQ(Acquire(store(), *rule, "other", 10, kForced).charges[0].reason, Reason::kNone);
  }
  Advance(121 * kSecond);
  for (const auto& rule : rules) EXPECT_TRUE(Acquire(store(), *rule, "k", 10).granted());
}

TEST_P(StoreContractTest, ForcedDebitWithoutMaxOwedOwesAtMostDebt) {
  const auto rule = TokenBucket(1, 1, 10, 3);
  const auto log = Register(2, algorithm::MakeSlidingLog({10, kSecond}));
  EXPECT_EQ(Acquire(store(), *rule, "k", 15, kForced).charges[0].forgiven, 2u);
  EXPECT_EQ(Acquire(store(), *log, "k", 15, kForced).charges[0].forgiven, 5u);
}

TEST_P(StoreContractTest, ForcedDebitsOfABatchAreDecidedInOrder) {
  const auto rule = Register(1, algorithm::MakeFixedWindow({2, 3600 * kSecond}, 0), false,
                             common::bounds::kMaxPermits);
  const auto answers = AcquireBatch(
      store(), {{{rule.get(), "k", 1}}, {{rule.get(), "k", 1}}, {{rule.get(), "k", 1}}}, kForced);
  EXPECT_EQ(answers[0].charges[0].level.remaining, 1);
  EXPECT_EQ(answers[1].charges[0].level.remaining, 0);
  EXPECT_EQ(answers[1].charges[0].reason, Reason::kNone);
  EXPECT_EQ(answers[2].charges[0].level.remaining, -1);
  EXPECT_EQ(answers[2].charges[0].reason, Reason::kNotEnough);
}

TEST_P(StoreContractTest, ForcedDebitOfLargestNumberDoesNotOverflow) {
  const auto rule = Register(1, algorithm::MakeFixedWindow({0xffffffff, 3600 * kSecond}, 0), false,
                             common::bounds::kMaxPermits);
  for (int i = 0; i < 3; ++i) {
    const Acquired forced = Acquire(store(), *rule, "k", common::bounds::kMaxPermits, kForced);
    EXPECT_TRUE(forced.granted());
    EXPECT_LT(forced.charges[0].level.remaining, -(int64_t{1} << 50));
  }
}

TEST_P(StoreContractTest, RefundOfForcedDebitGivesBackWhatWasCounted) {
  const auto rule = Register(1, algorithm::MakeSlidingLog({10, kSecond}), false, 5);
  const Acquired forced =
      Acquire(store(), *rule, "k", 100, {.want_receipt = true, .debit = store::Debit::kForced});
  ASSERT_NE(forced.receipt_id, 0u);
  const Refunded refunded = Refund(store(), forced.receipt_id, {{rule.get(), "k", 100}});
  EXPECT_THAT(refunded.permits, ElementsAre(15));
  EXPECT_EQ(Remaining(*rule, "k"), 10);
}

// The user may owe 2 permits, so 8 of its 20 are counted; the team may owe 100, and counts as many.
TEST_P(StoreContractTest, ForcedDebitChargesOthersWhatTheFirstCounted) {
  const auto overall = Register(1, algorithm::MakeTokenBucket({1, kSecond}, 3, 0), false, 1);
  const auto team = Register(2, algorithm::MakeTokenBucket({1, kSecond}, 50, 0), false, 100);
  const auto user = Register(3, algorithm::MakeTokenBucket({1, kSecond}, 6, 0), false, 2);
  // In a Cluster the first are in one slot.
  for (const auto& [of_team, of_user] : {std::pair("{t}", "{t}u"), std::pair("t", "u")}) {
    const std::vector<Charge> charges{
        {overall.get(), of_team, 20}, {team.get(), of_team, 20}, {user.get(), of_user, 20}};
    const Acquired forced = Acquire(
        store(), charges, {.debit = store::Debit::kForced, .charged_by = {0b110, 0b100, 0}});
    EXPECT_TRUE(forced.granted());
    EXPECT_EQ(forced.charges[2].level.remaining, -2);
    EXPECT_EQ(forced.charges[2].forgiven, 12u);
    EXPECT_EQ(forced.charges[1].level.remaining, 42);
    EXPECT_EQ(forced.charges[1].forgiven, 12u);
    EXPECT_EQ(forced.charges[0].level.remaining, -1);
    EXPECT_EQ(forced.charges[0].forgiven, 16u);
  }
}

// The team's bucket forgives what the user's bucket has counted, so that is still the parent's.
TEST_P(StoreContractTest, ForcedDebitChargesAGrandparentWhatTheFirstCounted) {
  const auto overall = Register(1, algorithm::MakeTokenBucket({1, kSecond}, 50, 0), false, 100);
  const auto team = Register(2, algorithm::MakeTokenBucket({1, kSecond}, 3, 0), false, 1);
  const auto user = Register(3, algorithm::MakeTokenBucket({1, kSecond}, 6, 0), false, 2);
  // In a Cluster: all are in one slot; the first two are; each is in its own.
  for (const auto& [of_overall, of_team, of_user] :
       {std::tuple("{t}o", "{t}", "{t}u"), std::tuple("{v}o", "{v}", "v"),
        std::tuple("x", "y", "z")}) {
    const std::vector<Charge> charges{
        {overall.get(), of_overall, 20}, {team.get(), of_team, 20}, {user.get(), of_user, 20}};
    const Acquired forced = Acquire(
        store(), charges, {.debit = store::Debit::kForced, .charged_by = {0b110, 0b100, 0}});
    EXPECT_EQ(forced.charges[2].level.remaining, -2);
    EXPECT_EQ(forced.charges[1].level.remaining, -1);
    EXPECT_EQ(forced.charges[1].forgiven, 16u);
    EXPECT_EQ(forced.charges[0].level.remaining, 42);
    EXPECT_EQ(forced.charges[0].forgiven, 12u);
  }
}

TEST_P(StoreContractTest, ForcedDebitOnShadowLimitIsCounted) {
  const auto shadow =
      Register(1, algorithm::MakeTokenBucket({1, kSecond}, 2, 0), /*shadow=*/true, 5);
  const Acquired forced = Acquire(store(), *shadow, "k", 4, kForced);
  EXPECT_EQ(forced.charges[0].level.remaining, -2);
  EXPECT_EQ(forced.charges[0].reason, Reason::kShadowDenied);
}

TEST_P(StoreContractTest, GiveBackLowersTheWindowsCount) {
  const AcquireOptions give_back{.debit = store::Debit::kGiveBack};
  const auto rule = Register(1, algorithm::MakeFixedWindow({10, 3600 * kSecond}, 0));
  EXPECT_EQ(Acquire(store(), *rule, "k", 3, give_back).charges[0].level.remaining, 10);
  ASSERT_TRUE(Acquire(store(), *rule, "k", 8).granted());
  EXPECT_EQ(Acquire(store(), *rule, "k", 3, give_back).charges[0].level.remaining, 5);
  EXPECT_EQ(Acquire(store(), *rule, "k", common::bounds::kMaxPermits, give_back)
                .charges[0]
                .level.remaining,
            10);
}

// ---- Shadow ----

TEST_P(StoreContractTest, ShadowLimitReportsDenialAndGrants) {
  const auto shadow = TokenBucket(1, 1, 1, 0, /*shadow=*/true);
  const Acquired fits = Acquire(store(), *shadow, "k");
  EXPECT_TRUE(fits.granted());
  EXPECT_EQ(fits.charges[0].reason, Reason::kNone);
  const Acquired would_deny = Acquire(store(), *shadow, "k");
  EXPECT_TRUE(would_deny.granted());
  EXPECT_EQ(would_deny.charges[0].reason, Reason::kShadowDenied);
  EXPECT_EQ(would_deny.charges[0].level.remaining, 0);
}

TEST_P(StoreContractTest, DeniedAcquisitionLeavesShadowBucketsUnchanged) {
  const auto shadow = TokenBucket(1, 1, 2, 0, /*shadow=*/true);
  const auto enforced = TokenBucket(2, 1, 1);
  const std::vector<Charge> both{{shadow.get(), "", 1}, {enforced.get(), "", 1}};
  EXPECT_TRUE(Acquire(store(), both).granted());
  EXPECT_FALSE(Acquire(store(), both).granted());
  EXPECT_EQ(Remaining(*shadow, ""), 1);
}

TEST_P(StoreContractTest, ShadowChargeThatDoesNotFitDeniesNoOther) {
  const auto shadow = TokenBucket(1, 1, 1, 0, /*shadow=*/true);
  const auto enforced = TokenBucket(2, 1, 2);
  const std::vector<Charge> both{{shadow.get(), "", 1}, {enforced.get(), "", 1}};
  EXPECT_TRUE(Acquire(store(), both).granted());
  const Acquired second = Acquire(store(), both);
  EXPECT_TRUE(second.granted());
  EXPECT_THAT(second.charges[0].reason, Reason::kShadowDenied);
  EXPECT_EQ(Remaining(*enforced, ""), 0);
}

// ---- Query, Reset, deadlines ----

TEST_P(StoreContractTest, QueryChangesNothing) {
  const auto rule = TokenBucket(1, 1, 5);
  const auto log = Register(2, algorithm::MakeSlidingLog({5, kSecond}));
  for (const Rule* r : {rule.get(), log.get()}) {
    const store::QueryItem item = Query(store(), *r, "k");
    EXPECT_FALSE(item.exists);
    EXPECT_EQ(item.level.remaining, 5);
    EXPECT_EQ(item.level.capacity, 5u);
    EXPECT_EQ(item.level.reset_after_ns, 0);
  }
  EXPECT_EQ(store().Stats().created, 0u);
  Acquire(store(), *rule, "k", 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Remaining(*rule, "k"), 3);
  const store::QueryItem item = Query(store(), *rule, "k");
  EXPECT_TRUE(item.exists);
  EXPECT_EQ(item.level.reset_after_ns, 2 * kSecond);
}

TEST_P(StoreContractTest, ResetFillsBucket) {
  const auto bucket = TokenBucket(1, 1, 2);
  const auto log = Register(2, algorithm::MakeSlidingLog({2, kSecond}));
  for (const Rule* rule : {bucket.get(), log.get()}) {
    EXPECT_FALSE(Reset(store(), *rule, "k"));
    Acquire(store(), *rule, "k", 2);
    EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
    EXPECT_TRUE(Reset(store(), *rule, "k"));
    EXPECT_TRUE(Acquire(store(), *rule, "k", 2).granted());
  }
}

TEST_P(StoreContractTest, ResetInvalidatesOpenReceipts) {
  const auto bucket = TokenBucket(1, 1, 2);
  const auto log = Register(2, algorithm::MakeSlidingLog({2, kSecond}));
  for (const Rule* rule : {bucket.get(), log.get()}) {
    const Acquired taken = Acquire(store(), *rule, "k", 2, {.want_receipt = true});
    ExpectOpenReceipts(1);
    Reset(store(), *rule, "k");
    ExpectOpenReceipts(0);
    EXPECT_TRUE(Acquire(store(), *rule, "k", 2).granted());
    EXPECT_EQ(Refund(store(), taken.receipt_id, {{rule, "k", 2}}).outcome, RefundOutcome::kExpired);
    EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
  }
}

TEST_P(StoreContractTest, DebitsNothingPastDeadline) {
  const auto rule = TokenBucket(1, 1, 3);
  const AcquireOptions late{.deadline_ns = NowNs() - 1};
  EXPECT_EQ(Acquire(store(), *rule, "k", 1, late).outcome, Outcome::kDeadlineExceeded);
  const auto batch = AcquireBatch(
      store(), {{{rule.get(), "k", 1}}, {{rule.get(), "k", 1}, {rule.get(), "l", 1}}}, late);
  for (const Acquired& a : batch) EXPECT_EQ(a.outcome, Outcome::kDeadlineExceeded);
  EXPECT_EQ(Remaining(*rule, "k"), 3);
  EXPECT_TRUE(Acquire(store(), *rule, "k", 1, {.deadline_ns = NowNs() + 1}).granted());
}

// ---- Receipts ----

TEST_P(StoreContractTest, RefundsOnce) {
  const auto rule = TokenBucket(1, 1, 10);
  const Acquired taken = Acquire(store(), *rule, "k", 4, {.want_receipt = true});
  ASSERT_NE(taken.receipt_id, 0u);
  const std::vector<Charge> charges{{rule.get(), "k", 4}};
  const Refunded first = Refund(store(), taken.receipt_id, charges);
  EXPECT_EQ(first.outcome, RefundOutcome::kRefunded);
  EXPECT_THAT(first.permits, ElementsAre(4u));
  EXPECT_EQ(Remaining(*rule, "k"), 10);
  const Refunded second = Refund(store(), taken.receipt_id, charges);
  EXPECT_EQ(second.outcome, RefundOutcome::kAlreadyRefunded);
  EXPECT_THAT(second.permits, ElementsAre(0u));
}

TEST_P(StoreContractTest, DenialHasNoReceipt) {
  const auto rule = TokenBucket(1, 1, 1);
  ASSERT_TRUE(Acquire(store(), *rule, "k").granted());
  EXPECT_EQ(Acquire(store(), *rule, "k", 1, {.want_receipt = true}).receipt_id, 0u);
}

TEST_P(StoreContractTest, IssuesReceiptOnlyOnRequest) {
  const auto rule = TokenBucket(1, 1, 1);
  EXPECT_EQ(Acquire(store(), *rule, "k").receipt_id, 0u);
  ExpectOpenReceipts(0);
}

TEST_P(StoreContractTest, ReceiptIsWorthNothingOnceBucketWasFull) {
  const auto rule = TokenBucket(1, 1, 10);
  const Acquired first = Acquire(store(), *rule, "k", 10, {.want_receipt = true});
  Advance(10 * kSecond);
  ASSERT_TRUE(Acquire(store(), *rule, "k", 10).granted());
  const Refunded refunded = Refund(store(), first.receipt_id, {{rule.get(), "k", 10}});
  EXPECT_EQ(refunded.outcome, RefundOutcome::kExpired);
  EXPECT_THAT(refunded.permits, ElementsAre(0u));
  EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
}

TEST_P(StoreContractTest, UnknownReceiptIsExpired) {
  const auto rule = TokenBucket(1, 1, 10);
  Acquire(store(), *rule, "k", 10);
  EXPECT_EQ(Refund(store(), 987654, {{rule.get(), "k", 10}}).outcome, RefundOutcome::kExpired);
  EXPECT_EQ(Refund(store(), 987654, {{rule.get(), "none", 1}}).outcome, RefundOutcome::kExpired);
  EXPECT_FALSE(Query(store(), *rule, "none").exists);
  EXPECT_FALSE(Acquire(store(), *rule, "k").granted());
}

TEST_P(StoreContractTest, RefundsSeveralChargesTogether) {
  const auto bucket = TokenBucket(1, 1, 10);
  const auto log = Register(2, algorithm::MakeSlidingLog({10, kSecond}));
  const auto window = Register(3, algorithm::MakeSlidingWindow({10, kSecond}, 10));
  const auto fixed = Register(4, algorithm::MakeFixedWindow({10, 3600 * kSecond}, 0));
  const std::vector<Charge> charges{
      {bucket.get(), "", 6}, {log.get(), "", 5}, {window.get(), "", 4}, {fixed.get(), "", 3}};
  const Acquired taken = Acquire(store(), charges, {.want_receipt = true});
  ASSERT_TRUE(taken.granted());
  ExpectOpenReceipts(4);
  const Refunded refunded = Refund(store(), taken.receipt_id, charges);
  EXPECT_EQ(refunded.outcome, RefundOutcome::kRefunded);
  EXPECT_THAT(refunded.permits, ElementsAre(6u, 5u, 4u, 3u));
  for (const Charge& charge : charges) EXPECT_EQ(Remaining(*charge.rule, ""), 10);
  EXPECT_EQ(Refund(store(), taken.receipt_id, charges).outcome, RefundOutcome::kAlreadyRefunded);
  ExpectOpenReceipts(0);
}

TEST_P(StoreContractTest, QueryTellsWhatOpenReceiptsWouldGiveBack) {
  const auto bucket = TokenBucket(1, 1, 10);
  const auto log = Register(2, algorithm::MakeSlidingLog({10, 8 * kSecond}));
  const auto window = Register(3, algorithm::MakeSlidingWindow({10, 7 * kSecond}, 7));
  const auto fixed = Register(4, algorithm::MakeFixedWindow({10, 8 * kSecond}, 0));
  Advance(8 * kSecond - under_test_->WallNs() % (8 * kSecond));  // to the start of a fixed window
  for (const auto& rule : {bucket, log, window, fixed}) {
    const auto refundable = [&] { return Query(store(), *rule, "k").refundable; };
    EXPECT_EQ(refundable(), (algorithm::Refundable{0, 0}));
    Acquire(store(), *rule, "k", 1);
    EXPECT_EQ(refundable(), (algorithm::Refundable{0, 0}));
    const Acquired first = Acquire(store(), *rule, "k", 4, {.want_receipt = true});
    EXPECT_EQ(refundable(), (algorithm::Refundable{1, 4}));
    Acquire(store(), *rule, "k", 3, {.want_receipt = true});
    EXPECT_EQ(refundable(), (algorithm::Refundable{2, 7}));
    Refund(store(), first.receipt_id, {{rule.get(), "k", 4}});
    EXPECT_EQ(refundable(), (algorithm::Refundable{1, 3}));
  }
  Advance(2 * kSecond);
  // Of the 4 permits that were taken and not given back, 2 have come back by themselves.
  EXPECT_EQ(Query(store(), *bucket, "k").refundable, (algorithm::Refundable{1, 2}));
  EXPECT_EQ(Query(store(), *log, "k").refundable, (algorithm::Refundable{1, 3}));
  Advance(8 * kSecond);
  for (const auto& rule : {bucket, log, window, fixed}) {
    EXPECT_EQ(Query(store(), *rule, "k").refundable, (algorithm::Refundable{0, 0}));
  }
}

TEST_P(StoreContractTest, OpenReceiptsDoNotChangeDecisions) {
  const auto rule = TokenBucket(1, 3, 5, 2);
  for (int i = 0; i < 200; ++i) {
    const uint64_t permits = static_cast<uint64_t>(i * 7 % 5 + 1);
    const Acquired plain = Acquire(store(), *rule, "plain", permits);
    const Acquired receipt =
        Acquire(store(), *rule, "receipt", permits, {.want_receipt = i % 3 == 0});
    ASSERT_EQ(plain.outcome, receipt.outcome) << i;
    ASSERT_EQ(plain.retry_after_ns, receipt.retry_after_ns) << i;
    ASSERT_EQ(plain.charges[0].level.remaining, receipt.charges[0].level.remaining) << i;
    ASSERT_EQ(plain.charges[0].level.reset_after_ns, receipt.charges[0].level.reset_after_ns) << i;
    Advance(i * 37 % 11 * 100 * kMillisecond);
  }
}

// ---- Changes of rules ----

TEST_P(StoreContractTest, TokenBucketKeepsFillInProportionWhenRuleChanges) {
  const auto before = TokenBucket(1, 10, 10);
  Acquire(store(), *before, "k", 5);
  const auto after = TokenBucket(1, 10, 30);
  EXPECT_EQ(Remaining(*after, "k"), 15);
  const Acquired acquired = Acquire(store(), *after, "k");
  EXPECT_TRUE(acquired.granted());
  EXPECT_EQ(acquired.charges[0].level.remaining, 14);
}

TEST_P(StoreContractTest, UntouchedKeyIsFullUnderNewRule) {
  TokenBucket(1, 10, 10);
  const auto after = TokenBucket(1, 10, 30);
  EXPECT_TRUE(Acquire(store(), *after, "k", 30).granted());
}

TEST_P(StoreContractTest, LogKeepsCountWhenRuleChanges) {
  const auto before = Register(1, algorithm::MakeSlidingLog({100, kSecond}));
  Acquire(store(), *before, "k", 70);
  const auto after = Register(1, algorithm::MakeSlidingLog({80, kSecond}));
  EXPECT_EQ(Acquire(store(), *after, "k", 11).outcome, Outcome::kDenied);
  EXPECT_EQ(Acquire(store(), *after, "k", 10).outcome, Outcome::kGranted);
}

TEST_P(StoreContractTest, SpentBucketStaysSpentWhenAlgorithmChanges) {
  std::vector<std::shared_ptr<const Rule>> rules{TokenBucket(1, 5, 5)};
  ASSERT_TRUE(Acquire(store(), *rules[0], "k", 5).granted());
  rules.push_back(Register(1, algorithm::MakeSlidingLog({5, kSecond})));
  EXPECT_FALSE(Acquire(store(), *rules.back(), "k").granted());
  rules.push_back(Register(1, algorithm::MakeSlidingWindow({5, kSecond}, 10)));
  EXPECT_FALSE(Acquire(store(), *rules.back(), "k").granted());
  rules.push_back(TokenBucket(1, 5, 5));
  EXPECT_FALSE(Acquire(store(), *rules.back(), "k").granted());
}

TEST_P(StoreContractTest, StaleRuleDebitsNothing) {
  const auto before = TokenBucket(1, 10, 10);
  const auto other = TokenBucket(2, 10, 10);
  const auto after = TokenBucket(1, 10, 20);
  Acquire(store(), *after, "k", 4);
  EXPECT_EQ(Acquire(store(), *before, "k").outcome, Outcome::kStaleRule);
  EXPECT_EQ(Acquire(store(), {{other.get(), "k", 1}, {before.get(), "k", 1}}).outcome,
            Outcome::kStaleRule);
  EXPECT_EQ(Remaining(*after, "k"), 16);
  EXPECT_EQ(Remaining(*other, "k"), 10);
  EXPECT_EQ(Refund(store(), 1, {{before.get(), "k", 1}}).outcome, RefundOutcome::kStaleRule);
  // A Query is answered with the current parameters.
  EXPECT_EQ(Query(store(), *before, "k").level.remaining, 16);
}

// Callers of both rules may be decided together.
TEST_P(StoreContractTest, OldAndNewRuleOfALimitChargeOneBucket) {
  const auto before = TokenBucket(1, 10, 10);
  Acquire(store(), *before, "k", 3);
  const auto after = TokenBucket(1, 10, 10);
  const auto answers = AcquireBatch(store(), {{{before.get(), "k", 4}}, {{after.get(), "k", 4}}});
  EXPECT_TRUE(answers[0].granted());
  EXPECT_FALSE(answers[1].granted());
  EXPECT_EQ(Remaining(*after, "k"), 3);
}

TEST_P(StoreContractTest, ReceiptOutlivesChangeOfRule) {
  const auto before = TokenBucket(1, 10, 10);
  const Acquired taken = Acquire(store(), *before, "k", 4, {.want_receipt = true});
  const auto after = TokenBucket(1, 10, 20);
  const Refunded refunded = Refund(store(), taken.receipt_id, {{after.get(), "k", 4}});
  EXPECT_EQ(refunded.outcome, RefundOutcome::kRefunded);
  EXPECT_GT(refunded.permits[0], 0u);
  EXPECT_LE(Remaining(*after, "k"), 20);
}

// ---- Bounds ----

TEST_P(StoreContractTest, DeniesNewKeysWhenFull) {
  Start({.max_buckets = 10});
  if (!under_test_->bounded()) GTEST_SKIP() << "not bounded";
  const auto rule = TokenBucket(1, 1, 10);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Acquire(store(), *rule, "k" + std::to_string(i)).granted());
  }
  const Acquired denied = Acquire(store(), *rule, "new");
  EXPECT_EQ(denied.outcome, Outcome::kDenied);
  EXPECT_EQ(denied.charges[0].reason, Reason::kOverflow);
  EXPECT_EQ(denied.source, Source::kOverflow);
  EXPECT_GT(denied.retry_after_ns, 0);
  EXPECT_EQ(store().Stats().overflow_denied, 1u);
  EXPECT_EQ(store().Stats().buckets, 10u);
  // Existing buckets are served, and none was dropped.
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Remaining(*rule, "k" + std::to_string(i)), 9);
}

TEST_P(StoreContractTest, ForgivesAllOfAForcedDebitOnANewKeyWhenFull) {
  Start({.max_buckets = 10});
  if (!under_test_->bounded()) GTEST_SKIP() << "not bounded";
  const auto rule = TokenBucket(1, 1, 10);
  for (int i = 0; i < 10; ++i) Acquire(store(), *rule, "k" + std::to_string(i));
  const Acquired forced = Acquire(store(), *rule, "new", 3, kForced);
  EXPECT_TRUE(forced.granted());
  EXPECT_EQ(forced.charges[0].reason, Reason::kOverflow);
  EXPECT_EQ(forced.charges[0].forgiven, 3u);
  EXPECT_EQ(forced.source, Source::kOverflow);
  EXPECT_FALSE(Query(store(), *rule, "new").exists);
}

TEST_P(StoreContractTest, ParentForgivesWhatItsChildForgaveOnANewKeyWhenFull) {
  Start({.max_buckets = 10});
  if (!under_test_->bounded()) GTEST_SKIP() << "not bounded";
  const auto child = TokenBucket(1, 1, 10);
  const auto parent = TokenBucket(2, 1, 100);
  Acquire(store(), *parent, "");
  for (int i = 0; i < 9; ++i) Acquire(store(), *child, "k" + std::to_string(i));
  const std::vector<Charge> charges = {{child.get(), "new", 5}, {parent.get(), "", 7}};
  const std::vector<uint16_t> by = {0, 1};
  // The request named 2 permits of the parent itself.
  const Acquired forced =
      Acquire(store(), charges, {.debit = store::Debit::kForced, .charged_by = by});
  EXPECT_TRUE(forced.granted());
  EXPECT_EQ(forced.charges[0].forgiven, 5u);
  EXPECT_EQ(forced.charges[1].forgiven, 5u);
  EXPECT_EQ(Remaining(*parent, ""), 97);
}

TEST_P(StoreContractTest, AllowsNewKeysWhenFullIfConfigured) {
  Start({.max_buckets = 10, .allow_on_overflow = true});
  if (!under_test_->bounded()) GTEST_SKIP() << "not bounded";
  const auto rule = TokenBucket(1, 1, 10);
  for (int i = 0; i < 10; ++i) Acquire(store(), *rule, "k" + std::to_string(i));
  for (int i = 0; i < 20; ++i) {
    const Acquired allowed = Acquire(store(), *rule, "new");
    EXPECT_TRUE(allowed.granted());
    EXPECT_EQ(allowed.source, Source::kOverflow);
  }
  EXPECT_EQ(store().Stats().overflow_allowed, 20u);
  EXPECT_EQ(store().Stats().buckets, 10u);
}

TEST_P(StoreContractTest, MakesRoomByDroppingFullBuckets) {
  Start({.max_buckets = 10});
  if (!under_test_->bounded()) GTEST_SKIP() << "not bounded";
  const auto bucket = TokenBucket(1, 1, 10);
  const auto log = Register(2, algorithm::MakeSlidingLog({10, kSecond}));
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Acquire(store(), i % 2 ? *bucket : *log, "k" + std::to_string(i)).granted());
  }
  EXPECT_FALSE(Acquire(store(), *bucket, "new").granted());
  Advance(2 * kSecond);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Acquire(store(), i % 2 ? *bucket : *log, "new" + std::to_string(i), 10).granted());
  }
  EXPECT_EQ(store().Stats().buckets, 10u);
}

TEST_P(StoreContractTest, FreesIdleBuckets) {
  if (!under_test_->bounded()) GTEST_SKIP() << "not bounded";
  const auto bucket = TokenBucket(1, 1, 10);
  const auto log = Register(2, algorithm::MakeSlidingLog({10, kSecond}));
  const uint64_t empty_bytes = store().Stats().memory_bytes;
  for (int i = 0; i < 20'000; ++i) {
    Acquire(store(), i % 2 ? *bucket : *log, "k" + std::to_string(i), 1,
            {.want_receipt = i % 10 == 0});
  }
  EXPECT_EQ(store().Stats().buckets, 20'000u);
  for (int i = 0; i < 1000 && store().Maintain(); ++i) {
  }
  EXPECT_EQ(store().Stats().buckets, 20'000u);
  Advance(10 * kSecond);
  for (int i = 0; i < 1000; ++i) store().Maintain();
  const store::StoreStats stats = store().Stats();
  EXPECT_EQ(stats.buckets, 0u);
  EXPECT_EQ(stats.open_receipts, 0u);
  EXPECT_EQ(stats.dropped, 20'000u);
  EXPECT_LE(stats.memory_bytes, empty_bytes + 64 * 1024);
  EXPECT_FALSE(store().Maintain());
}

}  // namespace
}  // namespace sluice::testing
