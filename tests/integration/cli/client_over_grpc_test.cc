#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "sluice/admin_client.h"
#include "sluice/client.h"
#include "tests/integration/cli/stand_in_server.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::StandInServer;

class ClientOverGrpcTest : public ::testing::Test {
 protected:
  Client MakeClient(ClientOptions options = {}) {
    options.servers = {server_.address()};
    // Long, for slow machines; tests of hanging servers set their own.
    if (options.deadline == seconds(1)) options.deadline = seconds(20);
    return *Client::Create(std::move(options));
  }

  StandInServer server_;
};

TEST_F(ClientOverGrpcTest, BlockingCallbackAndFutureFormsAgree) {
  Client client = MakeClient();
  const auto blocking = client.Acquire("api", "a", 3);
  ASSERT_TRUE(blocking.ok()) << blocking.status();
  EXPECT_TRUE(blocking->granted);
  EXPECT_EQ(blocking->source, Source::kStore);
  ASSERT_EQ(blocking->charges.size(), 1u);
  EXPECT_EQ(blocking->charges[0].remaining, 7);
  EXPECT_EQ(blocking->charges[0].capacity, 10u);
  EXPECT_EQ(blocking->charges[0].reset_after, seconds(90));

  EXPECT_EQ(client.AcquireFuture(Acquisition("api", "a", 3)).get()->charges[0].remaining, 4);

  std::promise<Result<Decision>> answer;
  client.AcquireAsync(Acquisition("api", "a", 5),
                      [&](Result<Decision> result) { answer.set_value(std::move(result)); });
  const auto denied = answer.get_future().get();
  EXPECT_FALSE(denied->granted);
  EXPECT_EQ(denied->retry_after, milliseconds(250));
  EXPECT_EQ(denied->charges[0].reason, Reason::kNotEnough);
  EXPECT_EQ(*client.TryAcquire("api", "a", 5), milliseconds(250));
}

TEST_F(ClientOverGrpcTest, ErrorsHaveTheServersMessage) {
  Client client = MakeClient();
  const auto result = client.Acquire("missing", "");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status(), Status(StatusCode::kNotFound, "limit \"missing\" is not configured"));
}

TEST_F(ClientOverGrpcTest, BatchHasAResultForEachAcquisition) {
  Client client = MakeClient();
  const std::vector<Acquisition> batch = {Acquisition("api", "a", 10), Acquisition("missing"),
                                          Acquisition("api", "a")};
  const auto results = client.AcquireBatch(batch);
  ASSERT_TRUE(results.ok());
  ASSERT_EQ(results->size(), 3u);
  EXPECT_TRUE((*results)[0]->granted);
  EXPECT_EQ((*results)[1].status().code(), StatusCode::kNotFound);
  EXPECT_FALSE((*results)[2]->granted);
  const auto too_many = client.AcquireBatch(std::vector<Acquisition>(4097, Acquisition("api")));
  EXPECT_EQ(too_many.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ClientOverGrpcTest, QueriesAndRefundsOverGrpc) {
  Client client = MakeClient();
  Acquisition acquisition("api", "a");
  acquisition.want_receipt = true;
  const auto decision = client.Acquire(acquisition);
  const auto refund = client.Refund(*decision);
  ASSERT_TRUE(refund.ok());
  EXPECT_EQ(refund->outcome, RefundOutcome::kRefunded);
  ASSERT_EQ(refund->charges.size(), 1u);
  EXPECT_EQ(client.Refund(*decision)->outcome, RefundOutcome::kAlreadyRefunded);
  EXPECT_EQ(client.Refund("forged").status().code(), StatusCode::kInvalidArgument);
  const std::vector<Bucket> buckets = {{"api", "a"}, {"api", "b"}};
  const auto answers = client.Query(buckets);
  ASSERT_TRUE(answers.ok());
  EXPECT_EQ((*answers)[0].remaining, 9);
  EXPECT_TRUE((*answers)[0].exists);
  EXPECT_FALSE((*answers)[1].exists);
}

TEST_F(ClientOverGrpcTest, WatchReportsChangesUntilItIsDestroyed) {
  Client client = MakeClient();
  std::mutex mu;
  std::vector<int64_t> seen;
  std::promise<void> two;
  std::promise<Status> closed;
  const std::vector<Bucket> buckets = {{"api", "a"}};
  auto watch =
      client.Watch(buckets, {.min_interval = milliseconds(10)},
                   {.on_change =
                        [&](std::vector<BucketStatus> changed) {
                          std::lock_guard<std::mutex> lock(mu);
                          seen.push_back(changed[0].remaining);
                          if (seen.size() == 1) {
                            // Within a callback: must not block.
                            client.AcquireAsync(Acquisition("api", "a"), [](Result<Decision>) {});
                          }
                          if (seen.size() == 2) two.set_value();
                        },
                    .on_closed = [&](Status status) { closed.set_value(status); }});
  two.get_future().get();
  watch.reset();
  EXPECT_EQ(closed.get_future().get().code(), StatusCode::kCancelled);
  EXPECT_EQ(seen, (std::vector<int64_t>{10, 9}));
}

TEST_F(ClientOverGrpcTest, UnreachableServerHasNotExecutedTheCall) {
  Client client = MakeClient();
  server_.Kill();
  for (int i = 0; i < 3; ++i) {
    const auto result = client.Acquire("api", "a");
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->granted);
    EXPECT_EQ(result->source, Source::kUnavailable);
    EXPECT_EQ(result->status.code(), StatusCode::kUnavailable) << result->status;
    EXPECT_FALSE(result->status.may_have_executed()) << result->status;
  }
  const auto future = client.AcquireFuture(Acquisition("api", "a")).get();
  EXPECT_FALSE(future->status.may_have_executed());
}

