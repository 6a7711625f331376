// The contract of request ids: a grant is made once, and answered again.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/store_contract.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::Outcome;
using store::RefundOutcome;
using store::Rule;

constexpr int64_t kHour = 3600 * int64_t{1'000'000'000};

TEST_P(OnceContractTest, ARepeatedRequestTakesNothing) {
  const auto rule = Register(1, algorithm::MakeTokenBucket({10, kHour}, 10, 0));
  const Acquired first = Ask({{rule.get(), "k", 3}}, IdOf(1));
  EXPECT_TRUE(first.granted());
  EXPECT_FALSE(first.repeated);
  for (int i = 0; i < 3; ++i) {
    const Acquired again = Ask({{rule.get(), "k", 3}}, IdOf(1));
    EXPECT_TRUE(again.granted());
    EXPECT_TRUE(again.repeated);
    EXPECT_EQ(again.charges[0].level.remaining, 7);
    EXPECT_EQ(again.charges[0].reason, store::Reason::kNone);
  }
  EXPECT_TRUE(Ask({{rule.get(), "k", 3}}, IdOf(2)).granted());
  EXPECT_EQ(Remaining(*rule, "k"), 4);
}

TEST_P(OnceContractTest, AnotherRequestUnderTheSameIdTakesNothing) {
  const auto rule = Register(1, algorithm::MakeTokenBucket({10, kHour}, 10, 0));
  Ask({{rule.get(), "k", 3}}, IdOf(1, /*fingerprint=*/1));
  EXPECT_EQ(Ask({{rule.get(), "k", 2}}, IdOf(1, /*fingerprint=*/2)).outcome,
            Outcome::kOtherRequest);
  EXPECT_EQ(Remaining(*rule, "k"), 7);
}

TEST_P(OnceContractTest, DenialsAreNotRemembered) {
  const auto rule = TokenBucket(1, 1, 1);
  EXPECT_TRUE(Ask({{rule.get(), "k", 1}}, IdOf(1)).granted());
  EXPECT_EQ(Ask({{rule.get(), "k", 1}}, IdOf(2)).outcome, Outcome::kDenied);
  Advance(kSecond);
  const Acquired later = Ask({{rule.get(), "k", 1}}, IdOf(2));
  EXPECT_TRUE(later.granted());
  EXPECT_FALSE(later.repeated);
}

TEST_P(OnceContractTest, WithoutRoomOnlyRepeatsAreAnswered) {
  const auto rule = Register(1, algorithm::MakeTokenBucket({10, kHour}, 10, 0));
  Ask({{rule.get(), "k", 3}}, IdOf(1));
  store::Once full = IdOf(1);
  full.may_remember = false;
  EXPECT_TRUE(Ask({{rule.get(), "k", 3}}, full).repeated);
  full = IdOf(2);
  full.may_remember = false;
  EXPECT_EQ(Ask({{rule.get(), "k", 3}}, full).outcome, Outcome::kNotRemembered);
  EXPECT_EQ(Ask({{rule.get(), "k", 30}}, full, {.max_wait_ns = kSecond}).outcome,
            Outcome::kNotRemembered);
  EXPECT_EQ(Remaining(*rule, "k"), 7);
}

TEST_P(OnceContractTest, ABatchRepeatsItsOwnGrant) {
  const auto rule = Register(1, algorithm::MakeTokenBucket({10, kHour}, 10, 0));
  for (const int64_t max_wait_ns : {int64_t{0}, kSecond}) {
    std::vector<store::Once> ids(100, IdOf(static_cast<uint64_t>(7 + max_wait_ns)));
    AcquireOptions options;
    options.max_wait_ns = max_wait_ns;
    options.once = ids.data();
    const std::vector<Acquired> got = AcquireBatch(
        store(), std::vector<std::vector<Charge>>(100, {{rule.get(), "k", 4}}), options);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].granted());
      EXPECT_EQ(got[i].repeated, i > 0);
    }
  }
  EXPECT_EQ(Remaining(*rule, "k"), 2);
}

