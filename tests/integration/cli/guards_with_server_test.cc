// Guards of callers that are stopped or killed, with the real sluiced. The callers are processes
// with clients of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/client.h"
#include "tests/support/server_process.h"

namespace sluice {
namespace {

using std::chrono::seconds;
using testing::ServerProcess;

constexpr seconds kHoldFor{5};
constexpr char kLimits[] =
    "limits: [{name: jobs, algorithm: concurrency, permits: 1, hold_for: 5s}, "
    "{name: tokens, rate: 1/24h, burst: 1000, max_owed: 1000}]";

// The clock of the server's memory store.
int64_t BootNs() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A process that works with a client of its own and writes to its parent. REQUIRES: no threads.
class Caller {
 public:
  using Work = std::function<void(Client& client, const std::function<void(std::string)>& tell)>;

  Caller(const std::string& server, const Work& work) {
    int ends[2];
    if (pipe(ends) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      Result<Client> client = Client::Create({.servers = {server}, .deadline = seconds(20)});
      if (!client.ok()) _exit(3);
      work(*client, [&](std::string text) {
        text += '\n';
        if (write(ends[1], text.data(), text.size()) < 0) _exit(4);
      });
      _exit(0);
    }
    close(ends[1]);
    told_ = ends[0];
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(told_);
  }

