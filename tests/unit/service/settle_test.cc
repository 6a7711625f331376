#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/late_store.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using store::SettleOutcome;
using ::testing::HasSubstr;

class SettleTest : public ServiceTest {
 protected:
  struct Actual {
    std::string_view limit;
    std::string_view key;
    uint64_t permits;
  };

  // `child` and `other` charge `parent`; a bucket of `child` holds 10, and owes at most 5.
  void SetUp() override {
    Load({Slow("child", 10, 5, {"parent"}), Slow("other", 10, 5, {"parent"}),
          Slow("parent", 100, 50, {}), PerSecond("unowed", 10)});
  }

  // Refills in ten hours.
  static limits::LimitSpec Slow(std::string name, uint64_t permits, uint64_t max_owed,
                                std::vector<std::string> charges) {
    limits::LimitSpec spec;
    spec.name = std::move(name);
    spec.rate = {permits, 36'000 * kSecond};
    spec.max_owed = max_owed;
    spec.charges = std::move(charges);
    return spec;
  }

  static AcquisitionOptions Within(int64_t seconds, int32_t nanos = 0) {
    AcquisitionOptions options;
    options.settle_within = WireDuration{seconds, nanos};
    return options;
  }

  std::string Estimate(std::string_view limit, std::string_view key, uint64_t permits,
                       int64_t seconds = 60) {
    const AcquisitionResult result = Acquire(limit, key, permits, Within(seconds));
    EXPECT_TRUE(result.granted) << result.status;
    return std::string(result.receipt);
  }

  std::string EstimateOfBoth() {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition(Within(60));
    call_.AddCharge("child", "k", 5);
    call_.AddCharge("other", "k", 5);
    Run(&call_);
    return std::string(call_.result(0).receipt);
  }

  const SettleCall::Result& Settle(const std::string& receipt, std::vector<Actual> actual,
                                   bool more = false) {
    receipt_ = receipt;
    settle_.Reset(SettleCall::Form::kUnary);
    settle_.BeginSettlement();
    settle_.SetReceipt(receipt_);
    settle_.SetMore(more);
    for (const Actual& one : actual) settle_.AddActual(one.limit, one.key, one.permits);
    limiter_.Settle(&settle_, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
    EXPECT_TRUE(settle_.status().ok()) << settle_.status();
    return settle_.result(0);
  }
  // In "given back, charged, forgiven" of each bucket.
  std::vector<std::vector<uint64_t>> Changes() const {
    std::vector<std::vector<uint64_t>> changes;
    for (size_t i = 0; i < settle_.result(0).charges; ++i) {
      const store::SettledPermits& of = settle_.charge(i).permits;
      changes.push_back({of.given_back, of.charged, of.forgiven});
    }
    return changes;
  }
  using Expected = std::vector<std::vector<uint64_t>>;

  void ExpectInvalid(const SettleCall::Result& result, const std::string& text) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status.message()), HasSubstr(text));
  }

  std::string receipt_;
  SettleCall settle_;
};

TEST_F(SettleTest, LessComesBackToEveryBucket) {
  const std::string receipt = Estimate("child", "k", 8);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 3}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Changes(), (Expected{{5, 0, 0}, {5, 0, 0}}));
  EXPECT_EQ(settle_.charge(1).limit, "parent");
  EXPECT_EQ(Remaining("child", "k"), 7);
  EXPECT_EQ(Remaining("parent", ""), 97);
}