TEST_F(ClientOverGrpcTest, ReconnectsToARestartedServer) {
  Client client = MakeClient();
  ASSERT_TRUE(client.Acquire("api", "a")->granted);
  server_.Kill();
  EXPECT_EQ(client.Acquire("api", "a")->source, Source::kUnavailable);
  server_.Restart();
  // The channel reconnects after its own pause.
  Result<Decision> result = client.Acquire("api", "a");
  for (int i = 0; i < 1000 && result->source == Source::kUnavailable; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    result = client.Acquire("api", "a");
  }
  EXPECT_TRUE(result->granted) << result->status;
}

TEST_F(ClientOverGrpcTest, CallToAHangingServerMayHaveBeenExecuted) {
  Client client = MakeClient();
  ASSERT_TRUE(client.Acquire("api", "a")->granted);
  server_.SetHanging(true);
  const auto result = client.Acquire("api", "a", 1, {.deadline = milliseconds(100)});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->source, Source::kUnavailable);
  EXPECT_EQ(result->status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(result->status.may_have_executed());
  // Executed once, not retried.
  EXPECT_EQ(server_.executed(), 2);
  server_.SetHanging(false);
}

TEST_F(ClientOverGrpcTest, CallOnABrokenConnectionMayHaveBeenExecuted) {
  Client client = MakeClient();
  server_.SetHanging(true);
  auto future = client.AcquireFuture(Acquisition("api", "a"));
  while (server_.executed() < 1) std::this_thread::yield();
  server_.Kill();
  const auto result = future.get();
  // The stand-in ends with CANCELLED or closes the connection; both occur.
  if (result.ok()) {
    EXPECT_TRUE(result->status.may_have_executed()) << result->status;
  } else {
    EXPECT_TRUE(result.status().may_have_executed()) << result.status();
  }
  EXPECT_EQ(server_.executed(), 1);
}

TEST_F(ClientOverGrpcTest, RetriesOnlyACallThatTheServerDidNotExecute) {
  Client client = MakeClient();
  server_.FailNext({grpc::StatusCode::UNAVAILABLE, "draining"}, /*marked=*/true, 2);
  EXPECT_TRUE(client.Acquire("api", "a")->granted);
  server_.FailNext({grpc::StatusCode::UNAVAILABLE, "who knows"}, /*marked=*/false, 1);
  const auto result = client.Acquire("api", "a");
  EXPECT_EQ(result->source, Source::kUnavailable);
  EXPECT_TRUE(result->status.may_have_executed());
  EXPECT_EQ(server_.executed(), 1);
}

TEST_F(ClientOverGrpcTest, CallsTheServerThatIsAvailable) {
  StandInServer other;
  auto client =
      *Client::Create({.servers = {server_.address(), other.address()}, .deadline = seconds(20)});
  server_.Kill();
  for (int i = 0; i < 10; ++i) {
    const auto result = client.Acquire("api", std::to_string(i));
    EXPECT_TRUE(result->granted) << result->status;
    EXPECT_EQ(result->server, 1u);
  }
  EXPECT_EQ(other.executed(), 10);
}

TEST_F(ClientOverGrpcTest, StreamAnswersInOrderAndBatches) {
  Client client = MakeClient();
  AcquireStream stream = client.OpenStream();
  std::vector<int> order;
  std::atomic<int> granted{0};
  constexpr int kCount = 5000;
  for (int i = 0; i < kCount; ++i) {
    stream.Submit("api", std::to_string(i), 1, [&, i](Result<Decision> result) {
      order.push_back(i);
      if (result.ok() && result->granted) ++granted;
    });
  }
  ASSERT_TRUE(stream.Drain(seconds(60)));
  EXPECT_EQ(granted, kCount);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(server_.executed(), kCount);
  EXPECT_LT(stream.counts().messages, static_cast<uint64_t>(kCount));
  EXPECT_EQ(stream.counts().connections, 1u);
}

TEST_F(ClientOverGrpcTest, BrokenStreamReportsSentAcquisitionsAndContinues) {
  Client client = MakeClient();
  AcquireStream stream = client.OpenStream();
  ASSERT_TRUE(stream.Submit(Acquisition("api", "a")).get()->granted);
  server_.BreakNextStreamMessage();
  const auto lost = stream.Submit(Acquisition("api", "a")).get();
  ASSERT_TRUE(lost.ok());
  EXPECT_EQ(lost->source, Source::kUnavailable);
  EXPECT_TRUE(lost->status.may_have_executed());
  EXPECT_TRUE(stream.Submit(Acquisition("api", "a")).get()->granted);
  // Executed, executed and lost, executed: nothing was sent twice.
  EXPECT_EQ(server_.executed(), 3);
  EXPECT_EQ(stream.counts().connections, 2u);
}

