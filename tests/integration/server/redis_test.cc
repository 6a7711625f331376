// Servers that share their buckets through a real Redis.
#include <signal.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/integration/server/server_test.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class RedisServerTest : public ServerTest {
 protected:
  ServerProcess::Options Options(const std::string& limits) {
    ServerProcess::Options options;
    options.limits = limits;
    // Generous, since a busy machine is slow.
    options.flags = {"--store=" + redis_.url(), "--redis_budget=2s"};
    return options;
  }

  // On limit "deny" and key "k", which was used before.
  void ExpectReportsUnavailableStore() {
    // Each event loop notices by itself; then it sends nothing to Redis.
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::AcquireResponse response;
      const grpc::Status status = data_->Acquire(&context, Request("deny", "k"), &response);
      return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
             absl::StrContains(status.error_message(), "nothing was taken") &&
             context.GetServerTrailingMetadata().count("sluice-executed") == 1;
    }));
    grpc::ClientContext batch_context;
    v1::AcquireBatchRequest batch;
    *batch.add_acquisitions() = Request("deny", "k");
    v1::AcquireBatchResponse decided;
    ASSERT_TRUE(data_->AcquireBatch(&batch_context, batch, &decided).ok());
    EXPECT_EQ(decided.results(0).error().code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_TRUE(decided.results(0).error().nothing_taken());

    // The admin connection may be on a loop that has not noticed yet.
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::ResetKeyRequest reset;
      reset.set_limit("deny");
      reset.set_key("k");
      v1::ResetKeyResponse was_reset;
      const grpc::Status status = admin_->ResetKey(&context, reset, &was_reset);
      return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
             absl::StrContains(status.error_message(), "the bucket is as it was");
    }));

    grpc::ClientContext keys_context;
    v1::ListKeysRequest list;
    list.set_limit("deny");
    v1::ListKeysResponse keys;
    ASSERT_TRUE(admin_->ListKeys(&keys_context, list, &keys).ok());
    ASSERT_EQ(keys.keys_size(), 1);
    EXPECT_EQ(keys.keys(0).estimate(), 1u);
    EXPECT_EQ(keys.keys(0).capacity(), 5u);
    EXPECT_THAT(keys.keys(0).bucket_error(), HasSubstr("what is left is not known"));
  }

  RedisServer redis_;
};

TEST_F(RedisServerTest, NodesShareOneQuota) {
  const std::string limits =
      "limits: [{name: api, rate: 6/h, charges: [overall]}, {name: overall, rate: 100/h}]";
  Start(Options(limits));
  ASSERT_TRUE(server_->ready());
  ServerProcess::Options options = Options(limits);
  ServerProcess other(options);
  ASSERT_TRUE(other.ready());
  const auto other_data = v1::RateLimiter::NewStub(other.DataChannel());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Granted("api", "k"));
    EXPECT_TRUE(GrantedBy(*other_data, Request("api", "k")));
  }
  EXPECT_FALSE(Granted("api", "k"));
  EXPECT_TRUE(Granted("api", "other"));
  EXPECT_EQ(Remaining("overall", ""), 93);
}

TEST_F(RedisServerTest, SharesItsQuotaInACluster) {
  RedisCluster cluster;
  ServerProcess::Options options =
      Options("limits: [{name: api, rate: 3/h, charges: [overall]}, {name: overall, rate: 100/h}]");
  options.flags = {"--store=" + cluster.url(), "--redis_budget=2s"};
  Start(options);
  ASSERT_TRUE(server_->ready());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Granted("api", "k"));
  EXPECT_FALSE(Granted("api", "k"));
  EXPECT_EQ(Remaining("overall", ""), 97);
  v1::AcquireRequest request = Request("api", "k");
  request.mutable_max_wait()->set_seconds(1);
  const grpc::Status status = Acquire(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("limit \"api\", key \"k\""));
  EXPECT_THAT(status.error_message(), HasSubstr("limit \"overall\""));
}

