// Limits with algorithm: concurrency, from the request to the store in memory.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/bounds.h"
#include "common/log.h"
#include "server/service/limit_admin.h"
#include "server/service/renew_call.h"
#include "tests/support/late_store.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using ::testing::HasSubstr;

limits::LimitSpec Slots(std::string name, uint64_t permits, int64_t hold_for_ns = 30 * kSecond) {
  return Concurrency(std::move(name), permits, hold_for_ns);
}

class SlotsTest : public ServiceTest {
 protected:
  // The receipt; empty: denied.
  std::string Take(std::string_view limit, std::string_view key = "k", uint64_t permits = 1) {
    const AcquisitionResult result = Acquire(limit, key, permits);
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.granted, !result.receipt.empty());
    return std::string(result.receipt);
  }
  absl::Status Renew(const std::vector<std::string>& receipts, RenewCall* call,
                     int64_t deadline_ns = store::kNoDeadline) {
    call->Reset();
    for (const std::string& receipt : receipts) call->AddReceipt(receipt);
    call->DecideInSlices();
    limiter_.Renew(call, deadline_ns, [](void*, RenewCall*) {}, nullptr);
    while (call->more()) limiter_.Continue(call);
    return call->status();
  }
  bool Renewed(const std::string& receipt) {
    RenewCall call;
    EXPECT_TRUE(Renew({receipt}, &call).ok()) << call.status();
    EXPECT_TRUE(call.result(0).status.ok()) << call.result(0).status;
    return call.result(0).renewed;
  }
  std::string ErrorOf(const AcquisitionOptions& options) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition(options);
    call_.AddCharge("slots", "k", 1);
    Run(&call_);
    EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(call_.result(0).status.message());
  }
};

TEST_F(SlotsTest, GrantsAtMostPermitsAtOnceAndGivesEachAReceipt) {
  Load({Slots("slots", 2)});
  const AcquisitionResult first = Acquire("slots", "k");
  ASSERT_TRUE(first.granted);
  EXPECT_FALSE(first.receipt.empty());
  EXPECT_EQ(call_.charge(0, 0).held_for_ns, 30 * kSecond);
  clock_.Advance(kSecond);
  ASSERT_FALSE(Take("slots").empty());
  const AcquisitionResult third = Acquire("slots", "k");
  EXPECT_FALSE(third.granted);
  EXPECT_EQ(third.retry_after_ns, 29 * kSecond);
  EXPECT_TRUE(third.receipt.empty());
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kNotEnough);
  EXPECT_EQ(call_.charge(0, 0).held_for_ns, 0);
  EXPECT_FALSE(Take("slots", "another key").empty());
}