TEST_F(SettleTest, SameCallGetsTheSameAnswer) {
  const std::string receipt = Estimate("child", "k", 8);
  Settle(receipt, {{"child", "k", 3}});
  EXPECT_EQ(Settle(receipt, {{"child", "k", 3}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Changes(), (Expected{{5, 0, 0}, {5, 0, 0}}));
  EXPECT_EQ(Remaining("child", "k"), 7);
}

TEST_F(SettleTest, AnotherActualChangesNothing) {
  const std::string receipt = Estimate("child", "k", 8);
  Settle(receipt, {{"child", "k", 3}});
  EXPECT_EQ(Settle(receipt, {{"child", "k", 4}}).outcome, SettleOutcome::kAlreadySettled);
  EXPECT_EQ(Settle(receipt, {}).outcome, SettleOutcome::kAlreadySettled);
  EXPECT_EQ(Remaining("child", "k"), 7);
}

TEST_F(SettleTest, AbsentChargeIsAsTaken) {
  const std::string receipt = Estimate("child", "k", 8);
  EXPECT_EQ(Settle(receipt, {}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 8}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("child", "k"), 2);
}

TEST_F(SettleTest, ExcessIsForcedAndTheRestForgiven) {
  const std::string receipt = Estimate("child", "k", 8);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 20}}).outcome, SettleOutcome::kSettled);
  // The parent counts at most what the child counted.
  EXPECT_EQ(Changes(), (Expected{{0, 7, 5}, {0, 7, 5}}));
  EXPECT_EQ(Remaining("child", "k"), -5);
  EXPECT_EQ(Remaining("parent", ""), 85);
}

TEST_F(SettleTest, WithoutMaxOwedExcessIsForgiven) {
  const std::string receipt = Estimate("unowed", "k", 8);
  EXPECT_EQ(Settle(receipt, {{"unowed", "k", 20}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Changes(), (Expected{{0, 2, 10}}));
  EXPECT_EQ(Remaining("unowed", "k"), 0);
}

TEST_F(SettleTest, ParentTakesTheSumOverItsCharges) {
  const std::string receipt = EstimateOfBoth();
  EXPECT_EQ(Remaining("parent", ""), 90);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 3}, {"other", "k", 9}}).outcome,
            SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("child", "k"), 7);
  EXPECT_EQ(Remaining("other", "k"), 1);
  EXPECT_EQ(Remaining("parent", ""), 88);
}

TEST_F(SettleTest, ParentOfAChargeThatGivesBackGetsBackTheDifference) {
  const std::string receipt = EstimateOfBoth();
  Settle(receipt, {{"child", "k", 0}, {"other", "k", 6}});
  EXPECT_EQ(Remaining("child", "k"), 10);
  EXPECT_EQ(Remaining("other", "k"), 4);
  EXPECT_EQ(Remaining("parent", ""), 94);
}

TEST_F(SettleTest, MoreChargesTheExcessSoFar) {
  const std::string receipt = Estimate("child", "k", 4);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 2}}, /*more=*/true).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("child", "k"), 6);
  Settle(receipt, {{"child", "k", 6}}, /*more=*/true);
  EXPECT_EQ(Changes(), (Expected{{0, 2, 0}, {0, 2, 0}}));
  Settle(receipt, {{"child", "k", 6}}, /*more=*/true);
  EXPECT_EQ(Changes(), (Expected{{0, 2, 0}, {0, 2, 0}}));
  EXPECT_EQ(Remaining("child", "k"), 4);
  Settle(receipt, {{"child", "k", 9}});
  EXPECT_EQ(Changes(), (Expected{{0, 5, 0}, {0, 5, 0}}));
  EXPECT_EQ(Remaining("child", "k"), 1);
  EXPECT_EQ(Remaining("parent", ""), 91);
}

TEST_F(SettleTest, LastCallGivesBackWhatMoreDidNotUse) {
  const std::string receipt = Estimate("child", "k", 8);
  Settle(receipt, {{"child", "k", 2}}, /*more=*/true);
  Settle(receipt, {{"child", "k", 3}});
  EXPECT_EQ(Changes(), (Expected{{5, 0, 0}, {5, 0, 0}}));
}

