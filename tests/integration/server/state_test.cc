// --state_dir: what a server keeps over restarts and crashes.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/server/server_test.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Slow enough that no permit is refilled while a test runs.
constexpr char kLimits[] = R"(
limits:
  - { name: daily, rate: 100/24h }
  - { name: log, rate: 100/24h, algorithm: sliding_log }
  - { name: window, rate: 100/24h, algorithm: fixed_window }
  - { name: slots, algorithm: concurrency, permits: 2, hold_for: 10m }
  - { name: paced, rate: 1/10m, max_wait: 1h }
  - { name: huge, rate: 1000000000/8784h }
)";

class StateTest : public ServerTest {
 protected:
  void StartWith(std::vector<std::string> flags = {}) {
    server_.reset();
    flags.push_back("--state_dir=" + folder());
    Start({.limits = kLimits, .flags = std::move(flags)});
    ASSERT_TRUE(server_->ready()) << server_->log();
  }
  void Stop() {
    server_->Signal(SIGTERM);
    ASSERT_EQ(server_->WaitForExit(), 0) << server_->log();
  }
  int FailsWith(const std::vector<std::string>& flags, const std::string& text) {
    ServerProcess server({.limits = kLimits, .flags = flags, .may_fail = true});
    EXPECT_FALSE(server.ready());
    const int code = server.WaitForExit();
    EXPECT_THAT(server.log(), HasSubstr(text));
    return code;
  }
  std::string folder() const { return files_.Path("state"); }

  std::string ReceiptOf(const v1::AcquireRequest& request) {
    v1::AcquireResponse response;
    EXPECT_TRUE(GrantedBy(*data_, request, &response));
    EXPECT_FALSE(response.receipt().empty());
    return response.receipt();
  }
  grpc::Status Refund(const std::string& receipt, v1::RefundResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::RefundRequest request;
    request.set_receipt(receipt);
    return data_->Refund(&context, request, response);
  }

  ~StateTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder(), ignored);
  }

  TestFiles files_;
};

TEST_F(StateTest, QuotasAreExactOverARestart) {
  StartWith();
  for (const char* limit : {"daily", "log", "window"}) {
    ASSERT_TRUE(Granted(limit, "k", 30)) << limit;
  }
  Stop();
  EXPECT_THAT(server_->log(), HasSubstr("event=state_saved buckets=3"));
  StartWith();
  EXPECT_THAT(server_->log(), HasSubstr("event=state_loaded buckets=3"));
  for (const char* limit : {"daily", "log", "window"}) {
    EXPECT_EQ(Remaining(limit, "k"), 70) << limit;
    EXPECT_FALSE(Granted(limit, "k", 71)) << limit;
    EXPECT_TRUE(Granted(limit, "k", 70)) << limit;
    EXPECT_EQ(Remaining(limit, "other"), 100) << limit;
  }
}

TEST_F(StateTest, ReceiptsAreRefundedAfterTheRestart) {
  StartWith();
  v1::AcquireRequest request = Request("daily", "k", 40);
  request.set_want_receipt(true);
  const std::string receipt = ReceiptOf(request);
  const std::string slot = ReceiptOf(Request("slots", "k", 2));
  Stop();
  StartWith();
  EXPECT_EQ(Remaining("slots", "k"), 0);
  v1::RefundResponse response;
  for (const std::string& one : {receipt, slot}) {
    const grpc::Status status = Refund(one, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.outcome(), v1::REFUND_OUTCOME_REFUNDED);
  }
  EXPECT_EQ(Remaining("daily", "k"), 100);
  EXPECT_EQ(Remaining("slots", "k"), 2);
}

TEST_F(StateTest, ReservationsKeepTheirGrantTimes) {
  StartWith();
  ASSERT_TRUE(Granted("paced", "k"));
  v1::AcquireRequest later = Request("paced", "k");
  later.mutable_max_wait()->set_seconds(3600);
  v1::AcquireResponse response;
  ASSERT_TRUE(GrantedBy(*data_, later, &response));
  EXPECT_GT(response.wait().seconds(), 500);
  const std::string receipt = response.receipt();
  Stop();
  StartWith();
  ASSERT_TRUE(GrantedBy(*data_, later, &response));
  EXPECT_GT(response.wait().seconds(), 1100) << "behind the reservation";
  v1::RefundResponse refunded;
  ASSERT_TRUE(Refund(receipt, &refunded).ok());
  EXPECT_EQ(refunded.outcome(), v1::REFUND_OUTCOME_REFUNDED);
}

TEST_F(StateTest, ACallerThatWaitsAtTheDrainTakesNothing) {
  StartWith();
  ASSERT_TRUE(Granted("paced", "k"));
  grpc::Status status;
  grpc::ClientContext context;
  std::thread caller([&] {
    v1::AcquireRequest request = Request("paced", "k");
    request.mutable_max_wait()->set_seconds(3600);
    request.set_hold(true);
    v1::AcquireResponse response;
    status = data_->Acquire(&context, request, &response);
  });
  const bool waits = Eventually([&] {
    grpc::ClientContext query_context;
    v1::QueryRequest request;
    request.add_buckets()->set_limit("paced");
    request.mutable_buckets(0)->set_key("k");
    v1::QueryResponse response;
    EXPECT_TRUE(data_->Query(&query_context, request, &response).ok());
    return response.buckets(0).waiting() == 1;
  });
  server_->Signal(SIGTERM);
  caller.join();
  EXPECT_TRUE(waits);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  ASSERT_EQ(server_->WaitForExit(), 0);
  StartWith();
  v1::AcquireRequest request = Request("paced", "k");
  request.mutable_max_wait()->set_seconds(3600);
  v1::AcquireResponse response;
  ASSERT_TRUE(GrantedBy(*data_, request, &response));
  EXPECT_LE(response.wait().seconds(), 600) << "no booking is left of the caller";
}

