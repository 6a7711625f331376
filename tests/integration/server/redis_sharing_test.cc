// Servers that decide some limits locally, with a real Redis.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
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
      "{name: going, rate: 1000/s, on_store_failure: split}, "
      "{name: daily, rate: 86400/d, on_store_failure: split}, {name: exact, rate: 5/h}]";

  // A node that a busy machine delays for longer than the time to live loses its share, and a slow
  // Redis its answers: tests wait for a state in which one answer shows all that they expect.
  ServerProcess::Options Options(const std::string& budget = "2s",
                                 const std::string& ttl = "400ms") {
    ServerProcess::Options options;
    options.limits = kLimits;
    options.flags = {"--store=" + redis_.url(), "--redis_budget=" + budget,
                     "--redis_node_ttl=" + ttl};
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

  // Of this node's own entry; 0: it has no share.
  uint32_t Divisor() {
    const v1::StoreStatus store = Status().store();
    return store.nodes_size() == 0 ? 0 : store.nodes(0).divisor();
  }

  // An error is an empty response with one empty charge.
  v1::AcquireResponse Ask(const v1::AcquireRequest& request) {
    v1::AcquireResponse response;
    if (!Acquire(request, &response).ok()) response.Clear();
    if (response.charges_size() == 0) response.add_charges();
    return response;
  }
  v1::AcquireResponse Ask(const std::string& limit) { return Ask(Request(limit, "k")); }

  v1::Source SourceOfQuery(const std::string& limit) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::QueryRequest query;
    query.add_buckets()->set_limit(limit);
    query.mutable_buckets(0)->set_key("k");
    v1::QueryResponse queried;
    if (!data_->Query(&context, query, &queried).ok()) return v1::SOURCE_UNSPECIFIED;
    return queried.buckets(0).source();
  }

  RedisServer redis_;
};

TEST_F(RedisSharingTest, NodesDivideSplitLimitsAndAreListed) {
  Start(Options());
  ASSERT_TRUE(server_->ready());
  auto other = std::make_unique<ServerProcess>(Options());
  ASSERT_TRUE(other->ready());
  ASSERT_TRUE(Eventually([&] {
    const v1::StoreStatus store = Status().store();
    return store.nodes_size() == 2 && store.nodes(0).divisor() == 2 && store.nodes(0).self() &&
           !store.nodes(1).self();
  }));
  EXPECT_TRUE(Eventually([&] {
    const v1::AcquireResponse response = Ask("split");
    return response.granted() && response.source() == v1::SOURCE_LOCAL &&
           response.charges(0).capacity() == 500;
  }));
  EXPECT_TRUE(Eventually([&] { return SourceOfQuery("split") == v1::SOURCE_LOCAL; }));

  // A node that leaves is removed at once, before its heartbeats would lapse.
  other->Signal(SIGTERM);
  EXPECT_EQ(other->WaitForExit(), 0);
  ASSERT_TRUE(Eventually([&] { return Status().store().nodes_size() == 1; }));
  ASSERT_TRUE(Eventually([&] { return Ask("split").charges(0).capacity() == 1000; }));
}

// Grants of one split log to clients of several servers. Each decision was made between the call's
// start and its answer.
class ClientsOfALog {
 public:
  explicit ClientsOfALog(const std::vector<ServerProcess*>& servers) : granted_(servers.size()) {
    for (size_t n = 0; n < servers.size(); ++n) {
      for (int c = 0; c < 8; ++c) {
        threads_.emplace_back([this, n, channel = servers[n]->DataChannel()] { Ask(n, channel); });
      }
    }
  }
  ~ClientsOfALog() { Stop(); }

  uint64_t granted(size_t server) const { return granted_[server].load(); }
  void Stop() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Returns an error text if more grants than allowed were certainly decided in one window, that is
  // started and answered within it; else "". The fullest window begins at a call's start. REQUIRES:
  // stopped.
  std::string Check(uint64_t permits, int64_t period_ns) {
    const common::MutexLock lock(&mu_);
    std::sort(grants_.begin(), grants_.end(),
              [](const Grant& a, const Grant& b) { return a.sent_ns < b.sent_ns; });
    for (size_t i = 0; i < grants_.size(); ++i) {
      const int64_t end_ns = grants_[i].sent_ns + period_ns;
      uint64_t sum = 0;
      for (size_t j = i; j < grants_.size() && grants_[j].sent_ns < end_ns; ++j) {
        sum += grants_[j].came_ns < end_ns ? 1 : 0;
      }
      if (sum > permits) {
        return absl::StrCat("the window from the ", i, ". call on holds ", sum, " permits");
      }
    }
    return "";
  }

 private:
  struct Grant {
    int64_t sent_ns;
    int64_t came_ns;
  };

