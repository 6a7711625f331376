// A client's own bounds: exact over its connections and the event loops, refused with nothing
// debited, over gRPC, HTTP and Envoy's protocol, and changed by a reload.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "envoy/service/ratelimit/v3/rls.grpc.pb.h"
#include "tests/integration/server/server_test.h"
#include "tests/integration/server/tokens.h"

namespace sluice::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;
namespace v3 = ::envoy::service::ratelimit::v3;

constexpr char kLimits[] = R"(
limits:
  - { name: api, rate: 1/h, burst: 100000 }
  - { name: slow, rate: 1/h, burst: 1, max_wait: 10h }
)";

// What a held call or a stream needs to stay open.
template <typename Call>
struct Open {
  grpc::ClientContext context;
  std::unique_ptr<Call> call;
};

class ClientBoundsServerTest : public ServerTest {
 protected:
  void StartWith(const std::string& bounds, std::vector<std::string> flags = {}) {
    clients_ = files_.Write("clients.yaml", Clients(bounds));
    flags.push_back("--clients=" + clients_);
    flags.push_back("--threads=2");
    Start({.limits = kLimits, .flags = std::move(flags)});
    ASSERT_TRUE(server_->ready());
    for (int i = 0; i < 4; ++i) {
      connections_.push_back(v1::RateLimiter::NewStub(server_->DataChannel()));
    }
  }
  void Reload(const std::string& bounds) {
    files_.Write("clients.yaml", Clients(bounds));
    server_->Signal(SIGHUP);
    ASSERT_TRUE(server_->Logs({"event=clients_reloaded"}));
  }
  static std::string Clients(const std::string& bounds) {
    return absl::StrCat(
        "clients:\n", ClientWithToken("bounded", "    " + bounds + "\n"), ClientWithToken("free"),
        "  - { name: viewer, token_sha256: ", Sha256Of("viewer-token"), ", calls: admin_view }\n");
  }
  static void Prepare(grpc::ClientContext* context, const std::string& client) {
    context->set_deadline(Soon());
    context->AddMetadata("authorization", "Bearer " + client + "-token");
  }

  grpc::Status AcquireAs(const std::string& client, v1::RateLimiter::Stub& stub,
                         const v1::AcquireRequest& request, v1::AcquireResponse* response) {
    grpc::ClientContext context;
    Prepare(&context, client);
    const grpc::Status status = stub.Acquire(&context, request, response);
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto executed = trailers.find(common::kExecutedMetadata);
    if (status.error_code() == StatusCode::RESOURCE_EXHAUSTED) {
      EXPECT_TRUE(executed != trailers.end() && executed->second == common::kNotExecuted);
    }
    return status;
  }
  grpc::Status AcquireAs(const std::string& client, const v1::AcquireRequest& request) {
    v1::AcquireResponse response;
    return AcquireAs(client, *data_, request, &response);
  }

  int64_t RemainingOf(const std::string& limit, const std::string& key) {
    grpc::ClientContext context;
    Prepare(&context, "free");
    v1::QueryRequest request;
    v1::QueryRequest::Bucket* const bucket = request.add_buckets();
    bucket->set_limit(limit);
    bucket->set_key(key);
    v1::QueryResponse response;
    EXPECT_TRUE(data_->Query(&context, request, &response).ok());
    return response.buckets_size() == 1 ? response.buckets(0).remaining() : -1;
  }

  // Sends a request over HTTP/1.1 and returns the whole answer.
  std::string Http(const std::string& method, const std::string& path, const std::string& client,
                   const std::string& body = "") const {
    const std::string& address = server_->http_address();
    const size_t colon = address.rfind(':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    uint32_t port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(colon + 1), &port));
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const absl::Cleanup close_fd = [fd] { close(fd); };
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) return "";
    const std::string request = absl::StrCat(
        method, " ", path, " HTTP/1.1\r\nhost: ", address, "\r\nauthorization: Bearer ", client,
        "-token\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ",
        body.size(), "\r\n\r\n", body);
    EXPECT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    std::string answer;
    char piece[4096];
    for (ssize_t bytes; (bytes = recv(fd, piece, sizeof(piece), 0)) > 0;) {
      answer.append(piece, static_cast<size_t>(bytes));
    }
    return answer;
  }

  TestFiles files_;
  std::string clients_;
  std::vector<std::unique_ptr<v1::RateLimiter::Stub>> connections_;
};

// The rate is so low that no further call comes in while the test runs.
TEST_F(ClientBoundsServerTest, CallsPerSecondHoldOverAllConnections) {
  StartWith("max_calls_per_second: 1");
  v1::AcquireResponse response;
  std::atomic<int> granted{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (const auto& connection : connections_) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        v1::AcquireResponse answer;
        const grpc::Status status =
            AcquireAs("bounded", *connection, Request("api", "shared"), &answer);
        if (status.ok() && answer.granted()) {
          ++granted;
        } else if (status.error_code() == StatusCode::RESOURCE_EXHAUSTED) {
          EXPECT_THAT(status.error_message(),
                      HasSubstr("client \"bounded\" has reached max_calls_per_second: 1;"));
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
  EXPECT_GE(granted.load(), 1);
  EXPECT_LE(granted.load(), 2 + seconds.count());
  EXPECT_EQ(granted + refused, 200);
  // Nothing was debited for those that were refused, and the other client is served.
  EXPECT_EQ(RemainingOf("api", "shared"), 100'000 - granted);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(AcquireAs("free", *connections_[i % 4], Request("api", "k"), &response).ok());
    ASSERT_TRUE(response.granted());
  }
  EXPECT_TRUE(
      server_->Logs({"event=client_over_bound client=bounded bound=max_calls_per_second "
                     "value=1 refused="}));
}

TEST_F(ClientBoundsServerTest, HeldCallsAreBoundedUntilTheyAreAnswered) {
  StartWith("max_held_calls: 3");
  v1::AcquireRequest held = Request("slow", "k");
  v1::AcquireResponse response;
  ASSERT_TRUE(AcquireAs("free", *data_, held, &response).ok());
  held.mutable_max_wait()->set_seconds(36'000);
  held.set_hold(true);
  struct Waiting {
    grpc::ClientContext context;
    v1::AcquireResponse response;
    grpc::Status status;
    std::thread thread;
  };
  std::deque<Waiting> waiting;
  const absl::Cleanup end = [&] {
    for (Waiting& one : waiting) {
      one.context.TryCancel();
      one.thread.join();
    }
  };
  const auto hold = [&](v1::RateLimiter::Stub& stub) {
    Waiting& one = waiting.emplace_back();
    one.context.AddMetadata("authorization", "Bearer bounded-token");
    one.context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(9));
    one.thread = std::thread(
        [&one, &stub, held] { one.status = stub.Acquire(&one.context, held, &one.response); });
  };
  for (int i = 0; i < 3; ++i) hold(*connections_[i]);
  const auto refused = [&] {
    const grpc::Status status = AcquireAs("bounded", held);
    if (status.error_code() != StatusCode::RESOURCE_EXHAUSTED) return false;
    EXPECT_THAT(status.error_message(),
                HasSubstr("client \"bounded\" has reached max_held_calls: 3"));
    return true;
  };
  const auto held_now = [&] {
    const std::string metrics = Http("GET", "/metrics", "viewer");
    return metrics.find("sluice_client_held_calls{client=\"bounded\"} 3") != std::string::npos;
  };
  ASSERT_TRUE(Eventually(held_now));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(refused());
  // Without hold it is not refused but denied.
  ASSERT_TRUE(AcquireAs("bounded", *data_, Request("slow", "k"), &response).ok());
  EXPECT_FALSE(response.granted());

  waiting.front().context.TryCancel();
  waiting.front().thread.join();
  waiting.pop_front();
  hold(*connections_[3]);
  ASSERT_TRUE(Eventually(held_now));
  EXPECT_TRUE(refused());
  // A reload that lowers the bound ends none of them.
  Reload("max_held_calls: 1");
  EXPECT_EQ(AcquireAs("bounded", held).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(held_now());
}

TEST_F(ClientBoundsServerTest, StreamsAndWatchesAreBoundedTogether) {
  StartWith("max_streams: 2");
  using Stream = grpc::ClientReaderWriter<v1::AcquireBatchRequest, v1::AcquireBatchResponse>;
  v1::AcquireBatchRequest batch;
  *batch.add_acquisitions() = Request("api", "k");
  v1::AcquireBatchResponse decided;
  const auto open = [&](size_t connection) {
    auto one = std::make_unique<Open<Stream>>();
    Prepare(&one->context, "bounded");
    one->call = connections_[connection]->AcquireStream(&one->context);
    return one->call->Write(batch) && one->call->Read(&decided) ? std::move(one) : nullptr;
  };
  auto first = open(0);
  ASSERT_NE(first, nullptr);
  Open<grpc::ClientReader<v1::QueryResponse>> watch;
  Prepare(&watch.context, "bounded");
  v1::WatchRequest watched;
  watched.add_buckets()->set_limit("api");
  watch.call = connections_[1]->Watch(&watch.context, watched);
  v1::QueryResponse update;
  ASSERT_TRUE(watch.call->Read(&update));

  Open<Stream> refused;
  Prepare(&refused.context, "bounded");
  refused.call = connections_[2]->AcquireStream(&refused.context);
  refused.call->Write(batch);
  EXPECT_FALSE(refused.call->Read(&decided));
  const grpc::Status status = refused.call->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("client \"bounded\" has reached max_streams: 2"));
  EXPECT_EQ(RemainingOf("api", "k"), 99'999);
  const std::string over_http =
      Http("POST", "/v1/watch", "bounded", R"({"buckets": [{"limit": "api"}]})");
  EXPECT_THAT(over_http, HasSubstr("HTTP/1.1 429 "));
  EXPECT_THAT(over_http, HasSubstr("max_streams: 2"));

  // A stream that ends makes room at once, on every connection.
  for (size_t i = 0; i < 10; ++i) {
    first->call->WritesDone();
    EXPECT_TRUE(first->call->Finish().ok());
    first = open(i % 4);
    ASSERT_NE(first, nullptr);
    EXPECT_TRUE(decided.results(0).response().granted());
  }
  // A reload holds for connections that are open.
  Reload("max_streams: 3");
  auto third = open(3);
  EXPECT_NE(third, nullptr);
  first->context.TryCancel();
  third->context.TryCancel();
  watch.context.TryCancel();
  first->call->Finish();
  third->call->Finish();
  watch.call->Finish();
}

TEST_F(ClientBoundsServerTest, StreamsAcquisitionsCountAsCalls) {
  StartWith("max_calls_per_second: 10");
  grpc::ClientContext context;
  Prepare(&context, "bounded");
  auto stream = connections_[0]->AcquireStream(&context);
  v1::AcquireBatchRequest batch;
  for (int i = 0; i < 100; ++i) *batch.add_acquisitions() = Request("api", "k");
  v1::AcquireBatchResponse decided;
  ASSERT_TRUE(stream->Write(batch) && stream->Read(&decided));
  int granted = 0;
  for (const auto& result : decided.results()) {
    if (result.has_error()) {
      EXPECT_EQ(result.error().code(), StatusCode::RESOURCE_EXHAUSTED);
      EXPECT_THAT(result.error().message(), HasSubstr("max_calls_per_second: 10"));
    } else {
      ++granted;
    }
  }
  // The stream itself is a call; calls come in while the test runs.
  EXPECT_GE(granted, 9);
  EXPECT_LT(granted, 100);
  EXPECT_EQ(RemainingOf("api", "k"), 100'000 - granted);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok()) << "the stream goes on";
}

TEST_F(ClientBoundsServerTest, NewKeysAreBoundedAndKnownOnesAreServed) {
  StartWith("max_new_keys_per_minute: 5");
  v1::AcquireBatchRequest batch;
  for (int i = 0; i < 1000; ++i)
    *batch.add_acquisitions() = Request("api", absl::StrCat("k", i % 500));
  grpc::ClientContext context;
  Prepare(&context, "bounded");
  v1::AcquireBatchResponse decided;
  ASSERT_TRUE(data_->AcquireBatch(&context, batch, &decided).ok());
  int granted = 0;
  for (const auto& result : decided.results()) {
    granted += result.has_response() && result.response().granted() ? 1 : 0;
    if (result.has_error()) {
      EXPECT_THAT(result.error().message(), HasSubstr("max_new_keys_per_minute: 5"));
    }
  }
  EXPECT_EQ(granted, 10) << "each of five keys twice";
  EXPECT_TRUE(AcquireAs("bounded", Request("api", "k0")).ok());
  EXPECT_EQ(AcquireAs("bounded", Request("api", "k9")).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(AcquireAs("free", Request("api", "k9")).ok());
}

TEST_F(ClientBoundsServerTest, HttpAnswers429WithTheSameText) {
  StartWith("max_calls_per_second: 1");
  const std::string said = "client \\\"bounded\\\" has reached max_calls_per_second: 1;";
  const auto refused = [&](const std::string& method, const std::string& path,
                           const std::string& body) {
    // One of two at least: calls come in while the test runs.
    for (int i = 0; i < 50; ++i) {
      const std::string answer = Http(method, path, "bounded", body);
      if (answer.find("HTTP/1.1 429 ") != 0) continue;
      EXPECT_THAT(answer, HasSubstr(said));
      EXPECT_THAT(answer, HasSubstr("\"code\":\"RESOURCE_EXHAUSTED\""));
      EXPECT_THAT(answer, HasSubstr("\"nothing_taken\":true"));
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused("GET", "/v1/check?limit=api&key=k", ""));
  EXPECT_TRUE(refused("POST", "/v1/acquire", R"({"charges": [{"limit": "api", "key": "k"}]})"));
  EXPECT_THAT(Http("GET", "/v1/check?limit=api&key=k", "free"), HasSubstr("HTTP/1.1 200 "));
}

TEST_F(ClientBoundsServerTest, EnvoysCallsAreRefusedAndItsNewKeysAreOverLimit) {
  const std::string config =
      files_.Write("ratelimit.yaml",
                   "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: year, "
                   "requests_per_unit: 3 }\n");
  StartWith("max_new_keys_per_minute: 1", {"--ratelimit_config=" + config});
  auto envoy = v3::RateLimitService::NewStub(server_->DataChannel());
  const auto ask = [&](const std::string& user, v3::RateLimitResponse* response) {
    v3::RateLimitRequest request;
    request.set_domain("shop");
    auto* const entry = request.add_descriptors()->add_entries();
    entry->set_key("user");
    entry->set_value(user);
    grpc::ClientContext context;
    Prepare(&context, "bounded");
    return envoy->ShouldRateLimit(&context, request, response);
  };
  v3::RateLimitResponse response;
  ASSERT_TRUE(ask("a", &response).ok());
  EXPECT_EQ(response.overall_code(), v3::RateLimitResponse::OK);
  ASSERT_TRUE(ask("b", &response).ok());
  EXPECT_EQ(response.overall_code(), v3::RateLimitResponse::OVER_LIMIT);
  ASSERT_TRUE(ask("a", &response).ok());
  EXPECT_EQ(response.overall_code(), v3::RateLimitResponse::OK);

  Reload("max_calls_per_second: 1");
  grpc::Status status;
  for (int i = 0; i < 50 && status.ok(); ++i) status = ask("a", &response);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("max_calls_per_second: 1"));
}

TEST_F(ClientBoundsServerTest, RefusalsAreCountedByClientAndBound) {
  StartWith("max_streams: 0\n    max_new_keys_per_minute: 0");
  EXPECT_EQ(AcquireAs("bounded", Request("api", "k")).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  grpc::ClientContext context;
  Prepare(&context, "bounded");
  auto stream = data_->AcquireStream(&context);
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const std::string metrics = Http("GET", "/metrics", "viewer");
  for (const char* line :
       {"sluice_client_refusals_total{client=\"bounded\",bound=\"max_streams\"} 1",
        "sluice_client_refusals_total{client=\"bounded\",bound=\"max_new_keys_per_minute\"} 1",
        "sluice_client_streams{client=\"bounded\"} 0"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
  EXPECT_EQ(metrics.find("client=\"free\""), metrics.npos) << "it has no bounds";
}

}  // namespace
}  // namespace sluice::testing
