// Estimates: what is sent, repeated and charged, by calls and by guards that are dropped.
#include "sluice/estimate.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/src/round_robin.h"
#include "gtest/gtest.h"
#include "sluice/client.h"
#include "sluice/fake_connection.h"
#include "tests/unit/client/forwarding_connection.h"

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Status kLost = Status::MaybeExecuted(StatusCode::kUnavailable, "connection reset");

// For example "tokens 5", "tokens 5 more".
std::string Text(const Settlement& settlement) {
  std::string text;
  for (const Charge& charge : settlement.actual) {
    text += (text.empty() ? "" : ", ") + charge.limit + " " + std::to_string(charge.permits);
  }
  return text + (settlement.more ? " more" : "");
}

class EstimateTest : public ::testing::Test {
 protected:
  EstimateTest() {
    fake_->SetPermits("tokens", "u", 1000);
    fake_->SetPermits("bytes", "u", 1000);
    fake_->SetPermits("jobs", "", 2);
    fake_->SetHoldFor("jobs", seconds(30));
  }

  static Acquisition Of(uint64_t tokens) {
    Acquisition acquisition("tokens", "u", tokens);
    acquisition.settle_within = minutes(2);
    return acquisition;
  }
  Estimate Take(uint64_t tokens, EstimateOptions options = {}) {
    options.on_settled = [this](const Result<SettleResult>& result) { dropped_.push_back(result); };
    Result<Estimate> estimate = client_.AcquireEstimate(Of(tokens), std::move(options));
    EXPECT_TRUE(estimate.ok()) << estimate.status();
    return *std::move(estimate);
  }
  int64_t Left(const std::string& limit = "tokens", const std::string& key = "u") {
    const std::vector<Bucket> bucket = {{limit, key}};
    return client_.Query(bucket)->front().remaining;
  }
  std::vector<std::string> Sent() const {
    std::vector<std::string> texts;
    for (const Settlement& one : fake_->settlements()) texts.push_back(Text(one));
    return texts;
  }

  const std::shared_ptr<FakeConnection> fake_ = std::make_shared<FakeConnection>();
  // One attempt for each call, so that the tests count them.
  Client client_{fake_, {.servers = {}, .retry = {.max_attempts = 1}}};
  std::vector<Result<SettleResult>> dropped_;
};

TEST_F(EstimateTest, SettlesWithTheActualUseOnce) {
  {
    Estimate estimate = Take(400);
    EXPECT_TRUE(estimate.granted());
    EXPECT_EQ(Left(), 600);
    const Result<SettleResult> settled = estimate.Settle(100);
    ASSERT_TRUE(settled.ok()) << settled.status();
    EXPECT_EQ(settled->outcome, SettleOutcome::kSettled);
    EXPECT_EQ(Left(), 900);
    EXPECT_EQ(estimate.Settle(100)->outcome, SettleOutcome::kSettled) << "the same again";
    EXPECT_EQ(estimate.Settle(101)->outcome, SettleOutcome::kAlreadySettled);
  }
  EXPECT_EQ(Sent().size(), 3u) << "the destructor has nothing to do";
  EXPECT_THAT(dropped_, IsEmpty());
}

TEST_F(EstimateTest, StaysChargedIfItIsDropped) {
  {
    const Estimate estimate = Take(400);
  }
  EXPECT_EQ(Left(), 600);
  EXPECT_THAT(Sent(), ElementsAre("")) << "as taken, so that the server forgets it";
  ASSERT_EQ(dropped_.size(), 1u);
  EXPECT_EQ(dropped_[0]->outcome, SettleOutcome::kSettled);
}

TEST_F(EstimateTest, ExceptionsDropItAsConfigured) {
  const auto fail_within = [&](EstimateOptions options) {
    try {
      const Estimate estimate = Take(400, std::move(options));
      throw std::runtime_error("the work failed");
    } catch (const std::runtime_error&) {
    }
  };
  fail_within({.if_dropped = IfDropped::kRefund});
  EXPECT_EQ(Left(), 1000);
  EXPECT_EQ(fake_->refunds(), 1);
  fail_within({.if_dropped = IfDropped::kActual, .actual = {{"tokens", "u", 30}}});
  EXPECT_EQ(Left(), 970);
  fail_within({.if_dropped = IfDropped::kCharge});
  EXPECT_EQ(Left(), 570);
  EXPECT_THAT(Sent(), ElementsAre("tokens 30", ""));
  EXPECT_EQ(dropped_.size(), 3u);
}

