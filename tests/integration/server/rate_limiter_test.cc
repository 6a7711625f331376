// RateLimiter over a real socket: every RPC, and every kind of invalid request.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "tests/integration/server/server_test.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// Whether all threads of the process are stopped (SIGSTOP takes a moment to reach them).
bool Stopped(pid_t pid) {
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t name_end = stat.rfind(") ");
    if (name_end == std::string::npos || stat[name_end + 2] != 'T') return false;
  }
  return true;
}

// Slow enough that no permit is refilled while a test runs.
constexpr char kLimits[] = R"(
limits:
  - { name: api, rate: 10/h }
  - { name: debt, rate: 150/h, burst: 150, debt: 50 }
  - { name: child, rate: 10/h, charges: [parent] }
  - { name: parent, rate: 5/h }
  - { name: shadow, rate: 1/h, mode: shadow }
  - { name: fast, rate: 100/s }
  - { name: owing, rate: 10/h, max_owed: 5, charges: [parent] }
)";

class RateLimiterServerTest : public ServerTest {
 protected:
  void SetUp() override { Start({.limits = kLimits}); }

  void ExpectError(const grpc::Status& status, grpc::StatusCode code, const std::string& text) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }
  grpc::Status Refund(const std::string& receipt, v1::RefundResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::RefundRequest request;
    request.set_receipt(receipt);
    return data_->Refund(&context, request, response);
  }
};

TEST_F(RateLimiterServerTest, AcquireGrantsThenDeniesWithRetryAfter) {
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(Request("api", "k", 9), &response).ok());
  EXPECT_TRUE(response.granted());
  EXPECT_FALSE(response.has_retry_after());
  ASSERT_EQ(response.charges_size(), 1);
  EXPECT_EQ(response.charges(0).remaining(), 1);
  EXPECT_EQ(response.charges(0).capacity(), 10u);
  EXPECT_GT(response.charges(0).reset_after().seconds(), 3200);
  EXPECT_EQ(response.source(), v1::SOURCE_STORE);
  ASSERT_TRUE(Acquire(Request("api", "k", 2), &response).ok());
  EXPECT_FALSE(response.granted());
  EXPECT_EQ(response.charges(0).reason(), v1::REASON_NOT_ENOUGH);
  EXPECT_GT(response.retry_after().seconds(), 300);
  EXPECT_LE(response.retry_after().seconds(), 360);
  EXPECT_TRUE(Granted("api", "other", 10));
}

TEST_F(RateLimiterServerTest, PermitsDefaultToOneAndSeveralChargesAreAllOrNone) {
  v1::AcquireRequest request;
  request.add_charges()->set_limit("api");
  request.add_charges()->set_limit("child");
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(request, &response).ok());
  EXPECT_TRUE(response.granted());
  ASSERT_EQ(response.charges_size(), 3);
  EXPECT_EQ(response.charges(0).remaining(), 9);
  EXPECT_EQ(response.charges(2).limit(), "parent");
  ASSERT_TRUE(Granted("parent", "", 4));
  ASSERT_TRUE(Acquire(request, &response).ok());
  EXPECT_FALSE(response.granted());
  EXPECT_EQ(Remaining("api", ""), 9);
}

TEST_F(RateLimiterServerTest, ChargesOnTheSameBucketAddUp) {
  v1::AcquireRequest request = Request("api", "k", 6);
  *request.add_charges() = request.charges(0);
  ExpectError(Acquire(request), grpc::StatusCode::INVALID_ARGUMENT, "12");
  request.mutable_charges(1)->set_permits(4);
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(request, &response).ok());
  EXPECT_TRUE(response.granted());
  EXPECT_EQ(response.charges(0).remaining(), 0);
}

