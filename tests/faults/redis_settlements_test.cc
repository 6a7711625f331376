// Estimates are settled once, whatever is lost or killed between the caller, its node and Redis.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/jumping_clock.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"
#include "tests/support/threads.h"

namespace sluice::testing {
namespace {

using store::Charge;
using store::Rule;
using store::SettleOutcome;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDay = 24 * 3600 * kSecond;
constexpr uint64_t kPermits = 10'000;
constexpr uint64_t kEstimate = 10;

// Nothing comes back by itself while a test runs, but for a window's end in 300 days.
std::vector<std::shared_ptr<const Rule>> RulesOfAllKinds() {
  return {
      MakeRule(1, algorithm::MakeTokenBucket({1, kDay}, kPermits, 0).value(), false, kPermits),
      MakeRule(2, algorithm::MakeSlidingLog({kPermits, kDay}).value(), false, kPermits),
      MakeRule(3, algorithm::MakeSlidingWindow({kPermits, kDay}, 10).value(), false, kPermits),
      MakeRule(4, algorithm::MakeFixedWindow({kPermits, 300 * kDay}, 0).value(), false, kPermits),
  };
}

Acquired Begin(RedisNode& node, const Rule& rule) {
  return Acquire(node.store(), rule, "k", kEstimate, {.settle_within_ns = kDay});
}
Settled End(RedisNode& node, const Rule& rule, uint64_t receipt_id, uint64_t actual) {
  return Settle(node.store(), receipt_id, {{&rule, "k", kEstimate}}, {actual});
}
// Until Redis answers.
Settled EndAtLast(RedisNode& node, const Rule& rule, uint64_t receipt_id, uint64_t actual) {
  while (true) {
    Settled settled = End(node, rule, receipt_id, actual);
    if (settled.outcome != SettleOutcome::kUnavailable) return settled;
    std::this_thread::yield();
  }
}
uint64_t Counted(RedisNode& node, const Rule& rule) {
  store::QueryItem item = Query(node.store(), rule, "k");
  while (item.unavailable) item = Query(node.store(), rule, "k");
  return kPermits - static_cast<uint64_t>(item.level.remaining);
}

TEST(RedisSettlementsTest, LostRequestsAndAnswersAreRepeatedByAnotherNode) {
  using Fault = FaultProxy::Fault;
  RedisServer server;
  const std::string path = server.folder() + "/proxy.sock";
  FaultProxy proxy(server.socket_path(), path);
  RedisNode good(server.url());
  for (const auto& rule : RulesOfAllKinds()) {
    good.store().Register(rule);
    uint64_t counted = 0;
    int lost = 0;
    for (const Fault fault : {Fault::kLoseReply, Fault::kCutReply, Fault::kReset}) {
      // The request that reads the bucket is hit, or the one that replaces it.
      for (const int skipped : {0, 1}) {
        for (const uint64_t actual : {uint64_t{3}, uint64_t{14}}) {
          SCOPED_TRACE(rule->limit_name + " " + std::to_string(static_cast<int>(fault)) + " " +
                       std::to_string(skipped) + " " + std::to_string(actual));
          RedisNode hit("unix://" + path);
          hit.store().Register(rule);
          const Acquired taken = Begin(hit, *rule);
          ASSERT_TRUE(taken.granted());
          proxy.Inject(fault, 1, skipped);
          const SettleOutcome first = End(hit, *rule, taken.receipt_id, actual).outcome;
          EXPECT_TRUE(first == SettleOutcome::kSettled || first == SettleOutcome::kUnavailable);
          lost += first == SettleOutcome::kUnavailable ? 1 : 0;
          proxy.Inject(Fault::kNone, 0);
          counted += actual;
          for (int i = 0; i < 2; ++i) {
            const Settled again = End(good, *rule, taken.receipt_id, actual);
            EXPECT_EQ(again.outcome, SettleOutcome::kSettled);
            EXPECT_EQ(again.permits[0].given_back, actual < kEstimate ? kEstimate - actual : 0);
            EXPECT_EQ(again.permits[0].charged, actual > kEstimate ? actual - kEstimate : 0);
            EXPECT_EQ(Counted(good, *rule), counted);
          }
          EXPECT_EQ(End(good, *rule, taken.receipt_id, actual + 1).outcome,
                    SettleOutcome::kAlreadySettled);
        }
      }
    }
    EXPECT_GT(lost, 0);
  }
}

// A node in a process of its own, whose clients take estimates and settle them until it is killed.
// It writes each receipt to a pipe before it settles.
class SettlingProcess {
 public:
  static constexpr uint64_t kClients = 8;
  static constexpr uint64_t kActual = 4;

  SettlingProcess(const std::string& url, const std::shared_ptr<const Rule>& rule) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Run(url, rule, ends[1]);
    }
    close(ends[1]);
    fd_ = ends[0];
  }
  ~SettlingProcess() {
    Kill();
    close(fd_);
  }
  void Kill() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Returns false if the process has ended and all were read.
  bool Read(uint64_t* receipt_id) const {
    return read(fd_, receipt_id, sizeof(*receipt_id)) == sizeof(*receipt_id);
  }

