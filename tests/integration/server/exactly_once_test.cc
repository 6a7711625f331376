// Request ids over the wire, and clients that repeat calls whose answers were lost.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sluice/client.h"
#include "tests/integration/server/server_test.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

constexpr char kLimits[] =
    "limits: [{name: api, rate: 1/h, burst: 5000}, {name: owing, rate: 10/24h, max_owed: 100}, "
    "{name: second, rate: 1/s}, {name: shared, rate: 10/24h, sharing: split}]";
constexpr char kId[] = "0123456789abcdef";

class RequestIdTest : public ServerTest {
 protected:
  RequestIdTest() { Start({.limits = kLimits}); }
  static v1::AcquireRequest WithId(const std::string& limit, const std::string& id,
                                   uint64_t permits = 1) {
    v1::AcquireRequest request = Request(limit, "k", permits);
    request.set_request_id(id);
    return request;
  }
  static void ExpectError(const grpc::Status& status, grpc::StatusCode code,
                          const std::string& text) {
    EXPECT_EQ(status.error_code(), code);
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr(text));
  }
};

TEST_F(RequestIdTest, EveryFormOfACallRepeatsTheGrant) {
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(WithId("api", kId, 3), &response).ok());
  EXPECT_TRUE(response.granted());
  EXPECT_FALSE(response.repeated());
  ASSERT_TRUE(Acquire(WithId("api", kId, 3), &response).ok());
  EXPECT_TRUE(response.repeated());
  EXPECT_EQ(response.charges(0).remaining(), 4'997);

  v1::AcquireBatchRequest batch;
  *batch.add_acquisitions() = WithId("api", kId, 3);
  *batch.add_acquisitions() = WithId("api", "fedcba9876543210", 3);
  v1::AcquireBatchResponse answers;
  grpc::ClientContext of_batch;
  of_batch.set_deadline(Soon());
  ASSERT_TRUE(data_->AcquireBatch(&of_batch, batch, &answers).ok());
  EXPECT_TRUE(answers.results(0).response().repeated());
  EXPECT_FALSE(answers.results(1).response().repeated());

  grpc::ClientContext of_stream;
  of_stream.set_deadline(Soon());
  const auto stream = data_->AcquireStream(&of_stream);
  ASSERT_TRUE(stream->Write(batch));
  ASSERT_TRUE(stream->Read(&answers));
  EXPECT_TRUE(answers.results(1).response().repeated());
  EXPECT_EQ(answers.results(1).response().charges(0).remaining(), 4'994);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(RequestIdTest, BadIdsNameTheFieldAndTakeNothing) {
  using grpc::StatusCode;
  ExpectError(Acquire(WithId("api", "0123456789abcde")), StatusCode::INVALID_ARGUMENT,
              "request_id: 15 bytes; a request id has exactly 16 random bytes");
  v1::AcquireRequest held = WithId("second", kId);
  held.set_hold(true);
  held.mutable_max_wait()->set_seconds(1);
  ExpectError(Acquire(held), StatusCode::INVALID_ARGUMENT, "request_id: set with hold");
  ASSERT_TRUE(Acquire(WithId("api", kId, 2)).ok());
  ExpectError(Acquire(WithId("api", kId, 3)), StatusCode::INVALID_ARGUMENT,
              "request_id: granted within the last 60 s to a request with other charges");
  v1::AcquireRequest forced = WithId("owing", kId);
  forced.set_force(true);
  ExpectError(Acquire(forced), StatusCode::INVALID_ARGUMENT, "request_id: granted within");
  v1::AcquireResponse response;
  ASSERT_TRUE(Acquire(Request("api", "k"), &response).ok());
  EXPECT_EQ(response.charges(0).remaining(), 4'997);
}

// A server on a Unix socket, behind a proxy that loses its answers.
class NodeBehindProxy {
 public:
  explicit NodeBehindProxy(std::vector<std::string> flags = {}) {
    flags.push_back("--listen=unix:" + folder_.Path("node.sock"));
    server_ = std::make_unique<ServerProcess>(
        ServerProcess::Options{.limits = kLimits, .flags = std::move(flags)});
    proxy_ = std::make_unique<FaultProxy>(folder_.Path("node.sock"), folder_.Path("proxy.sock"));
  }

  ~NodeBehindProxy() {
    proxy_.reset();
    server_.reset();
    for (const char* name : {"node.sock", "proxy.sock"}) unlink(folder_.Path(name).c_str());
  }

  ServerProcess& server() { return *server_; }
  FaultProxy& proxy() { return *proxy_; }
  std::string address() const { return "unix:" + folder_.Path("proxy.sock"); }

 private:
  TestFiles folder_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<FaultProxy> proxy_;
};

Client MakeClient(std::vector<std::string> servers) {
  ClientOptions options;
  options.servers = std::move(servers);
  options.deadline = std::chrono::seconds(60);
  options.exactly_once = true;
  options.retry.initial_backoff = std::chrono::milliseconds(1);
  return std::move(Client::Create(std::move(options))).value();
}

int64_t Left(Client& client, std::string_view key) {
  const std::vector<Bucket> buckets = {{"api", std::string(key)}};
  const auto answer = client.Query(buckets);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? (*answer)[0].remaining : -1;
}

// Calls by several threads, some in batches, while answers are lost. Returns how many were
// repeated.
int CallWhileAnswersAreLost(Client& client, FaultProxy& proxy, int calls) {
  std::atomic<int> repeated{0};
  std::atomic<bool> done{false};
  std::thread faults([&] {
    for (int i = 0; !done.load(); ++i) {
      // Behind what opens a connection: calls that fail with it are not executed, and a server
      // whose connections fail is left alone for seconds.
      proxy.Inject(i % 3 == 0 ? FaultProxy::Fault::kCutReply : FaultProxy::Fault::kLoseReply, 1,
                   3 + i % 5);
      while (!proxy.injected() && !done.load()) PassTime(std::chrono::milliseconds(1));
      PassTime(std::chrono::milliseconds(3));
    }
    proxy.Inject(FaultProxy::Fault::kNone, 0);
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto count = [&](const Result<Decision>& answer) {
        ASSERT_TRUE(answer.ok()) << answer.status();
        ASSERT_TRUE(answer->granted && answer->status.ok()) << answer->status;
        if (answer->repeated) repeated.fetch_add(1);
      };
      for (int i = 0; i < calls / 4; i += t == 0 ? 5 : 1) {
        if (t == 0) {
          const std::vector<Acquisition> batch(5, Acquisition("api", "k"));
          const auto answers = client.AcquireBatch(batch);
          ASSERT_TRUE(answers.ok()) << answers.status();
          for (const Result<Decision>& answer : *answers) count(answer);
        } else if (t == 1) {
          count(client.AcquireFuture(Acquisition("api", "k")).get());
        } else {
          count(client.Acquire("api", "k"));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  faults.join();
  return repeated.load();
}

TEST(ExactlyOnceTest, PermitsAreTakenOnceWhenAnswersAreLost) {
  NodeBehindProxy node;
  Client client = MakeClient({node.address()});
  EXPECT_GT(CallWhileAnswersAreLost(client, node.proxy(), 1000), 0);
  EXPECT_EQ(Left(client, "k"), 4'000);
}

TEST(ExactlyOnceTest, AnotherNodeOfTheSameRedisRepeatsTheGrant) {
  RedisServer redis;
  const std::vector<std::string> flags = {"--store=" + redis.url(), "--redis_budget=2s",
                                          "--after_data_loss=full"};
  NodeBehindProxy first(flags);
  NodeBehindProxy second(flags);
  Client client = MakeClient({first.address(), second.address()});
  EXPECT_GT(CallWhileAnswersAreLost(client, first.proxy(), 1000), 0);
  EXPECT_EQ(Left(client, "k"), 4'000);
}

TEST(ExactlyOnceTest, ANodeThatHangsOrIsKilledCostsNoPermitTwice) {
  RedisServer redis;
  const std::vector<std::string> flags = {"--store=" + redis.url(), "--redis_budget=2s",
                                          "--after_data_loss=full"};
  NodeBehindProxy first(flags);
  NodeBehindProxy second(flags);
  Client client = MakeClient({first.address(), second.address()});
  constexpr int kCalls = 200;
  for (int i = 0; i < kCalls; ++i) {
    if (i == 50) first.proxy().Inject(FaultProxy::Fault::kBlackHole);
    if (i == 120) first.server().Kill();
    const auto answer = client.Acquire("api", "k", 1, {.deadline = std::chrono::seconds(8)});
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_TRUE(answer->granted && answer->status.ok()) << answer->status << " of call " << i;
  }
  EXPECT_EQ(Left(client, "k"), 5'000 - kCalls);
}

}  // namespace
}  // namespace sluice::testing