TEST_F(RedisServerTest, NodesBookInACommonOrder) {
  const std::string limits = "limits: [{name: api, rate: 1/1h, max_wait: 24h}]";
  Start(Options(limits));
  ASSERT_TRUE(server_->ready());
  ServerProcess::Options options = Options(limits);
  ServerProcess other(options);
  ASSERT_TRUE(other.ready());
  const auto other_data = v1::RateLimiter::NewStub(other.DataChannel());
  ASSERT_TRUE(Granted("api", "k"));
  v1::AcquireRequest request = Request("api", "k");
  request.mutable_max_wait()->set_seconds(24 * 3600);
  const auto reserve = [&](v1::RateLimiter::Stub& stub) {
    v1::AcquireResponse response;
    EXPECT_TRUE(GrantedBy(stub, request, &response));
    EXPECT_FALSE(response.receipt().empty());
    return response;
  };
  // One minute of tolerance for a busy machine.
  const auto expect_hours = [](const v1::AcquireResponse& response, int64_t hours) {
    EXPECT_LE(response.wait().seconds(), hours * 3600);
    EXPECT_GE(response.wait().seconds(), hours * 3600 - 60);
  };
  const v1::AcquireResponse first = reserve(*data_);
  expect_hours(first, 1);
  expect_hours(reserve(*other_data), 2);
  EXPECT_FALSE(Granted("api", "k"));

  grpc::ClientContext context;
  v1::RefundRequest refund;
  refund.set_receipt(first.receipt());
  v1::RefundResponse refunded;
  ASSERT_TRUE(data_->Refund(&context, refund, &refunded).ok());
  // In order: not in the gap before the other node's booking.
  expect_hours(reserve(*data_), 3);
}

// Two nodes hold callers of one key in one queue. If a caller leaves, the callers of its node move
// up.
TEST_F(RedisServerTest, NodesHoldCallersInOneQueue) {
  const std::string limits =
      "limits: [{name: api, rate: 1/1h, max_wait: 24h}, {name: quick, rate: 4/s, burst: 1}]";
  Start(Options(limits));
  ASSERT_TRUE(server_->ready());
  ServerProcess::Options options = Options(limits);
  ServerProcess other(options);
  ASSERT_TRUE(other.ready());
  const auto other_data = v1::RateLimiter::NewStub(other.DataChannel());

  struct Held {
    grpc::ClientContext context;
    std::future<bool> granted;
  };
  const auto hold = [](v1::RateLimiter::Stub& stub, const std::string& limit) {
    auto held = std::make_unique<Held>();
    held->granted = std::async(std::launch::async, [&stub, limit, context = &held->context] {
      v1::AcquireRequest request = Request(limit, "k");
      request.mutable_max_wait()->set_seconds(24 * 3600);
      request.set_hold(true);
      v1::AcquireResponse response;
      return stub.Acquire(context, request, &response).ok() && response.granted();
    });
    return held;
  };
  const auto line = [&] {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::QueryRequest request;
    request.add_buckets()->set_limit("api");
    request.mutable_buckets(0)->set_key("k");
    v1::QueryResponse response;
    EXPECT_TRUE(data_->Query(&context, request, &response).ok());
    return response.buckets(0);
  };

  ASSERT_TRUE(Granted("api", "k"));
  const auto first = hold(*data_, "api");
  ASSERT_TRUE(Eventually([&] { return line().waiting() == 1; }));
  const auto second = hold(*data_, "api");
  ASSERT_TRUE(Eventually([&] { return line().waiting() == 2; }));
  const auto third = hold(*other_data, "api");
  ASSERT_TRUE(Eventually([&] { return line().waiting() == 3; }));
  first->context.TryCancel();
  EXPECT_FALSE(first->granted.get());
  // The second caller takes the place of the first.
  EXPECT_TRUE(Eventually([&] {
    const v1::BucketStatus bucket = line();
    return bucket.waiting() == 2 && bucket.next_grant_after().seconds() <= 3600;
  }));
  third->context.TryCancel();
  EXPECT_FALSE(third->granted.get());
  second->context.TryCancel();
  EXPECT_FALSE(second->granted.get());
  EXPECT_TRUE(Eventually([&] { return line().waiting() == 0; }));

  // No caller is granted early: eight grants take seven intervals.
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Held>> all;
  for (int i = 0; i < 8; ++i) all.push_back(hold(i % 2 == 0 ? *data_ : *other_data, "quick"));
  for (const auto& held : all) EXPECT_TRUE(held->granted.get());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(7 * 250));
}