TEST_F(EstimateTest, MoreChargesWhatExceedsTheEstimate) {
  Estimate estimate = Take(100);
  EXPECT_TRUE(estimate.More(80).ok());
  EXPECT_EQ(Left(), 900) << "nothing comes back while the work goes on";
  EXPECT_TRUE(estimate.More(300).ok());
  EXPECT_EQ(Left(), 700);
  EXPECT_TRUE(estimate.Settle(350).ok());
  EXPECT_EQ(Left(), 650);
  EXPECT_THAT(Sent(), ElementsAre("tokens 80 more", "tokens 300 more", "tokens 350"));
  EXPECT_EQ(estimate.More(400).status().code(), StatusCode::kFailedPrecondition);
}

// What More has reported is the least that a dropped estimate charges.
TEST_F(EstimateTest, DroppedAfterMoreItChargesWhatWasReported) {
  const auto drop_after = [&](uint64_t more, EstimateOptions options) {
    Estimate estimate = Take(100, std::move(options));
    EXPECT_TRUE(estimate.More(more).ok());
  };
  drop_after(80, {.if_dropped = IfDropped::kRefund});
  EXPECT_EQ(Left(), 920);
  drop_after(80, {.if_dropped = IfDropped::kActual, .actual = {{"tokens", "u", 30}}});
  EXPECT_EQ(Left(), 840);
  drop_after(80, {.if_dropped = IfDropped::kCharge});
  EXPECT_EQ(Left(), 740);
  drop_after(140, {.if_dropped = IfDropped::kCharge});
  EXPECT_EQ(Left(), 600);
  EXPECT_EQ(fake_->refunds(), 0);
}

TEST_F(EstimateTest, DroppedWithRefundAfterMoreItGivesBackWhatMoreDidNotName) {
  Acquisition call = Of(100);
  call.charges.push_back({"bytes", "u", 50});
  call.charges.push_back({"jobs", "", 1});
  {
    Result<Estimate> estimate = client_.AcquireEstimate(call, {.if_dropped = IfDropped::kRefund});
    ASSERT_TRUE(estimate.ok());
    EXPECT_TRUE(estimate->More(10).ok());
  }
  EXPECT_THAT(Sent(), ElementsAre("tokens 10 more", "tokens 10, bytes 0"))
      << "slots have no actual";
  EXPECT_EQ(Left(), 990);
  EXPECT_EQ(Left("bytes"), 1000);
}

// Also if the server has not told whether it knows of the report.
TEST_F(EstimateTest, ReportsThatWereLostAreInTheNextSettlement) {
  {
    Estimate estimate = Take(100);
    fake_->FailNextSettle(kLost);
    EXPECT_EQ(estimate.More(300).status(), kLost);
  }
  EXPECT_THAT(Sent(), ElementsAre("tokens 300 more", "tokens 300"));
  EXPECT_EQ(Left(), 700);
}