TEST_P(OnceContractTest, AReservationIsAnsweredWithTheWaitThatIsLeft) {
  const auto rule = TokenBucket(1, 1, 1);
  Acquire(store(), *rule, "k");
  const AcquireOptions ahead = {.max_wait_ns = 10 * kSecond};
  const Acquired first = Ask({{rule.get(), "k", 1}}, IdOf(1), ahead);
  EXPECT_EQ(first.wait_ns, kSecond);
  Advance(kSecond / 4);
  const Acquired again = Ask({{rule.get(), "k", 1}}, IdOf(1), ahead);
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.wait_ns, kSecond * 3 / 4);
  EXPECT_EQ(again.receipt_id, first.receipt_id);
  EXPECT_EQ(Ask({{rule.get(), "k", 1}}, IdOf(2), ahead).wait_ns, 2 * kSecond - kSecond / 4);
  Advance(10 * kSecond);
  EXPECT_EQ(Ask({{rule.get(), "k", 1}}, IdOf(1), ahead).wait_ns, 0);
}

TEST_P(OnceContractTest, ARefundedGrantIsNotRepeated) {
  // "{k}": in a Cluster all buckets are in one slot.
  const auto token = Register(1, algorithm::MakeTokenBucket({10, kHour}, 10, 0));
  const auto log = Register(2, algorithm::MakeSlidingLog({10, kHour}));
  const auto refund = [&](const Acquired& granted, const std::vector<Charge>& charges,
                          const store::Once& once) {
    return Refund(store(), granted.receipt_id, charges, granted.grant_time_ns(), &once).outcome;
  };
  const std::vector<Charge> both = {{token.get(), "{k}", 4}, {log.get(), "{k}", 4}};
  const AcquireOptions options = {.want_receipt = true};
  const Acquired now = Ask(both, IdOf(1), options);
  // The receipt of another acquisition, in the same buckets, does not end it.
  const Acquired other = Ask(both, IdOf(2), options);
  EXPECT_EQ(refund(other, both, IdOf(1)), RefundOutcome::kRefunded);
  EXPECT_TRUE(Ask(both, IdOf(1), options).repeated);
  EXPECT_EQ(refund(now, both, IdOf(1)), RefundOutcome::kRefunded);
  EXPECT_EQ(Ask(both, IdOf(1), options).outcome, Outcome::kEnded);
  EXPECT_EQ(Ask(both, IdOf(1, /*fingerprint=*/9), options).outcome, Outcome::kOtherRequest);
  EXPECT_EQ(Remaining(*token, "{k}"), 10);
  // A reservation.
  const auto second = TokenBucket(3, 1, 1);
  Acquire(store(), *second, "{k}");
  const AcquireOptions ahead = {.max_wait_ns = 10 * kSecond};
  const Acquired later = Ask({{second.get(), "{k}", 1}}, IdOf(3), ahead);
  EXPECT_EQ(later.wait_ns, kSecond);
  EXPECT_EQ(refund(later, {{second.get(), "{k}", 1}}, IdOf(3)), RefundOutcome::kRefunded);
  EXPECT_EQ(Ask({{second.get(), "{k}", 1}}, IdOf(3), ahead).outcome, Outcome::kEnded);
  EXPECT_EQ(Ask({{second.get(), "{k}", 1}}, IdOf(4), ahead).wait_ns, kSecond);
}

TEST_P(OnceContractTest, AResetKeepsTheGrantAndTakesNothingAgain) {
  const auto rule = Register(1, algorithm::MakeTokenBucket({10, kHour}, 10, 0));
  Ask({{rule.get(), "k", 3}}, IdOf(1));
  EXPECT_EQ(ResetKey(store(), *rule, "k"), store::ResetOutcome::kReset);
  EXPECT_TRUE(Ask({{rule.get(), "k", 3}}, IdOf(1)).repeated);
  EXPECT_EQ(Remaining(*rule, "k"), 10);
}

