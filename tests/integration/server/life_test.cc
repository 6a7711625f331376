// The process: flags, ports, signals, drain and kill.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/integration/server/server_test.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class LifeTest : public ServerTest {
 protected:
  // Runs a server that must not start. Returns its exit code.
  int FailsWith(std::vector<std::string> flags, const std::string& text,
                const std::string& limits = "limits: [{name: api, rate: 5/s}]") {
    ServerProcess server({.limits = limits, .flags = std::move(flags), .may_fail = true});
    EXPECT_FALSE(server.ready());
    const int code = server.WaitForExit();
    EXPECT_THAT(server.log(), HasSubstr(text));
    EXPECT_EQ(server.out(), "");
    return code;
  }
};

TEST_F(LifeTest, PrintsOnlyTheReadyLineOnStdout) {
  Start({});
  ASSERT_TRUE(Granted("api", "k"));
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->WaitForExit(), 0) << server_->log();
  EXPECT_EQ(server_->out(), "ready data=" + server_->data_address() +
                                " admin=" + server_->admin_address() +
                                " http=" + server_->http_address() + "\n");
  EXPECT_THAT(server_->log(), HasSubstr("event=draining signal=SIGTERM"));
  EXPECT_THAT(server_->log(), HasSubstr("event=stopped"));
}

TEST_F(LifeTest, HidesThePasswordsOfTheStoreFromTheListOfProcesses) {
  Start({.flags = {"--store=redis://node:hunter2@127.0.0.1:1/0"}});
  ASSERT_TRUE(server_->ready());
  std::ifstream file("/proc/" + std::to_string(server_->pid()) + "/cmdline");
  const std::string arguments{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(arguments, HasSubstr("--store=redis://node:*******@127.0.0.1:1/0"));
  EXPECT_THAT(arguments + server_->log(), ::testing::Not(HasSubstr("hunter2")));
}

TEST_F(LifeTest, RaisesTheLimitOfOpenFiles) {
  Start({});
  ASSERT_TRUE(server_->ready());
  rlimit files{};
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_NOFILE, nullptr, &files), 0);
  EXPECT_EQ(files.rlim_cur, files.rlim_max);
}

TEST_F(LifeTest, WarnsIfTooFewFilesMayBeOpenForItsConnections) {
  Start({.flags = {"--max_connections=2000000000"}});
  EXPECT_TRUE(server_->Logs(
      {"level=warning event=few_open_files", "needed=2000011000", "--max_connections"}));
}

TEST_F(LifeTest, ListensOnUnixSocketLeftByAKilledServer) {
  TestFiles files;
  const std::string path = files.Path("data.sock");
  for (int i = 0; i < 2; ++i) {
    Start({.flags = {"--listen=unix:" + path}});
    ASSERT_TRUE(server_->ready());
    EXPECT_EQ(server_->data_address(), "unix:" + path);
    EXPECT_TRUE(Granted("api", "k"));
    server_->Kill();  // leaves the socket behind
  }
  unlink(path.c_str());
}

