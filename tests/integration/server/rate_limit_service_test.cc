// Envoy's rate-limit service over a real socket, on both stores.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "envoy/service/ratelimit/v3/rls.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "kuadrant/service/ratelimit/v1/ratelimit.grpc.pb.h"
#include "tests/integration/server/server_test.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
namespace v3 = ::envoy::service::ratelimit::v3;
namespace kuadrant = ::kuadrant::service::ratelimit::v1;

// A year's windows: none ends while a test runs, but for new year's eve.
constexpr char kConfig[] = R"(
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 3, name: per-user }
  - key: path
    value: /buy
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: trial
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: free
    rate_limit: { unlimited: true }
  - key: fast
    rate_limit: { unit: second, requests_per_unit: 1000, name: fast }
)";

class RateLimitServiceTest : public ServerTest {
 protected:
  void StartWith(const std::vector<std::string>& flags) {
    ServerProcess::Options options;
    options.flags = flags;
    options.flags.push_back("--ratelimit_config=" + files_.Write("ratelimit.yaml", kConfig));
    Start(std::move(options));
    ASSERT_TRUE(server_->ready());
    stub_ = v3::RateLimitService::NewStub(server_->DataChannel());
  }

  // Descriptors of one entry each.
  static v3::RateLimitRequest Asked(const std::vector<std::pair<std::string, std::string>>& entries,
                                    uint32_t hits = 0) {
    v3::RateLimitRequest request;
    request.set_domain("shop");
    request.set_hits_addend(hits);
    for (const auto& [key, value] : entries) {
      auto* const entry = request.add_descriptors()->add_entries();
      entry->set_key(key);
      entry->set_value(value);
    }
    return request;
  }

  grpc::Status Ask(const v3::RateLimitRequest& request, v3::RateLimitResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    return stub_->ShouldRateLimit(&context, request, response);
  }

  // "OK 2, OVER_LIMIT 0: OVER_LIMIT": of each descriptor, then over all.
  std::string Answer(const v3::RateLimitRequest& request) {
    v3::RateLimitResponse response;
    const grpc::Status status = Ask(request, &response);
    if (!status.ok()) return status.error_message();
    std::string text;
    for (const auto& one : response.statuses()) {
      text += (text.empty() ? "" : ", ") + v3::RateLimitResponse::Code_Name(one.code()) + " " +
              std::to_string(one.limit_remaining());
    }
    return text + ": " + v3::RateLimitResponse::Code_Name(response.overall_code());
  }

  void ExpectCountsAndAnswers() {
    EXPECT_EQ(Answer(Asked({{"user", "a"}})), "OK 2: OK");
    EXPECT_EQ(Answer(Asked({{"user", "a"}, {"path", "/buy"}, {"path", "/see"}, {"free", "1"}})),
              "OK 1, OK 1, OK 0, OK 4294967295: OK");
    EXPECT_EQ(Answer(Asked({{"user", "a"}, {"path", "/buy"}, {"trial", "1"}, {"user", "b"}}, 2)),
              "OVER_LIMIT 0, OVER_LIMIT 0, OK 0, OK 1: OVER_LIMIT");
    // A check counts nothing; hits that were denied were counted.
    v3::RateLimitRequest check = Asked({{"user", "a"}, {"user", "b"}});
    for (auto& descriptor : *check.mutable_descriptors()) descriptor.mutable_hits_addend();
    EXPECT_EQ(Answer(check), "OVER_LIMIT 0, OK 1: OVER_LIMIT");
    v3::RateLimitRequest back = Asked({{"user", "a"}});
    back.mutable_descriptors(0)->set_is_negative_hits(true);
    EXPECT_EQ(Answer(back), "OK 0: OK");
    EXPECT_EQ(Answer(check), "OK 0, OK 1: OK");
    // Two descriptors of one bucket are counted in their order.
    EXPECT_EQ(Answer(Asked({{"user", "c"}, {"user", "c"}}, 2)), "OK 1, OVER_LIMIT 0: OVER_LIMIT");
    EXPECT_EQ(Answer(Asked({{"user", "d"}}, UINT32_MAX)), "OVER_LIMIT 0: OVER_LIMIT");
  }