TEST_F(EstimateTest, RefusesAnActualThatFalls) {
  Estimate estimate = Take(100);
  EXPECT_TRUE(estimate.More(80).ok());
  const Status falls = estimate.More(79).status();
  EXPECT_EQ(falls.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(falls.message(), HasSubstr("actual of limit \"tokens\" is 79, below the 80"));
  EXPECT_EQ(estimate.Settle(79).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(estimate.Settle(80).ok());
}

// A typing error must not decide what the guard charges.
TEST_F(EstimateTest, WhatTheServerRefusesLeavesItOpen) {
  Estimate estimate = Take(100);
  fake_->FailNextSettle(Status(StatusCode::kInvalidArgument, "actual[0].limit: not charged"), 2);
  EXPECT_FALSE(estimate.More({{"tokns", "u", 900}}).ok());
  EXPECT_FALSE(estimate.Settle({{"tokens", "u", 1'000'000}}).ok());
  EXPECT_TRUE(estimate.Settle(7).ok());
  EXPECT_EQ(Sent().back(), "tokens 7");
  EXPECT_EQ(Left(), 993);
}

TEST_F(EstimateTest, ChargesThatACallDoesNotNameAreAsTheyWereNamedLast) {
  Acquisition both = Of(100);
  both.charges.push_back({"bytes", "u", 50});
  Result<Estimate> estimate = client_.AcquireEstimate(both);
  ASSERT_TRUE(estimate.ok());
  EXPECT_TRUE(estimate->More({{"bytes", "u", 70}}).ok());
  EXPECT_TRUE(estimate->More(10).ok());
  EXPECT_TRUE(estimate->Settle({}).ok());
  EXPECT_EQ(Sent().back(), "tokens 10, bytes 70");
  EXPECT_EQ(Left(), 990);
  EXPECT_EQ(Left("bytes"), 930);
}

// While one is under way, only the newest number waits.
TEST_F(EstimateTest, JoinsWhatIsReportedMeanwhile) {
  Estimate estimate = Take(100);
  fake_->HangNextSettle();
  std::vector<int> answered;
  for (int i = 1; i <= 50; ++i) {
    estimate.MoreAsync(i, [&answered, i](const Result<SettleResult>& result) {
      EXPECT_TRUE(result.ok());
      answered.push_back(i);
    });
  }
  EXPECT_THAT(Sent(), ElementsAre("tokens 1 more"));
  EXPECT_THAT(answered, IsEmpty());
  fake_->ReleaseHung();
  EXPECT_THAT(Sent(), ElementsAre("tokens 1 more", "tokens 50 more"));
  EXPECT_EQ(answered.size(), 50u);
  // The last one waits, too, and takes what is before it along.
  fake_->HangNextSettle();
  estimate.MoreAsync(60);
  estimate.MoreAsync(70);
  std::optional<Result<SettleResult>> settled;
  estimate.SettleAsync(65 + 10, [&](Result<SettleResult> result) { settled = std::move(result); });
  fake_->ReleaseHung();
  EXPECT_TRUE(settled.has_value() && settled->ok());
  EXPECT_EQ(Sent().size(), 4u);
  EXPECT_EQ(Sent().back(), "tokens 75");
}

TEST_F(EstimateTest, AGuardDroppedWhileItSettlesSendsNothingFurther) {
  fake_->HangNextSettle();
  {
    Estimate estimate = Take(100);
    estimate.SettleAsync(40);
  }
  EXPECT_THAT(dropped_, IsEmpty());
  fake_->ReleaseHung();
  EXPECT_THAT(Sent(), ElementsAre("tokens 40"));
  EXPECT_EQ(Left(), 960);
  EXPECT_EQ(dropped_.size(), 1u) << "no other thread waited for the answer";
}

// The first one was carried out, and its answer lost.
TEST_F(EstimateTest, RepeatsASettlementOfUnknownOutcomeUntilItIsAnswered) {
  {
    Estimate estimate = Take(100);
    fake_->HangNextSettle();
    std::optional<Status> answer;
    estimate.SettleAsync(40, [&](const Result<SettleResult>& one) { answer = one.status(); });
    fake_->Advance(seconds(2));
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(answer->may_have_executed());
    fake_->FailNextSettle(kLost, 5);
  }
  fake_->Advance(minutes(1));
  EXPECT_THAT(Sent(), ::testing::Each("tokens 40"));
  EXPECT_EQ(Sent().size(), 7u);
  EXPECT_EQ(Left(), 960) << "charged once";
  ASSERT_EQ(dropped_.size(), 1u);
  EXPECT_EQ(dropped_[0]->outcome, SettleOutcome::kSettled);
  fake_->Advance(minutes(60));
  EXPECT_EQ(Sent().size(), 7u);
}

TEST_F(EstimateTest, RepeatsARefundOfUnknownOutcome) {
  {
    Estimate estimate = Take(100);
    fake_->FailNextRefund(kLost, 3);
    EXPECT_EQ(estimate.Refund().status(), kLost);
    EXPECT_EQ(estimate.Settle(5).status().code(), StatusCode::kFailedPrecondition);
  }
  fake_->Advance(minutes(1));
  EXPECT_EQ(fake_->refunds(), 4);
  EXPECT_EQ(Left(), 1000);
  EXPECT_THAT(Sent(), IsEmpty());
}

// Two minutes to settle in, ten in which the server keeps it.
TEST_F(EstimateTest, GivesUpWhenTheServerHasForgottenIt) {
  fake_->FailNextSettle(kLost, 1'000'000);
  {
    const Estimate estimate = Take(100);
  }
  fake_->Advance(minutes(11));
  EXPECT_THAT(dropped_, IsEmpty());
  fake_->Advance(minutes(2));
  ASSERT_EQ(dropped_.size(), 1u);
  EXPECT_EQ(dropped_[0].status(), kLost);
  const size_t sent = Sent().size();
  // Pauses of up to ten seconds, give or take a half.
  EXPECT_GT(sent, 12u * 60 / 15);
  EXPECT_LT(sent, 12u * 60 / 5 + 10);
  fake_->Advance(minutes(60));
  EXPECT_EQ(Sent().size(), sent);
}

TEST_F(EstimateTest, SettlesAtAnotherServerIfTheOneThatGrantedIsUnavailable) {
  const auto other = std::make_shared<FakeConnection>();
  auto both = std::make_shared<client_internal::RoundRobin>(
      std::vector<std::shared_ptr<Connection>>{fake_, other});
  Client client(both, {.servers = {}, .retry = {.max_attempts = 1}});
  std::vector<Result<SettleResult>> answers;
  EstimateOptions options;
  options.on_settled = [&](const Result<SettleResult>& result) { answers.push_back(result); };
  // It has another store, and knows nothing of the receipt: that proves nothing.
  other->FailNextSettle(Status(StatusCode::kInvalidArgument, "issued by another server"));
  fake_->FailNextSettle(kLost, 1'000'000);
  {
    ASSERT_TRUE(client.AcquireEstimate(Of(100), options, {.server = 0})->granted());
  }
  for (int i = 0; i < 60; ++i) {
    fake_->Advance(seconds(1));
    other->Advance(seconds(1));
  }
  EXPECT_EQ(other->settlements().size(), 2u);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].ok()) << answers[0].status();
}

