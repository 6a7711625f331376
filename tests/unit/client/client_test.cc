#include "sluice/client.h"

#include <gtest/gtest.h>

#include <thread>

#include "sluice/fake_connection.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

const Status kNotSent(StatusCode::kUnavailable, "connection refused");
const Status kBroken = Status::MaybeExecuted(StatusCode::kUnavailable, "connection reset");

class ClientTest : public ::testing::Test {
 protected:
  Client MakeClient(ClientOptions options = {}) { return Client(fake_, std::move(options)); }

  std::shared_ptr<FakeConnection> fake_ = std::make_shared<FakeConnection>();
};

TEST_F(ClientTest, ReturnsTheServersDecision) {
  Client client = MakeClient();
  fake_->GrantNext();
  fake_->DenyNext(seconds(3));
  const auto granted = client.Acquire("api", "user:42", 2);
  ASSERT_TRUE(granted.ok());
  EXPECT_TRUE(granted->granted);
  EXPECT_EQ(granted->source, Source::kStore);
  const auto denied = client.Acquire("api", "user:42");
  ASSERT_TRUE(denied.ok());
  EXPECT_FALSE(denied->granted);
  EXPECT_EQ(denied->retry_after, seconds(3));

  const auto sent = fake_->acquisitions();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].charges[0].limit, "api");
  EXPECT_EQ(sent[0].charges[0].key, "user:42");
  EXPECT_EQ(sent[0].charges[0].permits, 2u);
}

TEST_F(ClientTest, TryAcquireReturnsHowLongToSleep) {
  Client client = MakeClient();
  fake_->GrantNext();
  fake_->DenyNext(milliseconds(250));
  fake_->DenyNext(nanoseconds(0));
  EXPECT_EQ(*client.TryAcquire("api", ""), nanoseconds(0));
  EXPECT_EQ(*client.TryAcquire("api", ""), milliseconds(250));
  // Never zero when denied.
  EXPECT_GT(*client.TryAcquire("api", ""), nanoseconds(0));
}

TEST_F(ClientTest, PassesOnTheServersErrors) {
  Client client = MakeClient();
  fake_->FailNext({StatusCode::kNotFound, "limit \"x\" is unknown"});
  const auto result = client.Acquire("x", "");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(result.status().ToString(), "NOT_FOUND: limit \"x\" is unknown");
  EXPECT_EQ(fake_->acquisitions().size(), 1u);
}

TEST_F(ClientTest, DeniesByDefaultWhenNoServerAnswers) {
  Client client = MakeClient({.retry = {.max_attempts = 1}});
  fake_->FailNext(kNotSent);
  const auto denied = client.Acquire("api", "");
  ASSERT_TRUE(denied.ok());
  EXPECT_FALSE(denied->granted);
  EXPECT_EQ(denied->source, Source::kUnavailable);
  EXPECT_EQ(denied->status, kNotSent);
  EXPECT_EQ(denied->retry_after, milliseconds(100));

  fake_->FailNext(kBroken);
  const auto allowed = client.Acquire("api", "", 1, {.on_unavailable = OnUnavailable::kAllow});
  ASSERT_TRUE(allowed.ok());
  EXPECT_TRUE(allowed->granted);
  EXPECT_EQ(allowed->source, Source::kUnavailable);
  EXPECT_TRUE(allowed->status.may_have_executed());
}

TEST_F(ClientTest, AppliesOnUnavailableOnlyToUnavailability) {
  Client client =
      MakeClient({.on_unavailable = OnUnavailable::kAllow, .retry = {.max_attempts = 1}});
  for (const StatusCode code :
       {StatusCode::kUnavailable, StatusCode::kDeadlineExceeded, StatusCode::kResourceExhausted}) {
    fake_->FailNext({code, ""});
    const auto result = client.Acquire("api", "");
    ASSERT_TRUE(result.ok()) << StatusCodeName(code);
    EXPECT_TRUE(result->granted);
    EXPECT_EQ(result->source, Source::kUnavailable);
  }
  for (const StatusCode code :
       {StatusCode::kNotFound, StatusCode::kInvalidArgument, StatusCode::kUnauthenticated,
        StatusCode::kInternal, StatusCode::kUnimplemented, StatusCode::kCancelled}) {
    fake_->FailNext({code, ""});
    EXPECT_FALSE(client.Acquire("api", "").ok()) << StatusCodeName(code);
  }
}

