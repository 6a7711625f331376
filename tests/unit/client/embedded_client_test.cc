// Clients without a server: permits, estimates and waiting over the engine in the process.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sluice/client.h"
#include "sluice/embedded_connection.h"
#include "sluice/throttler.h"
#include "tests/support/decision_fields.h"

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

std::vector<LimitInfo> Limits(uint64_t jobs = 2) {
  return {{.name = "jobs", .algorithm = "concurrency", .permits = jobs, .hold_for = seconds(30)},
          {.name = "tokens", .rate = {1000, hours(24)}, .max_owed = 1000},
          {.name = "calls", .rate = {10, seconds(1)}, .charges = {"jobs"}}};
}

class EmbeddedClientTest : public ::testing::Test {
 protected:
  BucketStatus Look(const std::string& limit, const std::string& key = "") {
    const std::vector<Bucket> bucket = {{limit, key}};
    const auto answer = client_.Query(bucket);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer->front();
  }
  static Acquisition Waiting(uint64_t permits = 1) {
    Acquisition acquisition("jobs", "", permits);
    acquisition.hold = true;
    acquisition.max_wait = minutes(10);
    return acquisition;
  }

  const std::shared_ptr<VirtualClock> clock_ = std::make_shared<VirtualClock>();
  const std::shared_ptr<Embedded> embedded_ = *Embedded::Create(Limits(), {.clock = clock_});
  Client client_{ConnectEmbedded(embedded_), {.servers = {}}};
};

TEST_F(EmbeddedClientTest, HoldsSlotsForAsLongAsThePermitLives) {
  {
    const Result<Permit> one = client_.AcquirePermit(Acquisition("jobs"));
    Result<Permit> two = client_.AcquirePermit(Acquisition("jobs"));
    ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
    EXPECT_FALSE(client_.AcquirePermit(Acquisition("jobs"))->held());
    clock_->Advance(minutes(10));
    EXPECT_TRUE(one->held() && two->held()) << "renewed";
    EXPECT_EQ(Look("jobs").holds, 2u);
    EXPECT_TRUE(two->Release().ok());
    EXPECT_EQ(Look("jobs").holds, 1u);
  }
  EXPECT_EQ(Look("jobs").remaining, 2);
}

// A program that forgets a receipt gets its slots back, as at a server.
TEST_F(EmbeddedClientTest, SlotsEndThatAreNotRenewed) {
  const Result<Decision> decision = client_.Acquire("jobs", "");
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision->charges[0].held_for, seconds(30));
  clock_->Advance(seconds(30) - nanoseconds(1));
  EXPECT_EQ(Look("jobs").holds, 1u);
  clock_->Advance(nanoseconds(1));
  EXPECT_EQ(Look("jobs").holds, 0u);
}

TEST_F(EmbeddedClientTest, DecisionsHaveAllTheirFields) {
  Acquisition forced("tokens", "k", 3000);
  forced.force = true;
  Acquisition booked("tokens", "later");
  booked.max_wait = minutes(10);
  Acquisition once("tokens", "once");
  once.request_id = std::string(16, 'r');
  testing::FieldsSet set;
  for (const Acquisition& acquisition :
       {Acquisition("calls"), forced, Acquisition("tokens", "k"), once, once,
        Acquisition("tokens", "later", 1000), booked}) {
    const Result<Decision> decision = client_.Acquire(acquisition);
    ASSERT_TRUE(decision.ok()) << decision.status();
    testing::AddFields(*decision, &set);
  }
  for (const auto& [field, is_set] : set) EXPECT_TRUE(is_set) << field;
}

TEST_F(EmbeddedClientTest, PermitsAreLostWhenTheirSlotsAreTakenBack) {
  int lost = 0;
  const Result<Permit> permit =
      client_.AcquirePermit(Acquisition("jobs"), {.on_lost = [&](const Status&) { ++lost; }});
  ASSERT_TRUE(permit.ok());
  // Another algorithm ends all holds.
  ASSERT_TRUE(embedded_->SetLimits({{.name = "jobs", .rate = {5, seconds(1)}}}).ok());
  clock_->Advance(seconds(30));
  EXPECT_EQ(lost, 1);
  EXPECT_FALSE(permit->held());
}

