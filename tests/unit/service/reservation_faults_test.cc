// The faults that reservations of other rate limiters have had, by name, and how many estimates a
// bucket sustains.
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/service/settle_call.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using store::SettleOutcome;
using testing::HasSubstr;

class ReservationFaultsTest : public ServiceTest {
 protected:
  // `tokens`: 1,000 a second, `burst` of them at once, at most 500 owed. `slots`: 2 for 30 s.
  void Limits(uint64_t burst) {
    limits::LimitSpec tokens = PerSecond("tokens", 1'000);
    tokens.burst = burst;
    tokens.max_owed = 500;
    limits::LimitSpec slots;
    slots.name = "slots";
    slots.algorithm = algorithm::Kind::kConcurrency;
    slots.permits = 2;
    slots.hold_for_ns = 30 * kSecond;
    Load({tokens, slots});
  }

  static AcquisitionOptions Within(int64_t seconds) {
    AcquisitionOptions options;
    options.settle_within = WireDuration{seconds, 0};
    return options;
  }

  // Returns the receipt; empty: denied.
  std::string Estimate(uint64_t permits, bool slot = false) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition(Within(60));
    call_.AddCharge("tokens", "k", permits);
    if (slot) call_.AddCharge("slots", "k", 1);
    Run(&call_);
    EXPECT_TRUE(call_.result(0).status.ok()) << call_.result(0).status;
    return std::string(call_.result(0).receipt);
  }