TEST_F(ClientTest, RetriesSilentlyACallThatWasNotSent) {
  Client client = MakeClient({.servers = {}, .retry = {.initial_backoff = nanoseconds(1)}});
  fake_->FailNext(kNotSent, 2);
  std::optional<Result<Decision>> answer;
  client.AcquireAsync(Acquisition("api"), [&](Result<Decision> result) { answer = result; });
  EXPECT_FALSE(answer.has_value());
  fake_->Advance(milliseconds(10));
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE((*answer)->granted);
  EXPECT_EQ(fake_->acquisitions().size(), 3u);
}

TEST_F(ClientTest, NeverRetriesAnAcquisitionThatMayHaveBeenExecuted) {
  Client client = MakeClient();
  for (const Status& status : {kBroken, Status::MaybeExecuted(StatusCode::kDeadlineExceeded, "")}) {
    fake_->FailNext(status);
    const size_t before = fake_->acquisitions().size();
    const auto result = client.Acquire("api", "");
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->source, Source::kUnavailable);
    EXPECT_EQ(fake_->acquisitions().size(), before + 1);
  }
}

TEST_F(ClientTest, ExactlyOnceRepeatsACallWithItsIdUntilAnAnswer) {
  Client client = MakeClient({.servers = {}, .retry = {.initial_backoff = nanoseconds(1)}});
  fake_->FailNext(kBroken, 8);
  std::optional<Result<Decision>> answer;
  client.AcquireAsync(Acquisition("api"), [&](Result<Decision> result) { answer = result; },
                      {.exactly_once = true});
  for (int i = 0; i < 1000 && !answer.has_value(); ++i) fake_->Advance(nanoseconds(1000));
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE((*answer)->granted);
  const auto sent = fake_->acquisitions();
  ASSERT_EQ(sent.size(), 9u);
  for (const Acquisition& one : sent) EXPECT_EQ(one.request_id, sent[0].request_id);
  EXPECT_EQ(sent[0].request_id.size(), 16u);
  // Each call has an id of its own.
  ASSERT_TRUE(client.Acquire("api", "", 1, {.exactly_once = true}).ok());
  EXPECT_EQ(fake_->acquisitions().back().request_id.size(), 16u);
  EXPECT_NE(fake_->acquisitions().back().request_id, sent[0].request_id);
  ASSERT_TRUE(client.Acquire("api", "").ok());
  EXPECT_EQ(fake_->acquisitions().back().request_id, "");
}

TEST_F(ClientTest, RepeatedCallThatFailsMayHaveBeenExecutedByAnyAttempt) {
  Client client = MakeClient({.servers = {}, .deadline = milliseconds(100), .exactly_once = true});
  fake_->FailNext(kBroken);
  fake_->FailNext(kNotSent, 100);
  std::optional<Result<Decision>> answer;
  client.AcquireAsync(Acquisition("api"), [&](Result<Decision> result) { answer = result; });
  for (int i = 0; i < 200 && !answer.has_value(); ++i) fake_->Advance(milliseconds(1));
  ASSERT_TRUE(answer.has_value() && answer->ok());
  EXPECT_EQ((*answer)->source, Source::kUnavailable);
  EXPECT_TRUE((*answer)->status.may_have_executed());
}

