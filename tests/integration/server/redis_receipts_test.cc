// Receipts that one node issues and another node redeems.
#include <memory>

#include "tests/integration/server/server_test.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

class RedisReceiptsTest : public ServerTest {
 protected:
  struct Node {
    std::unique_ptr<ServerProcess> server;
    std::unique_ptr<v1::RateLimiter::Stub> data;
  };

  Node Start(const std::string& name_space = "sluice") {
    ServerProcess::Options options;
    options.limits =
        "limits: [{name: api, rate: 10/h}, {name: log, algorithm: sliding_log, "
        "rate: 10/h}, {name: jobs, algorithm: concurrency, permits: 10, hold_for: 1h}]";
    // Generous, since a busy machine is slow.
    options.flags = {"--store=" + redis_.url(), "--redis_budget=2s",
                     "--redis_namespace=" + name_space, "--after_data_loss=full"};
    Node node;
    node.server = std::make_unique<ServerProcess>(options);
    node.data = v1::RateLimiter::NewStub(node.server->DataChannel());
    return node;
  }

  static std::string Take(const Node& node, const std::string& limit, uint64_t permits) {
    v1::AcquireRequest request = Request(limit, "k", permits);
    request.set_want_receipt(true);
    v1::AcquireResponse response;
    EXPECT_TRUE(GrantedBy(*node.data, request, &response));
    return response.receipt();
  }

  static grpc::Status Redeem(const Node& node, const std::string& receipt,
                             v1::RefundResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::RefundRequest request;
    request.set_receipt(receipt);
    return node.data->Refund(&context, request, response);
  }
  static v1::RefundOutcome Redeem(const Node& node, const std::string& receipt) {
    v1::RefundResponse response;
    const grpc::Status status = Redeem(node, receipt, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.outcome();
  }

  static grpc::Status Settle(const Node& node, const std::string& receipt,
                             v1::SettleResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::SettleRequest request;
    request.set_receipt(receipt);
    return node.data->Settle(&context, request, response);
  }
  static v1::RenewResult Renew(const Node& node, const std::string& receipt) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::RenewRequest request;
    request.add_receipts(receipt);
    v1::RenewResponse response;
    const grpc::Status status = node.data->Renew(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.results_size() == 1 ? response.results(0) : v1::RenewResult();
  }

  static int64_t Left(const Node& node, const std::string& limit) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::QueryRequest request;
    request.add_buckets()->set_limit(limit);
    request.mutable_buckets(0)->set_key("k");
    v1::QueryResponse response;
    EXPECT_TRUE(node.data->Query(&context, request, &response).ok());
    return response.buckets_size() == 1 ? response.buckets(0).remaining() : -1;
  }

  std::string KeyInRedis() {
    RedisCalls calls(redis_);
    return calls.Call({"GET", "sluice:receipt-key"}).text;
  }

  RedisServer redis_;
};

TEST_F(RedisReceiptsTest, AnotherNodeRedeemsAReceiptOnce) {
  const Node one = Start();
  const Node two = Start();
  for (const char* limit : {"api", "log"}) {
    const std::string receipt = Take(one, limit, 4);
    const std::string other = Take(two, limit, 1);
    EXPECT_EQ(Left(two, limit), 5);
    EXPECT_EQ(Redeem(two, receipt), v1::REFUND_OUTCOME_REFUNDED);
    EXPECT_EQ(Left(one, limit), 9);
    // The node that issued it, the node that redeemed it, and a third one.
    const Node three = Start();
    for (const Node* node : {&one, &two, &three}) {
      v1::RefundResponse response;
      ASSERT_TRUE(Redeem(*node, receipt, &response).ok());
      EXPECT_EQ(response.outcome(), v1::REFUND_OUTCOME_ALREADY_REFUNDED);
      for (const v1::RefundedCharge& charge : response.charges()) EXPECT_EQ(charge.permits(), 0u);
    }
    EXPECT_EQ(Left(one, limit), 9) << "no second time";
    EXPECT_EQ(Redeem(one, other), v1::REFUND_OUTCOME_REFUNDED);
    EXPECT_EQ(Left(two, limit), 10);
  }
  EXPECT_EQ(KeyInRedis().size(), 64u);
  EXPECT_EQ(one.server->log().find(KeyInRedis()), std::string::npos);
}

TEST_F(RedisReceiptsTest, ReceiptOutlivesTheNodeThatIssuedIt) {
  std::string receipt;
  {
    const Node one = Start();
    receipt = Take(one, "api", 4);
    one.server->Kill();
  }
  const Node again = Start();
  EXPECT_EQ(Left(again, "api"), 6);
  EXPECT_EQ(Redeem(again, receipt), v1::REFUND_OUTCOME_REFUNDED);
  EXPECT_EQ(Left(again, "api"), 10);
}

TEST_F(RedisReceiptsTest, NodesRestoreTheKeyThatRedisLost) {
  const Node one = Start();
  const std::string key = KeyInRedis();
  redis_.Kill();
  redis_.Start();  // without its data
  EXPECT_TRUE(Eventually([&] { return KeyInRedis() == key; }));
  const Node two = Start();
  EXPECT_EQ(KeyInRedis(), key);
  EXPECT_EQ(Redeem(two, Take(one, "log", 4)), v1::REFUND_OUTCOME_REFUNDED);
}

TEST_F(RedisReceiptsTest, RefusesReceiptsOfAnotherDeployment) {
  const Node one = Start();
  const Node foreign = Start("theirs");
  v1::RefundResponse response;
  const grpc::Status status = Redeem(foreign, Take(one, "api", 4), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("receipt"));
  EXPECT_EQ(Left(one, "api"), 6);
}

// Its bucket of the same name has as many permits taken, which are not the stranger's.
TEST_F(RedisReceiptsTest, SettlesAndRenewsNoReceiptsOfAnotherDeployment) {
  const Node one = Start();
  const Node foreign = Start("theirs");
  Take(foreign, "jobs", 4);
  v1::AcquireRequest request = Request("api", "k", 4);
  request.mutable_settle_within()->set_seconds(60);
  v1::AcquireResponse estimate;
  ASSERT_TRUE(GrantedBy(*one.data, request, &estimate));
  const std::string slots = Take(one, "jobs", 4);
  for (const std::string& receipt : {estimate.receipt(), slots}) {
    v1::SettleResponse response;
    const grpc::Status status = Settle(foreign, receipt, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr("receipt"));
  }
  const v1::RenewResult refused = Renew(foreign, slots);
  EXPECT_EQ(refused.error().code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("receipt"));
  EXPECT_EQ(Left(foreign, "jobs"), 6);
  EXPECT_EQ(Left(one, "jobs"), 6);
  EXPECT_EQ(Left(one, "api"), 6);

  // Their own deployment takes them.
  EXPECT_EQ(Renew(one, slots).outcome(), v1::RENEW_OUTCOME_RENEWED);
  for (const std::string& receipt : {estimate.receipt(), slots}) {
    v1::SettleResponse response;
    const grpc::Status status = Settle(one, receipt, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.outcome(), v1::SETTLE_OUTCOME_SETTLED);
  }
  EXPECT_EQ(Left(one, "jobs"), 10);
}

}  // namespace
}  // namespace sluice::testing