TEST_F(SettleTest, AbsentChargeAfterMoreIsAsTakenSoFar) {
  const std::string receipt = EstimateOfBoth();
  Settle(receipt, {{"child", "k", 7}, {"other", "k", 8}}, /*more=*/true);
  EXPECT_EQ(Settle(receipt, {{"other", "k", 9}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("child", "k"), 3);
  EXPECT_EQ(Remaining("other", "k"), 1);
  EXPECT_EQ(Remaining("parent", ""), 84);
}

TEST_F(SettleTest, MoreBeginsTheTermAgain) {
  const std::string receipt = Estimate("child", "k", 8);
  clock_.Advance(50 * kSecond);
  Settle(receipt, {{"child", "k", 1}}, /*more=*/true);
  clock_.Advance(60 * kSecond);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 3}}).outcome, SettleOutcome::kSettled);
}

TEST_F(SettleTest, LateGivesNothingBackAndChargesOnce) {
  const std::string less = Estimate("child", "k", 4);
  const std::string excess = Estimate("child", "k", 4);
  clock_.Advance(60 * kSecond + 1);
  EXPECT_EQ(Settle(less, {{"child", "k", 1}}).outcome, SettleOutcome::kLate);
  EXPECT_EQ(Changes(), (Expected{{0, 0, 0}, {0, 0, 0}}));
  EXPECT_EQ(Settle(excess, {{"child", "k", 6}}, /*more=*/true).outcome, SettleOutcome::kLate);
  EXPECT_EQ(Changes(), (Expected{{0, 2, 0}, {0, 2, 0}}));
  EXPECT_EQ(Settle(excess, {{"child", "k", 6}}).outcome, SettleOutcome::kLate);
  EXPECT_EQ(Settle(excess, {{"child", "k", 7}}).outcome, SettleOutcome::kAlreadySettled);
  EXPECT_EQ(Remaining("child", "k"), 0);
}

TEST_F(SettleTest, ForgetsTenMinutesAfterTheEnd) {
  const std::string receipt = Estimate("child", "k", 8);
  clock_.Advance(60 * kSecond + algorithm::Estimate::kKeptNs + 1);
  while (store_.Maintain()) {
  }
  Acquire("child", "k", 1);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 3}}).outcome, SettleOutcome::kUnknown);
  EXPECT_EQ(Changes(), (Expected{{0, 0, 0}, {0, 0, 0}}));
}

