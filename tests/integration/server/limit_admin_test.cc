// LimitAdmin over a real socket, and the limits file under it.
#include <signal.h>

#include <string>

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
  grpc::Status Delete(const std::string& name) {
    grpc::ClientContext context;
    v1::DeleteLimitRequest request;
    request.set_name(name);
    v1::DeleteLimitResponse response;
    return admin_->DeleteLimit(&context, request, &response);
  }
};

TEST_P(LimitAdminServerTest, ListsAndGetsLimitsWithTheirOrigin) {
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

TEST_P(LimitAdminServerTest, PutAndDeleteChangeTheRunningTable) {
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

TEST_P(LimitAdminServerTest, PutRefusesWhatIsNoLimitAndChangesNothing) {
  v1::PutLimitResponse put;
  const grpc::Status no_rate = Put("api", 0, &put);
  EXPECT_EQ(no_rate.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(no_rate.error_message(), HasSubstr("limit.rate"));
  EXPECT_EQ(Put("bad name", 1, &put).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Put("", 1, &put).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Granted("api", "k", 10));
}

TEST_P(LimitAdminServerTest, ResetAndListKeys) {
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

TEST_P(LimitAdminServerTest, StatsCountWhatHappened) {
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

TEST_P(LimitAdminServerTest, AReplacedFileIsLoadedByItselfAndOwnsItsLimitsAgain) {
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
  EXPECT_THAT(server_->log(), HasSubstr("event=reload"));
}

TEST_P(LimitAdminServerTest, ABadFileLeavesTheRunningLimitsAndSaysWhy) {
  server_->WriteLimits("limits: [{name: api, rate: 0/s}]");
  server_->Signal(SIGHUP);
  ASSERT_TRUE(Eventually([&] { return !ConfigStatus().last_error().empty(); }));
  EXPECT_THAT(ConfigStatus().last_error(), HasSubstr("limits.yaml:1"));
  EXPECT_TRUE(Granted("api", "k", 10));
  EXPECT_THAT(server_->log(), HasSubstr("event=reload_failed"));
  server_->WriteLimits(kLimits);
  server_->Signal(SIGHUP);
  ASSERT_TRUE(Eventually([&] { return ConfigStatus().last_error().empty(); }));
}

TEST_P(LimitAdminServerTest, SighupReloadsAndBucketsKeepTheirFill) {
  ASSERT_TRUE(Granted("api", "k", 5));
  server_->WriteLimits("limits: [{name: api, rate: 20/h}]");
  server_->Signal(SIGHUP);
  ASSERT_TRUE(Eventually([&] { return ConfigStatus().reloads() == 2; }));
  EXPECT_EQ(Remaining("api", "k"), 10) << "half of 10 becomes half of 20";
}

SLUICE_ON_EVERY_TRANSPORT(LimitAdminServerTest);

}  // namespace
}  // namespace sluice::testing