TEST_F(StateTest, AnAdminsLimitIsKept) {
  StartWith();
  grpc::ClientContext context;
  v1::PutLimitRequest put;
  put.mutable_limit()->set_name("made");
  put.mutable_limit()->mutable_rate()->set_permits(50);
  put.mutable_limit()->mutable_rate()->mutable_period()->set_seconds(86400);
  v1::PutLimitResponse response;
  const grpc::Status status = admin_->PutLimit(&context, put, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_TRUE(Granted("made", "k", 20));
  Stop();
  StartWith();
  EXPECT_EQ(Remaining("made", "k"), 30);
}

TEST_F(StateTest, AKilledServerStartsEmpty) {
  StartWith();
  ASSERT_TRUE(Granted("daily", "k", 10));
  server_->Kill();
  StartWith();
  EXPECT_THAT(server_->log(), HasSubstr("event=unclean_stop"));
  for (const char* limit : {"daily", "log", "window", "slots"}) {
    EXPECT_EQ(Remaining(limit, "k"), 0) << limit;
    EXPECT_FALSE(Granted(limit, "never used")) << limit;
  }
}

TEST_F(StateTest, AKilledServerThatTrustsStartsFromItsCopy) {
  StartWith();
  ASSERT_TRUE(Granted("daily", "k", 10));
  Stop();
  StartWith({"--after_crash=trust"});
  ASSERT_TRUE(server_->Logs({"event=state_copied"}));
  ASSERT_TRUE(Granted("daily", "k", 5));
  server_->Kill();
  StartWith({"--after_crash=trust"});
  EXPECT_THAT(server_->log(), HasSubstr("buckets start as in the last copy"));
  EXPECT_EQ(Remaining("daily", "k"), 90);
  EXPECT_EQ(Remaining("daily", "other"), 100);
}

TEST_F(StateTest, ADamagedFileIsMovedAside) {
  StartWith();
  ASSERT_TRUE(Granted("daily", "k", 10));
  Stop();
  std::filesystem::resize_file(folder() + "/state", 50);
  StartWith();
  EXPECT_THAT(server_->log(), HasSubstr("level=error event=state_unusable"));
  EXPECT_THAT(server_->log(), HasSubstr("state.unusable-"));
  EXPECT_EQ(Remaining("daily", "k"), 0);
}

TEST_F(StateTest, ASecondServerOnTheFolderIsRefused) {
  StartWith();
  EXPECT_EQ(FailsWith({"--state_dir=" + folder()}, "--state_dir=" + folder() +
                                                       ": another server uses it (process " +
                                                       std::to_string(server_->pid()) + ")"),
            1);
  EXPECT_TRUE(Granted("daily", "k")) << "the first server still serves";
}

TEST_F(StateTest, BadFlagsAreRefused) {
  EXPECT_EQ(FailsWith({"--state_dir=" + folder(), "--store=redis://127.0.0.1:1"},
                      "--state_dir=" + folder() + ": the buckets are in Redis (--store)"),
            2);
  EXPECT_EQ(FailsWith({"--after_crash=trust"}, "--after_crash=trust: needs --state_dir"), 2);
  EXPECT_EQ(FailsWith({"--after_crash=full"}, "--after_crash=full: write empty or trust"), 2);
  EXPECT_EQ(FailsWith({"--state_dir=/no/such/folder"},
                      "--state_dir=/no/such/folder: cannot make the folder"),
            2);
}

TEST_F(StateTest, APortInUseDoesNotLoseTheState) {
  StartWith();
  ASSERT_TRUE(Granted("daily", "k", 10));
  Stop();
  ServerProcess other({.limits = kLimits});
  EXPECT_EQ(FailsWith({"--state_dir=" + folder(), "--admin_listen=" + other.data_address()},
                      "it is in use by another server"),
            1);
  StartWith();
  EXPECT_EQ(Remaining("daily", "k"), 90);
}

// Whenever a server is killed, the next one grants no permit twice: it starts from a drain,
// exactly, or empty.
TEST_F(StateTest, KilledAtAnyMomentItGrantsNothingTwice) {
  constexpr int64_t kComesBack = 20'000;  // in ten minutes: 32 permits a second
  std::mt19937 random(1);
  uint64_t granted = 0;  // since the bucket was full
  bool full = true;
  for (int round = 0; round < 12; ++round) {
    StartWith({"--drain_notice=0s"});
    const int64_t before = Remaining("huge", "k");
    if (server_->log().find("event=unclean_stop") != std::string::npos) full = false;
    if (full) {
      const int64_t left = 1'000'000'000 - static_cast<int64_t>(granted);
      EXPECT_GE(before, left) << "round " << round;
      EXPECT_LE(before, left + kComesBack) << "round " << round;
    } else {
      EXPECT_LE(before, kComesBack) << "round " << round;
    }
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> taken{0};
    std::thread caller([&] {
      while (!stop) {
        grpc::ClientContext context;
        v1::AcquireResponse response;
        if (!data_->Acquire(&context, Request("huge", "k", 1000), &response).ok()) return;
        if (response.granted()) taken += 1000;
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 50));
    server_->Signal(SIGTERM);
    // In every third round it may end.
    if (round % 3 == 0) {
      EXPECT_EQ(server_->WaitForExit(), 0);
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      server_->Kill();
    }
    stop = true;
    caller.join();
    granted += taken;
  }
}

}  // namespace
}  // namespace sluice::testing