TEST_F(EmbeddedClientTest, ServesWaitingCallersInTheirOrder) {
  std::optional<Permit> first = *client_.AcquirePermit(Acquisition("jobs", "", 2));
  std::vector<int> order;
  std::vector<Permit> served;
  // No small request passes the large one before it, also from another client.
  Client other(ConnectEmbedded(embedded_), {.servers = {}});
  client_.AcquirePermitAsync(Waiting(2), {}, [&](Result<Permit> permit) {
    ASSERT_TRUE(permit.ok() && permit->held()) << permit.status();
    order.push_back(2);
    served.push_back(*std::move(permit));
  });
  other.AcquirePermitAsync(Waiting(1), {}, [&](Result<Permit> permit) {
    ASSERT_TRUE(permit.ok() && permit->held()) << permit.status();
    order.push_back(1);
    served.push_back(*std::move(permit));
  });
  EXPECT_EQ(Look("jobs").waiting, 2u);
  clock_->Advance(minutes(1));
  EXPECT_TRUE(order.empty());
  first.reset();
  clock_->Advance(milliseconds(1));
  EXPECT_THAT(order, ::testing::ElementsAre(2));
  served.clear();
  clock_->Advance(milliseconds(1));
  EXPECT_THAT(order, ::testing::ElementsAre(2, 1));
}

// One caller is always in line, so the alarm is always set, and those behind it bring it forward.
TEST_F(EmbeddedClientTest, WaitingCallersShareOneTimer) {
  const Result<Permit> both = client_.AcquirePermit(Acquisition("jobs", "", 2));
  client_.AcquirePermitAsync(Waiting(), {}, [](const Result<Permit>&) {});
  clock_->Advance(milliseconds(1));
  const size_t timers = clock_->timers();
  int denied = 0;
  for (int i = 0; i < 100; ++i) {
    Acquisition brief = Waiting();
    brief.max_wait = milliseconds(5);
    client_.AcquirePermitAsync(brief, {}, [&](const Result<Permit>& permit) {
      denied += permit.ok() && !permit->held() ? 1 : 0;
    });
    clock_->Advance(milliseconds(10));
  }
  EXPECT_EQ(denied, 100);
  EXPECT_EQ(clock_->timers(), timers);
}

TEST_F(EmbeddedClientTest, ARaisedLimitServesThoseThatWait) {
  const Result<Permit> both = client_.AcquirePermit(Acquisition("jobs", "", 2));
  std::optional<bool> held;
  client_.AcquirePermitAsync(Waiting(), {},
                             [&](const Result<Permit>& permit) { held = permit->held(); });
  ASSERT_TRUE(embedded_->SetLimits(Limits(3)).ok());
  clock_->Advance(milliseconds(1));
  EXPECT_EQ(held, true);
}

TEST_F(EmbeddedClientTest, ADestroyedClientLeavesTheLine) {
  const Result<Permit> both = client_.AcquirePermit(Acquisition("jobs", "", 2));
  std::optional<Status> answer;
  {
    Client other(ConnectEmbedded(embedded_), {.servers = {}});
    other.AcquirePermitAsync(Waiting(), {},
                             [&](const Result<Permit>& permit) { answer = permit.status(); });
    EXPECT_EQ(Look("jobs").waiting, 1u);
  }
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code(), StatusCode::kCancelled);
  EXPECT_EQ(Look("jobs").waiting, 0u);
}

TEST_F(EmbeddedClientTest, EstimatesAreSettledWithWhatTheWorkTook) {
  Acquisition call("tokens", "u", 400);
  call.charges.push_back({"jobs", "", 1});
  call.settle_within = minutes(2);
  {
    Result<Estimate> estimate = client_.AcquireEstimate(call);
    ASSERT_TRUE(estimate.ok() && estimate->granted()) << estimate.status();
    EXPECT_TRUE(estimate->permit().held());
    EXPECT_EQ(Look("tokens", "u").remaining, 600);
    EXPECT_TRUE(estimate->More(450).ok());
    EXPECT_EQ(Look("tokens", "u").remaining, 550);
    const Result<SettleResult> settled = estimate->Settle(460);
    ASSERT_TRUE(settled.ok()) << settled.status();
    EXPECT_EQ(settled->outcome, SettleOutcome::kSettled);
    EXPECT_EQ(settled->charges[0].charged, 60u);
    EXPECT_EQ(Look("tokens", "u").remaining, 540);
    EXPECT_EQ(Look("jobs").holds, 0u);
  }
  {
    const auto dropped = client_.AcquireEstimate(call);
  }
  EXPECT_EQ(Look("tokens", "u").remaining, 140);
  EXPECT_EQ(Look("jobs").holds, 0u);
  call.charges[0].permits = 100;
  {
    const auto refunded = client_.AcquireEstimate(call, {.if_dropped = IfDropped::kRefund});
  }
  EXPECT_EQ(Look("tokens", "u").remaining, 140);
  const Status unknown = client_.AcquirePermit(Acquisition("jbos")).status();
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  EXPECT_THAT(unknown.message(), HasSubstr("\"jobs\""));
}