// Callers that wait while a limit is raised are granted by the new parameters.
TEST_F(RedisServerTest, HeldCallersAreBookedAgainWhenTheirLimitChanges) {
  Start(Options("limits: []"));
  ASSERT_TRUE(server_->ready());
  const auto put = [&](uint64_t permits) {
    grpc::ClientContext context;
    v1::PutLimitRequest request;
    request.mutable_limit()->set_name("api");
    request.mutable_limit()->mutable_rate()->set_permits(permits);
    request.mutable_limit()->mutable_rate()->mutable_period()->set_seconds(3600);
    request.mutable_limit()->set_burst(1);
    request.mutable_limit()->mutable_max_wait()->set_seconds(24 * 3600);
    v1::PutLimitResponse response;
    const grpc::Status status = admin_->PutLimit(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  };
  put(1);
  ASSERT_TRUE(Granted("api", "k"));
  std::vector<std::future<bool>> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(std::async(std::launch::async, [this] {
      grpc::ClientContext context;
      v1::AcquireRequest request = Request("api", "k");
      request.mutable_max_wait()->set_seconds(24 * 3600);
      request.set_hold(true);
      v1::AcquireResponse response;
      return data_->Acquire(&context, request, &response).ok() && response.granted();
    }));
  }
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::QueryRequest request;
    request.add_buckets()->set_limit("api");
    request.mutable_buckets(0)->set_key("k");
    v1::QueryResponse response;
    return data_->Query(&context, request, &response).ok() && response.buckets(0).waiting() == 3;
  }));
  put(3600'000);
  for (std::future<bool>& one : held) EXPECT_TRUE(one.get());
}

TEST_F(RedisServerTest, OnStoreFailureDecidesWhileRedisIsUnavailable) {
  Start(
      Options("limits: [{name: deny, rate: 5/h}, "
              "{name: allow, rate: 1/h, on_store_failure: allow}]"));
  ASSERT_TRUE(server_->ready());
  grpc::ClientContext context;
  v1::PutLimitRequest put;
  put.mutable_limit()->set_name("put");
  put.mutable_limit()->mutable_rate()->set_permits(1);
  put.mutable_limit()->set_on_store_failure(v1::ON_STORE_FAILURE_ALLOW);
  v1::PutLimitResponse was_put;
  ASSERT_TRUE(admin_->PutLimit(&context, put, &was_put).ok());
  EXPECT_EQ(was_put.limit().on_store_failure(), v1::ON_STORE_FAILURE_ALLOW);
  EXPECT_TRUE(Granted("deny", "k"));
  EXPECT_TRUE(Granted("allow", "k"));
  EXPECT_FALSE(Granted("allow", "k"));
  redis_.Kill();
  EXPECT_EQ(Acquire(Request("deny", "k")).error_code(), grpc::StatusCode::UNAVAILABLE);
  ExpectReportsUnavailableStore();
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(Request("allow", "k"), &response).ok());
  EXPECT_TRUE(response.granted());
  EXPECT_EQ(response.source(), v1::SOURCE_STORE_UNAVAILABLE);
  EXPECT_TRUE(Granted("put", "k", 1));
  redis_.Start();
  EXPECT_TRUE(Eventually([&] { return Acquire(Request("deny", "k")).ok(); }));
}

TEST_F(RedisServerTest, ExitsWhileARedisReplyIsOutstanding) {
  ServerProcess::Options options = Options("limits: [{name: api, rate: 6/h}]");
  options.flags.push_back("--drain_timeout=200ms");
  Start(options);
  ASSERT_TRUE(server_->ready());
  const auto channel = server_->DataChannel();
  const auto data = v1::RateLimiter::NewStub(channel);
  const v1::AcquireRequest request = Request("api", "k");
  redis_.Pause();
  grpc::ClientContext context;
  context.set_deadline(Soon());
  v1::AcquireResponse response;
  std::promise<grpc::Status> answered;
  data->async()->Acquire(&context, &request, &response,
                         [&](grpc::Status status) { answered.set_value(std::move(status)); });
  // On the same connection: when this is answered, the call is in progress.
  grpc::ClientContext check;
  grpc::health::v1::HealthCheckResponse health;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(channel)->Check(&check, {}, &health).ok());
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->WaitForExit(), 0) << server_->log();
  EXPECT_EQ(answered.get_future().get().error_code(), grpc::StatusCode::UNAVAILABLE);
  redis_.Resume();
}

TEST_F(RedisServerTest, ReportsAnUnavailableRedisAndTheDecisionsMeanwhile) {
  ServerProcess::Options options = Options(
      "limits: [{name: deny, rate: 5/h}, {name: allow, rate: 1/h, on_store_failure: allow}]");
  options.flags.push_back("--store_threads=3");
  options.flags.push_back("--after_data_loss=full");
  // Only broken connections open the breaker, never a slow answer.
  options.flags.push_back("--redis_budget=20s");
  Start(options);
  ASSERT_TRUE(server_->ready());
  const auto status = [&] {
    grpc::ClientContext context;
    v1::ConfigStatus response;
    EXPECT_TRUE(admin_->GetConfigStatus(&context, v1::GetConfigStatusRequest(), &response).ok());
    return response.store();
  };
  const auto lines = [&](const std::string& event) {
    const std::string log = server_->log();
    int found = 0;
    for (size_t at = log.find(event); at != log.npos; at = log.find(event, at + 1)) ++found;
    return found;
  };
  EXPECT_TRUE(Granted("allow", "k"));
  EXPECT_EQ(status().kind(), "redis");
  EXPECT_EQ(status().state(), v1::StoreStatus::STATE_SERVING);
  EXPECT_EQ(status().times_unavailable(), 0u);
  EXPECT_GT(status().since().seconds(), 0);

  redis_.Kill();
  EXPECT_TRUE(Eventually([&] { return status().state() == v1::StoreStatus::STATE_UNAVAILABLE; }));
  // Each event loop notices by itself.
  EXPECT_TRUE(Eventually([&] { return Acquire(Request("deny", "k")).error_code() == 14; }));
  for (int i = 0; i < 3; ++i) {
    v1::AcquireResponse response;
    ASSERT_TRUE(Acquire(Request("allow", std::to_string(i)), &response).ok());
    EXPECT_EQ(response.source(), v1::SOURCE_STORE_UNAVAILABLE);
  }
  grpc::ClientContext context;
  v1::QueryRequest query;
  query.add_buckets()->set_limit("allow");
  v1::QueryResponse queried;
  ASSERT_TRUE(data_->Query(&context, query, &queried).ok());
  EXPECT_EQ(queried.buckets(0).source(), v1::SOURCE_STORE_UNAVAILABLE);
  EXPECT_EQ(queried.buckets(0).error().code(), grpc::StatusCode::UNAVAILABLE);
  const v1::StoreStatus away = status();
  EXPECT_EQ(away.times_unavailable(), 1u);
  EXPECT_FALSE(away.last_error().empty());
  ASSERT_EQ(away.decided_while_unavailable_size(), 2);
  EXPECT_EQ(away.decided_while_unavailable(0).limit(), "allow");
  EXPECT_EQ(away.decided_while_unavailable(0).allowed(), 3u);
  EXPECT_EQ(away.decided_while_unavailable(0).denied(), 0u);
  EXPECT_GE(away.decided_while_unavailable(1).denied(), 1u);

  redis_.Start();
  EXPECT_TRUE(Eventually([&] { return status().state() == v1::StoreStatus::STATE_SERVING; }));
  EXPECT_TRUE(Granted("deny", "k"));
  EXPECT_EQ(status().times_unavailable(), 1u);
  EXPECT_TRUE(Eventually([&] { return lines("event=redis_available") == 1; })) << server_->log();
  EXPECT_EQ(lines("event=redis_unavailable"), 1) << server_->log();
  EXPECT_TRUE(server_->Logs({"allowed_meanwhile=3"}));
  grpc::ClientContext stats_context;
  v1::Stats stats;
  ASSERT_TRUE(admin_->GetStats(&stats_context, v1::GetStatsRequest(), &stats).ok());
  EXPECT_EQ(stats.store().decisions(), 2u);
  EXPECT_GE(stats.store().commands(), 2u);
  EXPECT_EQ(stats.limits(0).allowed_while_unavailable(), 3u);
}

TEST_F(RedisServerTest, WarnsOfAClientsBoundOnNewKeys) {
  TestFiles files;
  ServerProcess::Options options = Options("limits: [{name: api, rate: 1/h, burst: 100}]");
  options.flags.push_back("--clients=" +
                          files.Write("clients.yaml",
                                      "clients: [{ name: anonymous, limits: api, calls: acquire, "
                                      "max_new_keys_per_minute: 0 }]\n"));
  Start(std::move(options));
  ASSERT_TRUE(server_->ready());
  EXPECT_TRUE(server_->Logs({"event=client_bound_without_effect client=anonymous"}));
  EXPECT_TRUE(Granted("api", "new"));
}

TEST_F(RedisServerTest, RefusesToStartOnAnUnfitRedis) {
  RedisServer evicting({"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"});
  ServerProcess::Options options;
  options.flags = {"--store=" + evicting.url()};
  options.may_fail = true;
  ServerProcess server(options);
  EXPECT_FALSE(server.ready());
  EXPECT_THAT(server.log(), HasSubstr("allkeys-lru"));
}

TEST_F(RedisServerTest, NeverShowsThePasswordOfABadUrl) {
  ServerProcess::Options options;
  options.flags = {"--store=redis-cluster://:hunter2@host/3"};
  options.may_fail = true;
  ServerProcess server(options);
  EXPECT_FALSE(server.ready());
  EXPECT_THAT(server.log(), HasSubstr("Cluster"));
  EXPECT_FALSE(absl::StrContains(server.log(), "hunter2"));
}

}  // namespace
}  // namespace sluice::testing