TEST_F(ClientOverGrpcTest, StreamWaitsForAnUnavailableServer) {
  Client client = MakeClient();
  AcquireStream stream = client.OpenStream();
  server_.Kill();
  auto future = stream.Submit(Acquisition("api", "a"));
  server_.Restart();
  const auto result = future.get();
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->granted) << result->status;
}

TEST_F(ClientOverGrpcTest, StreamToAHangingServerEndsAtTheDeadline) {
  Client client = MakeClient();
  server_.SetHanging(true);
  AcquireStream stream = client.OpenStream({.deadline = milliseconds(200)});
  const auto result = stream.Submit(Acquisition("api", "a")).get();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(result->status.may_have_executed());
  server_.SetHanging(false);
  EXPECT_TRUE(stream.Submit(Acquisition("api", "b")).get()->granted);
}

TEST_F(ClientOverGrpcTest, DestructionAnswersAllCallsInFlight) {
  server_.SetHanging(true);
  std::atomic<int> answered{0};
  {
    Client client = MakeClient();
    AcquireStream stream = client.OpenStream();
    for (int i = 0; i < 20; ++i) {
      client.AcquireAsync(Acquisition("api", "a"), [&](Result<Decision>) { ++answered; });
      stream.Submit("api", "a", 1, [&](Result<Decision>) { ++answered; });
    }
    client.QueryAsync({{"api", "a"}}, [&](auto) { ++answered; });
  }
  EXPECT_EQ(answered, 41);
  server_.SetHanging(false);
}

TEST_F(ClientOverGrpcTest, DestructionEndsABlockingCall) {
  server_.SetHanging(true);
  auto client = std::make_unique<Client>(MakeClient());
  StatusCode code = StatusCode::kOk;
  std::thread caller([&] { code = client->Acquire("api", "a").status().code(); });
  while (server_.executed() < 1) std::this_thread::yield();
  // Destruction cancels the call and waits for its caller; the pointer stays valid.
  {
    const Client gone = std::move(*client);
  }
  caller.join();
  EXPECT_EQ(code, StatusCode::kCancelled);
}

TEST_F(ClientOverGrpcTest, AdminClientManagesLimits) {
  auto admin = *AdminClient::Create({.server = server_.admin_address()});
  LimitInfo limit;
  limit.name = "api";
  limit.rate = {100, seconds(1)};
  limit.burst = 200;
  limit.algorithm = "token_bucket";
  limit.mode = "shadow";
  limit.on_store_failure = "split";
  limit.sharing = "relaxed";
  limit.charges = {"overall"};
  limit.keys = {{"user:42", LimitRate{1000, seconds(1)}, 2000, {}}};
  limit.utc_offset = -std::chrono::hours(5);
  limit.max_wait = seconds(2);
  limit.min_keys = 7;
  limit.direct = false;
  const auto put = admin.PutLimit(limit);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_FALSE(put->replaced);
  const auto got = admin.GetLimit("api");
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->rate.permits, 100u);
  EXPECT_EQ(got->burst, 200u);
  EXPECT_EQ(got->algorithm, "token_bucket");
  EXPECT_EQ(got->mode, "shadow");
  EXPECT_EQ(got->on_store_failure, "split");
  EXPECT_EQ(got->sharing, "relaxed");
  EXPECT_EQ(got->origin, "admin");
  EXPECT_EQ(got->utc_offset, -std::chrono::hours(5));
  EXPECT_EQ(got->max_wait, seconds(2));
  EXPECT_EQ(got->min_keys, 7u);
  EXPECT_FALSE(got->direct);
  ASSERT_EQ(got->keys.size(), 1u);
  EXPECT_EQ(got->keys[0].burst, 2000u);
  EXPECT_EQ(admin.ListLimits()->size(), 1u);
  EXPECT_TRUE(admin.DeleteLimit("api").ok());
  EXPECT_EQ(admin.DeleteLimit("api").code(), StatusCode::kNotFound);
  limit.algorithm = "leaky";
  EXPECT_NE(admin.PutLimit(limit).status().message().find("leaky"), std::string::npos);
  EXPECT_EQ(admin.GetStats()->limits[0].granted, 2u);
  EXPECT_EQ(admin.GetConfigStatus()->limits, 3u);
  EXPECT_EQ(admin.ListKeys("", KeyOrder::kDenials, 10)->keys[0].key, "denied");
}

TEST_F(ClientOverGrpcTest, AdminClientSendsItsToken) {
  server_.RequireToken("secret");
  auto without = *AdminClient::Create({.server = server_.admin_address()});
  EXPECT_EQ(without.ListLimits().status().code(), StatusCode::kUnauthenticated);
  auto with = *AdminClient::Create({.server = server_.admin_address(), .token = "secret"});
  EXPECT_TRUE(with.ListLimits().ok());
}

}  // namespace
}  // namespace sluice