TEST_F(RateLimiterServerTest, InvalidRequestsNameTheFieldAndTakeNothing) {
  using grpc::StatusCode;
  ExpectError(Acquire(Request("apii", "k")), StatusCode::NOT_FOUND,
              "charges[0].limit: no limit is named \"apii\"; did you mean \"api\"?");
  ExpectError(Acquire(Request("api", std::string(513, 'k'))), StatusCode::INVALID_ARGUMENT,
              "charges[0].key: 513 bytes");
  ExpectError(Acquire(Request("api", "k", 0)), StatusCode::INVALID_ARGUMENT,
              "charges[0].permits: 0; permits must be at least 1");
  ExpectError(Acquire(Request("api", "k", 11)), StatusCode::INVALID_ARGUMENT, "burst = 10");
  ExpectError(Acquire(Request("debt", "k", 201)), StatusCode::INVALID_ARGUMENT,
              "burst + debt = 200");
  ExpectError(Acquire(Request("api", "k", std::numeric_limits<uint64_t>::max())),
              StatusCode::INVALID_ARGUMENT, "18446744073709551615");
  ExpectError(Acquire(v1::AcquireRequest()), StatusCode::INVALID_ARGUMENT, "charges: none");
  v1::AcquireRequest many;
  for (int i = 0; i < 17; ++i) *many.add_charges() = Request("api", "k").charges(0);
  ExpectError(Acquire(many), StatusCode::INVALID_ARGUMENT, "charges: 17");
  EXPECT_EQ(Remaining("api", "k"), 10);
}

TEST_F(RateLimiterServerTest, ForcedDebitIsGrantedInEveryForm) {
  v1::AcquireRequest request = Request("owing", "k", 12);
  request.set_force(true);
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(request, &response).ok());
  EXPECT_TRUE(response.granted());
  ASSERT_EQ(response.charges_size(), 2);
  EXPECT_EQ(response.charges(0).remaining(), -2);
  EXPECT_EQ(response.charges(0).forgiven(), 0u);
  EXPECT_EQ(response.charges(0).reason(), v1::REASON_NOT_ENOUGH);
  EXPECT_EQ(response.charges(1).remaining(), 0);
  EXPECT_EQ(response.charges(1).forgiven(), 7u);

  v1::AcquireBatchRequest batch;
  *batch.add_acquisitions() = request;
  *batch.add_acquisitions() = Request("owing", "k");
  grpc::ClientContext context;
  context.set_deadline(Soon());
  v1::AcquireBatchResponse answers;
  ASSERT_TRUE(data_->AcquireBatch(&context, batch, &answers).ok());
  EXPECT_EQ(answers.results(0).response().charges(0).remaining(), -5);
  EXPECT_EQ(answers.results(0).response().charges(0).forgiven(), 9u);
  EXPECT_FALSE(answers.results(1).response().granted());

  grpc::ClientContext of_stream;
  of_stream.set_deadline(Soon());
  const auto stream = data_->AcquireStream(&of_stream);
  ASSERT_TRUE(stream->Write(batch));
  ASSERT_TRUE(stream->Read(&answers));
  EXPECT_EQ(answers.results(0).response().charges(0).forgiven(), 12u);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(RateLimiterServerTest, ForceIsRefusedWithoutMaxOwedAndWithMaxWait) {
  v1::AcquireRequest request = Request("api", "k");
  request.set_force(true);
  ExpectError(Acquire(request), grpc::StatusCode::INVALID_ARGUMENT,
              "charges[0].limit: limit \"api\" has no max_owed");
  request = Request("owing", "k");
  request.set_force(true);
  request.mutable_max_wait()->set_seconds(1);
  ExpectError(Acquire(request), grpc::StatusCode::INVALID_ARGUMENT, "force: true with max_wait");
  request.set_hold(true);
  ExpectError(Acquire(request), grpc::StatusCode::INVALID_ARGUMENT, "force: true with hold");
  EXPECT_EQ(Remaining("owing", "k"), 10);
}

