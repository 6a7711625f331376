// The client with the real sluiced: stopped, restarted, hanging, draining.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <future>
#include <thread>

#include "sluice/admin_client.h"
#include "sluice/client.h"
#include "tests/support/server_process.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ServerProcess;

constexpr char kLimits[] =
    "limits: [{name: api, rate: 1000000/s}, {name: few, rate: 1/h, burst: 3}]";

class RealServerTest : public ::testing::Test {
 protected:
  ServerProcess::Options Options(std::vector<std::string> flags = {}) {
    return {.limits = kLimits, .flags = std::move(flags)};
  }
  static Client Connect(const std::string& address) {
    return *Client::Create({.servers = {address}, .deadline = seconds(20)});
  }
};

TEST_F(RealServerTest, AnswersEveryKindOfCall) {
  ServerProcess server(Options());
  Client client = Connect(server.data_address());
  Acquisition acquisition("few", "a", 2);
  acquisition.want_receipt = true;
  const auto granted = client.Acquire(acquisition);
  ASSERT_TRUE(granted.ok()) << granted.status();
  EXPECT_TRUE(granted->granted);
  EXPECT_EQ(granted->charges[0].remaining, 1);
  EXPECT_EQ(granted->charges[0].capacity, 3u);

  const auto denied = client.Acquire("few", "a", 2);
  EXPECT_FALSE(denied->granted);
  EXPECT_GT(denied->retry_after, seconds(3500));
  EXPECT_EQ(denied->charges[0].reason, Reason::kNotEnough);

  const std::vector<Bucket> buckets = {{"few", "a"}, {"few", "b"}};
  const auto looked = client.Query(buckets);
  ASSERT_TRUE(looked.ok()) << looked.status();
  EXPECT_EQ((*looked)[0].remaining, 1);
  EXPECT_FALSE((*looked)[1].exists);

  EXPECT_EQ(client.Refund(*granted)->outcome, RefundOutcome::kRefunded);
  EXPECT_EQ(client.Refund(*granted)->outcome, RefundOutcome::kAlreadyRefunded);
  EXPECT_TRUE(client.Acquire("few", "a", 3)->granted);

  EXPECT_EQ(client.Acquire("missing", "").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(client.Acquire("few", std::string(513, 'k')).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client.Acquire("few", "", 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client.Refund("forged").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(RealServerTest, StreamDecidesExactly) {
  ServerProcess server(Options());
  Client client = Connect(server.data_address());
  AcquireStream stream = client.OpenStream();
  std::atomic<int> granted{0};
  std::atomic<int> denied{0};
  for (int i = 0; i < 20'000; ++i) {
    stream.Submit("few", std::to_string(i % 1000), 1, [&](Result<Decision> result) {
      if (!result.ok() || result->source != Source::kStore) return;
      ++(result->granted ? granted : denied);
    });
  }
  ASSERT_TRUE(stream.Drain(seconds(60)));
  EXPECT_EQ(granted, 3'000);
  EXPECT_EQ(denied, 17'000);
}

TEST_F(RealServerTest, WatchReportsAnAcquisition) {
  ServerProcess server(Options());
  Client client = Connect(server.data_address());
  std::promise<void> first;
  std::promise<int64_t> second;
  int calls = 0;
  const std::vector<Bucket> buckets = {{"few", "w"}};
  auto watch = client.Watch(buckets, {.min_interval = milliseconds(10)},
                            {.on_change =
                                 [&](std::vector<BucketStatus> changed) {
                                   if (++calls == 1) first.set_value();
                                   if (calls == 2) second.set_value(changed[0].remaining);
                                 },
                             .on_closed = [](Status) {}});
  first.get_future().get();
  ASSERT_TRUE(client.Acquire("few", "w")->granted);
  EXPECT_EQ(second.get_future().get(), 2);
}

TEST_F(RealServerTest, ReconnectsToARestartedServer) {
  auto server = std::make_unique<ServerProcess>(Options());
  const std::string address = server->data_address();
  Client client = Connect(address);
  AcquireStream stream = client.OpenStream();
  ASSERT_TRUE(client.Acquire("api", "")->granted);
  ASSERT_TRUE(stream.Submit(Acquisition("api")).get()->granted);
  server->Kill();
  const auto unavailable = client.Acquire("api", "", 1, {.deadline = milliseconds(500)});
  ASSERT_TRUE(unavailable.ok()) << unavailable.status();
  EXPECT_FALSE(unavailable->granted);
  EXPECT_EQ(unavailable->source, Source::kUnavailable);

  server = std::make_unique<ServerProcess>(Options({"--listen=" + address}));
  ASSERT_TRUE(server->ready()) << server->log();
  Result<Decision> back = client.Acquire("api", "");
  for (int i = 0; i < 1000 && back->source == Source::kUnavailable; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    back = client.Acquire("api", "");
  }
  EXPECT_TRUE(back->granted) << back->status;
  EXPECT_TRUE(stream.Submit(Acquisition("api")).get()->granted);
}

TEST_F(RealServerTest, PausedServerTimesOutAndAnswersAfterItContinues) {
  ServerProcess server(Options());
  Client client = Connect(server.data_address());
  ASSERT_TRUE(client.Acquire("api", "")->granted);
  AcquireStream stream = client.OpenStream({.deadline = milliseconds(300)});
  server.Signal(SIGSTOP);
  // A signal is asynchronous: wait until the process is stopped.
  int state = 0;
  ASSERT_EQ(waitpid(server.pid(), &state, WUNTRACED), server.pid());
  const auto hung = client.Acquire("api", "", 1, {.deadline = milliseconds(300)});
  ASSERT_TRUE(hung.ok()) << hung.status();
  EXPECT_EQ(hung->source, Source::kUnavailable);
  EXPECT_EQ(hung->status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(hung->status.may_have_executed());
  const auto streamed = stream.Submit(Acquisition("api")).get();
  ASSERT_TRUE(streamed.ok()) << streamed.status();
  EXPECT_EQ(streamed->source, Source::kUnavailable);
  server.Signal(SIGCONT);
  // Calls that waited meanwhile are old, so the server may shed the first calls behind them.
  Result<Decision> woken = client.Acquire("api", "");
  for (int i = 0; i < 1000 && woken.ok() && !woken->granted; ++i) {
    EXPECT_EQ(woken->status.code(), StatusCode::kResourceExhausted) << woken->status;
    EXPECT_FALSE(woken->status.may_have_executed());
    std::this_thread::sleep_for(milliseconds(10));
    woken = client.Acquire("api", "");
  }
  ASSERT_TRUE(woken.ok()) << woken.status();
  EXPECT_TRUE(woken->granted) << woken->status;
}

// The number of grants in the log of a server that has exited.
uint64_t GrantedBy(ServerProcess& server) {
  EXPECT_EQ(server.WaitForExit(), 0) << server.log();
  const std::string log = server.log();
  const size_t at = log.find("granted=");
  return at == std::string::npos ? 0 : std::stoull(log.substr(at + 8));
}

TEST_F(RealServerTest, DrainIsInvisibleWithAnotherServer) {
  ServerProcess server(Options());
  ServerProcess other(Options());
  auto client = *Client::Create(
      {.servers = {server.data_address(), other.data_address()}, .deadline = seconds(20)});
  AcquireStream stream = client.OpenStream({.max_batch = 4});
  constexpr int kRounds = 500;
  std::atomic<int> answered{0};
  std::atomic<int> granted{0};
  // Calls that a server refused since it got no core for too long: nothing was done.
  std::atomic<int> shed{0};
  std::atomic<int> on_the_other{0};
  const auto done = [&](Result<Decision> result) {
    if (!result.ok()) {
      ADD_FAILURE() << result.status();
    } else if (!result->granted && result->status.code() == StatusCode::kResourceExhausted &&
               !result->status.may_have_executed()) {
      ++shed;
    } else if (!result->granted) {
      ADD_FAILURE() << result->status << (result->status.may_have_executed() ? " (may)" : " (not)");
    } else {
      ++granted;
      on_the_other += static_cast<int>(result->server);
    }
    ++answered;
  };
  // Unary and streamed calls before, during and after the drain of one server.
  std::future<uint64_t> first;
  int sent = 0;
  for (int after = 0; after < kRounds;) {
    if (sent == 2 * kRounds) {
      server.Signal(SIGTERM);
      first = std::async(std::launch::async, [&] { return GrantedBy(server); });
    }
    client.AcquireAsync(Acquisition("api", std::to_string(sent)), done);
    stream.Submit(Acquisition("api", std::to_string(sent)), done);
    sent += 2;
    while (sent - answered > 64) std::this_thread::yield();
    if (first.valid() && first.wait_for(seconds(0)) == std::future_status::ready) ++after;
  }
  while (answered < sent) std::this_thread::yield();
  EXPECT_EQ(granted + shed, sent);
  EXPECT_GE(on_the_other, 2 * kRounds - shed);
  // No call was executed twice: the servers' grants add up to the callers' grants.
  other.Signal(SIGTERM);
  const uint64_t in_all = first.get() + GrantedBy(other);
  EXPECT_GE(in_all, static_cast<uint64_t>(granted));
  EXPECT_LE(in_all, static_cast<uint64_t>(sent));
}

TEST_F(RealServerTest, HeldCallerMovesToAnotherServerWhenItsServerDrains) {
  const std::string limits = "limits: [{name: slow, rate: 1/h, burst: 1, max_wait: 24h}]";
  ServerProcess server({.limits = limits});
  ServerProcess other({.limits = limits});
  auto client = *Client::Create(
      {.servers = {server.data_address(), other.data_address()}, .deadline = seconds(20)});
  ASSERT_TRUE(client.Acquire("slow", "k", 1, {.server = 0})->granted);
  Acquisition held("slow", "k");
  held.max_wait = std::chrono::hours(2);
  held.hold = true;
  // The first call without a server goes to the first one, which has no permit for an hour.
  auto answer = client.AcquireFuture(held);
  const std::vector<Bucket> buckets = {{"slow", "k"}};
  for (int i = 0; i < 2000 && (*client.Query(buckets, {.server = 0}))[0].waiting == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  ASSERT_EQ((*client.Query(buckets, {.server = 0}))[0].waiting, 1u);
  server.Signal(SIGTERM);
  const auto decision = answer.get();
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_TRUE(decision->granted) << decision->status;
  EXPECT_EQ(decision->server, 1u);
  EXPECT_EQ(server.WaitForExit(), 0) << server.log();
}

TEST_F(RealServerTest, AdminClientChangesDecisions) {
  ServerProcess server(Options());
  Client client = Connect(server.data_address());
  auto admin = *AdminClient::Create({.server = server.admin_address(), .deadline = seconds(20)});
  LimitInfo limit;
  limit.name = "new";
  limit.rate = {1, std::chrono::hours(1)};
  limit.burst = 1;
  ASSERT_TRUE(admin.PutLimit(limit).ok());
  EXPECT_TRUE(client.Acquire("new", "k")->granted);
  EXPECT_FALSE(client.Acquire("new", "k")->granted);
  EXPECT_TRUE(*admin.ResetKey("new", "k"));
  EXPECT_TRUE(client.Acquire("new", "k")->granted);
  const auto stats = admin.GetStats();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_GE(stats->decisions, 3u);
  EXPECT_EQ(admin.GetConfigStatus()->limits, 3u);
  ASSERT_TRUE(admin.ListKeys("new", KeyOrder::kUse, 5).ok());
  EXPECT_TRUE(admin.DeleteLimit("new").ok());
  EXPECT_EQ(client.Acquire("new", "k").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice
