// --takeover with the buckets in Redis: both servers decide for a while.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/integration/server/takeover_test.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class RedisTakeoverTest : public TakeoverTest {
 protected:
  std::vector<std::string> WithRedis(const std::string& threads) const {
    return {"--store=" + redis_.url(), "--redis_budget=5s", threads};
  }
  RedisServer redis_;
};

TEST_F(RedisTakeoverTest, CallsAreServedAllTheTimeAndExactly) {
  StartFirst(WithRedis("--threads=2"));
  std::atomic<bool> stop{false};
  std::atomic<int64_t> granted{0};
  std::atomic<int> wrong{0};
  std::thread client([&] {
    const auto stub = v1::RateLimiter::NewStub(server_->DataChannel());
    while (!stop) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(Soon());
      v1::AcquireResponse response;
      const grpc::Status status = stub->Acquire(&context, Request("huge", "k"), &response);
      if (status.ok() && response.granted()) ++granted;
      const bool not_executed =
          context.GetServerTrailingMetadata().count(common::kExecutedMetadata) == 1 ||
          status.error_message() == "GOAWAY received";
      if (!status.ok() && !not_executed) ++wrong;
    }
  });
  for (const char* threads : {"--threads=1", "--threads=3", "--threads=2"}) {
    const int64_t before = granted;
    EXPECT_TRUE(Eventually([&] { return granted > before + 20; }));
    TakeOver(WithRedis(threads));
  }
  stop = true;
  client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(Remaining("huge", "k"), 1'000'000 - granted);
}

TEST_F(RedisTakeoverTest, TheOldServerIsNotInterruptedByOneThatFails) {
  StartFirst(WithRedis("--threads=2"));
  EXPECT_EQ(
      FailsWith(Flags({"--store=" + redis_.url(), "--metrics_listen=" + server_->data_address()}),
                "--metrics_listen=" + server_->data_address() + ": cannot listen"),
      1);
  EXPECT_TRUE(server_->Logs({"event=takeover_refused"}));
  EXPECT_THAT(server_->log(), ::testing::Not(HasSubstr("event=draining")));
  TakeOver(WithRedis("--threads=2"));
}

}  // namespace
}  // namespace sluice::testing