// A server has forgotten a grant after 60 s: repeated then, the call would take its permits again.
TEST_F(ClientTest, RepeatsNothingThatAServerMayHaveForgotten) {
  for (const auto deadline :
       {std::chrono::nanoseconds(std::chrono::hours(1)), nanoseconds::max()}) {
    const auto fake = std::make_shared<FakeConnection>();
    Client client(fake, {.servers = {}, .deadline = deadline, .exactly_once = true});
    fake->FailNext(kBroken, 10'000);
    std::optional<Result<Decision>> answer;
    client.AcquireAsync(Acquisition("api"), [&](Result<Decision> result) { answer = result; });
    fake->Advance(std::chrono::seconds(45));
    EXPECT_FALSE(answer.has_value());
    fake->Advance(std::chrono::seconds(6));
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ((*answer)->source, Source::kUnavailable);
    EXPECT_TRUE((*answer)->status.may_have_executed());
  }
}

TEST_F(ClientTest, KeepsTheCallersRequestId) {
  Client client = MakeClient({.exactly_once = true});
  fake_->SetPermits("api", "", 2);
  Acquisition payment("api");
  payment.request_id = "0123456789abcdef";
  const auto first = client.Acquire(payment);
  const auto again = client.Acquire(payment);
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_FALSE(first->repeated);
  EXPECT_TRUE(again->granted);
  EXPECT_TRUE(again->repeated);
  EXPECT_EQ(again->charges[0].remaining, 1);
  EXPECT_EQ(fake_->acquisitions()[0].request_id, payment.request_id);
}

TEST_F(ClientTest, ExactlyOnceRepeatsABatchThatFailsInPart) {
  Client client = MakeClient({.servers = {}, .exactly_once = true});
  fake_->SetPermits("api", "", 10);
  fake_->GrantNext();
  fake_->FailNext(kBroken);
  std::optional<Result<BatchDecisions>> answer;
  client.AcquireBatchAsync({Acquisition("api", "a"), Acquisition("api", "b")},
                           [&](Result<BatchDecisions> result) { answer = result; });
  for (int i = 0; i < 100 && !answer.has_value(); ++i) fake_->Advance(milliseconds(1));
  ASSERT_TRUE(answer.has_value() && answer->ok());
  EXPECT_TRUE((**answer)[0]->repeated);
  EXPECT_TRUE((**answer)[1]->granted);
  EXPECT_FALSE((**answer)[1]->repeated);
  const auto sent = fake_->acquisitions();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent[0].request_id, sent[2].request_id);
  EXPECT_EQ(sent[1].request_id, sent[3].request_id);
  EXPECT_NE(sent[0].request_id, sent[1].request_id);
}

TEST_F(ClientTest, ABatchThatWasGrantedInPartMayHaveBeenExecutedWhateverItsLastAttemptSays) {
  Client client = MakeClient({.servers = {}, .exactly_once = true});
  fake_->SetPermits("api", "", 10);
  fake_->GrantNext();
  fake_->FailNext(kNotSent);
  fake_->FailNext({StatusCode::kResourceExhausted, "no memory"});
  std::optional<Result<BatchDecisions>> answer;
  client.AcquireBatchAsync({Acquisition("api", "a"), Acquisition("api", "b")},
                           [&](Result<BatchDecisions> result) { answer = result; });
  for (int i = 0; i < 100 && !answer.has_value(); ++i) fake_->Advance(milliseconds(1));
  ASSERT_TRUE(answer.has_value() && answer->ok());
  EXPECT_EQ((**answer)[0]->source, Source::kUnavailable);
  EXPECT_TRUE((**answer)[0]->status.may_have_executed());
}

TEST_F(ClientTest, PausesBetweenBlockingAttemptsOnTheConnectionsClock) {
  Client client = MakeClient();
  fake_->FailNext(kNotSent);
  std::thread caller([&] {
    const auto result = client.Acquire("api", "");
    EXPECT_TRUE(result.ok() && result->granted);
  });
  while (fake_->acquisitions().size() < 2) {
    fake_->Advance(milliseconds(1));
    std::this_thread::yield();
  }
  caller.join();
}

