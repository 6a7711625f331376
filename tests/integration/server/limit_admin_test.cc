// LimitAdmin over a real socket, and reloads of the limits file.
#include <grpcpp/generic/generic_stub.h>
#include <signal.h>

#include <fstream>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "tests/integration/server/server_test.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kLimits[] = R"(limits:
  - { name: api, rate: 10/h }
  - { name: child, rate: 10/h, charges: [parent] }
  - { name: parent, rate: 5/h }
)";

class LimitAdminServerTest : public ServerTest {
 protected:
  void SetUp() override { Start({.limits = kLimits}); }

  v1::ConfigStatus ConfigStatus() {
    grpc::ClientContext context;
    v1::ConfigStatus status;
    EXPECT_TRUE(admin_->GetConfigStatus(&context, v1::GetConfigStatusRequest(), &status).ok());
    return status;
  }
  grpc::Status Get(const std::string& name, v1::Limit* limit) {
    grpc::ClientContext context;
    v1::GetLimitRequest request;
    request.set_name(name);
    return admin_->GetLimit(&context, request, limit);
  }
  grpc::Status Put(const std::string& name, uint64_t permits, v1::PutLimitResponse* response) {
    grpc::ClientContext context;
    v1::PutLimitRequest request;
    request.mutable_limit()->set_name(name);
    if (permits > 0) {
      request.mutable_limit()->mutable_rate()->set_permits(permits);
      request.mutable_limit()->mutable_rate()->mutable_period()->set_seconds(3600);
    }
    return admin_->PutLimit(&context, request, response);
  }
  // A call whose request has these bytes.
  grpc::Status CallRaw(const std::string& method, const grpc::ByteBuffer& request) {
    grpc::GenericStub stub(server_->AdminChannel());
    grpc::ClientContext context;
    context.set_deadline(Soon());
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/sluice.v1.LimitAdmin/" + method, grpc::StubOptions(), &request,
                   &response, [&](grpc::Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  }
  grpc::Status Delete(const std::string& name) {
    grpc::ClientContext context;
    v1::DeleteLimitRequest request;
    request.set_name(name);
    v1::DeleteLimitResponse response;
    return admin_->DeleteLimit(&context, request, &response);
  }
};

TEST_F(LimitAdminServerTest, ListsAndGetsLimitsWithTheirOrigin) {
  grpc::ClientContext context;
  v1::ListLimitsResponse list;
  ASSERT_TRUE(admin_->ListLimits(&context, v1::ListLimitsRequest(), &list).ok());
  ASSERT_EQ(list.limits_size(), 3);
  EXPECT_EQ(list.limits(0).name(), "api");
  EXPECT_EQ(list.limits(1).charges(0), "parent");
  v1::Limit limit;
  ASSERT_TRUE(Get("api", &limit).ok());
  EXPECT_EQ(limit.rate().permits(), 10u);
  EXPECT_EQ(limit.rate().period().seconds(), 3600);
  EXPECT_EQ(limit.origin(), v1::ORIGIN_FILE);
  EXPECT_THAT(limit.defined_at(), HasSubstr("limits.yaml:2"));
  const grpc::Status status = Get("apo", &limit);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("did you mean \"api\"?"));
}