// A limit that its `charges` do not add any longer needs a right of its own.
TEST_F(SlotsTest, DeletedLimitGivesNoRightToRenewTheOthersOfItsReceipt) {
  const access::Clients clients = ClientsThatMayUse("child");
  limits::LimitSpec child = PerSecond("child", 5);
  child.charges = {"slots"};
  Load({child, Slots("slots", 1)});
  const std::string receipt = Take("child");
  const auto renew = [&](access::CallerPtr caller) {
    RenewCall call;
    call.Reset();
    call.UseCaller(std::move(caller));
    call.AddReceipt(receipt);
    limiter_.Renew(&call, store::kNoDeadline, [](void*, RenewCall*) {}, nullptr);
    EXPECT_TRUE(call.status().ok()) << call.status();
    return std::pair(call.result(0).status, call.result(0).renewed);
  };
  EXPECT_EQ(renew(clients.Recognise({})), std::pair(absl::OkStatus(), true));
  Load({Slots("slots", 1)});
  const auto [status, renewed] = renew(clients.Recognise({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("may not use the limit \"slots\""));
  EXPECT_FALSE(renewed);
  EXPECT_EQ(renew(nullptr), std::pair(absl::OkStatus(), true));
}

TEST_F(SlotsTest, FreesSlotsOfACrashedCallerAfterHoldForAndNotBefore) {
  Load({Slots("slots", 1)});
  ASSERT_FALSE(Take("slots").empty());
  clock_.Advance(30 * kSecond - 1);
  EXPECT_TRUE(Take("slots").empty());
  clock_.Advance(1);
  EXPECT_FALSE(Take("slots").empty());
}

TEST_F(SlotsTest, RenewHoldsForLongerUntilTheEnd) {
  Load({Slots("slots", 1)});
  const std::string receipt = Take("slots");
  clock_.Advance(20 * kSecond);
  RenewCall call;
  ASSERT_TRUE(Renew({receipt}, &call).ok());
  EXPECT_TRUE(call.result(0).renewed);
  EXPECT_EQ(call.result(0).held_for_ns, 30 * kSecond);
  clock_.Advance(20 * kSecond);
  EXPECT_TRUE(Take("slots").empty());
  clock_.Advance(10 * kSecond);
  EXPECT_FALSE(Renewed(receipt)) << "it has just ended";
  EXPECT_FALSE(Take("slots").empty());
  EXPECT_FALSE(Renewed(receipt)) << "another caller has the slot";
}

TEST_F(SlotsTest, RenewsInSlicesOfTheWorkThatItTakes) {
  Load({Slots("slots", 1'000'000)});
  for (int i = 0; i < 400'000; ++i) Acquire("slots", "k");
  std::vector<std::string> receipts;
  for (int i = 0; i < 64; ++i) receipts.push_back(Take("slots"));
  RenewCall call;
  call.Reset();
  for (const std::string& receipt : receipts) call.AddReceipt(receipt);
  call.DecideInSlices();
  limiter_.Renew(&call, store::kNoDeadline, [](void*, RenewCall*) {}, nullptr);
  int slices = 1;
  for (; call.more(); ++slices) {
    EXPECT_GE(call.slice_cost(), kSliceDecisions);
    limiter_.Continue(&call);
  }
  EXPECT_GE(slices, 4);
  for (size_t i = 0; i < call.size(); ++i) EXPECT_TRUE(call.result(i).renewed) << i;
}

TEST_F(SlotsTest, RefundEndsAHoldOnce) {
  Load({Slots("slots", 1)});
  const std::string receipt = Take("slots");
  RefundCall refund;
  ASSERT_TRUE(Refund(receipt, &refund).ok());
  EXPECT_EQ(refund.outcome(), store::RefundOutcome::kRefunded);
  EXPECT_EQ(refund.charge(0).permits, 1u);
  EXPECT_FALSE(Renewed(receipt));
  const std::string other = Take("slots");
  ASSERT_FALSE(other.empty());
  ASSERT_TRUE(Refund(receipt, &refund).ok());
  EXPECT_EQ(refund.outcome(), store::RefundOutcome::kAlreadyRefunded);
  EXPECT_TRUE(Renewed(other)) << "a second refund does not end the hold of another caller";
}

TEST_F(SlotsTest, RenewsTheSlotsOfTheLimitsThatAreLeft) {
  Load({Slots("slots", 5), Slots("deleted", 5)});
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({});
  call_.AddCharge("deleted", "k", 1);
  call_.AddCharge("slots", "k", 1);
  Run(&call_);
  const std::string receipt(call_.result(0).receipt);
  Load({Slots("slots", 5)});
  clock_.Advance(20 * kSecond);
  EXPECT_TRUE(Renewed(receipt)) << "the deleted limit bounds nothing";
  clock_.Advance(20 * kSecond);
  EXPECT_EQ(Remaining("slots", "k"), 4);
  Load({Slots("other", 5)});
  EXPECT_FALSE(Renewed(receipt)) << "it holds nothing";
}

TEST_F(SlotsTest, TakesSlotsAndRatesAllOrNone) {
  auto jobs = PerSecond("jobs", 3);
  jobs.charges = {"slots"};
  Load({jobs, Slots("slots", 2)});
  const std::string first = Take("jobs");
  ASSERT_FALSE(Take("jobs").empty());
  EXPECT_TRUE(Take("jobs").empty()) << "no slot";
  EXPECT_EQ(Remaining("jobs", "k"), 1) << "a denial takes nothing";
  RefundCall refund;
  ASSERT_TRUE(Refund(first, &refund).ok());
  EXPECT_EQ(Remaining("jobs", "k"), 2);
  ASSERT_FALSE(Take("jobs").empty());
  EXPECT_TRUE(Renewed(Take("slots", "other key")));
}

TEST_F(SlotsTest, RefundGivesTheRateOfWorkThatNeverRanBackToo) {
  auto calls = PerSecond("calls", 10);
  calls.charges = {"slots"};
  Load({calls, Slots("slots", 5)});
  for (int i = 0; i < 1000; ++i) {
    const std::string receipt = Take("calls");
    ASSERT_FALSE(receipt.empty()) << i;
    RefundCall call;
    ASSERT_TRUE(Refund(receipt, &call).ok());
  }
  EXPECT_EQ(Remaining("calls", "k"), 10);
  EXPECT_EQ(Remaining("slots", ""), 5);
}

TEST_F(SlotsTest, AnOverrideHasItsOwnPermits) {
  auto spec = Slots("slots", 1);
  spec.keys = {{"big", std::nullopt, std::nullopt, std::nullopt, 3}};
  Load({spec});
  EXPECT_FALSE(Take("slots", "big", 3).empty());
  EXPECT_TRUE(Take("slots", "big").empty());
  EXPECT_FALSE(Take("slots", "small").empty());
  EXPECT_TRUE(Take("slots", "small").empty());
}

TEST_F(SlotsTest, LoweringPermitsKeepsHoldsAndGrantsNoneUntilThereIsRoom) {
  Load({Slots("slots", 2)});
  const std::string first = Take("slots");
  const std::string second = Take("slots");
  Load({Slots("slots", 1)});
  EXPECT_EQ(Remaining("slots", "k"), -1);
  EXPECT_TRUE(Renewed(first));
  RefundCall refund;
  ASSERT_TRUE(Refund(first, &refund).ok());
  EXPECT_TRUE(Take("slots").empty());
  ASSERT_TRUE(Refund(second, &refund).ok());
  EXPECT_FALSE(Take("slots").empty());
}

TEST_F(SlotsTest, ChangingTheAlgorithmEndsHolds) {
  Load({Slots("slots", 2)});
  const std::string receipt = Take("slots");
  Load({PerSecond("slots", 5)});
  EXPECT_EQ(Remaining("slots", "k"), 5);
  EXPECT_FALSE(Renewed(receipt));
  RefundCall refund;
  ASSERT_TRUE(Refund(receipt, &refund).ok());
  EXPECT_EQ(refund.outcome(), store::RefundOutcome::kExpired);
  Load({Slots("slots", 2)});
  EXPECT_FALSE(Take("slots", "k", 2).empty());
  EXPECT_FALSE(Renewed(receipt));
}

TEST_F(SlotsTest, ShadowLimitsGrantBeyondTheirSlotsAndLoseNone) {
  auto spec = Slots("slots", 1);
  spec.mode = limits::Mode::kShadow;
  Load({spec});
  const std::string held = Take("slots");
  const AcquisitionResult beyond = Acquire("slots", "k");
  ASSERT_TRUE(beyond.granted);
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kShadowDenied);
  const std::string receipt(beyond.receipt);
  EXPECT_EQ(Remaining("slots", "k"), 0);
  EXPECT_TRUE(Renewed(held));
  EXPECT_TRUE(Renewed(receipt)) << "a limit that never denies stops no caller";
}

TEST_F(SlotsTest, ResetEndsAllHolds) {
  Load({Slots("slots", 1)});
  const std::string receipt = Take("slots");
  store_.Reset(
      registry_.Current()->Find("slots")->rule(), "k", [](void*, store::ResetOutcome) {}, nullptr);
  EXPECT_FALSE(Renewed(receipt));
  EXPECT_FALSE(Take("slots").empty());
}

TEST_F(SlotsTest, RenewsEachReceiptByItself) {
  Load({Slots("slots", 1000), PerSecond("rate", 10)});
  std::vector<std::string> receipts;
  for (int i = 0; i < 200; ++i) receipts.push_back(Take("slots", i % 2 == 0 ? "a" : "b"));
  RefundCall refund;
  ASSERT_TRUE(Refund(receipts[7], &refund).ok());
  receipts.push_back("forged");
  receipts.push_back(std::string(Acquire("rate", "k", 1, {.want_receipt = true}).receipt));
  RenewCall call;
  ASSERT_TRUE(Renew(receipts, &call).ok());
  ASSERT_EQ(call.size(), 202u);
  for (size_t i = 0; i < 200; ++i) EXPECT_EQ(call.result(i).renewed, i != 7) << i;
  EXPECT_EQ(call.result(200).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(call.result(201).status.ok());
  EXPECT_FALSE(call.result(201).renewed) << "an acquisition without slots holds none";
}

// Each costs its MAC, and a long one more.
TEST_F(SlotsTest, RenewChecksWrongReceiptsInSlices) {
  Load({Slots("slots", 1)});
  ::sluice::testing::LateStore late(store_, {.shared = true}, 1);
  RateLimiter shared{registry_, late, clock_, metrics_, usage_, signer_};
  for (RateLimiter* limiter : {&limiter_, &shared}) {
    for (const size_t bytes : {100, 16 << 10}) {
      const std::string wrong(bytes, 'w');
      RenewCall call;
      call.Reset();
      for (int i = 0; i < 200; ++i) call.AddReceipt(wrong);
      call.DecideInSlices();
      size_t slices = 0;
      limiter->Renew(
          &call, store::kNoDeadline,
          [](void* context, RenewCall*) { ++*static_cast<size_t*>(context); }, &slices);
      while (call.more()) {
        EXPECT_LE(call.slice_cost(), kSliceDecisions + ReceiptCost(bytes));
        limiter->Continue(&call);
      }
      EXPECT_GE(slices, 200 * ReceiptCost(bytes) / (kSliceDecisions + ReceiptCost(bytes)));
    }
  }
}

TEST_F(SlotsTest, RenewRefusesNoneTooManyAndLateCalls) {
  Load({Slots("slots", 1)});
  RenewCall call;
  EXPECT_EQ(Renew({}, &call).message(), "receipts: 0; 1 to 4096");
  EXPECT_EQ(Renew(std::vector<std::string>(4097, "x"), &call).message(),
            "receipts: 4097; 1 to 4096");
  const std::string receipt = Take("slots");
  EXPECT_EQ(Renew({receipt}, &call, clock_.NowNs() - 1).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SlotsTest, RefusesForceAndWaits) {
  auto child = PerSecond("child", 1);
  child.max_owed = 5;
  child.charges = {"slots"};
  Load({Slots("slots", 1), child});
  const std::string owed =
      "force: true, but limit \"slots\" has algorithm concurrency, and slots cannot be owed; leave "
      "force out";
  EXPECT_EQ(ErrorOf({.force = true}), "charges[0]." + owed);
  EXPECT_EQ(Acquire("child", "k", 1, {.force = true}).status.message(), owed);
  EXPECT_EQ(ErrorOf({.max_wait = {1, 0}}),
            "max_wait: limit \"slots\" has algorithm concurrency, and it is not known when slots "
            "will be free; say hold: true to be answered when they are, or leave max_wait out and "
            "ask again after retry_after");
  EXPECT_EQ(ErrorOf({.max_wait = {1, 0}, .force = true}),
            "force: true with max_wait, but a forced debit is granted now; leave max_wait out");
  EXPECT_EQ(
      Acquire("slots", "k", 2).status.message(),
      "charges[0].permits: 2; limit \"slots\" could never grant more at once than its permits = 1");
  EXPECT_EQ(Acquire("slots", "k", 0).status.message(),
            "charges[0].permits: 0; permits must be at least 1 (leave the field out for 1)");
  EXPECT_EQ(Remaining("slots", ""), 1);
  EXPECT_EQ(Remaining("slots", "k"), 1);
}

TEST_F(SlotsTest, PutLimitRefusesWhatSlotsCannotBe) {
  const auto error = [&](const auto& change) {
    limits::LimitSpec spec = Slots("slots", 5);
    change(spec);
    return std::string(registry_.Put(spec).status().message());
  };
  EXPECT_EQ(error([](auto& spec) { spec.permits = 0; }),
            "limit.permits: \"0\": grants nothing; say at least 1");
  EXPECT_EQ(error([](auto& spec) { spec.permits.reset(); }),
            "limit.permits: is missing; say how many may be in use, e.g. permits: 100");
  EXPECT_EQ(error([](auto& spec) { spec.hold_for_ns = 0; }),
            "limit.hold_for: \"0s\": must be from 1ms to 24h");
  EXPECT_EQ(error([](auto& spec) { spec.hold_for_ns = 25 * 3600 * kSecond; }),
            "limit.hold_for: \"25h\": must be from 1ms to 24h");
  EXPECT_EQ(
      error([](auto& spec) { spec.burst = 5; }),
      "limit.burst: \"5\": concurrency has none; take it out, or say algorithm: token_bucket");
  EXPECT_EQ(error([](auto& spec) { spec.debt = 5; }),
            "limit.debt: \"5\": concurrency has none; take it out, or say algorithm: token_bucket");
  EXPECT_EQ(
      error([](auto& spec) { spec.max_owed = 5; }),
      "limit.max_owed: \"5\": concurrency has no forced debits, as slots cannot be owed; take "
      "it out");
  const std::string exact =
      "concurrency is exact, as a slot that is granted twice cannot be taken back; take it out";
  EXPECT_EQ(error([](auto& spec) { spec.sharing = store::Sharing::kSplit; }),
            "limit.sharing: \"split\": " + exact);
  EXPECT_EQ(error([](auto& spec) { spec.sharing = store::Sharing::kRelaxed; }),
            "limit.sharing: \"relaxed\": " + exact);
  EXPECT_EQ(error([](auto& spec) { spec.on_store_failure = limits::OnStoreFailure::kAllow; }),
            "limit.on_store_failure: \"allow\": " + exact);
  EXPECT_EQ(error([](auto& spec) { spec.on_store_failure = limits::OnStoreFailure::kSplit; }),
            "limit.on_store_failure: \"split\": " + exact);
  EXPECT_EQ(error([](auto& spec) {
              spec.algorithm = algorithm::Kind::kTokenBucket;
              spec.rate = {5, kSecond};
              spec.hold_for_ns.reset();
            }),
            "limit.permits: \"5\": token_bucket has none; take it out, or say algorithm: "
            "concurrency");
  EXPECT_EQ(registry_.Current()->Find("slots"), nullptr);
}

TEST_F(SlotsTest, SharedStoreTakesNoSplitLimitWithSlots) {
  limits::LimitSpec split = PerSecond("split", 10);
  split.sharing = store::Sharing::kSplit;
  Load({split, Slots("slots", 5)});
  const auto ask = [&](RateLimiter& limiter) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition({});
    call_.AddCharge("slots", "k", 1);
    call_.AddCharge("split", "k", 1);
    limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    return call_.result(0).status;
  };
  sluice::testing::LateStore shared(store_, {.shared = true}, /*seed=*/1);
  RateLimiter of_shared(registry_, shared, clock_, metrics_, usage_, signer_);
  const absl::Status status = ask(of_shared);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "charges: limit \"split\" says sharing: split, so another node could not settle or "
            "refund what this one granted together with the slots of limit \"slots\"; have "
            "\"split\" say sharing: exact or relaxed, or ask for the two separately");
  EXPECT_EQ(shared.under_way(), 0u);
  EXPECT_TRUE(ask(limiter_).ok()) << "alone, a node decides exactly";
}

TEST_F(SlotsTest, QueryShowsHoldsAndTheNextEnd) {
  Load({Slots("slots", 5)});
  Take("slots", "k", 2);
  clock_.Advance(kSecond);
  Take("slots");
  QueryCall call;
  call.Reset();
  call.AddBucket("slots", "k");
  limiter_.Query(&call, store::kNoDeadline, [](void*, QueryCall*) {}, nullptr);
  ASSERT_TRUE(call.status().ok());
  EXPECT_EQ(call.bucket(0).level.remaining, 2);
  EXPECT_EQ(call.bucket(0).level.reset_after_ns, 30 * kSecond);
  EXPECT_EQ(call.bucket(0).holds, 2u);
  EXPECT_EQ(call.bucket(0).next_end_after_ns, 29 * kSecond);
}

TEST_F(SlotsTest, AdminListsHoldsAndEndsOne) {
  Load({Slots("slots", 5), PerSecond("rate", 1)});
  const std::string receipt = Take("slots", "k", 2);
  clock_.Advance(kSecond);
  const std::string kept = Take("slots", "k", 1);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const absl::Cleanup close_null = [null] { close(null); };
  common::Log log(clock_, common::LogLevel::kError, null);
  LimitAdmin admin(limiter_.collaborators(), log, "test", [] { return limits::FileStatus(); });
  std::optional<absl::StatusOr<ListedHolds>> listed;
  const auto list = [&](std::string_view limit, uint32_t most) {
    admin.ListHolds(limit, "k", most,
                    [&](absl::StatusOr<ListedHolds> holds) { listed = std::move(holds); });
    return listed->status().code();
  };
  ASSERT_EQ(list("slots", 0), absl::StatusCode::kOk);
  ASSERT_EQ((*listed)->holds.size(), 2u);
  EXPECT_EQ((*listed)->total, 2u);
  EXPECT_EQ((*listed)->holds[0].permits, 2u);
  EXPECT_EQ((*listed)->holds[0].ends_in_ns, 29 * kSecond);
  EXPECT_EQ((*listed)->level.remaining, 2);
  const uint64_t id = (*listed)->holds[0].receipt_id;
  ASSERT_EQ(list("slots", 1), absl::StatusCode::kOk);
  EXPECT_EQ((*listed)->holds.size(), 1u);
  EXPECT_EQ((*listed)->total, 2u);
  EXPECT_EQ(list("slots", common::bounds::kMaxListHolds + 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(list("rate", 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(list("unknown", 0), absl::StatusCode::kNotFound);

  std::optional<absl::StatusOr<bool>> ended;
  const auto end = [&](uint64_t hold) {
    admin.EndHold("slots", "k", hold, [&](absl::StatusOr<bool> done) { ended = std::move(done); });
    return ended->ok() && **ended;
  };
  EXPECT_TRUE(end(id));
  EXPECT_FALSE(end(id));
  EXPECT_FALSE(end(0));
  EXPECT_FALSE(Renewed(receipt));
  EXPECT_TRUE(Renewed(kept));
  EXPECT_EQ(Remaining("slots", "k"), 4);
}

}  // namespace
}  // namespace sluice::service