TEST_F(RateLimiterServerTest, ReservationTellsTheWaitAndIsCancelledOnce) {
  ASSERT_TRUE(Granted("api", "k", 10));
  v1::AcquireRequest request = Request("api", "k", 2);
  request.mutable_max_wait()->set_seconds(600);
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(request, &response).ok());
  EXPECT_FALSE(response.granted());
  EXPECT_GT(response.retry_after().seconds(), 115);
  EXPECT_LE(response.retry_after().seconds(), 120);
  request.mutable_max_wait()->set_seconds(800);
  ASSERT_TRUE(Acquire(request, &response).ok());
  EXPECT_TRUE(response.granted());
  EXPECT_GT(response.wait().seconds(), 715);
  EXPECT_LE(response.wait().seconds(), 720);
  ASSERT_FALSE(response.receipt().empty());

  v1::RefundResponse refund;
  ASSERT_TRUE(Refund(response.receipt(), &refund).ok());
  EXPECT_EQ(refund.outcome(), v1::REFUND_OUTCOME_REFUNDED);
  EXPECT_EQ(refund.charges(0).permits(), 2u);
  ASSERT_TRUE(Refund(response.receipt(), &refund).ok());
  EXPECT_EQ(refund.outcome(), v1::REFUND_OUTCOME_ALREADY_REFUNDED);
}

TEST_F(RateLimiterServerTest, HeldCallIsAnsweredAtItsGrantTimeAndNotBefore) {
  ASSERT_TRUE(Granted("fast", "k", 100));
  v1::AcquireRequest request = Request("fast", "k", 20);
  request.mutable_max_wait()->set_seconds(5);
  request.set_hold(true);
  v1::AcquireResponse response;
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(Acquire(request, &response).ok());
  const auto took = std::chrono::steady_clock::now() - before;
  EXPECT_TRUE(response.granted());
  EXPECT_FALSE(response.has_wait());
  EXPECT_FALSE(response.receipt().empty());
  // 20 permits are 200 ms; some of them may have been refilled before the call.
  EXPECT_GT(took, std::chrono::milliseconds(20));
}

TEST_F(RateLimiterServerTest, CancelledHeldCallLeavesTheQueue) {
  ASSERT_TRUE(Granted("api", "k", 10));
  v1::AcquireRequest request = Request("api", "k");
  request.mutable_max_wait()->set_seconds(3600);
  request.set_hold(true);
  // The deadline ends before the grant time: denied at once.
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(request, &response).ok());
  EXPECT_FALSE(response.granted());
  EXPECT_EQ(response.charges(0).reason(), v1::REASON_DEADLINE_TOO_SHORT);
  EXPECT_TRUE(response.has_retry_after());
  // A longer deadline would not help this call.
  v1::AcquireRequest hasty = request;
  hasty.mutable_max_wait()->set_seconds(1);
  ASSERT_TRUE(Acquire(hasty, &response).ok());
  EXPECT_FALSE(response.granted());
  EXPECT_EQ(response.charges(0).reason(), v1::REASON_NOT_ENOUGH);

  grpc::ClientContext context;
  std::thread caller([&] {
    v1::AcquireResponse never;
    const grpc::Status status = data_->Acquire(&context, request, &never);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  });
  const auto waiting = [&] {
    grpc::ClientContext query_context;
    query_context.set_deadline(Soon());
    v1::QueryRequest query;
    query.add_buckets()->set_limit("api");
    query.mutable_buckets(0)->set_key("k");
    v1::QueryResponse answer;
    EXPECT_TRUE(data_->Query(&query_context, query, &answer).ok());
    return answer.buckets(0).waiting();
  };
  const auto until = [&](uint64_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (waiting() != count && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(waiting(), count);
  };
  until(1);
  context.TryCancel();
  caller.join();
  until(0);
}