TEST_F(LimitAdminServerTest, PutAndDeleteChangeTheRunningTable) {
  v1::PutLimitResponse put;
  ASSERT_TRUE(Put("new", 3, &put).ok());
  EXPECT_FALSE(put.replaced());
  EXPECT_EQ(put.limit().origin(), v1::ORIGIN_ADMIN);
  EXPECT_TRUE(Granted("new", "k", 3));
  EXPECT_FALSE(Granted("new", "k", 1));
  ASSERT_TRUE(Put("api", 20, &put).ok());
  EXPECT_TRUE(put.replaced());
  EXPECT_EQ(put.limit().origin(), v1::ORIGIN_ADMIN_OVER_FILE);
  EXPECT_EQ(ConfigStatus().admin_changes(), 2u);
  ASSERT_TRUE(Delete("new").ok());
  EXPECT_EQ(Acquire(Request("new", "k")).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Delete("new").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Delete("parent").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(LimitAdminServerTest, GetReturnsTheHashTagThatWasPut) {
  v1::PutLimitRequest request;
  request.mutable_limit()->set_name("tagged");
  request.mutable_limit()->mutable_rate()->set_permits(5);
  request.mutable_limit()->mutable_rate()->mutable_period()->set_seconds(1);
  const auto put = [&](v1::PutLimitResponse* response) {
    grpc::ClientContext context;
    return admin_->PutLimit(&context, request, response);
  };
  v1::PutLimitResponse response;
  request.mutable_limit()->set_hash_tag("orders");
  ASSERT_TRUE(put(&response).ok());
  EXPECT_EQ(response.limit().hash_tag(), "orders");
  v1::Limit limit;
  ASSERT_TRUE(Get("tagged", &limit).ok());
  EXPECT_EQ(limit.hash_tag(), "orders");
  // The result of GetLimit can be put again.
  *request.mutable_limit() = limit;
  ASSERT_TRUE(put(&response).ok());
  EXPECT_EQ(response.limit().hash_tag(), "orders");
  request.mutable_limit()->clear_hash_tag();
  ASSERT_TRUE(put(&response).ok());
  ASSERT_TRUE(Get("tagged", &limit).ok());
  EXPECT_FALSE(limit.has_hash_tag());
  for (const char* const wrong : {"", "{orders}", "two words"}) {
    request.mutable_limit()->set_hash_tag(wrong);
    const grpc::Status status = put(&response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << wrong;
    EXPECT_THAT(status.error_message(), HasSubstr("limit.hash_tag")) << wrong;
  }
}

TEST_F(LimitAdminServerTest, GetReturnsMaxWaitMinKeysDirectAndMaxOwed) {
  v1::PutLimitRequest request;
  v1::Limit& limit = *request.mutable_limit();
  limit.set_name("shared");
  limit.mutable_rate()->set_permits(5);
  limit.mutable_max_wait()->set_seconds(2);
  limit.set_min_keys(1);
  limit.set_direct(false);
  limit.set_max_owed(7);
  const auto put = [&] {
    grpc::ClientContext context;
    v1::PutLimitResponse response;
    return admin_->PutLimit(&context, request, &response);
  };
  ASSERT_TRUE(put().ok());
  v1::Limit got;
  ASSERT_TRUE(Get("shared", &got).ok());
  EXPECT_EQ(got.max_wait().seconds(), 2);
  EXPECT_EQ(got.min_keys(), 1u);
  EXPECT_TRUE(got.has_direct() && !got.direct());
  EXPECT_EQ(got.max_owed(), 7u);
  limit.set_debt(8);
  EXPECT_THAT(put().error_message(), HasSubstr("limit.max_owed: \"7\": is below debt, 8"));
  limit.clear_debt();
  limit.mutable_max_wait()->set_seconds(24 * 3600 + 1);
  EXPECT_THAT(put().error_message(),
              HasSubstr("limit.max_wait: \"86401s\": must be from 0s to 24h"));
  limit.mutable_max_wait()->set_nanos(-1);
  EXPECT_THAT(put().error_message(), HasSubstr("limit.max_wait"));
  limit.clear_max_wait();
  limit.clear_min_keys();
  limit.clear_direct();
  limit.clear_max_owed();
  ASSERT_TRUE(put().ok());
  ASSERT_TRUE(Get("shared", &got).ok());
  EXPECT_FALSE(got.has_max_wait());
  EXPECT_FALSE(got.has_min_keys());
  EXPECT_TRUE(got.direct());
  EXPECT_FALSE(got.has_max_owed());
}

TEST_F(LimitAdminServerTest, PutRefusesInvalidLimitsAndChangesNothing) {
  v1::PutLimitResponse put;
  const grpc::Status no_rate = Put("api", 0, &put);
  EXPECT_EQ(no_rate.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(no_rate.error_message(), HasSubstr("limit.rate"));
  EXPECT_EQ(Put("bad name", 1, &put).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Put("", 1, &put).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::PutLimitRequest unknown;
  unknown.mutable_limit()->set_name("api");
  unknown.mutable_limit()->mutable_rate()->set_permits(1);
  unknown.mutable_limit()->set_on_store_failure(static_cast<v1::OnStoreFailure>(77));
  EXPECT_THAT(admin_->PutLimit(&context, unknown, &put).error_message(),
              HasSubstr("limit.on_store_failure: 77"));
  unknown.mutable_limit()->clear_on_store_failure();
  unknown.mutable_limit()->set_sharing(static_cast<v1::Sharing>(78));
  grpc::ClientContext again;
  EXPECT_THAT(admin_->PutLimit(&again, unknown, &put).error_message(),
              HasSubstr("limit.sharing: 78"));
  EXPECT_TRUE(Granted("api", "k", 10));
}

TEST_F(LimitAdminServerTest, ResetsAndListsKeys) {
  ASSERT_TRUE(Granted("api", "much", 9));
  ASSERT_TRUE(Granted("api", "less", 2));
  ASSERT_FALSE(Granted("api", "much", 9));
  {
    grpc::ClientContext context;
    v1::ListKeysResponse keys;
    ASSERT_TRUE(admin_->ListKeys(&context, v1::ListKeysRequest(), &keys).ok());
    ASSERT_EQ(keys.keys_size(), 2);
    EXPECT_EQ(keys.keys(0).key(), "much");
    EXPECT_EQ(keys.keys(0).estimate(), 9u);
    EXPECT_EQ(keys.keys(0).remaining(), 1);
    EXPECT_EQ(keys.total(), 11u);
    EXPECT_THAT(keys.sketch(), HasSubstr("error"));
  }
  {
    grpc::ClientContext context;
    v1::ListKeysRequest request;
    request.set_limit("api");
    request.set_order(v1::ListKeysRequest::ORDER_DENIALS);
    v1::ListKeysResponse keys;
    ASSERT_TRUE(admin_->ListKeys(&context, request, &keys).ok());
    ASSERT_EQ(keys.keys_size(), 1);
    EXPECT_EQ(keys.keys(0).estimate(), 1u);
  }
  grpc::ClientContext context;
  v1::ResetKeyRequest request;
  request.set_limit("api");
  request.set_key("much");
  v1::ResetKeyResponse reset;
  ASSERT_TRUE(admin_->ResetKey(&context, request, &reset).ok());
  EXPECT_TRUE(reset.existed());
  EXPECT_TRUE(Granted("api", "much", 10));
}

TEST_F(LimitAdminServerTest, StatsCountDecisionsAndCalls) {
  ASSERT_TRUE(Granted("api", "k", 10));
  ASSERT_FALSE(Granted("api", "k", 1));
  ASSERT_FALSE(Acquire(Request("none", "k")).ok());
  grpc::ClientContext context;
  v1::Stats stats;
  ASSERT_TRUE(admin_->GetStats(&context, v1::GetStatsRequest(), &stats).ok());
  EXPECT_EQ(stats.decisions(), 2u);
  EXPECT_EQ(stats.granted(), 1u);
  EXPECT_EQ(stats.limits(0).limit(), "api");
  EXPECT_EQ(stats.limits(0).permits_granted(), 10u);
  EXPECT_EQ(stats.store().kind(), "memory");
  EXPECT_EQ(stats.store().buckets(), 1u);
  EXPECT_GT(stats.resident_bytes(), 1'000'000u);
  bool found = false;
  for (const v1::MethodStats& method : stats.methods()) {
    if (method.method() != "/sluice.v1.RateLimiter/Acquire") continue;
    found = true;
    EXPECT_EQ(method.codes().at(0), 2u);
    EXPECT_EQ(method.codes().at(grpc::StatusCode::NOT_FOUND), 1u);
    EXPECT_EQ(method.latency().count(), 3u);
    EXPECT_GT(method.latency().sum_ns(), 0u);
    EXPECT_EQ(method.messages_sent(), 2u);
  }
  EXPECT_TRUE(found);
}

TEST_F(LimitAdminServerTest, StatsCountMessagesConnectionsAndStreams) {
  constexpr char kBatch[] = "/sluice.v1.RateLimiter/AcquireBatch";
  constexpr char kStream[] = "/sluice.v1.RateLimiter/AcquireStream";
  v1::AcquireBatchRequest request;
  for (int i = 0; i < 3; ++i) *request.add_acquisitions() = Request("api", "k");
  v1::AcquireBatchResponse response;
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    ASSERT_TRUE(data_->AcquireBatch(&context, request, &response).ok());
  }
  // One open stream, with one message in each direction.
  grpc::ClientContext stream_context;
  auto stream = data_->AcquireStream(&stream_context);
  ASSERT_TRUE(stream->Write(request));
  v1::AcquireBatchResponse streamed;
  ASSERT_TRUE(stream->Read(&streamed));

  const auto stats = [&] {
    grpc::ClientContext context;
    v1::Stats stats;
    EXPECT_TRUE(admin_->GetStats(&context, v1::GetStatsRequest(), &stats).ok());
    return stats;
  };
  const auto of_method = [](const v1::Stats& stats, const std::string& name) {
    for (const v1::MethodStats& method : stats.methods()) {
      if (method.method() == name) return method;
    }
    return v1::MethodStats();
  };
  const auto transport = [](const v1::Stats& stats) {
    for (const v1::TransportStats& transport : stats.transports()) {
      if (transport.transport() == "data") return transport;
    }
    return v1::TransportStats();
  };
  const v1::Stats open = stats();
  const v1::MethodStats batch = of_method(open, kBatch);
  EXPECT_EQ(batch.codes().at(0), 2u);
  EXPECT_EQ(batch.messages_received(), 2u);
  EXPECT_EQ(batch.messages_sent(), 2u);
  EXPECT_EQ(batch.bytes_received(), 2 * request.ByteSizeLong());
  EXPECT_NEAR(static_cast<double>(batch.bytes_sent()),
              static_cast<double>(2 * response.ByteSizeLong()), 40);
  EXPECT_EQ(batch.latency().count(), 2u);
  uint64_t in_buckets = 0;
  for (const uint64_t count : batch.latency().counts()) in_buckets += count;
  EXPECT_EQ(in_buckets, 2u);
  const v1::MethodStats of_stream = of_method(open, kStream);
  EXPECT_TRUE(of_stream.codes().empty()) << "it has not ended";
  EXPECT_EQ(of_stream.messages_received(), 1u);
  EXPECT_EQ(of_stream.messages_sent(), 1u);
  EXPECT_EQ(of_stream.bytes_received(), request.ByteSizeLong());
  EXPECT_EQ(of_stream.bytes_sent(), streamed.ByteSizeLong());
  const v1::TransportStats before = transport(open);
  EXPECT_GE(before.streams_accepted(), 3u);
  EXPECT_EQ(before.streams(), 1u);
  EXPECT_EQ(before.sheds(), 0u);
  EXPECT_EQ(before.connections(), 1u);
  EXPECT_EQ(before.connections_accepted(), 1u);
  EXPECT_EQ(before.connections_refused(), 0u);

  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(Eventually([&] { return of_method(stats(), kStream).latency().count() == 1; }));
  EXPECT_EQ(of_method(stats(), kStream).codes().at(0), 1u);
}

TEST_F(LimitAdminServerTest, ReloadsAReplacedFileWhichOverridesPutLimit) {
  v1::PutLimitResponse put;
  ASSERT_TRUE(Put("api", 20, &put).ok());
  const std::string version = ConfigStatus().version();
  EXPECT_EQ(version.size(), 64u);
  server_->WriteLimits("limits: [{name: api, rate: 30/h}]");
  ASSERT_TRUE(Eventually([&] { return ConfigStatus().version() != version; })) << server_->log();
  v1::Limit limit;
  ASSERT_TRUE(Get("api", &limit).ok());
  EXPECT_EQ(limit.rate().permits(), 30u);
  EXPECT_EQ(limit.origin(), v1::ORIGIN_FILE);
  EXPECT_EQ(ConfigStatus().limits(), 1u);
  EXPECT_TRUE(server_->Logs({"event=reload"}));
}

TEST_F(LimitAdminServerTest, UndoesATemporaryPutAndRecordsIt) {
  TestFiles files;
  const std::string audit = files.Write("audit", "");
  Start({.limits = kLimits, .flags = {"--audit_log=" + audit}});
  v1::PutLimitRequest request;
  request.mutable_limit()->set_name("api");
  request.mutable_limit()->mutable_rate()->set_permits(20);
  request.mutable_limit()->mutable_rate()->mutable_period()->set_seconds(3600);
  request.set_reason("sale \"50 %\"");
  request.mutable_expires_after()->set_seconds(1000);
  const auto put = [&](v1::PutLimitResponse* response) {
    grpc::ClientContext context;
    return admin_->PutLimit(&context, request, response);
  };
  v1::PutLimitResponse response;
  ASSERT_TRUE(put(&response).ok());
  EXPECT_EQ(response.limit().reason(), "sale \"50 %\"");
  EXPECT_GT(response.limit().expires_in().seconds(), 900);
  EXPECT_LE(response.limit().expires_in().seconds(), 1000);
  // A change of the file does not end it, nor is what the file says now in force.
  server_->WriteLimits("limits: [{name: api, rate: 30/h}]");
  server_->Signal(SIGHUP);
  ASSERT_TRUE(Eventually([&] { return ConfigStatus().reloads() == 2; }));
  v1::Limit limit;
  ASSERT_TRUE(Get("api", &limit).ok());
  EXPECT_EQ(limit.rate().permits(), 20u);
  EXPECT_EQ(limit.origin(), v1::ORIGIN_ADMIN_OVER_FILE);
  EXPECT_TRUE(limit.has_expires_in());
  ASSERT_TRUE(Granted("api", "k", 10));
  request.mutable_expires_after()->set_seconds(1);
  ASSERT_TRUE(put(&response).ok());
  ASSERT_TRUE(Eventually([&] {
    return Get("api", &limit).ok() && limit.origin() == v1::ORIGIN_FILE;
  })) << server_->log();
  EXPECT_EQ(limit.rate().permits(), 30u);
  EXPECT_EQ(limit.reason(), "");
  EXPECT_FALSE(limit.has_expires_in());
  EXPECT_EQ(Remaining("api", "k"), 15) << "half of 20 becomes half of 30";
  EXPECT_TRUE(server_->Logs({"event=limit_put", "expires_after=1s"}));
  EXPECT_TRUE(server_->Logs({"event=limit_expired", "limit=api", "now=restored"}));
  std::string line;
  EXPECT_TRUE(Eventually([&] {
    std::ifstream lines(audit);
    while (std::getline(lines, line)) {
      if (line.find("UndoPutLimit") != std::string::npos) return true;
    }
    return false;
  }));
  EXPECT_THAT(
      line,
      HasSubstr("\"client\":null,\"actor\":null,\"peer\":\"expiry\",\"call\":\"UndoPutLimit\","
                "\"request\":{\"name\":\"api\"},\"before\":{"));
  EXPECT_THAT(line, HasSubstr("\"permits\":\"20\""));
  EXPECT_THAT(line, HasSubstr("\"permits\":\"30\""));
  EXPECT_THAT(line, HasSubstr("sale"));
  EXPECT_THAT(line, HasSubstr("\"outcome\":\"OK\""));
}

TEST_F(LimitAdminServerTest, ATemporaryLimitThatOthersChargeStaysUntilTheyAreGone) {
  v1::PutLimitRequest request;
  request.mutable_limit()->set_name("base");
  request.mutable_limit()->mutable_rate()->set_permits(20);
  request.mutable_expires_after()->set_seconds(1);
  const auto put = [&] {
    grpc::ClientContext context;
    v1::PutLimitResponse response;
    return admin_->PutLimit(&context, request, &response);
  };
  ASSERT_TRUE(put().ok());
  request.clear_expires_after();
  request.mutable_limit()->set_name("charging");
  request.mutable_limit()->add_charges("base");
  ASSERT_TRUE(put().ok());
  EXPECT_TRUE(server_->Logs({"event=limit_not_restored", "limit=base", "charging"}));
  v1::Limit limit;
  EXPECT_TRUE(Get("base", &limit).ok());
  ASSERT_TRUE(Delete("charging").ok());
  EXPECT_TRUE(
      Eventually([&] { return Get("base", &limit).error_code() == grpc::StatusCode::NOT_FOUND; }));
  EXPECT_TRUE(server_->Logs({"event=limit_expired", "limit=base", "now=deleted"}));
}

TEST_F(LimitAdminServerTest, RefusesABadReasonOrEndByName) {
  v1::PutLimitRequest request;
  request.mutable_limit()->set_name("api");
  request.mutable_limit()->mutable_rate()->set_permits(20);
  request.mutable_expires_after()->set_seconds(-1);
  const auto put = [&] {
    grpc::ClientContext context;
    v1::PutLimitResponse response;
    const grpc::Status status = admin_->PutLimit(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(put(), HasSubstr("expires_after: -1s; from 1s to 365 days"));
  request.mutable_expires_after()->set_seconds(365 * 86400 + 1);
  EXPECT_THAT(put(), HasSubstr("expires_after: 8760h1s; from 1s"));
  request.clear_expires_after();
  request.set_reason(std::string(257, 'r'));
  EXPECT_THAT(put(), HasSubstr("has 257 bytes; at most 256"));

  // protobuf's own client would complain on stderr.
  const grpc::Slice bytes("\x12\x01\xFF", 3);
  const grpc::ByteBuffer raw(&bytes, 1);
  EXPECT_THAT(CallRaw("PutLimit", raw).error_message(),
              HasSubstr("PutLimitRequest: reason: \"\\xff\" is not valid UTF-8"));
  v1::Limit limit;
  ASSERT_TRUE(Get("api", &limit).ok());
  EXPECT_EQ(limit.origin(), v1::ORIGIN_FILE);
}

TEST_F(LimitAdminServerTest, KeepsTheRunningLimitsIfTheFileIsInvalid) {
  server_->WriteLimits("limits: [{name: api, rate: 0/s}]");
  server_->Signal(SIGHUP);
  ASSERT_TRUE(Eventually([&] { return !ConfigStatus().last_error().empty(); }));
  EXPECT_THAT(ConfigStatus().last_error(), HasSubstr("limits.yaml:1"));
  EXPECT_TRUE(Granted("api", "k", 10));
  EXPECT_TRUE(server_->Logs({"event=reload_failed"}));
  server_->WriteLimits(kLimits);
  server_->Signal(SIGHUP);
  ASSERT_TRUE(Eventually([&] { return ConfigStatus().last_error().empty(); }));
}

TEST_F(LimitAdminServerTest, SighupReloadsAndBucketsKeepTheirFillLevel) {
  ASSERT_TRUE(Granted("api", "k", 5));
  server_->WriteLimits("limits: [{name: api, rate: 20/h}]");
  server_->Signal(SIGHUP);
  ASSERT_TRUE(Eventually([&] { return ConfigStatus().reloads() == 2; }));
  EXPECT_EQ(Remaining("api", "k"), 10) << "half of 10 becomes half of 20";
}

TEST_F(LimitAdminServerTest, AdminPortHasHealthAndReflection) {
  const auto health = grpc::health::v1::Health::NewStub(server_->AdminChannel());
  for (const auto& [service, code] :
       {std::pair("", grpc::StatusCode::OK),
        std::pair("sluice.v1.LimitAdmin", grpc::StatusCode::OK),
        std::pair("sluice.v1.RateLimiter", grpc::StatusCode::NOT_FOUND)}) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
    request.set_service(service);
    EXPECT_EQ(health->Check(&context, request, &response).error_code(), code) << service;
    if (code == grpc::StatusCode::OK) {
      EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
    }
  }

  const auto reflection = grpc::reflection::v1::ServerReflection::NewStub(server_->AdminChannel());
  grpc::ClientContext context;
  context.set_deadline(Soon());
  auto stream = reflection->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest request;
  grpc::reflection::v1::ServerReflectionResponse response;
  request.set_list_services("");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  std::vector<std::string> names;
  for (const auto& one : response.list_services_response().service()) names.push_back(one.name());
  EXPECT_THAT(names, ::testing::ElementsAre(
                         "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                         "grpc.reflection.v1alpha.ServerReflection", "sluice.v1.LimitAdmin"));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(LimitAdminServerTest, DataMethodsAreUnknownOnTheAdminPort) {
  grpc::ClientContext context;
  v1::AcquireResponse response;
  EXPECT_EQ(v1::RateLimiter::NewStub(server_->AdminChannel())
                ->Acquire(&context, Request("api", "k"), &response)
                .error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(LimitAdminServerTest, RefusesMessagesThatAreNotUtf8WithoutPrinting) {
  // GetLimitRequest whose name is the byte FF.
  const grpc::Slice bytes("\x0A\x01\xFF", 3);
  const grpc::Status status = CallRaw("GetLimit", grpc::ByteBuffer(&bytes, 1));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("GetLimitRequest"));
  EXPECT_THAT(server_->log(), ::testing::Not(HasSubstr("protobuf")));
}

}  // namespace
}  // namespace sluice::testing