  TestFiles files_;
  std::unique_ptr<v3::RateLimitService::Stub> stub_;
};

TEST_F(RateLimitServiceTest, CountsAndAnswersInMemory) {
  StartWith({});
  ExpectCountsAndAnswers();
}

TEST_F(RateLimitServiceTest, CountsAndAnswersInRedis) {
  RedisServer redis;
  StartWith({"--store=" + redis.url(), "--redis_budget=2s"});
  ExpectCountsAndAnswers();
  server_->Kill();
}

TEST_F(RateLimitServiceTest, StatusHasTheLimitAndItsReset) {
  StartWith({"--ratelimit_headers=on", "--ratelimit_limit_header=X-Limit"});
  v3::RateLimitResponse response;
  ASSERT_TRUE(Ask(Asked({{"user", "a"}}), &response).ok());
  const auto& status = response.statuses(0);
  EXPECT_EQ(status.current_limit().requests_per_unit(), 3u);
  EXPECT_EQ(status.current_limit().unit(), v3::RateLimitResponse::RateLimit::YEAR);
  EXPECT_EQ(status.current_limit().name(), "per-user");
  EXPECT_GT(status.duration_until_reset().seconds(), 0);
  EXPECT_LE(status.duration_until_reset().seconds(), 365 * 86400);
  ASSERT_EQ(response.response_headers_to_add_size(), 3);
  EXPECT_EQ(response.response_headers_to_add(0).key(), "X-Limit");
  EXPECT_EQ(response.response_headers_to_add(0).value(), "3");
}

TEST_F(RateLimitServiceTest, RedisThatFailsIsUnknown) {
  RedisServer redis;
  StartWith({"--store=" + redis.url()});
  redis.Kill();
  v3::RateLimitResponse response;
  const grpc::Status status = Ask(Asked({{"user", "a"}}), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNKNOWN) << status.error_message();
}

TEST_F(RateLimitServiceTest, OverrideSplitsALimitWhileRedisIsUnavailable) {
  RedisServer redis;
  StartWith({"--store=" + redis.url(), "--redis_budget=100ms", "--redis_node_ttl=2s",
             "--ratelimit_overrides=" +
                 files_.Write("overrides.yaml",
                              "limits: {fast: {mode: exact, on_store_failure: split}}")});
  const auto one_fits = [&] { return absl::EndsWith(Answer(Asked({{"fast", "a"}})), ": OK"); };
  ASSERT_TRUE(Eventually(one_fits));
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::ConfigStatus status;
    return admin_->GetConfigStatus(&context, v1::GetConfigStatusRequest(), &status).ok() &&
           status.store().nodes_size() == 1 && status.store().nodes(0).divisor() == 1;
  }));
  redis.Pause();
  // Before the node may use its share, calls fail.
  ASSERT_TRUE(Eventually([&] { return !one_fits(); }));
  EXPECT_TRUE(Eventually(one_fits));
  // More than its share is over the limit; another limit still needs Redis.
  EXPECT_EQ(Answer(Asked({{"fast", "b"}}, 1001)), "OVER_LIMIT 0: OVER_LIMIT");
  v3::RateLimitResponse response;
  EXPECT_EQ(Ask(Asked({{"user", "a"}}), &response).error_code(), grpc::StatusCode::UNKNOWN);
  redis.Resume();
}