TEST_F(ClientTest, GivesEachCallItsDeadline) {
  Client client = MakeClient();
  (void)client.Acquire("api", "");
  EXPECT_EQ(fake_->last_deadline(), fake_->Now() + seconds(1));
  (void)client.Acquire("api", "", 1, {.deadline = milliseconds(5)});
  EXPECT_EQ(fake_->last_deadline(), fake_->Now() + milliseconds(5));
}

TEST_F(ClientTest, LongestDeadlineMeansNone) {
  Client client = MakeClient();
  static_cast<void>(client.Acquire("api", "", 1, {.deadline = nanoseconds::max()}));
  EXPECT_EQ(fake_->last_deadline(), TimePoint::max());
  Acquisition held("api");
  held.hold = true;
  held.max_wait = nanoseconds::max();
  static_cast<void>(client.Acquire(held));
  EXPECT_EQ(fake_->last_deadline(), TimePoint::max());
}

TEST_F(ClientTest, RetriesShareTheCallsDeadline) {
  Client client = MakeClient({.deadline = milliseconds(100)});
  fake_->FailNext(kNotSent, 2);
  const TimePoint start = fake_->Now();
  std::optional<Result<Decision>> answer;
  client.AcquireAsync(Acquisition("api"), [&](Result<Decision> result) { answer = result; });
  fake_->Advance(milliseconds(95));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(fake_->last_deadline(), start + milliseconds(100));
}

TEST_F(ClientTest, AppliesOnUnavailableAtTheDeadlineWhenTheServerHangs) {
  Client client = MakeClient({.on_unavailable = OnUnavailable::kAllow});
  fake_->HangNext();
  auto future = client.AcquireFuture(Acquisition("api"));
  fake_->Advance(milliseconds(999));
  EXPECT_EQ(future.wait_for(seconds(0)), std::future_status::timeout);
  fake_->Advance(milliseconds(1));
  const auto result = future.get();
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->granted);
  EXPECT_EQ(result->status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(result->status.may_have_executed());
}

TEST_F(ClientTest, BatchHasAResultForEachAcquisition) {
  Client client = MakeClient();
  fake_->SetPermits("api", "a", 1);
  const std::vector<Acquisition> batch = {Acquisition("api", "a"), Acquisition("api", "a"),
                                          Acquisition("api", "b")};
  const auto results = client.AcquireBatch(batch);
  ASSERT_TRUE(results.ok());
  ASSERT_EQ(results->size(), 3u);
  EXPECT_TRUE((*results)[0]->granted);
  EXPECT_FALSE((*results)[1]->granted);
  EXPECT_TRUE((*results)[2]->granted);
}

TEST_F(ClientTest, BatchAppliesOnUnavailableToEachAcquisition) {
  Client client =
      MakeClient({.on_unavailable = OnUnavailable::kAllow, .retry = {.max_attempts = 1}});
  fake_->FailNext(kBroken);
  const std::vector<Acquisition> batch(3, Acquisition("api"));
  const auto results = client.AcquireBatch(batch);
  ASSERT_TRUE(results.ok());
  ASSERT_EQ(results->size(), 3u);
  for (const auto& one : *results) {
    EXPECT_TRUE(one->granted);
    EXPECT_EQ(one->source, Source::kUnavailable);
  }
}

TEST_F(ClientTest, TakesSeveralChargesAllOrNone) {
  Client client = MakeClient();
  fake_->SetPermits("a", "", 5);
  fake_->SetPermits("b", "", 0);
  const auto denied = client.Acquire(Acquisition({{"a", "", 1}, {"b", "", 1}}));
  EXPECT_FALSE(denied->granted);
  const std::vector<Bucket> buckets = {{"a", ""}};
  EXPECT_EQ((*client.Query(buckets))[0].remaining, 5);
}

