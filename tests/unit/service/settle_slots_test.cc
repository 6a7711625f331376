// Settle of acquisitions that hold slots, and repeats of their request ids.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using store::SettleOutcome;
using testing::HasSubstr;

constexpr std::string_view kId = "0123456789abcdef";

class SettleSlotsTest : public ServiceTest {
 protected:
  struct Actual {
    std::string_view limit;
    uint64_t permits;
  };

  // `slots` has 2 for 30 s. `tokens` and `requests` are of a day; `tokens` owes at most 5.
  void SetUp() override {
    limits::LimitSpec slots;
    slots.name = "slots";
    slots.algorithm = algorithm::Kind::kConcurrency;
    slots.permits = 2;
    slots.hold_for_ns = 30 * kSecond;
    limits::LimitSpec tokens = PerSecond("tokens", 20);
    tokens.rate.period_ns = 24 * 3600 * kSecond;
    tokens.max_owed = 5;
    limits::LimitSpec requests = tokens;
    requests.name = "requests";
    requests.charges = {"tokens"};
    Load({slots, tokens, requests});
  }

  // A slot, and permits of a rate; "": the slot alone. Returns the receipt.
  std::string Take(std::string_view rate, uint64_t permits = 1,
                   std::optional<int64_t> settle_within_s = std::nullopt,
                   std::string_view id = "") {
    AcquisitionOptions options;
    if (settle_within_s.has_value()) options.settle_within = WireDuration{*settle_within_s, 0};
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition(options);
    call_.AddCharge("slots", "k", 1);
    if (!rate.empty()) call_.AddCharge(rate, "k", permits);
    if (!id.empty()) call_.SetRequestId(id);
    Run(&call_);
    return std::string(call_.result(0).receipt);
  }

  const SettleCall::Result& Settle(const std::string& receipt, std::vector<Actual> actual = {},
                                   bool more = false) {
    receipt_ = receipt;
    settle_.Reset(SettleCall::Form::kUnary);
    settle_.BeginSettlement();
    settle_.SetReceipt(receipt_);
    settle_.SetMore(more);
    for (const Actual& one : actual) settle_.AddActual(one.limit, "k", one.permits);
    limiter_.Settle(&settle_, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
    return settle_.result(0);
  }

  int64_t Free() { return Remaining("slots", "k"); }

  std::string receipt_;
  SettleCall settle_;
};

TEST_F(SettleSlotsTest, EndsTheSlotsAndLeavesTheRateAsTaken) {
  const std::string receipt = Take("tokens", 8);
  EXPECT_EQ(Free(), 1);
  EXPECT_EQ(Settle(receipt).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Free(), 2);
  EXPECT_EQ(Remaining("tokens", "k"), 12);
  RefundCall refund;
  EXPECT_EQ(Refund(receipt, &refund).code(), absl::StatusCode::kInvalidArgument) << "it ran";
  EXPECT_EQ(Remaining("tokens", "k"), 12);
}

TEST_F(SettleSlotsTest, EndsTheSlotsOfItsOwnAcquisitionOnly) {
  const std::string one = Take("");
  const std::string other = Take("");
  EXPECT_EQ(Settle(one).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Settle(one).outcome, SettleOutcome::kSettled) << "the same call again";
  EXPECT_EQ(Free(), 1);
  EXPECT_EQ(Settle(other).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Free(), 2);
}

TEST_F(SettleSlotsTest, ReleasingBySettleDoesNotGiveTheRateBack) {
  int ran = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string receipt = Take("tokens", 1);
    if (receipt.empty()) continue;
    ++ran;
    Settle(receipt);
  }
  EXPECT_EQ(ran, 20);
}

TEST_F(SettleSlotsTest, SettlesRatesByActualWithoutSettleWithin) {
  const std::string receipt = Take("tokens", 8);
  EXPECT_EQ(Settle(receipt, {{"tokens", 3}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("tokens", "k"), 17);
  EXPECT_EQ(Free(), 2);
  // The same call again, another one, and a refund.
  EXPECT_EQ(Settle(receipt, {{"tokens", 3}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Settle(receipt, {{"tokens", 9}}).outcome, SettleOutcome::kAlreadySettled);
  RefundCall refund;
  EXPECT_EQ(Refund(receipt, &refund).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Remaining("tokens", "k"), 17);
}

TEST_F(SettleSlotsTest, ChargesTheExcessOfParentsToo) {
  const std::string receipt = Take("requests", 2);
  EXPECT_EQ(Settle(receipt, {{"requests", 6}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("requests", "k"), 14);
  EXPECT_EQ(Remaining("tokens", ""), 14);
}

TEST_F(SettleSlotsTest, ChangesNothingWhenTheSlotsHaveRunOut) {
  const std::string receipt = Take("tokens", 8);
  clock_.Advance(30 * kSecond);
  EXPECT_EQ(Settle(receipt, {{"tokens", 3}}).outcome, SettleOutcome::kUnknown);
  EXPECT_EQ(Remaining("tokens", "k"), 12);
}

TEST_F(SettleSlotsTest, EstimateIsSettledAlsoWhenTheSlotsHaveRunOut) {
  const std::string receipt = Take("tokens", 8, 60);
  clock_.Advance(31 * kSecond);
  EXPECT_EQ(Settle(receipt, {{"tokens", 3}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("tokens", "k"), 17);
}

TEST_F(SettleSlotsTest, MoreKeepsTheSlots) {
  const std::string receipt = Take("tokens", 8, 60);
  EXPECT_EQ(Settle(receipt, {{"tokens", 9}}, /*more=*/true).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Free(), 1);
  EXPECT_EQ(Remaining("tokens", "k"), 11);
  EXPECT_EQ(Settle(receipt, {{"tokens", 9}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Free(), 2);
  EXPECT_EQ(Remaining("tokens", "k"), 11);
}

TEST_F(SettleSlotsTest, LateSettlementEndsTheSlots) {
  const std::string receipt = Take("tokens", 8, 10);
  clock_.Advance(11 * kSecond);
  EXPECT_EQ(Settle(receipt, {{"tokens", 10}}).outcome, SettleOutcome::kLate);
  EXPECT_EQ(Free(), 2);
  EXPECT_EQ(Remaining("tokens", "k"), 10);
}

TEST_F(SettleSlotsTest, ForgottenEstimateEndsTheSlotsAndChargesNothing) {
  const std::string receipt = Take("tokens", 8, 10);
  for (int i = 0; i < 40; ++i) {
    clock_.Advance(20 * kSecond);
    RenewCall renew;
    renew.Reset();
    renew.AddReceipt(receipt);
    limiter_.Renew(&renew, store::kNoDeadline, [](void*, RenewCall*) {}, nullptr);
    ASSERT_TRUE(renew.result(0).renewed);
  }
  // Removes accounts that are over.
  Settle(Take("tokens", 1, 10));
  Settle(Take("tokens", 1, 10));
  const int64_t before = Remaining("tokens", "k");
  EXPECT_EQ(Settle(receipt, {{"tokens", 20}}).outcome, SettleOutcome::kLate);
  EXPECT_EQ(Free(), 2);
  EXPECT_EQ(Remaining("tokens", "k"), before);
}

TEST_F(SettleSlotsTest, RefundOfAnEstimateEndsTheSlotsAndGivesTheRateBack) {
  const std::string receipt = Take("tokens", 8, 60);
  RefundCall refund;
  ASSERT_TRUE(Refund(receipt, &refund).ok());
  EXPECT_EQ(Free(), 2);
  EXPECT_EQ(Remaining("tokens", "k"), 20);
  EXPECT_THAT(std::string(Settle(receipt).status.message()), HasSubstr("was refunded"));
}

TEST_F(SettleSlotsTest, RefusesActualsOfSlotsAndMoreWithoutSettleWithin) {
  const std::string receipt = Take("tokens", 8);
  EXPECT_THAT(std::string(Settle(receipt, {{"slots", 1}}).status.message()),
              HasSubstr("actual[0].limit: \"slots\" has algorithm concurrency"));
  EXPECT_THAT(std::string(Settle(receipt, {{"tokens", 9}}, /*more=*/true).status.message()),
              HasSubstr("more: true, but the acquisition had no settle_within"));
  EXPECT_EQ(Free(), 1);
  EXPECT_EQ(Remaining("tokens", "k"), 12);
}

TEST_F(SettleSlotsTest, SettlesAfterAReloadThatMadeTheSlotsARate) {
  const std::string receipt = Take("tokens", 8, 60);
  limits::LimitSpec tokens = PerSecond("tokens", 20);
  tokens.rate.period_ns = 24 * 3600 * kSecond;
  Load({PerSecond("slots", 2), tokens});
  EXPECT_EQ(Settle(receipt, {{"tokens", 3}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("tokens", "k"), 17);
  EXPECT_EQ(Free(), 2);
}

TEST_F(SettleSlotsTest, EndsTheSlotsWhenTheLimitOfTheRateIsDeleted) {
  for (const std::optional<int64_t> settle_within_s : {std::optional<int64_t>(60), {}}) {
    SetUp();
    const std::string receipt = Take("tokens", 1, settle_within_s);
    const std::string refunded = Take("tokens", 1, settle_within_s);
    EXPECT_EQ(Free(), 0);
    limits::LimitSpec slots;
    slots.name = "slots";
    slots.algorithm = algorithm::Kind::kConcurrency;
    slots.permits = 2;
    slots.hold_for_ns = 30 * kSecond;
    Load({slots});
    EXPECT_EQ(Settle(receipt, {{"tokens", 2}}).outcome, SettleOutcome::kSettled);
    EXPECT_EQ(Free(), 1);
    RefundCall refund;
    ASSERT_TRUE(Refund(refunded, &refund).ok());
    EXPECT_EQ(refund.outcome(), store::RefundOutcome::kRefunded);
    EXPECT_EQ(Free(), 2);
  }
}

TEST_F(SettleSlotsTest, RepeatedGrantSaysHowLongItsSlotsAreHeld) {
  Take("tokens", 8, 60, kId);
  clock_.Advance(10 * kSecond);
  Take("tokens", 8, 60, kId);
  EXPECT_TRUE(call_.result(0).repeated);
  EXPECT_EQ(call_.charge(0, 0).held_for_ns, 20 * kSecond);
  EXPECT_EQ(Free(), 1);
}

TEST_F(SettleSlotsTest, RepeatedGrantWithoutItsSlotsIsAnError) {
  const auto expect_ended = [&] {
    Take("tokens", 8, std::nullopt, kId);
    EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(call_.result(0).status.message()),
                HasSubstr("request_id: the acquisition that was granted under this id has ended"));
  };
  const std::string receipt = Take("tokens", 8, std::nullopt, kId);
  Settle(receipt);
  expect_ended();
  EXPECT_EQ(Remaining("tokens", "k"), 12) << "nothing was taken";
  EXPECT_EQ(Free(), 2);
  clock_.Advance(60 * kSecond);
  ASSERT_FALSE(Take("tokens", 8, std::nullopt, kId).empty()) << "forgotten";
  clock_.Advance(30 * kSecond);
  expect_ended();
}

TEST_F(SettleSlotsTest, AnotherTermIsAnotherRequest) {
  Take("tokens", 1, 60, kId);
  for (const std::optional<int64_t> other : {std::optional<int64_t>(61), {}}) {
    Take("tokens", 1, other, kId);
    EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(call_.result(0).status.message()), HasSubstr("request_id: granted"));
  }
  Take("tokens", 1, 60, kId);
  EXPECT_TRUE(call_.result(0).repeated);
}

}  // namespace
}  // namespace sluice::service