TEST_F(EmbeddedClientTest, SettlesSeveralEstimatesInOneCall) {
  std::vector<Settlement> batch;
  for (const char* key : {"u", "v"}) {
    Acquisition call("tokens", key, 400);
    call.settle_within = minutes(2);
    batch.push_back({client_.Acquire(call)->receipt, {{"tokens", key, 100}}});
  }
  batch.push_back({"of a stranger"});
  const Result<BatchSettlements> results = client_.SettleBatch(batch);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE((*results)[i].ok()) << (*results)[i].status();
    EXPECT_EQ((*results)[i]->outcome, SettleOutcome::kSettled);
    EXPECT_EQ((*results)[i]->charges[0].given_back, 300u);
  }
  EXPECT_EQ((*results)[2].status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT((*results)[2].status().message(), HasSubstr("receipt"));
  EXPECT_EQ(Look("tokens", "u").remaining, 900);
  EXPECT_EQ(Look("tokens", "v").remaining, 900);
  batch.resize(4097);
  EXPECT_EQ(client_.SettleBatch(batch).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EmbeddedClientTest, SharesBucketsWithThrottlers) {
  const Throttler throttler = *Throttler::Create(embedded_, {.limit = "tokens", .key = "u"});
  EXPECT_EQ(throttler.TryStart(300)->count(), 0);
  EXPECT_EQ(Look("tokens", "u").remaining, 700);
  EXPECT_TRUE(client_.Acquire("tokens", "u", 700)->granted);
  EXPECT_GT(throttler.TryStart(1)->count(), 0);
}

TEST_F(EmbeddedClientTest, ThrottlersRefuseSlots) {
  const Status jobs = Throttler::Create(embedded_, {.limit = "jobs"}).status();
  EXPECT_EQ(jobs.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(jobs.message(),
              HasSubstr("limit \"jobs\" has slots, which a throttler does not hold"));
  // Also those that its limit charges.
  const Throttler calls = *Throttler::Create(embedded_, {.limit = "calls"});
  EXPECT_THAT(calls.TryStart().status().message(), HasSubstr("limit \"jobs\" has slots"));
  EXPECT_THAT(calls.Start().message(), HasSubstr("limit \"jobs\" has slots"));
  EXPECT_EQ(Look("jobs").holds, 0u);
}

// With the system's clock. Threads that wait stand in line.
TEST(EmbeddedClientThreadsTest, NeverHoldMoreThanThePermits) {
  constexpr int kThreads = 16;
  constexpr int kPermits = 3;
  Client client(ConnectEmbedded(*Embedded::Create(
      {{.name = "jobs", .algorithm = "concurrency", .permits = kPermits, .hold_for = minutes(10)},
       {.name = "spent", .rate = {1'000'000, hours(24)}}})));
  std::atomic<int> held{0};
  std::atomic<int> most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        Acquisition call("jobs");
        call.hold = (i + t) % 2 == 0;
        call.max_wait = call.hold ? minutes(10) : minutes(0);
        call.charges.push_back({"spent", "", 10});
        call.settle_within = minutes(1);
        call.charges = {call.charges[1], call.charges[0]};
        Result<Estimate> estimate = client.AcquireEstimate(call);
        ASSERT_TRUE(estimate.ok()) << estimate.status();
        if (!estimate->granted()) continue;
        const int now = held.fetch_add(1) + 1;
        int before = most.load();
        while (now > before && !most.compare_exchange_weak(before, now)) {
        }
        std::this_thread::yield();
        held.fetch_sub(1);
        if (i % 3 == 0) continue;
        EXPECT_TRUE(estimate->Settle(1).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most.load(), kPermits);
  EXPECT_GT(most.load(), 0);
  const std::vector<Bucket> jobs = {{"jobs", ""}};
  EXPECT_EQ(client.Query(jobs)->front().holds, 0u);
}

}  // namespace
}  // namespace sluice