TEST_F(EstimateTest, ReservationsAreRefundedBeforeTheirGrantTime) {
  class Later final : public testing::ForwardingConnection {
   public:
    using ForwardingConnection::ForwardingConnection;
    void Acquire(const Acquisition& asked, const Call& call, Callback<Decision> done) override {
      ForwardingConnection::Acquire(asked, call, [done = std::move(done)](Result<Decision> result) {
        if (result.ok()) result->wait = seconds(5);
        done(std::move(result));
      });
    }
  };
  Client client(std::make_shared<Later>(fake_), {.servers = {}});
  Result<Estimate> one = client.AcquireEstimate(Of(100));
  Result<Estimate> two = client.AcquireEstimate(Of(100));
  ASSERT_TRUE(one.ok() && two.ok());
  fake_->Advance(milliseconds(4'999));
  *one = Estimate();
  EXPECT_EQ(fake_->refunds(), 1) << "its work cannot have begun";
  fake_->Advance(milliseconds(1));
  *two = Estimate();
  EXPECT_EQ(fake_->refunds(), 1);
  EXPECT_THAT(Sent(), ElementsAre(""));
}

TEST_F(EstimateTest, HoldsTheSlotsOfItsAcquisitionUntilItIsSettled) {
  Acquisition call = Of(100);
  call.charges.push_back({"jobs", "", 1});
  int lost = 0;
  const EstimateOptions options = {.on_lost = [&](const Status&) { ++lost; }};
  Result<Estimate> one = client_.AcquireEstimate(call, options);
  ASSERT_TRUE(one.ok() && one->permit().held());
  fake_->Advance(minutes(1));
  EXPECT_TRUE(one->permit().held());
  EXPECT_EQ(fake_->renewals().size(), 6u);
  EXPECT_EQ(Left("jobs", ""), 1);
  EXPECT_TRUE(one->Settle(50).ok());
  EXPECT_FALSE(one->permit().held());
  EXPECT_EQ(Left("jobs", ""), 2);
  EXPECT_THAT(Sent(), ElementsAre("tokens 50")) << "one settlement ends both";
  fake_->Advance(minutes(1));
  EXPECT_EQ(fake_->renewals().size(), 6u);

  one = client_.AcquireEstimate(call, options);
  fake_->EndHolds();
  fake_->Advance(seconds(10));
  EXPECT_EQ(lost, 1);
  EXPECT_FALSE(one->permit().held());
  EXPECT_TRUE(one->granted()) << "the rates stay charged until it is settled";
}

TEST_F(EstimateTest, HoldsItsSlotsAfterASettlementThatIsNotSent) {
  Acquisition call = Of(100);
  call.charges.push_back({"jobs", "", 1});
  int lost = 0;
  Result<Estimate> one = client_.AcquireEstimate(call, {.on_lost = [&](const Status&) { ++lost; }});
  ASSERT_TRUE(one.ok());
  EXPECT_TRUE(one->More(80).ok());
  EXPECT_EQ(one->Settle(70).status().code(), StatusCode::kInvalidArgument) << "not sent";
  EXPECT_EQ(one->Refund().status().code(), StatusCode::kFailedPrecondition) << "not sent";
  EXPECT_TRUE(one->permit().held());
  fake_->Advance(minutes(1));
  EXPECT_TRUE(one->permit().held());
  EXPECT_EQ(Left("jobs", ""), 1);
  fake_->FailNextSettle(kLost);
  EXPECT_EQ(one->Settle(90).status(), kLost);
  EXPECT_FALSE(one->permit().held()) << "the server may have ended them";
  EXPECT_TRUE(one->Settle(90).ok());
  EXPECT_EQ(Left("jobs", ""), 2);
  EXPECT_EQ(lost, 0);
}

TEST_F(EstimateTest, DenialsAndGrantsWithoutAServerHaveNothingToSettle) {
  Estimate denied = Take(2000);
  EXPECT_FALSE(denied.granted());
  EXPECT_EQ(denied.Settle(5).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(denied.Refund().status().code(), StatusCode::kFailedPrecondition);
  fake_->FailNext(kLost);
  Result<Estimate> open =
      client_.AcquireEstimate(Of(1), {}, {.on_unavailable = OnUnavailable::kAllow});
  ASSERT_TRUE(open.ok());
  EXPECT_TRUE(open->granted());
  const Status nothing = open->More(5).status();
  EXPECT_EQ(nothing.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(nothing.message(), HasSubstr("UNAVAILABLE: connection reset"));
  open->MoreAsync(5);
  Estimate none;
  EXPECT_FALSE(none.granted());
  EXPECT_FALSE(none.Settle(1).ok());
  EXPECT_THAT(Sent(), IsEmpty());
}

TEST_F(EstimateTest, NamesWhatIsMissing) {
  const Status without = client_.AcquireEstimate(Acquisition("tokens", "u")).status();
  EXPECT_EQ(without.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(without.message(), HasSubstr("settle_within is 0"));
  const Status empty = client_.AcquireEstimate(Of(1), {.if_dropped = IfDropped::kActual}).status();
  EXPECT_THAT(empty.message(), HasSubstr("EstimateOptions::actual is empty"));
  EXPECT_THAT(fake_->acquisitions(), IsEmpty());
}

TEST_F(EstimateTest, Moves) {
  Estimate one = Take(100);
  Estimate two = std::move(one);
  EXPECT_FALSE(one.granted());  // NOLINT(bugprone-use-after-move)
  Estimate other = Take(200);
  other = std::move(two);
  EXPECT_THAT(Sent(), ElementsAre("")) << "what it had before";
  EXPECT_TRUE(other.Settle(10).ok());
  EXPECT_EQ(Left(), 1000 - 200 - 10);
}

TEST_F(EstimateTest, OutlivesItsClient) {
  std::optional<Estimate> estimate;
  std::vector<Status> answers;
  {
    Client client(fake_, {.servers = {}});
    estimate = *client.AcquireEstimate(Of(10), {.on_settled = [&](const Result<SettleResult>& one) {
                                         answers.push_back(one.status());
                                       }});
  }
  EXPECT_EQ(estimate->Settle(5).status().code(), StatusCode::kCancelled);
  estimate.reset();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].code(), StatusCode::kCancelled);
}

// What waits for another attempt ends with its client.
TEST_F(EstimateTest, ADestroyedClientEndsTheRepetitions) {
  std::vector<Status> answers;
  {
    Client client(fake_, {.servers = {}});
    fake_->FailNextSettle(kLost, 1'000'000);
    const Result<Estimate> dropped = client.AcquireEstimate(
        Of(10),
        {.on_settled = [&](const Result<SettleResult>& one) { answers.push_back(one.status()); }});
    ASSERT_TRUE(dropped.ok());
  }
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].code(), StatusCode::kCancelled);
}

TEST_F(EstimateTest, ThreadsSettleAndDropThem) {
  constexpr int kThreads = 16;
  constexpr int kEach = 300;
  fake_->SetPermits("tokens", "u", 10'000'000);
  std::atomic<int> settled{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        if (i % 50 == 0) fake_->FailNextSettle(kLost, 2);
        EstimateOptions options = {.if_dropped = IfDropped::kActual,
                                   .actual = {{"tokens", "u", 7}}};
        options.on_settled = [&](const Result<SettleResult>& result) { settled += result.ok(); };
        // What is dropped is repeated until 10 minutes after the end, which must be far: the clock
        // does not wait for a thread that the system lets wait.
        Acquisition acquisition = Of(100);
        acquisition.settle_within = hours(24);
        Result<Estimate> estimate = client_.AcquireEstimate(acquisition, std::move(options));
        ASSERT_TRUE(estimate.ok() && estimate->granted());
        estimate->MoreAsync(3);
        if (i % 3 == 0) continue;
        if (i % 3 == 1) {
          settled += estimate->Settle(7).ok();
        } else {
          estimate->SettleAsync(7);
        }
      }
    });
  }
  std::atomic<bool> done{false};
  std::thread clock([&] {
    while (!done.load()) fake_->Advance(milliseconds(20));
  });
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  clock.join();
  fake_->Advance(minutes(1));
  EXPECT_EQ(fake_->settled(), size_t{kThreads * kEach});
  EXPECT_EQ(Left(), 10'000'000 - 7 * kThreads * kEach);
}

}  // namespace
}  // namespace sluice