TEST_F(LifeTest, BadFlagsExitWithTwoAndNameTheAllowedValues) {
  EXPECT_EQ(FailsWith({"--lissten=127.0.0.1:0"}, "--lissten: no such flag; did you mean --listen?"),
            2);
  EXPECT_EQ(FailsWith({"extra"}, "flags begin with --"), 2);
  EXPECT_EQ(FailsWith({"--listen=7200"}, "--listen: address \"7200\": the port is missing"), 2);
  EXPECT_EQ(FailsWith({"--listen=localhost:99999"}, "from 0 to 65535"), 2);
  EXPECT_EQ(FailsWith({"--listen=unix:data.sock"}, "the path of a Unix socket starts with /"), 2);
  EXPECT_EQ(FailsWith({"--data_transport=h2"}, "--data_transport: no such flag"), 2);
  EXPECT_EQ(FailsWith({"--threads=0"}, "--threads=0: write a number from 1 to 1024"), 2);
  EXPECT_EQ(FailsWith({"--after_data_loss=half"}, "write empty or full"), 2);
  EXPECT_EQ(FailsWith({"--listen=127.0.0.1:7300", "--admin_listen=127.0.0.1:7300"},
                      "give each port an address of its own"),
            2);
  EXPECT_EQ(FailsWith({"--max_buckets=-1"}, "--max_buckets=-1"), 2);
  EXPECT_EQ(FailsWith({"--max_connections=0"}, "--max_connections=0: write"), 2);
  EXPECT_EQ(FailsWith({"--memory_limit=1MiB"},
                      "--memory_limit=1MiB: write a number of bytes from 67108864 up"),
            2);
  EXPECT_EQ(FailsWith({"--stall_timeout=0s"}, "write a duration from 1s to 24h"), 2);
  EXPECT_EQ(FailsWith({"--overflow=maybe"}, "write deny or allow"), 2);
  EXPECT_EQ(FailsWith({"--drain_timeout=soon"}, "--drain_timeout=soon"), 2);
  // Without the value, which may hold a password.
  EXPECT_EQ(FailsWith({"--store=http://x"}, "--store: a store's URL begins with redis://"), 2);
  EXPECT_EQ(FailsWith({"--https_listen=127.0.0.1:0"}, "--https_listen: no such flag"), 2);
  EXPECT_EQ(FailsWith({"--log_level=loud"}, "--log_level=loud"), 2);
  EXPECT_EQ(FailsWith({"--admin_listen"}, "--admin_listen: needs a value"), 2);
}

TEST_F(LifeTest, BadLimitsExitWithTwoAndNameTheLine) {
  EXPECT_EQ(FailsWith({}, "limits.yaml:1", "limits: [{name: api, rate: 5}]"), 2);
  EXPECT_EQ(FailsWith({}, "rate", "limits:\n  - { name: api, rate: 0/s }"), 2);
  EXPECT_EQ(FailsWith({"--limits=/tmp"}, "/tmp"), 2);
  EXPECT_EQ(FailsWith({"--limits=/no/such/file"}, "--limits: /no/such/file"), 2);
  EXPECT_EQ(FailsWith({"--ratelimit_config=/no/such/file"}, "--ratelimit_config: /no/such/file"),
            2);
  EXPECT_EQ(FailsWith({"--ratelimit_config=/tmp", "--ratelimit_overrides=/no/such/file"},
                      "--ratelimit_overrides: /no/such/file"),
            2);
}

TEST_F(LifeTest, ClosesAndCountsConnectionsBeyondTheBound) {
  Start({.flags = {"--max_connections=2", "--threads=1"}});
  ASSERT_TRUE(Granted("api", "first"));
  auto second = v1::RateLimiter::NewStub(server_->DataChannel());
  const auto asks = [](v1::RateLimiter::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::AcquireResponse response;
    return stub.Acquire(&context, Request("api", "other"), &response);
  };
  ASSERT_TRUE(asks(*second).ok());
  auto third = v1::RateLimiter::NewStub(server_->DataChannel());
  EXPECT_EQ(asks(*third).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Granted("api", "first")) << "open connections are still served";

  grpc::ClientContext context;
  v1::Stats stats;
  ASSERT_TRUE(admin_->GetStats(&context, v1::GetStatsRequest(), &stats).ok());
  uint64_t open = 0;
  uint64_t refused = 0;
  for (const v1::TransportStats& transport : stats.transports()) {
    if (transport.transport() != "data") continue;
    open = transport.connections();
    refused = transport.connections_refused();
  }
  EXPECT_EQ(open, 2u);
  EXPECT_GE(refused, 1u);

  // A closed connection makes room for another.
  second.reset();
  EXPECT_TRUE(Eventually([&] { return asks(*third).ok(); }));
}

TEST_F(LifeTest, PortInUseExitsWithOneAndNamesTheFlag) {
  Start({});
  EXPECT_EQ(FailsWith({"--listen=" + server_->data_address()},
                      "--listen=" + server_->data_address() + ": "),
            1);
  EXPECT_EQ(FailsWith({"--admin_listen=" + server_->admin_address()},
                      "--admin_listen=" + server_->admin_address() + ": cannot listen on " +
                          server_->admin_address() + ": it is in use by another server"),
            1);
  EXPECT_TRUE(Granted("api", "k")) << "the first server still serves";
}