 private:
  [[noreturn]] static void Run(const std::string& url, const std::shared_ptr<const Rule>& rule,
                               int fd) {
    RedisNode node(url);
    node.store().Register(rule);
    test_support::RunThreads(static_cast<int>(kClients), [&](int) {
      while (true) {
        const Acquired taken = Begin(node, *rule);
        if (!taken.granted()) continue;
        const uint64_t receipt_id = taken.receipt_id;
        if (write(fd, &receipt_id, sizeof(receipt_id)) != sizeof(receipt_id)) _exit(0);
        End(node, *rule, receipt_id, kActual);
      }
    });
    std::abort();  // never: it is killed
  }

  pid_t pid_ = -1;
  int fd_ = -1;
};

TEST(RedisSettlementsTest, KilledNodeSettlesOnceOrNotAtAll) {
  RedisServer server;
  const auto rule = RulesOfAllKinds()[3];
  SettlingProcess killed(server.url(), rule);
  std::vector<uint64_t> receipts(300);
  for (uint64_t& receipt_id : receipts) ASSERT_TRUE(killed.Read(&receipt_id));
  killed.Kill();
  for (uint64_t receipt_id = 0; killed.Read(&receipt_id);) receipts.push_back(receipt_id);
  RedisNode node(server.url());
  node.store().Register(rule);
  for (const uint64_t receipt_id : receipts) {
    EXPECT_EQ(End(node, *rule, receipt_id, SettlingProcess::kActual).outcome,
              SettleOutcome::kSettled);
  }
  // Estimates whose receipts were lost stay as they were taken.
  const uint64_t unknown = Counted(node, *rule) - SettlingProcess::kActual * receipts.size();
  EXPECT_EQ(unknown % kEstimate, 0u);
  EXPECT_LE(unknown, SettlingProcess::kClients * kEstimate);
}

TEST(RedisSettlementsTest, KilledRedisThatKeepsItsDataSettlesOnceOrNotAtAll) {
  RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
  RedisNode one(server.url());
  RedisNode two(server.url());
  const auto rule = RulesOfAllKinds()[0];
  one.store().Register(rule);
  two.store().Register(rule);
  constexpr size_t kThreads = 4;
  constexpr size_t kEach = 200;
  std::vector<uint64_t> receipts(kThreads * kEach);
  for (uint64_t& receipt_id : receipts) {
    const Acquired taken = Begin(one, *rule);
    ASSERT_TRUE(taken.granted());
    receipt_id = taken.receipt_id;
  }
  std::atomic<size_t> settled{0};
  std::atomic<size_t> unanswered{0};
  std::thread settling([&] {
    test_support::RunThreads(kThreads, [&](int thread) {
      RedisNode& node = thread % 2 == 0 ? one : two;
      for (size_t i = 0; i < kEach; ++i) {
        const uint64_t receipt_id = receipts[static_cast<size_t>(thread) * kEach + i];
        if (End(node, *rule, receipt_id, 3).outcome == SettleOutcome::kSettled) {
          ++settled;
        } else {
          ++unanswered;
        }
      }
    });
  });
  while (settled.load() < receipts.size() / 4) std::this_thread::yield();
  server.Kill();
  while (unanswered.load() == 0) std::this_thread::yield();
  // By this thread, with which the new process ends.
  server.Start();
  settling.join();
  EXPECT_GT(unanswered.load(), 0u);
  for (const uint64_t receipt_id : receipts) {
    const Settled again = EndAtLast(two, *rule, receipt_id, 3);
    EXPECT_EQ(again.outcome, SettleOutcome::kSettled);
    EXPECT_EQ(again.permits[0].given_back, kEstimate - 3);
  }
  EXPECT_EQ(Counted(one, *rule), 3 * receipts.size());
}

TEST(RedisSettlementsTest, ClockJumpOfNodeMakesNoSettlementLate) {
  RedisServer server;
  JumpingClock clock;
  RedisNode jumping(server.url(), PatientOptions(), &clock);
  RedisNode steady(server.url());
  for (const auto& rule : RulesOfAllKinds()) {
    jumping.store().Register(rule);
    steady.store().Register(rule);
    uint64_t counted = 0;
    for (const int64_t hours : {48, -49, 1000, -999}) {
      const Acquired one = Begin(jumping, *rule);
      const Acquired other = Begin(steady, *rule);
      clock.Jump(hours * 3600 * kSecond);
      EXPECT_EQ(End(jumping, *rule, other.receipt_id, 2).outcome, SettleOutcome::kSettled);
      EXPECT_EQ(End(steady, *rule, one.receipt_id, 12).outcome, SettleOutcome::kSettled);
      EXPECT_EQ(End(jumping, *rule, one.receipt_id, 12).outcome, SettleOutcome::kSettled);
      counted += 14;
      EXPECT_EQ(Counted(jumping, *rule), counted) << rule->limit_name << " " << hours;
      EXPECT_EQ(Counted(steady, *rule), counted) << rule->limit_name << " " << hours;
    }
  }
}

}  // namespace
}  // namespace sluice::testing