  static int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  void Ask(size_t server, const std::shared_ptr<grpc::Channel>& channel) {
    const auto stub = v1::RateLimiter::NewStub(channel);
    v1::AcquireRequest request;
    request.add_charges()->set_limit("log");
    while (!stop_.load()) {
      grpc::ClientContext context;
      v1::AcquireResponse response;
      const int64_t sent_ns = NowNs();
      const bool ok = stub->Acquire(&context, request, &response).ok();
      const int64_t came_ns = NowNs();
      if (!ok || !response.granted()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        continue;
      }
      common::MutexLock lock(&mu_);
      granted_[server].fetch_add(1);
      grants_.push_back({sent_ns, came_ns});
    }
  }

  std::atomic<bool> stop_{false};
  std::vector<std::atomic<uint64_t>> granted_;
  common::Mutex mu_;
  std::vector<Grant> grants_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

// The node is stopped for longer than the others need to take over its share. When it continues,
// Redis is stopped: only its clock can tell the node that its share has expired.
TEST_F(RedisSharingTest, StoppedServerContinuesWithoutItsShare) {
  constexpr uint64_t kPermits = 300;
  ServerProcess::Options options = Options();
  options.limits = "limits: [{name: log, algorithm: sliding_log, rate: 300/s, sharing: split}]";
  Start(options);
  ServerProcess second(options);
  ServerProcess third(options);
  ASSERT_TRUE(server_->ready() && second.ready() && third.ready());
  ClientsOfALog clients({server_.get(), &second, &third});
  const auto each_granted = [&](const std::vector<size_t>& servers, uint64_t more) {
    std::vector<uint64_t> before;
    for (const size_t n : servers) before.push_back(clients.granted(n));
    return Eventually([&] {
      for (size_t i = 0; i < servers.size(); ++i) {
        if (clients.granted(servers[i]) < before[i] + more) return false;
      }
      return true;
    });
  };
  const auto divisor_is = [&](uint32_t divisor) {
    return Eventually([&] { return Divisor() == divisor; });
  };
  ASSERT_TRUE(divisor_is(3));
  ASSERT_TRUE(each_granted({0, 1, 2}, kPermits / 3));
  third.Signal(SIGSTOP);
  ASSERT_TRUE(divisor_is(2));
  // By now the other two fill every window.
  ASSERT_TRUE(each_granted({0, 1}, 3 * kPermits / 2));
  redis_.Pause();
  third.Signal(SIGCONT);
  const auto woken = v1::RateLimiter::NewStub(third.DataChannel());
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::AcquireResponse response;
    // A key that the clients do not use: the node would still have all of its share.
    const grpc::Status status = woken->Acquire(&context, Request("log", "k"), &response);
    ASSERT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE)
        << status.error_message();
    ASSERT_FALSE(response.granted()) << "in call " << i;
  }
  redis_.Resume();
  ASSERT_TRUE(divisor_is(3));
  ASSERT_TRUE(each_granted({0, 1, 2}, kPermits / 3));
  clients.Stop();
  EXPECT_EQ(clients.Check(kPermits, 1'000'000'000), "");
}

TEST_F(RedisSharingTest, RequestLargerThanAShareIsDeniedAsShareTooSmall) {
  Start(Options());
  ServerProcess other(Options());
  ASSERT_TRUE(server_->ready() && other.ready());
  ASSERT_TRUE(Eventually([&] { return Divisor() == 2; }));
  EXPECT_TRUE(Eventually([&] {
    const v1::AcquireResponse response = Ask(Request("split", "k", 501));
    return !response.granted() && response.charges(0).reason() == v1::REASON_SHARE_TOO_SMALL &&
           response.charges(0).capacity() == 500 && response.retry_after().seconds() > 0;
  }));
  EXPECT_TRUE(Eventually([&] {
    const v1::AcquireResponse response = Ask(Request("split", "k", 500));
    return response.granted() || response.charges(0).reason() == v1::REASON_NOT_ENOUGH;
  }));
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::Stats stats;
    return admin_->GetStats(&context, v1::GetStatsRequest(), &stats).ok() &&
           stats.store().nodes() == 2;
  }));
}

TEST_F(RedisSharingTest, RelaxedLimitIsGrantedLocallyAndReported) {
  Start(Options());
  ASSERT_TRUE(server_->ready());
  int local = 0;
  int granted = 0;
  for (int i = 0; i < 1100; ++i) {
    const v1::AcquireResponse response = Ask("relaxed");
    if (response.granted()) ++granted;
    if (response.source() == v1::SOURCE_LOCAL) ++local;
  }
  // At most a tenth too many, and exactly the reported overshoot.
  EXPECT_GE(granted, 1000);
  EXPECT_LE(granted, 1100);
  EXPECT_GT(local, 0);
  EXPECT_TRUE(Eventually([&] { return Overshoot("relaxed") == granted - 1000; }));
  EXPECT_EQ(Remaining("relaxed", "k"), 1000 - granted);
}