TEST_F(ClientTest, RetriesAQueryAfterABrokenConnection) {
  Client client = MakeClient({.retry = {.initial_backoff = nanoseconds(1)}});
  fake_->FailNextQuery(kBroken, 2);
  std::optional<Result<std::vector<BucketStatus>>> answer;
  client.QueryAsync({{"api", ""}}, [&](auto result) { answer = std::move(result); });
  fake_->Advance(milliseconds(1));
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->ok());
  EXPECT_EQ(fake_->queries(), 3);
}

TEST_F(ClientTest, RefundsOnceAndCountsAttempts) {
  Client client = MakeClient();
  Acquisition acquisition("api");
  acquisition.want_receipt = true;
  const auto decision = client.Acquire(acquisition);
  ASSERT_FALSE(decision->receipt.empty());
  const auto first = client.Refund(*decision);
  EXPECT_EQ(first->outcome, RefundOutcome::kRefunded);
  EXPECT_EQ(first->attempts, 1);
  EXPECT_EQ(client.Refund(decision->receipt)->outcome, RefundOutcome::kAlreadyRefunded);
}

TEST_F(ClientTest, SettlesAnEstimateAndRepeatsTheSameSettlement) {
  Client client = MakeClient();
  Acquisition acquisition("tokens", "k", 8);
  acquisition.settle_within = std::chrono::minutes(1);
  const auto decision = client.Acquire(acquisition);
  ASSERT_FALSE(decision->receipt.empty());
  for (int i = 0; i < 2; ++i) {
    const auto settled = client.Settle(*decision, {{"tokens", "k", 3}});
    ASSERT_TRUE(settled.ok()) << settled.status().ToString();
    EXPECT_EQ(settled->outcome, SettleOutcome::kSettled);
    EXPECT_EQ(settled->attempts, 1);
  }
  std::optional<Result<SettleResult>> other;
  client.SettleAsync({decision->receipt, {{"tokens", "k", 4}}},
                     [&](auto result) { other = std::move(result); });
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ((*other)->outcome, SettleOutcome::kAlreadySettled);
}

TEST_F(ClientTest, SettlesSeveralEstimatesInOneCall) {
  Client client = MakeClient();
  Acquisition acquisition("tokens", "k", 8);
  acquisition.settle_within = std::chrono::minutes(1);
  std::vector<Settlement> batch;
  for (uint64_t i = 0; i < 3; ++i) {
    batch.push_back({client.Acquire(acquisition)->receipt, {{"tokens", "k", i}}});
  }
  batch.push_back(batch[1]);
  batch.push_back({batch[1].receipt, {{"tokens", "k", 5}}});
  fake_->FailNextSettle(Status(StatusCode::kUnavailable, "connection reset"));
  std::optional<Result<BatchSettlements>> answer;
  client.SettleBatchAsync(batch, [&](auto results) { answer = std::move(results); });
  fake_->Advance(std::chrono::seconds(1));
  ASSERT_TRUE(answer.has_value());
  ASSERT_TRUE(answer->ok()) << answer->status();
  const Result<BatchSettlements> again = client.SettleBatch(batch);
  ASSERT_TRUE(again.ok()) << again.status();
  for (const BatchSettlements& results : {**answer, *again}) {
    ASSERT_EQ(results.size(), 5u);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(results[i]->outcome, SettleOutcome::kSettled);
    EXPECT_EQ(results[4]->outcome, SettleOutcome::kAlreadySettled);
  }
  EXPECT_EQ((**answer)[0]->attempts, 2);
  EXPECT_EQ((*again)[0]->attempts, 1);
  EXPECT_EQ(fake_->settled(), 3u);
  fake_->FailNextSettle(Status(StatusCode::kInternal, "broken"));
  EXPECT_EQ(client.SettleBatch(batch).status().code(), StatusCode::kInternal);
}