  const SettleCall::Result& Settle(const std::string& receipt, uint64_t actual) {
    receipt_ = receipt;
    settle_.Reset(SettleCall::Form::kUnary);
    settle_.BeginSettlement();
    settle_.SetReceipt(receipt_);
    settle_.AddActual("tokens", "k", actual);
    limiter_.Settle(&settle_, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
    return settle_.result(0);
  }

  int64_t Tokens() { return Remaining("tokens", "k"); }
  int64_t Slots() { return Remaining("slots", "k"); }

  std::string receipt_;
  SettleCall settle_;
};

// A caller that crashed keeps what it reserved, and the limit is never as large again.
TEST_F(ReservationFaultsTest, PinnedHeadroom) {
  Limits(1'000);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(Estimate(500, i < 2).empty());
    EXPECT_FALSE(Estimate(500).empty());
    EXPECT_TRUE(Estimate(1).empty());
    clock_.Advance(kSecond);  // no call is settled
  }
  EXPECT_EQ(Tokens(), 1'000) << "an estimate costs what it took, once";
  EXPECT_EQ(Slots(), 2) << "slots of crashed callers come back after hold_for";
}

// Callers at the same time each see room, and reserve more than there is.
TEST_F(ReservationFaultsTest, MoreReservedThanTheLimit) {
  Limits(10'000);
  std::mutex mutex;
  uint64_t reserved = 0;
  std::vector<std::jthread> callers;
  for (int thread = 0; thread < 8; ++thread) {
    callers.emplace_back([&, thread] {
      AcquireCall call;
      uint64_t mine = 0;
      for (int i = 0; i < 200; ++i) {
        const uint64_t permits = 10 + (thread * 7 + i) % 90;
        call.Reset(AcquireCall::Form::kUnary);
        call.BeginAcquisition(Within(60));
        call.AddCharge("tokens", "k", permits);
        limiter_.Acquire(&call, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
        if (call.result(0).granted) mine += permits;
      }
      const std::lock_guard lock(mutex);
      reserved += mine;
    });
  }
  callers.clear();
  EXPECT_LE(reserved, 10'000);
  EXPECT_EQ(Tokens(), static_cast<int64_t>(10'000 - reserved));
  EXPECT_LT(Tokens(), 10) << "the last request of each size found too little";
}

TEST_F(ReservationFaultsTest, EstimateAboveTheLimitIsRefusedAndNotCut) {
  Limits(1'000);
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition(Within(60));
  call_.AddCharge("tokens", "k", 1'001);
  Run(&call_);
  EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Tokens(), 1'000);
}

// A caller that knows or guesses the name of a reservation ends it.
TEST_F(ReservationFaultsTest, ReleaseByAStrangersReceipt) {
  Limits(1'000);
  const std::string mine = Estimate(600, true);
  const std::string strangers = Estimate(100, true);
  EXPECT_EQ(Settle(strangers, 0).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Settle(strangers, 0).outcome, SettleOutcome::kSettled) << "the same answer again";
  EXPECT_EQ(Tokens(), 400) << "mine is still reserved";
  EXPECT_EQ(Slots(), 1);
  for (size_t i = 0; i < mine.size(); ++i) {  // nor does a receipt that was changed in any byte
    std::string guessed = mine;
    guessed[i] ^= 1;
    const SettleCall::Result& result = Settle(guessed, 0);
    ASSERT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << i;
    ASSERT_THAT(std::string(result.status.message()), HasSubstr("receipt"));
  }
  EXPECT_EQ(Tokens(), 400);
  EXPECT_EQ(Slots(), 1);
}

// The reservation ends before the call does, and what the call uses is never charged.
TEST_F(ReservationFaultsTest, ExpiryDuringTheCall) {
  Limits(1'000);
  const std::string receipt = Estimate(600, true);
  clock_.Advance(61 * kSecond);
  Estimate(1'000);  // the refill of a minute, used by another call
  EXPECT_EQ(Settle(receipt, 900).outcome, SettleOutcome::kLate);
  EXPECT_EQ(settle_.charge(0).permits.charged, 300u) << "all beyond the estimate";
  EXPECT_EQ(Tokens(), -300);
  EXPECT_EQ(Slots(), 2);
}

// A field that the caller leaves out means: no limit.
TEST_F(ReservationFaultsTest, DefaultThatProtectsNobody) {
  Limits(1'000);
  EXPECT_TRUE(Acquire("tokens", "k", 1, Within(60)).granted);
  const std::string large = Estimate(900);
  settle_.Reset(SettleCall::Form::kUnary);
  settle_.BeginSettlement();
  settle_.SetReceipt(large);
  limiter_.Settle(&settle_, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
  EXPECT_EQ(settle_.result(0).outcome, SettleOutcome::kSettled);
  EXPECT_EQ(Tokens(), 99) << "without an actual it costs the estimate";
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition(Within(60));
  call_.AddCharge("tokens", "k", 0);
  Run(&call_);
  EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kInvalidArgument)
      << "0 is no estimate";
  call_.Reset(AcquireCall::Form::kUnary);
  call_.BeginAcquisition(Within(60));
  call_.AddCharge("no-such-limit", "k", 1);
  Run(&call_);
  EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kNotFound) << "not: unlimited";
}

struct Traffic {
  uint64_t burst;
  uint64_t estimate;
  uint64_t actual;
  int64_t sustained;  // permits a second, where 1,000 are configured
};

class SizingTest : public ReservationFaultsTest, public testing::WithParamInterface<Traffic> {};

// Calls of ten seconds, as many as are granted. docs/recipes/README.md has this table.
TEST_P(SizingTest, EstimatesInFlightFitBurstAndRateTimesDuration) {
  const Traffic& traffic = GetParam();
  Limits(traffic.burst);
  struct InFlight {
    int64_t end_ns;
    std::string receipt;
  };
  std::deque<InFlight> in_flight;
  uint64_t begun = 0;
  for (int64_t now = 0; now < 120 * kSecond; now += kSecond / 20) {
    for (; !in_flight.empty() && in_flight.front().end_ns <= now; in_flight.pop_front()) {
      ASSERT_EQ(Settle(in_flight.front().receipt, traffic.actual).outcome, SettleOutcome::kSettled);
    }
    for (;;) {
      const std::string receipt = Estimate(traffic.estimate);
      if (receipt.empty()) break;
      in_flight.push_back({now + 10 * kSecond, receipt});
      if (now >= 20 * kSecond) ++begun;
    }
    clock_.Advance(kSecond / 20);
  }
  EXPECT_NEAR(static_cast<double>(begun * traffic.actual) / 100,
              static_cast<double>(traffic.sustained), static_cast<double>(traffic.sustained) / 50);
}

INSTANTIATE_TEST_SUITE_P(CallsOfTenSeconds, SizingTest,
                         testing::Values(Traffic{1'000, 100, 100, 1'000},  //
                                         Traffic{1'000, 100, 50, 550},     //
                                         Traffic{10'000, 100, 50, 1'000},  //
                                         Traffic{1'000, 100, 10, 110},     //
                                         Traffic{10'000, 100, 10, 200},    //
                                         Traffic{90'000, 100, 10, 1'000}));

}  // namespace
}  // namespace sluice::service