TEST_F(SettleTest, KeepsTheBucketUntilThen) {
  const std::string receipt = Estimate("unowed", "k", 8);
  clock_.Advance(30 * kSecond);  // it is full
  while (store_.Maintain()) {
  }
  EXPECT_EQ(Settle(receipt, {{"unowed", "k", 12}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("unowed", "k"), 6);
}

TEST_F(SettleTest, SettlesAfterAReloadAndAReset) {
  const std::string reloaded = Estimate("child", "k", 4);
  Load({Slow("child", 20, 5, {"parent"}), Slow("parent", 100, 50, {})});
  const int64_t before = Remaining("child", "k");
  EXPECT_EQ(Settle(reloaded, {{"child", "k", 1}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("child", "k"), before + 3);
  const std::string reset = Estimate("child", "r", 4);
  store_.Reset(
      registry_.Current()->Find("child")->RuleFor("r"), "r", [](void*, store::ResetOutcome) {},
      nullptr);
  EXPECT_EQ(Settle(reset, {{"child", "r", 6}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("child", "r"), 18);
}

TEST_F(SettleTest, SettlesTheBucketsWhoseLimitsWereNotDeleted) {
  const std::string receipt = EstimateOfBoth();
  const std::string twice = Estimate("child", "k", 4);
  Settle(twice, {{"child", "k", 6}}, /*more=*/true);
  EXPECT_EQ(Remaining("parent", ""), 84);
  Load({Slow("parent", 100, 50, {}), Slow("other", 10, 5, {"parent"})});
  EXPECT_EQ(Settle(receipt, {{"child", "k", 1}, {"other", "k", 7}}).outcome,
            SettleOutcome::kSettled);
  EXPECT_EQ(Changes(), (Expected{{0, 0, 0}, {0, 2, 0}, {2, 0, 0}}));
  EXPECT_EQ(Remaining("parent", ""), 86);
  EXPECT_EQ(Remaining("other", "k"), 3);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 1}, {"other", "k", 7}}).outcome,
            SettleOutcome::kSettled);
  EXPECT_EQ(Settle(receipt, {{"child", "k", 2}, {"other", "k", 7}}).outcome,
            SettleOutcome::kAlreadySettled);
  // It has charged 6 for `child` already.
  EXPECT_EQ(Settle(twice, {{"child", "k", 7}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Changes(), (Expected{{0, 0, 0}, {0, 3, 0}}));
  EXPECT_EQ(Remaining("parent", ""), 85);
}

// A limit that its `charges` do not add any longer needs a right of its own.
TEST_F(SettleTest, DeletedLimitGivesNoRightToSettleTheOthersOfItsReceipt) {
  const access::Clients clients = ClientsThatMayUse("child");
  const auto settle = [&](const std::string& receipt) {
    settle_.Reset(SettleCall::Form::kUnary);
    settle_.UseCaller(clients.Recognise({}));
    settle_.BeginSettlement();
    settle_.SetReceipt(receipt);
    settle_.AddActual("child", "k", 1);
    limiter_.Settle(&settle_, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
    return settle_.result(0).status;
  };
  EXPECT_EQ(settle(Estimate("child", "k", 4)), absl::OkStatus());
  EXPECT_EQ(Remaining("parent", ""), 99);
  const std::string receipt = Estimate("child", "k", 4);
  Load({Slow("parent", 100, 50, {})});
  const absl::Status status = settle(receipt);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("may not use the limit \"parent\""));
  EXPECT_EQ(Remaining("parent", ""), 95);
}

TEST_F(SettleTest, UnknownWhenAllLimitsAreDeleted) {
  const std::string receipt = Estimate("child", "k", 4);
  Load({PerSecond("unowed", 10)});
  EXPECT_EQ(Settle(receipt, {{"child", "k", 1}}).outcome, SettleOutcome::kUnknown);
}

TEST_F(SettleTest, ReservationIsSettledFromItsGrantTimeOn) {
  Acquire("unowed", "k", 10);
  AcquisitionOptions options = Within(60);
  options.max_wait.seconds = 1;
  const AcquisitionResult result = Acquire("unowed", "k", 5, options);
  ASSERT_TRUE(result.granted);
  const int64_t wait_ns = result.wait_ns;
  ASSERT_GT(wait_ns, 0);
  const std::string receipt(result.receipt);
  EXPECT_EQ(Settle(receipt, {}).status.code(), absl::StatusCode::kFailedPrecondition);
  clock_.Advance(wait_ns);
  EXPECT_EQ(Settle(receipt, {{"unowed", "k", 1}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Changes(), (Expected{{4, 0, 0}}));
}

TEST_F(SettleTest, ForcedEstimateGivesBackWhatWasCounted) {
  AcquisitionOptions options = Within(60);
  options.force = true;
  const AcquisitionResult result = Acquire("child", "k", 20, options);
  const std::string receipt(result.receipt);
  EXPECT_EQ(Remaining("child", "k"), -5);
  Settle(receipt, {{"child", "k", 12}});
  EXPECT_EQ(Changes(), (Expected{{3, 0, 0}, {3, 0, 0}}));
  EXPECT_EQ(Remaining("child", "k"), -2);
}

TEST_F(SettleTest, RefundEndsIt) {
  const std::string receipt = Estimate("child", "k", 8);
  RefundCall refund;
  ASSERT_TRUE(Refund(receipt, &refund).ok());
  EXPECT_EQ(refund.outcome(), store::RefundOutcome::kRefunded);
  EXPECT_EQ(Remaining("child", "k"), 10);
  ExpectInvalid(Settle(receipt, {{"child", "k", 3}}), "refunded");
}

TEST_F(SettleTest, SettledCannotBeRefunded) {
  for (const bool more : {false, true}) {
    const std::string receipt = Estimate("child", "k", 4);
    Settle(receipt, {{"child", "k", 4}}, more);
    RefundCall refund;
    EXPECT_EQ(Refund(receipt, &refund).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Remaining("child", "k"), 2);
}

TEST_F(SettleTest, RefusesBadSettlements) {
  const std::string receipt = Estimate("child", "k", 4);
  const std::string plain = std::string(Acquire("child", "k", 1, {.want_receipt = true}).receipt);
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  ExpectInvalid(Settle(plain, {}),
                "receipt: of an acquisition without settle_within and without slots");
  ExpectInvalid(Settle("forged", {}), "receipt: 6 bytes");
  ExpectInvalid(Settle(receipt, {{"child", "k", kMost + 1}}),
                "actual[0].permits: 9223372036854775808; at most 2^63-1");
  ExpectInvalid(Settle(receipt, {{"child", "k", 1}, {"child", "k", 1}}), "actual[1].limit");
  ExpectInvalid(Settle(receipt, {{"child", "other", 1}}), "no such charge");
  ExpectInvalid(Settle(receipt, {{"parent", "", 1}}), "no such charge");
  Settle(receipt, {{"child", "k", 3}}, /*more=*/true);
  ExpectInvalid(Settle(receipt, {{"child", "k", 2}}), "actual[0].permits: 2, but 3 before");
  EXPECT_EQ(Remaining("child", "k"), 5);
  EXPECT_EQ(Settle(receipt, {{"child", "k", kMost}}).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("child", "k"), -5);
}

TEST_F(SettleTest, RefusesBadTerms) {
  for (const AcquisitionOptions& options : {Within(0), Within(-1), Within(25 * 3600)}) {
    const AcquisitionResult result = Acquire("child", "k", 1, options);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("settle_within: "));
  }
  EXPECT_TRUE(Acquire("child", "k", 1, Within(0, 1)).granted);
  EXPECT_TRUE(Acquire("child", "k", 1, Within(24 * 3600)).granted);
}

TEST_F(SettleTest, BatchSettlesInOrderAndReportsErrorsAlone) {
  const std::string one = Estimate("child", "k", 4);
  const std::string two = Estimate("other", "k", 4);
  const std::string bad = "bad";
  settle_.Reset(SettleCall::Form::kBatch);
  for (const std::string* receipt : {&one, &bad, &two, &one}) {
    settle_.BeginSettlement();
    settle_.SetReceipt(*receipt);
    if (receipt == &bad) continue;
    settle_.AddActual(receipt == &one ? "child" : "other", "k", 1);
  }
  settle_.DecideInSlices();
  limiter_.Settle(&settle_, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
  while (settle_.more()) limiter_.Continue(&settle_);
  ASSERT_EQ(settle_.size(), 4u);
  EXPECT_EQ(settle_.result(0).outcome, SettleOutcome::kSettled);
  EXPECT_FALSE(settle_.result(1).status.ok());
  EXPECT_EQ(settle_.result(2).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(settle_.result(3).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Remaining("child", "k"), 9);
  EXPECT_EQ(Remaining("other", "k"), 9);
}

TEST_F(SettleTest, ChecksWrongReceiptsInSlices) {
  const std::string wrong(100, 'w');
  settle_.Reset(SettleCall::Form::kBatch);
  for (int i = 0; i < 1000; ++i) {
    settle_.BeginSettlement();
    settle_.SetReceipt(wrong);
  }
  settle_.DecideInSlices();
  int slices = 0;
  limiter_.Settle(
      &settle_, store::kNoDeadline,
      [](void* context, SettleCall*) { ++*static_cast<int*>(context); }, &slices);
  while (true) {
    EXPECT_LE(settle_.end() - settle_.first(), kSliceDecisions / kReceiptCost);
    EXPECT_GE(settle_.slice_cost(), (settle_.end() - settle_.first()) * kReceiptCost);
    if (!settle_.more()) break;
    limiter_.Continue(&settle_);
  }
  EXPECT_GE(slices, 1000 / 32);
  EXPECT_EQ(settle_.result(999).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SettleTest, ChecksReceiptsOfDeletedLimitsInSlices) {
  const std::string receipt = Estimate("unowed", "k", 1);
  Load({Slow("child", 10, 5, {"parent"}), Slow("parent", 100, 50, {})});
  settle_.Reset(SettleCall::Form::kBatch);
  for (int i = 0; i < 100; ++i) {
    settle_.BeginSettlement();
    settle_.SetReceipt(receipt);
  }
  settle_.DecideInSlices();
  limiter_.Settle(&settle_, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
  EXPECT_LE(settle_.end(), kSliceDecisions / kReceiptCost);
  while (settle_.more()) limiter_.Continue(&settle_);
  EXPECT_EQ(settle_.result(99).outcome, SettleOutcome::kUnknown);
}

// The wrong receipts follow a right one, which the store settles later.
TEST_F(SettleTest, ChecksReceiptsInSlicesAfterALateAnswer) {
  const std::string right = Estimate("child", "k", 8);
  const std::string wrong(100, 'w');
  ::sluice::testing::LateStore late(store_, {.shared = true}, 1);
  RateLimiter limiter{registry_, late, clock_, metrics_, usage_, signer_};
  settle_.Reset(SettleCall::Form::kBatch);
  for (int i = 0; i < 500; ++i) {
    settle_.BeginSettlement();
    settle_.SetReceipt(i == 0 ? right : wrong);
  }
  settle_.DecideInSlices();
  int slices = 0;
  limiter.Settle(
      &settle_, store::kNoDeadline,
      [](void* context, SettleCall*) { ++*static_cast<int*>(context); }, &slices);
  EXPECT_EQ(slices, 0);
  while (late.Step()) continue;
  EXPECT_EQ(slices, 1);
  EXPECT_LE(settle_.end(), kSliceDecisions / kReceiptCost);
  while (settle_.more()) limiter.Continue(&settle_);
  EXPECT_EQ(settle_.result(0).outcome, SettleOutcome::kSettled);
  EXPECT_FALSE(settle_.result(499).status.ok());
}

TEST_F(SettleTest, BatchOfMoreThanTheBoundIsRefused) {
  settle_.Reset(SettleCall::Form::kBatch);
  for (size_t i = 0; i <= common::bounds::kMaxBatch; ++i) settle_.BeginSettlement();
  limiter_.Settle(&settle_, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
  EXPECT_EQ(settle_.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SettleTest, DeniedEstimateLeavesNoTrace) {
  Estimate("child", "k", 8);
  EXPECT_FALSE(Acquire("child", "k", 8, Within(60)).granted);
  EXPECT_EQ(Remaining("child", "k"), 2);
  EXPECT_EQ(Remaining("parent", ""), 92);
}

// A step of an event loop stays short, however many callers have estimates on one bucket.
TEST_F(SettleTest, TenThousandOpenEstimatesSettleInAnyOrder) {
  Load({Slow("wide", 1'000'000, 0, {})});
  std::vector<std::string> receipts;
  for (int i = 0; i < 10'000; ++i) receipts.push_back(Estimate("wide", "k", 10));
  for (size_t i = 0; i < receipts.size(); ++i) {
    const std::string& receipt = receipts[i * 7919 % receipts.size()];
    ASSERT_EQ(Settle(receipt, {{"wide", "k", 9}}).outcome, SettleOutcome::kSettled);
  }
  EXPECT_EQ(Remaining("wide", "k"), 910'000);
}

}  // namespace
}  // namespace sluice::service
