// Servers that decide some limits by themselves, beside a real Redis.
#include <memory>
#include <string>

#include "tests/integration/server/server_test.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class RedisSharingTest : public ServerTest {
 protected:
  static constexpr char kLimits[] =
      "limits: [{name: split, rate: 1000/s, sharing: split}, "
      "{name: relaxed, rate: 1/h, burst: 1000, sharing: relaxed}, "
      "{name: going, rate: 1000/s, on_store_failure: split}, {name: exact, rate: 5/h}]";

  ServerProcess::Options Options() {
    ServerProcess::Options options;
    options.limits = kLimits;
    options.transport = GetParam();
    options.flags = {"--store=" + redis_.url(), "--redis_budget=100ms", "--redis_node_ttl=400ms"};
    return options;
  }

  v1::ConfigStatus Status() {
    grpc::ClientContext context;
    v1::ConfigStatus response;
    EXPECT_TRUE(admin_->GetConfigStatus(&context, v1::GetConfigStatusRequest(), &response).ok());
    return response;
  }

  int64_t Overshoot(const std::string& limit) {
    grpc::ClientContext context;
    v1::Stats stats;
    EXPECT_TRUE(admin_->GetStats(&context, v1::GetStatsRequest(), &stats).ok());
    for (const v1::LimitStats& one : stats.limits()) {
      if (one.limit() == limit) return static_cast<int64_t>(one.overshoot_permits());
    }
    return -1;
  }

  v1::AcquireResponse Ask(const std::string& limit) {
    v1::AcquireResponse response;
    if (!Acquire(Request(limit, "k"), &response).ok()) response.Clear();
    return response;
  }

  RedisServer redis_;
};

TEST_P(RedisSharingTest, NodesDivideWhatIsSplitAndSayWhoTheyAre) {
  Start(Options());
  ASSERT_TRUE(server_->ready());
  auto other = std::make_unique<ServerProcess>(Options());
  ASSERT_TRUE(other->ready());
  ASSERT_TRUE(Eventually([&] {
    const v1::StoreStatus store = Status().store();
    return store.nodes_size() == 2 && store.nodes(0).divisor() == 2;
  }));
  EXPECT_TRUE(Status().store().nodes(0).self());
  EXPECT_FALSE(Status().store().nodes(1).self());
  ASSERT_TRUE(Eventually([&] { return Ask("split").granted(); }));
  const v1::AcquireResponse response = Ask("split");
  EXPECT_EQ(response.source(), v1::SOURCE_LOCAL);
  EXPECT_EQ(response.charges(0).capacity(), 500u);

  v1::QueryRequest query;
  query.add_buckets()->set_limit("split");
  v1::QueryResponse queried;
  grpc::ClientContext context;
  ASSERT_TRUE(data_->Query(&context, query, &queried).ok());
  EXPECT_EQ(queried.buckets(0).source(), v1::SOURCE_LOCAL);

  // One that says good-bye is not waited for until it has lapsed.
  other->Signal(SIGTERM);
  EXPECT_EQ(other->WaitForExit(), 0);
  ASSERT_TRUE(Eventually([&] { return Status().store().nodes_size() == 1; }));
  ASSERT_TRUE(Eventually([&] { return Ask("split").charges(0).capacity() == 1000; }));
}

TEST_P(RedisSharingTest, RelaxedIsGrantedHereAndReported) {
  Start(Options());
  ASSERT_TRUE(server_->ready());
  int local = 0;
  int granted = 0;
  for (int i = 0; i < 1100; ++i) {
    const v1::AcquireResponse response = Ask("relaxed");
    if (response.granted()) ++granted;
    if (response.source() == v1::SOURCE_LOCAL) ++local;
  }
  // At most a tenth beyond, and as many as the figure says.
  EXPECT_GE(granted, 1000);
  EXPECT_LE(granted, 1100);
  EXPECT_GT(local, 0);
  EXPECT_TRUE(Eventually([&] { return Overshoot("relaxed") == granted - 1000; }));
  EXPECT_EQ(Remaining("relaxed", "k"), 1000 - granted);
}

TEST_P(RedisSharingTest, GoesOnWithItsShareWhileRedisIsAway) {
  Start(Options());
  ASSERT_TRUE(server_->ready());
  EXPECT_EQ(Ask("going").source(), v1::SOURCE_STORE);
  ASSERT_TRUE(Eventually([&] { return Status().store().nodes(0).divisor() == 1; }));
  redis_.Pause();
  ASSERT_TRUE(Eventually([&] {
    const v1::AcquireResponse response = Ask("going");
    return response.granted() && response.source() == v1::SOURCE_STORE_AWAY;
  }));
  v1::QueryRequest query;
  query.add_buckets()->set_limit("going");
  query.mutable_buckets(0)->set_key("k");
  v1::QueryResponse queried;
  grpc::ClientContext context;
  ASSERT_TRUE(data_->Query(&context, query, &queried).ok());
  EXPECT_EQ(queried.buckets(0).source(), v1::SOURCE_STORE_AWAY);
  bool counted = false;
  const v1::ConfigStatus status = Status();
  for (const auto& one : status.store().decided_away()) {
    counted |= one.limit() == "going" && one.allowed() > 0;
  }
  EXPECT_TRUE(counted);
  redis_.Resume();
  ASSERT_TRUE(Eventually([&] {
    const v1::AcquireResponse response = Ask("going");
    return response.granted() && response.source() == v1::SOURCE_STORE;
  }));
  EXPECT_THAT(server_->log(), HasSubstr("redis_reported"));
}

TEST_P(RedisSharingTest, RefusesToBookAheadWhereNodesDecide) {
  Start(Options());
  ASSERT_TRUE(server_->ready());
  for (const auto& [limit, setting] :
       {std::pair{"split", "sharing: split"}, std::pair{"relaxed", "sharing: relaxed"},
        std::pair{"going", "on_store_failure: split"}}) {
    v1::AcquireRequest request = Request(limit, "k");
    request.mutable_max_wait()->set_seconds(1);
    const grpc::Status status = Acquire(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(),
                HasSubstr(std::string("limit '") + limit + "' says " + setting));
  }
  v1::AcquireRequest request = Request("exact", "k");
  request.mutable_max_wait()->set_seconds(1);
  EXPECT_TRUE(Acquire(request).ok());
}

SLUICE_ON_EVERY_TRANSPORT(RedisSharingTest);

}  // namespace
}  // namespace sluice::testing