// Slots that are repeated are those of the first answer, not slots for another hold_for.
TEST_P(OnceContractTest, SlotsAreRepeatedAsLongAsTheyAreHeld) {
  // "{k}": in a Cluster all buckets are in one slot.
  const auto slots = Register(1, algorithm::MakeConcurrency(1, 10 * kSecond));
  const auto rate = Register(2, algorithm::MakeTokenBucket({10, kHour}, 10, 0));
  const std::vector<Charge> charges = {{slots.get(), "{k}", 1}, {rate.get(), "{k}", 1}};
  const AcquireOptions options = {.want_receipt = true};
  const Acquired first = Ask(charges, IdOf(1), options);
  EXPECT_TRUE(first.granted());
  Advance(4 * kSecond);
  const Acquired again = Ask(charges, IdOf(1), options);
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.receipt_id, first.receipt_id);
  EXPECT_EQ(again.charges[0].debited_before_ns, 4 * kSecond) << "6 s are left";
  EXPECT_EQ(again.charges[0].level.remaining, 0);
  Advance(6 * kSecond);
  EXPECT_EQ(Ask(charges, IdOf(1), options).outcome, Outcome::kEnded);
  // Another caller has the slot now.
  EXPECT_TRUE(Ask(charges, IdOf(2), options).granted());
  EXPECT_EQ(Ask(charges, IdOf(1), options).outcome, Outcome::kEnded);
  EXPECT_TRUE(Ask(charges, IdOf(2), options).repeated);
  EXPECT_EQ(ResetKey(store(), *slots, "{k}"), store::ResetOutcome::kReset);
  EXPECT_EQ(Ask(charges, IdOf(2), options).outcome, Outcome::kEnded);
  EXPECT_EQ(Remaining(*rate, "{k}"), 8);
}

TEST_P(OnceContractTest, AForcedDebitIsMadeOnce) {
  // "{k}": in a Cluster all buckets are in one slot.
  const auto rule = Register(1, algorithm::MakeTokenBucket({10, kHour}, 10, 0), false, 20);
  const auto log = Register(2, algorithm::MakeSlidingLog({10, kHour}), false, 20);
  for (int i = 0; i < 3; ++i) {
    const Acquired forced = Ask({{rule.get(), "{k}", 15}, {log.get(), "{k}", 12}}, IdOf(1),
                                {.want_receipt = true, .debit = store::Debit::kForced});
    EXPECT_TRUE(forced.granted());
    EXPECT_NE(forced.receipt_id, 0u);
    EXPECT_EQ(forced.charges[0].level.remaining, -5);
    EXPECT_EQ(forced.charges[1].level.remaining, -2);
  }
}

TEST_P(OnceContractTest, ARepeatedForcedGrantSaysWhatWasForgiven) {
  const auto child = Register(1, algorithm::MakeTokenBucket({10, kHour}, 10, 0), false, 20);
  const auto log = Register(2, algorithm::MakeSlidingLog({10, kHour}), false, 5);
  const auto parent = Register(3, algorithm::MakeTokenBucket({10, kHour}, 10, 0), false, 90);
  // The parent, which the child charges, comes first, so charges are not in the order in which they
  // are decided.
  const std::vector<Charge> charges = {
      {parent.get(), "{k}", 35}, {child.get(), "{k}", 35}, {log.get(), "{k}", 12}};
  // Also where a node decides: an estimate.
  for (const int64_t settle_within_ns : {int64_t{0}, kHour}) {
    SCOPED_TRACE(settle_within_ns);
    const store::Once id = IdOf(settle_within_ns == 0 ? 1 : 2);
    const auto ask = [&] {
      return Ask(charges, id,
                 {.want_receipt = true,
                  .debit = store::Debit::kForced,
                  .charged_by = {0b010, 0, 0},
                  .settle_within_ns = settle_within_ns});
    };
    for (int i = 0; i < 3; ++i) {
      const Acquired forced = ask();
      ASSERT_TRUE(forced.granted());
      EXPECT_EQ(forced.repeated, i > 0);
      EXPECT_EQ(forced.charges[0].forgiven, 5u);
      EXPECT_EQ(forced.charges[1].forgiven, 5u);
      EXPECT_EQ(forced.charges[2].forgiven, 0u);
    }
    ASSERT_EQ(Refund(store(), ask().receipt_id, charges, /*grant_time_ns=*/0, &id).outcome,
              RefundOutcome::kRefunded);
    EXPECT_EQ(ask().outcome, Outcome::kEnded);
  }
}