  // What it tells next; empty: it has ended.
  std::string Hear() const {
    std::string text;
    char one = 0;
    while (read(told_, &one, 1) == 1 && one != '\n') text += one;
    return text;
  }
  // Forgets what it has told so far, all of it lines.
  void Forget() const {
    int bytes = 0;
    while (ioctl(told_, FIONREAD, &bytes) == 0 && bytes > 0) {
      std::string text(static_cast<size_t>(bytes), '\0');
      if (read(told_, text.data(), text.size()) <= 0) return;
    }
  }
  void Stop() const {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void Continue() const { kill(pid_, SIGCONT); }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  int told_ = -1;
};

class GuardsWithServerTest : public ::testing::Test {
 protected:
  // Callers are forked before it has threads.
  Client& client() {
    if (client_ == nullptr) {
      client_ = std::make_unique<Client>(
          *Client::Create({.servers = {server_.data_address()}, .deadline = seconds(20)}));
    }
    return *client_;
  }
  // Waits until another caller gets the slot. Returns when it had it.
  int64_t TakeJob() {
    for (;;) {
      Result<Decision> decision = client().Acquire("jobs", "k");
      EXPECT_TRUE(decision.ok()) << decision.status();
      if (!decision.ok() || decision->granted) return BootNs();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  int64_t TokensLeft(const std::string& key) {
    const std::vector<Bucket> bucket = {{"tokens", key}};
    return client().Query(bucket)->front().remaining;
  }

  ServerProcess server_{{.limits = kLimits}};
  std::unique_ptr<Client> client_;
};

TEST_F(GuardsWithServerTest, ACallerThatWasStoppedPastTheEndDoesNotGoOnAsIfItHeldItsSlot) {
  const Caller caller(server_.data_address(), [](Client& client, const auto& tell) {
    std::atomic<bool> told{false};
    Result<Permit> permit = client.AcquirePermit(
        Acquisition("jobs", "k"), {.on_lost = [&](const Status&) { told.store(true); }});
    tell(permit.ok() && permit->held() ? "held" : "not held");
    for (; permit->held(); usleep(1000)) tell("step");
    tell("stopped working: " + permit->lost().ToString());
    while (!told.load()) std::this_thread::yield();
    tell("told");
    tell(permit->held() ? "held again" : "not held");
  });
  ASSERT_EQ(caller.Hear(), "held");
  for (int i = 0; i < 100; ++i) ASSERT_EQ(caller.Hear(), "step");
  caller.Stop();
  caller.Forget();
  TakeJob();
  caller.Continue();
  // It may have been stopped in a step, behind its check.
  std::string heard = caller.Hear();
  if (heard == "step") heard = caller.Hear();
  EXPECT_THAT(heard, ::testing::HasSubstr("stopped working: "));
  EXPECT_THAT(heard, ::testing::HasSubstr("not renewed in time"));
  EXPECT_EQ(caller.Hear(), "told");
  EXPECT_EQ(caller.Hear(), "not held");
}

TEST_F(GuardsWithServerTest, TheSlotOfAKilledCallerComesBackAfterHoldForAndNotBefore) {
  Caller caller(server_.data_address(), [](Client& client, const auto& tell) {
    const int64_t before_ns = BootNs();
    const Result<Permit> permit = client.AcquirePermit(Acquisition("jobs", "k"));
    tell(permit.ok() && permit->held() ? std::to_string(before_ns) : "not held");
    pause();
  });
  const std::string told = caller.Hear();
  ASSERT_NE(told, "not held");
  caller.Kill();
  EXPECT_GE(TakeJob() - std::stoll(told), std::chrono::nanoseconds(kHoldFor).count());
}

TEST_F(GuardsWithServerTest, EstimatesSettleAtTheServer) {
  const auto take = [&](const std::string& key, EstimateOptions options = {}) {
    Acquisition call("tokens", key, 400);
    call.settle_within = std::chrono::minutes(1);
    Result<Estimate> estimate = client().AcquireEstimate(call, std::move(options));
    EXPECT_TRUE(estimate.ok() && estimate->granted()) << estimate.status();
    return *std::move(estimate);
  };
  {
    Estimate estimate = take("settled");
    EXPECT_EQ(TokensLeft("settled"), 600);
    ASSERT_TRUE(estimate.More(100).ok());
    EXPECT_EQ(TokensLeft("settled"), 600);
    ASSERT_TRUE(estimate.More(450).ok());
    EXPECT_EQ(TokensLeft("settled"), 550);
    const Result<SettleResult> settled = estimate.Settle(470);
    ASSERT_TRUE(settled.ok()) << settled.status();
    EXPECT_EQ(settled->outcome, SettleOutcome::kSettled);
    ASSERT_EQ(settled->charges.size(), 1u);
    EXPECT_EQ(settled->charges[0].charged, 70u);
    EXPECT_EQ(estimate.Settle(470)->outcome, SettleOutcome::kSettled);
    EXPECT_EQ(TokensLeft("settled"), 530);
  }
  EXPECT_EQ(take("refunded").Refund()->outcome, SettleOutcome::kSettled);
  EXPECT_EQ(TokensLeft("refunded"), 1000);
  EXPECT_EQ(take("bad").Settle({{"tokens", "another", 1}}).status().code(),
            StatusCode::kInvalidArgument);
  // The destructor settles in the background.
  std::atomic<int> answers{0};
  const auto count = [&](const Result<SettleResult>& result) {
    EXPECT_TRUE(result.ok()) << result.status();
    answers.fetch_add(1);
  };
  take("charged", {.on_settled = count});
  take("given back", {.if_dropped = IfDropped::kRefund, .on_settled = count});
  take("actual", {.if_dropped = IfDropped::kActual,
                  .actual = {{"tokens", "actual", 30}},
                  .on_settled = count});
  while (answers.load() < 3) std::this_thread::yield();
  EXPECT_EQ(TokensLeft("charged"), 600);
  EXPECT_EQ(TokensLeft("given back"), 1000);
  EXPECT_EQ(TokensLeft("actual"), 970);
}

TEST_F(GuardsWithServerTest, ManyAreSettledByOneCall) {
  std::vector<Settlement> batch;
  for (int i = 0; i < 100; ++i) {
    Acquisition call("tokens", "many", 10);
    call.settle_within = std::chrono::minutes(1);
    const Result<Decision> decision = client().Acquire(call);
    ASSERT_TRUE(decision.ok() && decision->granted) << decision.status();
    batch.push_back({decision->receipt, {{"tokens", "many", i % 2 == 0 ? 4u : 10u}}});
  }
  EXPECT_EQ(TokensLeft("many"), 0);
  batch.push_back({"of a stranger"});
  std::promise<Result<BatchSettlements>> promise;
  client().SettleBatchAsync(batch, [&](auto results) { promise.set_value(std::move(results)); });
  // The same again changes nothing.
  for (const Result<BatchSettlements>& results :
       {promise.get_future().get(), client().SettleBatch(batch)}) {
    ASSERT_TRUE(results.ok()) << results.status();
    ASSERT_EQ(results->size(), 101u);
    for (size_t i = 0; i < 100; ++i) {
      const Result<SettleResult>& one = (*results)[i];
      ASSERT_TRUE(one.ok()) << one.status();
      EXPECT_EQ(one->outcome, SettleOutcome::kSettled);
      EXPECT_EQ(one->charges[0].given_back, i % 2 == 0 ? 6u : 0u);
    }
    EXPECT_EQ((*results)[100].status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(TokensLeft("many"), 300);
  }
}

// What was not settled stays charged, and what comes too late gives nothing back.
TEST_F(GuardsWithServerTest, EstimatesOfCallersThatDieOrSleepStayCharged) {
  const auto take = [](Client& client, const std::string& key, const auto& tell) {
    Acquisition call("tokens", key, 400);
    call.settle_within = seconds(1);
    Result<Estimate> estimate = client.AcquireEstimate(call, {.if_dropped = IfDropped::kRefund});
    tell(estimate.ok() && estimate->granted() ? "granted" : "denied");
    return *std::move(estimate);
  };
  Caller killed(server_.data_address(), [&](Client& client, const auto& tell) {
    const Estimate estimate = take(client, "killed", tell);
    pause();
  });
  const Caller stopped(server_.data_address(), [&](Client& client, const auto& tell) {
    Estimate estimate = take(client, "stopped", tell);
    const int64_t granted_ns = BootNs();
    // Stopped here.
    while (BootNs() < granted_ns + 2'000'000'000) usleep(1000);
    const Result<SettleResult> settled = estimate.Settle(450);
    tell(settled.ok() ? std::string(SettleOutcomeName(settled->outcome))
                      : settled.status().ToString());
  });
  ASSERT_EQ(killed.Hear(), "granted");
  ASSERT_EQ(stopped.Hear(), "granted");
  killed.Kill();
  stopped.Stop();
  std::this_thread::sleep_for(seconds(2));
  stopped.Continue();
  EXPECT_EQ(stopped.Hear(), SettleOutcomeName(SettleOutcome::kLate));
  EXPECT_EQ(TokensLeft("killed"), 600);
  EXPECT_EQ(TokensLeft("stopped"), 550);
}

}  // namespace
}  // namespace sluice