TEST_F(RedisSharingTest, UsesItsShareWhileRedisIsUnavailable) {
  // If a busy machine delayed the node for 7/8 of the time to live, it would lose its share, and
  // could not get another without Redis.
  Start(Options(/*budget=*/"100ms", /*ttl=*/"2s"));
  ASSERT_TRUE(server_->ready());
  ASSERT_TRUE(Eventually([&] { return Ask("going").source() == v1::SOURCE_STORE; }));
  ASSERT_TRUE(Eventually([&] { return Divisor() == 1; }));
  redis_.Pause();
  ASSERT_TRUE(Eventually([&] {
    const v1::AcquireResponse response = Ask("going");
    return response.granted() && response.source() == v1::SOURCE_STORE_UNAVAILABLE;
  }));
  EXPECT_TRUE(Eventually([&] { return SourceOfQuery("going") == v1::SOURCE_STORE_UNAVAILABLE; }));
  bool counted = false;
  const v1::ConfigStatus status = Status();
  for (const auto& one : status.store().decided_while_unavailable()) {
    counted |= one.limit() == "going" && one.allowed() > 0;
  }
  EXPECT_TRUE(counted);
  redis_.Resume();
  ASSERT_TRUE(Eventually([&] {
    const v1::AcquireResponse response = Ask("going");
    return response.granted() && response.source() == v1::SOURCE_STORE;
  }));
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(server_->log(), "redis_debited"); }));
}

TEST_F(RedisSharingTest, GrantsOfALimitThatIsNoLongerSplitAreDebited) {
  const auto limits = [](const std::string& sharing) {
    return "limits: [{name: log, algorithm: sliding_log, rate: 100/5s, sharing: " + sharing + "}]";
  };
  ServerProcess::Options options = Options();
  options.limits = limits("split");
  Start(options);
  ASSERT_TRUE(server_->ready());
  // The share is used up for the first period.
  ASSERT_TRUE(Eventually([&] { return Ask(Request("log", "k", 100)).granted(); }));
  server_->WriteLimits(limits("exact"));
  server_->Signal(SIGHUP);
  ASSERT_TRUE(server_->Logs({"redis_debited"})) << server_->log();
  EXPECT_EQ(SourceOfQuery("log"), v1::SOURCE_STORE);
  EXPECT_EQ(Remaining("log", "k"), 0);
}

class RedisSharingDrainTest : public RedisSharingTest {
 protected:
  // Starts a node and lets it grant while Redis is unavailable; then asks it to stop.
  void StopWithUndebitedGrants(const std::string& drain_timeout) {
    ServerProcess::Options options = Options(/*budget=*/"100ms", /*ttl=*/"2s");
    options.flags.push_back("--drain_notice=0s");
    options.flags.push_back("--drain_timeout=" + drain_timeout);
    Start(options);
    ASSERT_TRUE(server_->ready());
    ASSERT_TRUE(Eventually([&] { return Divisor() == 1; }));
    redis_.Pause();
    ASSERT_TRUE(Eventually([&] {
      const v1::AcquireResponse response = Ask("daily");
      return response.granted() && response.source() == v1::SOURCE_STORE_UNAVAILABLE;
    }));
    server_->Signal(SIGTERM);
  }
};

TEST_F(RedisSharingDrainTest, NodeDebitsBeforeItStops) {
  StopWithUndebitedGrants("20s");
  ASSERT_TRUE(server_->Logs({"draining"}));
  redis_.Resume();
  EXPECT_EQ(server_->WaitForExit(), 0);
  EXPECT_TRUE(absl::StrContains(server_->log(), "redis_debited")) << server_->log();
  EXPECT_FALSE(absl::StrContains(server_->log(), "redis_not_debited")) << server_->log();
}

TEST_F(RedisSharingDrainTest, NodeSaysWhatItCouldNotDebit) {
  StopWithUndebitedGrants("500ms");
  EXPECT_EQ(server_->WaitForExit(), 0);
  EXPECT_TRUE(absl::StrContains(server_->log(), "redis_not_debited")) << server_->log();
  redis_.Resume();
}

TEST_F(RedisSharingTest, RefusesReservationsOnLocallyDecidedLimits) {
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
                HasSubstr(std::string("limit \"") + limit + "\" says " + setting));
  }
  v1::AcquireRequest request = Request("exact", "k");
  request.mutable_max_wait()->set_seconds(1);
  EXPECT_TRUE(GrantedBy(*data_, request));
}

}  // namespace
}  // namespace sluice::testing
