// Slots of real servers on a Redis, when callers and servers are killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "tests/integration/server/server_test.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

using Clock = std::chrono::steady_clock;

class ServerSlotsTest : public ServerTest {
 protected:
  ServerProcess::Options Options(const std::string& limits) {
    ServerProcess::Options options;
    options.limits = limits;
    // Generous, since a busy machine is slow.
    options.flags = {"--store=" + redis_.url(), "--redis_budget=2s"};
    return options;
  }

  static v1::AcquireRequest Waiting(const std::string& limit, uint64_t permits = 1) {
    v1::AcquireRequest request = Request(limit, "k", permits);
    request.set_hold(true);
    request.mutable_max_wait()->set_seconds(600);
    return request;
  }
  // A caller in a process of its own, which takes a slot and then goes on.
  class Caller {
   public:
    explicit Caller(const std::string& server) {
      int input[2];
      if (pipe(input) != 0) return;
      pid_ = fork();
      if (pid_ == 0) {
        dup2(input[0], STDIN_FILENO);
        close(input[1]);
        execl(SLUICE_BINARY, "sluice", "--server", server.c_str(), "batch", "--batch=1",
              static_cast<char*>(nullptr));
        _exit(127);
      }
      close(input[0]);
      input_ = input[1];
      const std::string line = "slots k 1\n";
      EXPECT_EQ(write(input_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    }
    ~Caller() {
      Kill();
      close(input_);
    }
    // Returns whether it ran until then.
    bool Kill() {
      if (pid_ <= 0) return false;
      kill(pid_, SIGKILL);
      int status = 0;
      waitpid(std::exchange(pid_, -1), &status, 0);
      return WIFSIGNALED(status);
    }

   private:
    pid_t pid_ = -1;
    int input_ = -1;
  };

  static v1::RenewOutcome Renew(v1::RateLimiter::Stub& stub, const std::string& receipt) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::RenewRequest request;
    request.add_receipts(receipt);
    v1::RenewResponse response;
    const grpc::Status status = stub.Renew(&context, request, &response);
    if (!status.ok() || response.results_size() != 1) return v1::RENEW_OUTCOME_UNSPECIFIED;
    return response.results(0).outcome();
  }
  v1::BucketStatus Bucket(v1::RateLimiter::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::QueryRequest request;
    request.add_buckets()->set_limit("slots");
    request.mutable_buckets(0)->set_key("k");
    v1::QueryResponse response;
    EXPECT_TRUE(stub.Query(&context, request, &response).ok());
    return response.buckets_size() == 1 ? response.buckets(0) : v1::BucketStatus();
  }

  RedisServer redis_;
};

TEST_F(ServerSlotsTest, SlotOfAKilledCallerComesBackAfterHoldForAndNotBefore) {
  Start(Options("limits: [{name: slots, algorithm: concurrency, permits: 1, hold_for: 3s}]"));
  ASSERT_TRUE(server_->ready());
  const auto before = Clock::now();
  Caller caller(server_->data_address());
  ASSERT_TRUE(Eventually([&] { return Bucket(*data_).holds() == 1; }));
  ASSERT_TRUE(caller.Kill());
  v1::AcquireResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(data_->Acquire(&context, Waiting("slots"), &response).ok());
  EXPECT_TRUE(response.granted());
  EXPECT_GE(Clock::now() - before, std::chrono::seconds(3));
}

TEST_F(ServerSlotsTest, KilledServerLosesNoRenewalThatItAnswered) {
  const std::string limits =
      "limits: [{name: slots, algorithm: concurrency, permits: 1, hold_for: 4s}]";
  Start(Options(limits));
  ServerProcess other(Options(limits));
  ASSERT_TRUE(server_->ready() && other.ready());
  const auto other_data = v1::RateLimiter::NewStub(other.DataChannel());
  v1::AcquireResponse taken;
  ASSERT_TRUE(GrantedBy(*data_, Request("slots", "k"), &taken));
  // It is killed while renewals are on their way.
  auto last = Clock::now();
  std::vector<std::future<void>> renewing;
  std::atomic<bool> killed{false};
  common::Mutex mu;
  for (int i = 0; i < 4; ++i) {
    renewing.push_back(std::async(std::launch::async, [&] {
      while (!killed.load()) {
        const auto asked = Clock::now();
        if (Renew(*data_, taken.receipt()) != v1::RENEW_OUTCOME_RENEWED) continue;
        common::MutexLock lock(&mu);
        last = std::max(last, asked);
      }
    }));
  }
  for (int i = 0; i < 20; ++i) Renew(*data_, taken.receipt());
  server_->Kill();
  killed.store(true);
  for (auto& one : renewing) one.get();
  // Held through the other server, by the same receipt, unless this machine slept past the end.
  const v1::AcquireRequest waiting = Waiting("slots");
  v1::AcquireResponse next;
  grpc::ClientContext context;
  ASSERT_TRUE(other_data->Acquire(&context, waiting, &next).ok());
  EXPECT_TRUE(next.granted());
  EXPECT_GE(Clock::now() - last, std::chrono::seconds(4));
  EXPECT_EQ(Renew(*other_data, taken.receipt()), v1::RENEW_OUTCOME_GONE);
}

TEST_F(ServerSlotsTest, CallersWaitForSlotsThatAnotherServerFrees) {
  const std::string limits =
      "limits: [{name: slots, algorithm: concurrency, permits: 1, hold_for: 10m}]";
  Start(Options(limits));
  ServerProcess other(Options(limits));
  ASSERT_TRUE(server_->ready() && other.ready());
  const auto other_data = v1::RateLimiter::NewStub(other.DataChannel());
  v1::AcquireResponse taken;
  ASSERT_TRUE(GrantedBy(*data_, Request("slots", "k"), &taken));
  struct Held {
    grpc::ClientContext context;
    v1::AcquireResponse response;
    std::future<bool> granted;
  };
  const auto wait = [](v1::RateLimiter::Stub& stub) {
    auto held = std::make_unique<Held>();
    held->granted = std::async(std::launch::async, [&stub, held = held.get()] {
      return stub.Acquire(&held->context, Waiting("slots"), &held->response).ok() &&
             held->response.granted();
    });
    return held;
  };
  const auto first = wait(*other_data);
  ASSERT_TRUE(Eventually([&] { return Bucket(*other_data).waiting() == 1; }));
  const auto second = wait(*other_data);
  ASSERT_TRUE(Eventually([&] { return Bucket(*other_data).waiting() == 2; }));
  const auto refund = [&](const std::string& receipt) {
    grpc::ClientContext context;
    v1::RefundRequest request;
    request.set_receipt(receipt);
    v1::RefundResponse response;
    EXPECT_TRUE(data_->Refund(&context, request, &response).ok());
  };
  refund(taken.receipt());
  EXPECT_TRUE(first->granted.get());
  EXPECT_EQ(Bucket(*other_data).waiting(), 1u);
  EXPECT_EQ(Renew(*data_, first->response.receipt()), v1::RENEW_OUTCOME_RENEWED);
  // A caller that leaves takes nothing.
  second->context.TryCancel();
  EXPECT_FALSE(second->granted.get());
  EXPECT_TRUE(Eventually([&] { return Bucket(*other_data).waiting() == 0; }));
  refund(first->response.receipt());
  EXPECT_EQ(Bucket(*data_).remaining(), 1);
}

}  // namespace
}  // namespace sluice::testing