TEST_F(RateLimiterServerTest, DrainAnswersHeldCallsAndARaisedLimitGrantsThemSooner) {
  ASSERT_TRUE(Granted("api", "k", 10));
  v1::AcquireRequest request = Request("api", "k");
  request.mutable_max_wait()->set_seconds(4 * 3600);
  request.set_hold(true);
  const auto waits = [&] {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::QueryRequest query;
    query.add_buckets()->set_limit("api");
    query.mutable_buckets(0)->set_key("k");
    v1::QueryResponse answer;
    return data_->Query(&context, query, &answer).ok() && answer.buckets(0).waiting() == 1;
  };
  const auto hold = [&](v1::AcquireResponse* response) {
    grpc::ClientContext context;
    return data_->Acquire(&context, request, response);
  };
  std::thread sooner([&] {
    v1::AcquireResponse response;
    const grpc::Status status = hold(&response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(response.granted());
  });
  EXPECT_TRUE(Eventually(waits));
  server_->WriteLimits("limits: [{ name: api, rate: 100/s, burst: 1 }]");
  sooner.join();

  server_->WriteLimits("limits: [{ name: api, rate: 1/h, burst: 2, max_wait: 24h }]");
  EXPECT_TRUE(Eventually([&] {
    v1::AcquireResponse response;
    return Acquire(Request("api", "other"), &response).ok() && response.charges(0).capacity() == 2;
  }));
  while (Granted("api", "k", 1)) {
  }
  std::thread drained([&] {
    v1::AcquireResponse response;
    EXPECT_EQ(hold(&response).error_code(), grpc::StatusCode::UNAVAILABLE);
  });
  EXPECT_TRUE(Eventually(waits));
  server_->Signal(SIGTERM);
  drained.join();
  EXPECT_EQ(server_->WaitForExit(), 0);
}

TEST_F(RateLimiterServerTest, RefusesInvalidHoldAndMaxWait) {
  using grpc::StatusCode;
  v1::AcquireRequest request = Request("api", "k");
  request.set_hold(true);
  ExpectError(Acquire(request), StatusCode::INVALID_ARGUMENT, "hold: true without max_wait");
  request.set_hold(false);
  request.mutable_max_wait()->set_seconds(-1);
  ExpectError(Acquire(request), StatusCode::INVALID_ARGUMENT, "max_wait: -1s; at most 24 h");
  for (const int64_t seconds : {int64_t{86'401}, std::numeric_limits<int64_t>::max()}) {
    request.mutable_max_wait()->set_seconds(seconds);
    ExpectError(Acquire(request), StatusCode::INVALID_ARGUMENT, "at most 24 h");
  }
  // Not a valid duration.
  request.mutable_max_wait()->set_seconds(1);
  request.mutable_max_wait()->set_nanos(-1);
  ExpectError(Acquire(request), StatusCode::INVALID_ARGUMENT, "max_wait: seconds 1");
  request.mutable_max_wait()->set_nanos(1'000'000'000);
  ExpectError(Acquire(request), StatusCode::INVALID_ARGUMENT, "max_wait: seconds 1");
  EXPECT_EQ(Remaining("api", "k"), 10);
}

TEST_F(RateLimiterServerTest, BatchAnswersInOrderAndNamesTheInvalidAcquisition) {
  v1::AcquireBatchRequest request;
  for (const char* limit : {"api", "none", "api"}) {
    *request.add_acquisitions() = Request(limit, "k", 6);
  }
  *request.add_acquisitions() = Request("api", "k", 4);
  request.mutable_acquisitions(3)->set_hold(true);
  request.mutable_acquisitions(3)->mutable_max_wait()->set_seconds(1);
  grpc::ClientContext context;
  v1::AcquireBatchResponse response;
  ASSERT_TRUE(data_->AcquireBatch(&context, request, &response).ok());
  ASSERT_EQ(response.results_size(), 4);
  EXPECT_TRUE(response.results(0).response().granted());
  EXPECT_EQ(response.results(1).error().code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(response.results(1).error().message(), HasSubstr("acquisitions[1].charges[0].limit"));
  EXPECT_FALSE(response.results(2).response().granted());
  EXPECT_EQ(response.results(3).error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(response.results(3).error().message(), HasSubstr("acquisitions[3].hold"));
}

TEST_F(RateLimiterServerTest, AnswersABatchOf4096AndRefusesOneOf4097) {
  v1::AcquireBatchRequest request;
  for (int i = 0; i < 4096; ++i) *request.add_acquisitions() = Request("fast", std::to_string(i));
  v1::AcquireBatchResponse response;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(data_->AcquireBatch(&context, request, &response).ok());
  }
  ASSERT_EQ(response.results_size(), 4096);
  EXPECT_TRUE(response.results(4095).response().granted());
  *request.add_acquisitions() = Request("api", "k");
  grpc::ClientContext context;
  ExpectError(data_->AcquireBatch(&context, request, &response), grpc::StatusCode::INVALID_ARGUMENT,
              "acquisitions: 4097");
  EXPECT_EQ(Remaining("api", "k"), 10);
}

TEST_F(RateLimiterServerTest, StreamAnswersBatchesInOrderUntilTheClientEnds) {
  grpc::ClientContext context;
  context.set_deadline(Soon());
  auto stream = data_->AcquireStream(&context);
  std::thread writer([&] {
    for (int i = 1; i <= 200; ++i) {
      v1::AcquireBatchRequest request;
      for (int n = 0; n < i % 7; ++n) {
        *request.add_acquisitions() = Request("fast", "s" + std::to_string(i), 1 + n);
      }
      ASSERT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  v1::AcquireBatchResponse response;
  int answers = 0;
  while (stream->Read(&response)) {
    ++answers;
    ASSERT_EQ(response.results_size(), answers % 7);
    for (const auto& result : response.results()) EXPECT_TRUE(result.response().granted());
  }
  writer.join();
  EXPECT_EQ(answers, 200);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(RateLimiterServerTest, StreamRefusesHoldAndAnswersTheOtherAcquisitions) {
  grpc::ClientContext context;
  context.set_deadline(Soon());
  auto stream = data_->AcquireStream(&context);
  v1::AcquireBatchRequest request;
  *request.add_acquisitions() = Request("api", "k", 4);
  *request.add_acquisitions() = Request("api", "k", 4);
  request.mutable_acquisitions(1)->set_hold(true);
  request.mutable_acquisitions(1)->mutable_max_wait()->set_seconds(1);
  *request.add_acquisitions() = Request("api", "k", 4);
  ASSERT_TRUE(stream->Write(request));
  v1::AcquireBatchResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_EQ(response.results_size(), 3);
  EXPECT_TRUE(response.results(0).response().granted());
  EXPECT_EQ(response.results(1).error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(response.results(1).error().message(), HasSubstr("acquisitions[1].hold"));
  EXPECT_TRUE(response.results(2).response().granted());
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(RateLimiterServerTest, StreamStopsDecidingWhileAnswersAreUnread) {
  grpc::ClientContext context;
  auto stream = data_->AcquireStream(&context);
  v1::AcquireBatchRequest request;
  for (int i = 0; i < 4096; ++i) *request.add_acquisitions() = Request("fast", "held");
  // Each answer is some 100 KB. Without flow control the server would decide all of them.
  std::thread writer([&] {
    for (int i = 0; i < 200 && stream->Write(request); ++i) {
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  grpc::ClientContext stats_context;
  v1::Stats stats;
  ASSERT_TRUE(admin_->GetStats(&stats_context, v1::GetStatsRequest(), &stats).ok());
  EXPECT_LT(stats.decisions(), 200u * 4096 / 2);
  context.TryCancel();
  writer.join();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(RateLimiterServerTest, QueryTakesNothingAndCreatesNoBucket) {
  EXPECT_EQ(Remaining("api", "k"), 10);
  grpc::ClientContext context;
  v1::QueryRequest request;
  request.add_buckets()->set_limit("api");
  request.mutable_buckets(0)->set_key("k");
  v1::QueryResponse response;
  ASSERT_TRUE(data_->Query(&context, request, &response).ok());
  EXPECT_FALSE(response.buckets(0).exists());
  EXPECT_GT(response.at().seconds(), 1'700'000'000);
  grpc::ClientContext none;
  ExpectError(data_->Query(&none, v1::QueryRequest(), &response),
              grpc::StatusCode::INVALID_ARGUMENT, "buckets: none");
  for (int i = 0; i < 256; ++i) request.add_buckets()->set_limit("api");
  grpc::ClientContext many;
  ExpectError(data_->Query(&many, request, &response), grpc::StatusCode::INVALID_ARGUMENT,
              "buckets: 257");
}

TEST_F(RateLimiterServerTest, WatchSendsAllBucketsFirstAndThenChanges) {
  grpc::ClientContext context;
  context.set_deadline(Soon());
  v1::WatchRequest request;
  request.add_buckets()->set_limit("api");
  request.add_buckets()->set_limit("parent");
  request.mutable_min_interval()->set_nanos(10'000'000);
  auto watch = data_->Watch(&context, request);
  v1::QueryResponse response;
  ASSERT_TRUE(watch->Read(&response));
  ASSERT_EQ(response.buckets_size(), 2);
  EXPECT_EQ(response.buckets(0).remaining(), 10);
  ASSERT_TRUE(Granted("api", "", 3));
  ASSERT_TRUE(watch->Read(&response));
  ASSERT_EQ(response.buckets_size(), 1);
  EXPECT_EQ(response.buckets(0).limit(), "api");
  EXPECT_EQ(response.buckets(0).remaining(), 7);
  context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
  watch->Finish();

  grpc::ClientContext bad;
  request.mutable_min_interval()->set_nanos(1);
  auto refused = data_->Watch(&bad, request);
  EXPECT_FALSE(refused->Read(&response));
  ExpectError(refused->Finish(), grpc::StatusCode::INVALID_ARGUMENT, "min_interval");
}

TEST_F(RateLimiterServerTest, RefundGivesBackOnceAndRefusesChangedReceipts) {
  // The bucket is not full: a full one would lose permits, depending on the time that has passed.
  ASSERT_TRUE(Granted("child", "k", 1));
  v1::AcquireRequest request = Request("child", "k", 4);
  request.set_want_receipt(true);
  v1::AcquireResponse acquired;
  ASSERT_TRUE(Acquire(request, &acquired).ok());
  ASSERT_FALSE(acquired.receipt().empty());

  v1::RefundResponse response;
  std::string forged = acquired.receipt();
  forged.back() = static_cast<char>(forged.back() ^ 1);
  ExpectError(Refund(forged, &response), grpc::StatusCode::INVALID_ARGUMENT, "receipt:");
  ExpectError(Refund(acquired.receipt().substr(0, 20), &response),
              grpc::StatusCode::INVALID_ARGUMENT, "receipt: 20 bytes");
  ExpectError(Refund("", &response), grpc::StatusCode::INVALID_ARGUMENT, "receipt: 0 bytes");

  ASSERT_TRUE(Refund(acquired.receipt(), &response).ok());
  EXPECT_EQ(response.outcome(), v1::REFUND_OUTCOME_REFUNDED);
  ASSERT_EQ(response.charges_size(), 2);
  EXPECT_EQ(response.charges(0).permits(), 4u);
  EXPECT_EQ(response.charges(1).limit(), "parent");
  EXPECT_EQ(Remaining("child", "k"), 9);
  ASSERT_TRUE(Refund(acquired.receipt(), &response).ok());
  EXPECT_EQ(response.outcome(), v1::REFUND_OUTCOME_ALREADY_REFUNDED);
  EXPECT_EQ(Remaining("child", "k"), 9);
}

TEST_F(RateLimiterServerTest, RefusesAReceiptOfAnotherServer) {
  v1::AcquireRequest request = Request("api", "k", 4);
  request.set_want_receipt(true);
  v1::AcquireResponse acquired;
  ASSERT_TRUE(Acquire(request, &acquired).ok());
  Start({.limits = kLimits});  // a restart: the key that signed the receipt is lost
  v1::RefundResponse response;
  ExpectError(Refund(acquired.receipt(), &response), grpc::StatusCode::INVALID_ARGUMENT,
              "before this one was restarted");
}

TEST_F(RateLimiterServerTest, ShadowModeGrantsAndReportsDenials) {
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(Request("shadow", "k"), &response).ok());
  ASSERT_TRUE(Acquire(Request("shadow", "k"), &response).ok());
  EXPECT_TRUE(response.granted());
  EXPECT_EQ(response.charges(0).reason(), v1::REASON_SHADOW_DENIED);
}

TEST_F(RateLimiterServerTest, CancelledAndExpiredCallsDebitNothing) {
  int failed = 0;
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    if (i % 2 == 0) {
      context.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
    } else {
      context.TryCancel();
    }
    v1::AcquireResponse response;
    failed += data_->Acquire(&context, Request("fast", "late"), &response).ok() ? 0 : 1;
  }
  EXPECT_EQ(failed, 50);
  EXPECT_EQ(Remaining("fast", "late"), 100);
}

TEST_F(RateLimiterServerTest, CallThatExpiredBeforeTheServerReadItDebitsNothing) {
  // The deadline travels as a length of time, so a stopped server cannot know that it has passed.
  // The cancellation behind the request, which is read together with it, tells the server.
  ASSERT_TRUE(Granted("api", "first"));  // connected
  server_->Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return Stopped(server_->pid()); }));
  // The client returns before it has written the cancellation, which is certainly written once the
  // next call is. So the last call is on another bucket.
  for (const char* key : {"late", "late", "late", "late", "late", "last"}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    v1::AcquireResponse response;
    EXPECT_EQ(data_->Acquire(&context, Request("api", key), &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  // The calls are in the socket now, ahead of the ones that follow.
  server_->Signal(SIGCONT);
  // A call that is read together with the old ones counts as equally late, and is shed.
  ASSERT_TRUE(Eventually([&] { return Acquire(Request("api", "first")).ok(); }));
  EXPECT_EQ(Remaining("api", "late"), 10);
}

TEST_F(RateLimiterServerTest, ReflectionListsServicesAndTheirFiles) {
  const auto channel = server_->DataChannel();
  const auto stub = grpc::reflection::v1::ServerReflection::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(Soon());
  auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest request;
  grpc::reflection::v1::ServerReflectionResponse response;
  request.set_list_services("");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  std::vector<std::string> names;
  for (const auto& one : response.list_services_response().service()) names.push_back(one.name());
  EXPECT_THAT(names, ::testing::IsSupersetOf({"sluice.v1.RateLimiter", "grpc.health.v1.Health"}));
  request.set_file_containing_symbol("sluice.v1.RateLimiter");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.file_descriptor_response().file_descriptor_proto_size(), 3)
      << "its own file, after Duration's and Timestamp's";
  request.set_file_containing_symbol("no.such.Symbol");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());

  const auto alpha = grpc::reflection::v1alpha::ServerReflection::NewStub(channel);
  grpc::ClientContext alpha_context;
  auto alpha_stream = alpha->ServerReflectionInfo(&alpha_context);
  grpc::reflection::v1alpha::ServerReflectionRequest alpha_request;
  grpc::reflection::v1alpha::ServerReflectionResponse alpha_response;
  alpha_request.set_file_by_filename("sluice/v1/rate_limiter.proto");
  ASSERT_TRUE(alpha_stream->Write(alpha_request));
  ASSERT_TRUE(alpha_stream->Read(&alpha_response));
  EXPECT_EQ(alpha_response.file_descriptor_response().file_descriptor_proto_size(), 3);
  alpha_stream->WritesDone();
  EXPECT_TRUE(alpha_stream->Finish().ok());
}

TEST_F(RateLimiterServerTest, HealthKnowsItsServices) {
  const auto stub = grpc::health::v1::Health::NewStub(server_->DataChannel());
  for (const char* service : {"", "sluice.v1.RateLimiter"}) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
    request.set_service(service);
    ASSERT_TRUE(stub->Check(&context, request, &response).ok());
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  }
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  request.set_service("none");
  ExpectError(stub->Check(&context, request, &response), grpc::StatusCode::NOT_FOUND, "service");
}

}  // namespace
}  // namespace sluice::testing