TEST_F(LifeTest, HealthBecomesNotServingBeforeTheServerEnds) {
  Start({});
  const auto stub = grpc::health::v1::Health::NewStub(server_->DataChannel());
  grpc::ClientContext context;
  context.set_deadline(Soon());
  grpc::health::v1::HealthCheckRequest request;
  auto watch = stub->Watch(&context, request);
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  server_->Signal(SIGTERM);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server_->WaitForExit(), 0);
}

TEST_F(LifeTest, KeepsServingDuringTheDrainNotice) {
  Start({.flags = {"--drain_notice=20s"}});
  const auto stub = grpc::health::v1::Health::NewStub(server_->DataChannel());
  server_->Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(stub->Check(&context, {}, &response).ok());
    return response.status() == grpc::health::v1::HealthCheckResponse::NOT_SERVING;
  }));
  EXPECT_TRUE(Granted("api", "k"));
  server_->Signal(SIGTERM);  // a second one ends it at once
  EXPECT_EQ(server_->WaitForExit(), -1);
}

TEST_F(LifeTest, OpenStreamsAndWatchesDoNotDelayADrain) {
  Start({.flags = {"--drain_timeout=25s"}});
  grpc::ClientContext stream_context;
  auto stream = data_->AcquireStream(&stream_context);
  v1::AcquireBatchRequest batch;
  *batch.add_acquisitions() = Request("api", "k");
  v1::AcquireBatchResponse answer;
  ASSERT_TRUE(stream->Write(batch));
  ASSERT_TRUE(stream->Read(&answer));
  grpc::ClientContext watch_context;
  v1::WatchRequest watch_request;
  watch_request.add_buckets()->set_limit("api");
  auto watch = data_->Watch(&watch_context, watch_request);
  v1::QueryResponse first;
  ASSERT_TRUE(watch->Read(&first));

  const auto start = std::chrono::steady_clock::now();
  server_->Signal(SIGTERM);
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  // Requests without an answer were not executed: the client may send them to another server.
  EXPECT_EQ(stream_context.GetServerTrailingMetadata().count("sluice-executed"), 1u);
  EXPECT_FALSE(watch->Read(&first));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server_->WaitForExit(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(LifeTest, SigtermUnderLoadLosesNoGrantedAnswer) {
  Start({.limits = "limits: [{name: big, rate: 100000000/h}]"});
  // The server logs at its end how many it granted; the callers must have seen as many.
  std::atomic<uint64_t> granted{0};
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto stub = v1::RateLimiter::NewStub(server_->DataChannel());
      const v1::AcquireRequest request = Request("big", "k");
      while (!stop) {
        grpc::ClientContext context;
        v1::AcquireResponse response;
        const grpc::Status status = stub->Acquire(&context, request, &response);
        if (status.ok()) {
          ++granted;
          continue;
        }
        if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
          ADD_FAILURE() << status.error_code() << ": " << status.error_message();
        }
        break;
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return granted > 500; }));
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->WaitForExit(), 0);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const std::string log = server_->log();
  const size_t at = log.find("granted=");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(std::stoull(log.substr(at + 8)), granted) << log;
}

TEST_F(LifeTest, CallersOfAKilledServerSeeUnavailableAndTheNextServerStartsEmpty) {
  Start({.limits = "limits: [{name: api, rate: 5/h}]"});
  ASSERT_TRUE(Granted("api", "k", 5));
  server_->Kill();
  EXPECT_EQ(Acquire(Request("api", "k")).error_code(), grpc::StatusCode::UNAVAILABLE);
  Start({.limits = "limits: [{name: api, rate: 5/h}]"});
  EXPECT_TRUE(Granted("api", "k", 5)) << "buckets in memory go with the process";
}

}  // namespace
}  // namespace sluice::testing