TEST_F(RateLimitServiceTest, HealthAndReflectionKnowTheService) {
  StartWith({});
  const auto channel = server_->DataChannel();
  grpc::ClientContext health_context;
  grpc::health::v1::HealthCheckRequest check;
  check.set_service("ratelimit");
  grpc::health::v1::HealthCheckResponse health;
  ASSERT_TRUE(
      grpc::health::v1::Health::NewStub(channel)->Check(&health_context, check, &health).ok());
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::SERVING);

  grpc::ClientContext context;
  auto stream =
      grpc::reflection::v1::ServerReflection::NewStub(channel)->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest request;
  grpc::reflection::v1::ServerReflectionResponse response;
  for (const char* service : {"envoy.service.ratelimit.v3.RateLimitService",
                              "kuadrant.service.ratelimit.v1.RateLimitService"}) {
    request.set_file_containing_symbol(service);
    ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
    EXPECT_GE(response.file_descriptor_response().file_descriptor_proto_size(), 1) << service;
  }
  context.TryCancel();
}

TEST_F(RateLimitServiceTest, KuadrantChecksAndReports) {
  StartWith({});
  const auto stub = kuadrant::RateLimitService::NewStub(server_->DataChannel());
  const v3::RateLimitRequest request = Asked({{"user", "a"}}, 2);
  const auto check = [&] {
    grpc::ClientContext context;
    v3::RateLimitResponse response;
    EXPECT_TRUE(stub->CheckRateLimit(&context, request, &response).ok());
    return response.overall_code();
  };
  const auto report = [&] {
    grpc::ClientContext context;
    v3::RateLimitResponse response;
    EXPECT_TRUE(stub->Report(&context, request, &response).ok());
    return response.overall_code();
  };
  EXPECT_EQ(check(), v3::RateLimitResponse::OK);
  EXPECT_EQ(check(), v3::RateLimitResponse::OK);
  EXPECT_EQ(report(), v3::RateLimitResponse::OK);
  EXPECT_EQ(check(), v3::RateLimitResponse::OVER_LIMIT);
  EXPECT_EQ(report(), v3::RateLimitResponse::OK);
  EXPECT_EQ(Answer(Asked({{"user", "a"}})), "OVER_LIMIT 0: OVER_LIMIT");
}