TEST_P(OnceContractTest, AForcedGrantOfMorePermitsThanADoubleCountsSaysWhatWasForgiven) {
  // A permit costs a nanosecond.
  constexpr uint64_t kMaxOwed = (uint64_t{1} << 55) + 1;
  const auto rule =
      Register(1, algorithm::MakeTokenBucket({1'000'000'000, kSecond}, 10, 0), false, kMaxOwed);
  for (const bool again : {false, true}) {
    const Acquired forced = Ask({{rule.get(), "{k}", uint64_t{1} << 56}}, IdOf(1),
                                {.want_receipt = true, .debit = store::Debit::kForced});
    ASSERT_TRUE(forced.granted());
    EXPECT_EQ(forced.repeated, again);
    EXPECT_EQ(forced.charges[0].forgiven, (uint64_t{1} << 56) - kMaxOwed - 10);
  }
}

TEST_P(OnceContractTest, AShadowGrantThatTookNothingIsRemembered) {
  const auto rule = TokenBucket(1, 1, 1, 0, /*shadow=*/true);
  Acquire(store(), *rule, "k");
  EXPECT_FALSE(Ask({{rule.get(), "k", 1}}, IdOf(1), {.max_wait_ns = kSecond}).repeated);
  EXPECT_TRUE(Ask({{rule.get(), "k", 1}}, IdOf(1), {.max_wait_ns = kSecond}).repeated);
}

// Asks for each thing twice: with an id under the limits `asked`, and, the first time, without one
// under the same limits of `model`.
class History {
 public:
  History(StoreUnderTest& under_test, const std::vector<std::shared_ptr<const Rule>>& asked,
          const std::vector<std::shared_ptr<const Rule>>& model, uint32_t number)
      : under_test_(under_test),
        asked_(asked),
        model_(model),
        number_(number),
        random_(number),
        // In a Cluster all buckets are in one slot.
        keys_{"a{" + std::to_string(number) + "}", "b{" + std::to_string(number) + "}"} {}

  void Step() {
    switch (random_() % 8) {
      case 0:
        return Advance();
      case 1:
        return Refund();
      default:
        return Ask();
    }
  }

 private:
  struct Remembered {
    uint64_t fingerprint;
    Acquired granted;
    int64_t end_ns;
    bool refunded = false;
  };
  struct Receipt {
    uint64_t id;
    Acquired asked;
    Acquired model;
    std::vector<Charge> asked_charges;
    std::vector<Charge> model_charges;
  };

  void Advance() {
    // Whole microseconds, the unit of a shared store's clock.
    constexpr uint64_t kMostUs = 8'000'000;
    const auto by_ns = static_cast<int64_t>(random_() % kMostUs) * 1000;
    // A real clock forgets nothing meanwhile.
    if (!under_test_.forgets_by_test_clock() && (advanced_ns_ += by_ns) > 50'000'000'000) return;
    under_test_.Advance(by_ns);
  }

  store::Once OnceOf(uint64_t id) const {
    store::Once once;
    once.id = {{id, number_}};
    return once;
  }

  void Ask() {
    const uint64_t id = random_() % 24;
    // What is asked follows from the fingerprint.
    const uint64_t fingerprint = random_() % 16 == 0 ? random_() : id;
    std::mt19937 of(static_cast<uint32_t>(fingerprint));
    std::vector<Charge> charges;
    std::vector<Charge> model_charges;
    const std::string& key = keys_[of() % 2];
    const size_t first = of() % asked_.size();
    const size_t second = of() % 3 == 0 ? of() % asked_.size() : first;
    const uint64_t permits = 1 + of() % 3;
    charges = {{asked_[first].get(), key, permits}};
    model_charges = {{model_[first].get(), key, permits}};
    if (second != first) {
      charges.push_back({asked_[second].get(), key, 1});
      model_charges.push_back({model_[second].get(), key, 1});
    }
    AcquireOptions options;
    options.want_receipt = of() % 2 == 0;
    if (of() % 3 == 0) options.max_wait_ns = static_cast<int64_t>(of() % 10'000'000) * 1000;
    store::Once once = OnceOf(id);
    once.fingerprint = fingerprint;
    once.may_remember = random_() % 8 != 0;
    options.once = &once;
    const Acquired got = Acquire(under_test_.store(), charges, options);
    options.once = nullptr;

    const int64_t now_ns = under_test_.NowNs();
    const auto known = remembered_.find(id);
    if (known != remembered_.end() && now_ns < known->second.end_ns) {
      if (known->second.fingerprint != fingerprint) {
        EXPECT_EQ(got.outcome, Outcome::kOtherRequest);
      } else if (known->second.refunded) {
        EXPECT_EQ(got.outcome, Outcome::kEnded);
      } else {
        ExpectRepeated(got, known->second.granted, model_charges);
      }
      return;
    }
    if (!once.may_remember) {
      EXPECT_EQ(got.outcome, Outcome::kNotRemembered);
      return;
    }
    const Acquired expected = Acquire(under_test_.store(), model_charges, options);
    EXPECT_FALSE(got.repeated);
    ASSERT_EQ(got.outcome, expected.outcome);
    EXPECT_EQ(got.wait_ns, expected.wait_ns);
    EXPECT_EQ(got.retry_after_ns, expected.retry_after_ns);
    EXPECT_EQ(got.receipt_id != 0, expected.receipt_id != 0);
    for (size_t c = 0; c < charges.size(); ++c) {
      EXPECT_EQ(got.charges[c].level.remaining, expected.charges[c].level.remaining);
    }
    if (!got.granted()) return;
    remembered_[id] = {fingerprint, got, now_ns + store::kRememberNs};
    if (got.receipt_id != 0) receipts_.push_back({id, got, expected, charges, model_charges});
  }

  void ExpectRepeated(const Acquired& got, const Acquired& granted,
                      const std::vector<Charge>& model_charges) {
    ASSERT_EQ(got.outcome, Outcome::kGranted);
    EXPECT_TRUE(got.repeated);
    EXPECT_EQ(got.receipt_id, granted.receipt_id);
    EXPECT_EQ(got.wait_ns,
              std::max<int64_t>(granted.now_ns + granted.wait_ns - under_test_.NowNs(), 0));
    for (size_t c = 0; c < model_charges.size(); ++c) {
      const store::QueryItem now =
          Query(under_test_.store(), *model_charges[c].rule, model_charges[c].key);
      EXPECT_EQ(got.charges[c].level.remaining, now.level.remaining);
      EXPECT_EQ(got.charges[c].level.reset_after_ns, now.level.reset_after_ns);
    }
  }

  void Refund() {
    if (receipts_.empty()) return;
    const size_t at = random_() % receipts_.size();
    const Receipt receipt = receipts_[at];
    receipts_.erase(receipts_.begin() + static_cast<ptrdiff_t>(at));
    const store::Once once = OnceOf(receipt.id);
    const auto refund = [&](const Acquired& granted, const std::vector<Charge>& charges,
                            const store::Once* once) {
      return testing::Refund(under_test_.store(), granted.receipt_id, charges,
                             granted.grant_time_ns(), once);
    };
    const Refunded asked = refund(receipt.asked, receipt.asked_charges, &once);
    const Refunded model = refund(receipt.model, receipt.model_charges, nullptr);
    Remembered& remembered = remembered_[receipt.id];
    if (asked.outcome == RefundOutcome::kRefunded &&
        remembered.granted.receipt_id == receipt.asked.receipt_id) {
      remembered.refunded = true;
    }
    EXPECT_EQ(asked.outcome, model.outcome);
    EXPECT_EQ(asked.permits, model.permits);
  }

  StoreUnderTest& under_test_;
  const std::vector<std::shared_ptr<const Rule>>& asked_;
  const std::vector<std::shared_ptr<const Rule>>& model_;
  const uint32_t number_;
  std::mt19937 random_;
  const std::string keys_[2];
  std::map<uint64_t, Remembered> remembered_;
  std::vector<Receipt> receipts_;
  int64_t advanced_ns_ = 0;
};

TEST_P(OnceContractTest, RandomHistoriesTakeEachRequestOnce) {
  std::vector<std::shared_ptr<const Rule>> rules[2];
  for (uint32_t i = 0; i < 2; ++i) {
    rules[i] = {TokenBucket(10 * i + 1, 10, 20), TokenBucket(10 * i + 2, 1, 3),
                Register(10 * i + 3, algorithm::MakeSlidingLog({8, 3 * kSecond})),
                Register(10 * i + 4, algorithm::MakeSlidingWindow({9, 5 * kSecond}, 5))};
  }
  const uint32_t histories = under_test_->forgets_by_test_clock() ? 300 : 30;
  for (uint32_t number = 0; number < histories; ++number) {
    History history(*under_test_, rules[0], rules[1], number);
    for (int step = 0; step < 200; ++step) history.Step();
    ASSERT_FALSE(HasFailure()) << "history " << number;
  }
}

}  // namespace
}  // namespace sluice::testing