TEST_F(ClientTest, CancelsPendingCallsOnDestruction) {
  std::vector<StatusCode> codes;
  {
    Client client = MakeClient();
    fake_->HangNext(2);
    fake_->GrantNext();
    const auto note = [&](Result<Decision> result) { codes.push_back(result.status().code()); };
    client.AcquireAsync(Acquisition("api"), note);
    client.AcquireBatchAsync({Acquisition("api")}, [&](Result<BatchDecisions> result) {
      codes.push_back(result.status().code());
    });
    EXPECT_TRUE(codes.empty());
  }
  EXPECT_EQ(codes, (std::vector<StatusCode>{StatusCode::kCancelled, StatusCode::kCancelled}));
}

TEST_F(ClientTest, EndsAPauseBetweenAttemptsOnDestruction) {
  std::optional<Result<Decision>> answer;
  {
    Client client = MakeClient();
    fake_->FailNext(kNotSent);
    client.AcquireAsync(Acquisition("api"), [&](Result<Decision> result) { answer = result; });
    EXPECT_FALSE(answer.has_value());
  }
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status().code(), StatusCode::kCancelled);
}

TEST_F(ClientTest, WatchReportsAllBucketsFirstAndEndsOnDestruction) {
  Client client = MakeClient();
  fake_->SetPermits("api", "a", 7);
  std::vector<BucketStatus> seen;
  std::optional<Status> closed;
  const std::vector<Bucket> buckets = {{"api", "a"}};
  auto watch = client.Watch(buckets, {},
                            {.on_change = [&](auto changed) { seen = std::move(changed); },
                             .on_closed = [&](Status status) { closed = status; }});
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].remaining, 7);
  EXPECT_FALSE(closed.has_value());
  watch.reset();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->code(), StatusCode::kCancelled);
}

TEST(ClientCreateTest, RejectsInvalidAddresses) {
  for (const char* bad : {"", "localhost", "localhost:", ":7200", "localhost:0", "localhost:65536",
                          "localhost:http", "http://localhost:7200", "::1:7200", "unix:"}) {
    const auto client = Client::Create({.servers = {bad}});
    ASSERT_FALSE(client.ok()) << bad;
    EXPECT_EQ(client.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(client.status().message().find("HOST:PORT"), std::string::npos);
  }
  EXPECT_FALSE(Client::Create({.servers = {}}).ok());
  EXPECT_TRUE(Client::Create({.servers = {"[::1]:7200", "unix:/tmp/s", "example.org:1"}}).ok());
}

TEST(ClientCreateTest, RejectsKeepaliveTimesThatServersPunish) {
  const auto create = [](nanoseconds time, nanoseconds timeout) {
    ClientOptions options;
    options.keepalive = {time, timeout};
    return Client::Create(options).status();
  };
  EXPECT_TRUE(create(seconds(10), seconds(1)).ok());
  EXPECT_TRUE(create(seconds(0), seconds(20)).ok());
  EXPECT_EQ(
      create(seconds(9), seconds(20)),
      Status(StatusCode::kInvalidArgument,
             "ClientOptions::keepalive.time is 9000000000 ns; valid is 10 s to 24 h, or 0 for "
             "no PINGs"));
  EXPECT_EQ(create(nanoseconds::max(), seconds(20)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create(seconds(-1), seconds(20)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create(seconds(60), milliseconds(1)),
            Status(StatusCode::kInvalidArgument,
                   "ClientOptions::keepalive.timeout is 1000000 ns; valid is 1 s to 1 h"));
}

TEST(ClientCreateTest, RejectsUnreadableTlsFiles) {
  const auto missing = Client::Create({.tls = {.ca_file = "/no/such/file.pem"}});
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("/no/such/file.pem"), std::string::npos);
  EXPECT_FALSE(Client::Create({.tls = {.cert_file = "/etc/hostname"}}).ok());
}

}  // namespace
}  // namespace sluice