class KuadrantTest : public RateLimitServiceTest {
 protected:
  // A code, or the error.
  std::string Reserve(uint64_t amount, std::string* id) {
    kuadrant::ReserveRequest request;
    request.set_domain("shop");
    *request.mutable_descriptors() = Asked({{"user", "a"}, {"fast", "1"}}).descriptors();
    request.set_amount(amount);
    request.mutable_ttl()->set_seconds(60);
    grpc::ClientContext context;
    context.set_deadline(Soon());
    kuadrant::ReserveResponse response;
    const grpc::Status status = kuadrant::RateLimitService::NewStub(server_->DataChannel())
                                    ->Reserve(&context, request, &response);
    *id = response.reservation_id();
    if (!status.ok()) return std::to_string(status.error_code()) + " " + status.error_message();
    return v3::RateLimitResponse::Code_Name(response.code());
  }
  grpc::Status Commit(const std::string& id, uint64_t actual) {
    kuadrant::CommitRequest request;
    request.set_domain("shop");
    *request.mutable_descriptors() = Asked({{"user", "a"}, {"fast", "1"}}).descriptors();
    request.set_reservation_id(id);
    request.set_actual_amount(actual);
    grpc::ClientContext context;
    context.set_deadline(Soon());
    kuadrant::CommitResponse response;
    return kuadrant::RateLimitService::NewStub(server_->DataChannel())
        ->Commit(&context, request, &response);
  }
  // Of three.
  std::string LeftOfUser() {
    v3::RateLimitRequest check = Asked({{"user", "a"}});
    check.mutable_descriptors(0)->mutable_hits_addend();
    return Answer(check);
  }
  void ExpectReservesAndCommits() {
    std::string first;
    std::string other;
    EXPECT_EQ(Reserve(2, &first), "OK");
    EXPECT_NE(first, "");
    EXPECT_EQ(Reserve(2, &other), "OVER_LIMIT");
    EXPECT_EQ(other, "");
    EXPECT_EQ(LeftOfUser(), "OK 1: OK");
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(Commit(first, 1).ok());
    EXPECT_EQ(LeftOfUser(), "OK 2: OK");
    EXPECT_EQ(Commit(first, 3).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(Reserve(1, &other), "OK");
    EXPECT_TRUE(Commit(other, 5).ok());
    EXPECT_EQ(LeftOfUser(), "OVER_LIMIT 0: OVER_LIMIT");
    EXPECT_EQ(Reserve(0, &other), "OVER_LIMIT");
  }
};

TEST_F(KuadrantTest, ReservesAndCommitsInMemory) {
  StartWith({});
  ExpectReservesAndCommits();
}

TEST_F(KuadrantTest, ReservesAndCommitsInRedis) {
  RedisServer redis;
  StartWith({"--store=" + redis.url(), "--redis_budget=2s"});
  ExpectReservesAndCommits();
  redis.Kill();
  std::string id;
  EXPECT_THAT(Reserve(1, &id), ::testing::StartsWith("14 "));
  EXPECT_EQ(Commit("", 1).error_code(), grpc::StatusCode::UNAVAILABLE);
  server_->Kill();
}

TEST_F(KuadrantTest, LimitsThatNodesMayDecideAloneCannotBeReserved) {
  RedisServer redis;
  const std::string overrides = files_.Write(
      "overrides.yaml", "limits: { fast: { mode: exact, on_store_failure: split } }\n");
  StartWith({"--store=" + redis.url(), "--redis_budget=2s", "--ratelimit_overrides=" + overrides});
  std::string id;
  EXPECT_THAT(Reserve(1, &id), HasSubstr("12 limit \"shop//fast\" says on_store_failure: split"));
  EXPECT_EQ(LeftOfUser(), "OK 3: OK");
  EXPECT_TRUE(Commit("", 1).ok());
  EXPECT_EQ(LeftOfUser(), "OK 2: OK");
  server_->Kill();
}

TEST_F(KuadrantTest, CommitsAtANodeWhatAnotherReserved) {
  RedisServer redis;
  const std::vector<std::string> flags = {"--store=" + redis.url(), "--redis_budget=2s"};
  StartWith(flags);
  std::string id;
  EXPECT_EQ(Reserve(3, &id), "OK");
  server_->Kill();
  StartWith(flags);
  EXPECT_EQ(LeftOfUser(), "OK 0: OK");
  EXPECT_TRUE(Commit(id, 1).ok());
  EXPECT_EQ(LeftOfUser(), "OK 2: OK");
  server_->Kill();
}

TEST_F(RateLimitServiceTest, BadRequestsGetClearErrors) {
  StartWith({"--ratelimit_request_limits=on"});
  EXPECT_EQ(Answer(v3::RateLimitRequest()), "rate limit domain must not be empty");
  EXPECT_EQ(Answer(Asked({})), "rate limit descriptor list must not be empty");
  v3::RateLimitRequest unit = Asked({{"user", "a"}});
  unit.mutable_descriptors(0)->mutable_limit()->set_requests_per_unit(1);
  EXPECT_THAT(Answer(unit), HasSubstr("descriptors[0].limit.unit: 0 is no unit"));
  std::vector<std::pair<std::string, std::string>> many(1000, {"user", "many"});
  EXPECT_THAT(Answer(Asked(many)), HasSubstr("OVER_LIMIT"));
  EXPECT_EQ(Answer(Asked({{"user", std::string(64 << 10, 'v')}})), "OK 2: OK");
  many.resize(1025);
  EXPECT_THAT(Answer(Asked(many)), HasSubstr("descriptors: the request has more than 1024"));
}

TEST_F(RateLimitServiceTest, WithoutConfigurationTheErrorNamesTheFlags) {
  Start({});
  stub_ = v3::RateLimitService::NewStub(server_->DataChannel());
  v3::RateLimitResponse response;
  const grpc::Status status = Ask(Asked({{"user", "a"}}), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--ratelimit_config"));
}

}  // namespace
}  // namespace sluice::testing
