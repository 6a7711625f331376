// Servers that share their buckets through a real Redis.
#include "absl/strings/match.h"
#include "tests/integration/server/server_test.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class RedisServerTest : public ServerTest {
 protected:
  ServerProcess::Options Options(const std::string& limits) {
    ServerProcess::Options options;
    options.limits = limits;
    // A busy machine is slow, which is not what is tested.
    options.flags = {"--store=" + redis_.url(), "--redis_budget=2s"};
    return options;
  }

  RedisServer redis_;
};

TEST_P(RedisServerTest, NodesShareOneQuota) {
  const std::string limits =
      "limits: [{name: api, rate: 6/h, charges: [overall]}, {name: overall, rate: 100/h}]";
  Start(Options(limits));
  ASSERT_TRUE(server_->ready());
  ServerProcess::Options options = Options(limits);
  options.transport = GetParam();
  ServerProcess other(options);
  ASSERT_TRUE(other.ready());
  const auto other_data = v1::RateLimiter::NewStub(other.DataChannel());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Granted("api", "k"));
    grpc::ClientContext context;
    v1::AcquireResponse response;
    const grpc::Status status = other_data->Acquire(&context, Request("api", "k"), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(response.granted());
  }
  EXPECT_FALSE(Granted("api", "k"));
  EXPECT_TRUE(Granted("api", "other"));
  EXPECT_EQ(Remaining("overall", ""), 93);
}

TEST_P(RedisServerTest, SaysThatItDoesNotBookAhead) {
  Start(Options("limits: [{name: api, rate: 1/h}]"));
  ASSERT_TRUE(server_->ready());
  v1::AcquireRequest request = Request("api", "k");
  request.mutable_max_wait()->set_seconds(1);
  const grpc::Status status = Acquire(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("max_wait"));
}

TEST_P(RedisServerTest, DecidesByTheLimitsPolicyWhileRedisIsAway) {
  Start(
      Options("limits: [{name: deny, rate: 5/h}, "
              "{name: allow, rate: 1/h, on_store_failure: allow}]"));
  ASSERT_TRUE(server_->ready());
  EXPECT_TRUE(Granted("deny", "k"));
  EXPECT_TRUE(Granted("allow", "k"));
  EXPECT_FALSE(Granted("allow", "k"));
  redis_.Kill();
  EXPECT_EQ(Acquire(Request("deny", "k")).error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(Request("allow", "k"), &response).ok());
  EXPECT_TRUE(response.granted());
  EXPECT_EQ(response.source(), v1::SOURCE_STORE_AWAY);
  redis_.Start();
  EXPECT_TRUE(Eventually([&] { return Acquire(Request("deny", "k")).ok(); }));
}

TEST_P(RedisServerTest, RefusesToStartOnARedisThatWillNotDo) {
  RedisServer evicting({"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"});
  ServerProcess::Options options;
  options.flags = {"--store=" + evicting.url()};
  options.may_fail = true;
  options.transport = GetParam();
  ServerProcess server(options);
  EXPECT_FALSE(server.ready());
  EXPECT_THAT(server.log(), HasSubstr("allkeys-lru"));
}

TEST_P(RedisServerTest, NeverShowsThePasswordOfABadUrl) {
  ServerProcess::Options options;
  options.flags = {"--store=redis-cluster://:hunter2@host"};
  options.may_fail = true;
  options.transport = GetParam();
  ServerProcess server(options);
  EXPECT_FALSE(server.ready());
  EXPECT_THAT(server.log(), HasSubstr("Cluster"));
  EXPECT_FALSE(absl::StrContains(server.log(), "hunter2"));
}

SLUICE_ON_EVERY_TRANSPORT(RedisServerTest);

}  // namespace
}  // namespace sluice::testing
