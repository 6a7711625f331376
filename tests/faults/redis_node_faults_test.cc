// Quotas stay exact when the network to Redis or a node fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/jumping_clock.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// ./dev faults: faults last as long as real ones.
bool Long() { return std::getenv("SLUICE_LONG_FAULTS") != nullptr; }

TEST(RedisNodeFaultsTest, UnreliableNetworkNeverGrantsMore) {
  RedisServer server;
  const std::string path = server.folder() + "/flaky.sock";
  FaultProxy proxy(server.socket_path(), path);
  // One node has a good connection.
  SharedLoad load({"unix://" + path, "unix://" + path, server.url()});
  ASSERT_TRUE(load.AwaitGrants(500));
  using Fault = FaultProxy::Fault;
  for (const Fault fault :
       {Fault::kDelay, Fault::kBlackHole, Fault::kLoseReply, Fault::kReset, Fault::kCutReply}) {
    proxy.Inject(fault, /*times=*/3);
    ASSERT_TRUE(proxy.AwaitInjected()) << static_cast<int>(fault);
    ASSERT_TRUE(load.AwaitGrants(200));
  }
  EXPECT_EQ(load.Check(), "");
  EXPECT_GT(load.unavailable(), 0u);
}

TEST(RedisNodeFaultsTest, ReloadsScriptsFlushedDuringPipeline) {
  RedisServer server;
  RedisNode node(server.url());
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 3, 0).value());
  node.store().Register(rule);
  RedisCalls calls(server);
  // Commands of many buckets are in flight at once; the flush comes between any two of them.
  std::vector<std::string> keys(2000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = std::to_string(i);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> granted{0};
  std::atomic<uint64_t> denied{0};
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < keys.size(); i += 8) {
        for (int times = 0; times < 4; ++times) {
          const Acquired one = Acquire(node.store(), *rule, keys[i]);
          (one.granted() ? granted : denied).fetch_add(1);
          EXPECT_NE(one.outcome, store::Outcome::kUnavailable);
        }
      }
    });
  }
  for (uint64_t i = 0; i < 50; ++i) {
    while (granted.load() + denied.load() < 150 * i) PassTime(std::chrono::microseconds(100));
    calls.Call({"SCRIPT", "FLUSH"});
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted, 3 * keys.size());
  EXPECT_EQ(denied, keys.size());
}

TEST(RedisNodeFaultsTest, EvictionFillsOnlyEvictedBuckets) {
  // The promise of --redis_allow_eviction: evicted buckets start full, all others are exact.
  RedisServer server({"--maxmemory-policy", "allkeys-lru"});
  store::RedisStoreOptions told = PatientOptions();
  told.allow_eviction = true;
  RedisNode node(server.url(), told);
  ASSERT_TRUE(node.connected().ok());
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 3, 0).value());
  node.store().Register(rule);
  RedisCalls calls(server);
  const auto evicted = [&] {
    const std::string info = calls.Call({"INFO", "stats"}).text;
    return std::strtoull(info.c_str() + info.find("evicted_keys:") + 13, nullptr, 10);
  };
  const std::string used = calls.Call({"INFO", "memory"}).text;
  const uint64_t bytes = std::strtoull(used.c_str() + used.find("used_memory:") + 12, nullptr, 10);
  calls.Call({"CONFIG", "SET", "maxmemory", std::to_string(bytes + (uint64_t{1} << 20))});
  constexpr uint64_t kKeys = 8'000;
  // Takes all permits of each bucket. Returns how many buckets granted that.
  const auto take_all = [&] {
    uint64_t granted = 0;
    for (uint64_t from = 0; from < kKeys; from += 1000) {
      std::vector<std::string> keys(1000);
      std::vector<std::vector<store::Charge>> batch;
      for (uint64_t i = 0; i < keys.size(); ++i) {
        keys[i] = std::to_string(from + i);
        batch.push_back({{rule.get(), keys[i], 3}});
      }
      for (const Acquired& one : AcquireBatch(node.store(), batch)) {
        EXPECT_NE(one.outcome, store::Outcome::kUnavailable) << node.store().Health().why;
        granted += one.granted() ? 1 : 0;
      }
    }
    return granted;
  };
  EXPECT_EQ(take_all(), kKeys);
  // The second time only evicted buckets can grant, and nothing more is evicted. Counted
  // afterwards: Redis may evict before any command.
  calls.Call({"CONFIG", "SET", "maxmemory", "0"});
  const uint64_t lost = evicted();
  ASSERT_GT(lost, 0u);
  const uint64_t again = take_all();
  EXPECT_LE(again, lost);
  EXPECT_GT(again, 0u);
}

// A node in a process of its own. Its clients acquire from one bucket until it is killed, and write
// each grant to a pipe.
class NodeProcess {
 public:
  NodeProcess(const std::string& url, std::shared_ptr<const store::Rule> rule) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Run(url, std::move(rule), ends[1]);
    }
    close(ends[1]);
    fd_ = ends[0];
  }
  ~NodeProcess() {
    Kill();
    close(fd_);
  }

  void Signal(int number) const { kill(pid_, number); }
  void Kill() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Waits for and records that many grants. Returns false if the process has ended.
  bool Read(uint64_t grants, GrantHistory* history) {
    for (int64_t at_ns = 0; grants > 0; --grants) {
      if (read(fd_, &at_ns, sizeof(at_ns)) != sizeof(at_ns)) return false;
      history->Add(at_ns, 1);
    }
    return true;
  }

 private:
  [[noreturn]] static void Run(const std::string& url, std::shared_ptr<const store::Rule> rule,
                               int fd) {
    RedisNode node(url);
    node.store().Register(rule);
    const auto ask = [&] {
      while (true) {
        const Acquired one = Acquire(node.store(), *rule, "k");
        if (!one.granted()) continue;
        const int64_t at_ns = one.now_ns;
        if (write(fd, &at_ns, sizeof(at_ns)) != sizeof(at_ns)) _exit(0);
      }
    };
    std::vector<std::thread> clients;
    for (int c = 1; c < kClients; ++c) clients.emplace_back(ask);
    ask();
    std::abort();  // never: it is killed
  }

  static constexpr int kClients = 8;

  pid_t pid_ = -1;
  int fd_ = -1;
};

TEST(RedisNodeFaultsTest, QuotaStaysExactWhenNodesAreKilledOrPaused) {
  RedisServer server;
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({2000, kSecond}, 100, 0).value());
  GrantHistory history(rule->parameters);
  auto one = std::make_unique<NodeProcess>(server.url(), rule);
  NodeProcess two(server.url(), rule);
  NodeProcess three(server.url(), rule);
  ASSERT_TRUE(one->Read(200, &history));
  ASSERT_TRUE(two.Read(200, &history));
  ASSERT_TRUE(three.Read(200, &history));
  one->Kill();
  while (one->Read(1, &history)) {
  }
  // A paused node blocks no other, and does no harm when it resumes.
  two.Signal(SIGSTOP);
  const auto stopped_at = std::chrono::steady_clock::now();
  do {
    ASSERT_TRUE(three.Read(1000, &history));
  } while (Long() && std::chrono::steady_clock::now() - stopped_at < std::chrono::seconds(10));
  two.Signal(SIGCONT);
  ASSERT_TRUE(two.Read(500, &history));
  ASSERT_TRUE(three.Read(500, &history));
  auto again = std::make_unique<NodeProcess>(server.url(), rule);
  ASSERT_TRUE(again->Read(200, &history));
  for (NodeProcess* node : {&two, &three, again.get()}) {
    node->Kill();
    while (node->Read(1, &history)) {
    }
  }
  EXPECT_EQ(history.Check(), "");
  std::printf("  %s\n", history.Summary().c_str());
}

TEST(RedisNodeFaultsTest, ClockJumpOfNodeChangesNoDecision) {
  RedisServer server;
  JumpingClock clock;
  RedisNode jumping(server.url(), PatientOptions(), &clock);
  RedisNode steady(server.url());
  const std::vector<std::shared_ptr<const store::Rule>> rules = {
      MakeRule(1, algorithm::MakeTokenBucket({4, 3600 * kSecond}, 4, 0).value()),
      MakeRule(2, algorithm::MakeSlidingLog({4, 3600 * kSecond}).value()),
      MakeRule(3, algorithm::MakeSlidingWindow({4, 3600 * kSecond}, 10).value()),
      MakeRule(4, algorithm::MakeFixedWindow({4, 300 * 24 * 3600 * kSecond}, 0).value()),
  };
  for (const auto& rule : rules) {
    jumping.store().Register(rule);
    steady.store().Register(rule);
  }
  for (const int64_t hours : {1, -2, 1000, -999}) {
    for (const auto& rule : rules) {
      const std::string key = std::to_string(hours);
      EXPECT_TRUE(Acquire(jumping.store(), *rule, key, 3).granted());
      clock.Jump(hours * 3600 * kSecond);
      EXPECT_FALSE(Acquire(jumping.store(), *rule, key, 2).granted()) << hours;
      EXPECT_FALSE(Acquire(steady.store(), *rule, key, 2).granted()) << hours;
      EXPECT_TRUE(Acquire(steady.store(), *rule, key, 1).granted()) << hours;
      EXPECT_FALSE(Acquire(jumping.store(), *rule, key, 1).granted()) << hours;
    }
  }
}

TEST(RedisNodeFaultsTest, NoWindowExceedsLimitWhileClocksJumpUnderLoad) {
  RedisServer server;
  JumpingClock clock;
  RedisNode jumping(server.url(), PatientOptions(), &clock);
  RedisNode one(server.url());
  RedisNode two(server.url());
  const std::vector<LoadedLimit> limits = LimitsOfAllKinds();
  std::vector<std::shared_ptr<const store::Rule>> rules;
  std::vector<std::unique_ptr<GrantHistory>> histories;
  for (size_t l = 0; l < limits.size(); ++l) {
    rules.push_back(MakeRule(static_cast<uint32_t>(100 + l), limits[l].parameters));
    histories.push_back(std::make_unique<GrantHistory>(limits[l].parameters));
    for (RedisNode* node : {&jumping, &one, &two}) node->store().Register(rules.back());
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (size_t c = 0; c < 24; ++c) {
    RedisNode& node = c % 3 == 0 ? jumping : c % 3 == 1 ? one : two;
    clients.emplace_back([&, c] {
      for (size_t i = c; !stop.load(); ++i) {
        const size_t l = i % rules.size();
        const uint64_t permits = 1 + i % limits[l].most;
        const Acquired got = Acquire(node.store(), *rules[l], "k", permits);
        if (got.granted()) histories[l]->Add(got.now_ns, permits);
      }
    });
  }
  const auto granted = [&] {
    uint64_t sum = 0;
    for (const auto& history : histories) sum += history->permits();
    return sum;
  };
  for (const int64_t hours : {1, -1, 1, -2, 1000, -999, 1, -1}) {
    const uint64_t before = granted();
    clock.Jump(hours * 3600 * kSecond);
    while (granted() < before + 200) PassTime(std::chrono::milliseconds(1));
  }
  stop.store(true);
  for (std::thread& client : clients) client.join();
  for (size_t l = 0; l < limits.size(); ++l) {
    EXPECT_EQ(histories[l]->Check(), "") << limits[l].name;
    std::printf("  %-10s%s\n", limits[l].name.c_str(), histories[l]->Summary().c_str());
  }
}

TEST(RedisNodeFaultsTest, NoWindowExceedsLimitWhileNodesReloadOneByOne) {
  RedisServer server;
  RedisNode one(server.url());
  RedisNode two(server.url());
  RedisNode three(server.url());
  // Lowered and raised; the higher parameters bound the grants meanwhile. Each reload makes a new
  // rule.
  std::vector<std::shared_ptr<const store::Rule>> rules;
  const auto load = [&](RedisNode& node, bool low) {
    const auto parameters = low ? algorithm::MakeTokenBucket({1000, kSecond}, 50, 0)
                                : algorithm::MakeTokenBucket({2000, kSecond}, 100, 0);
    rules.push_back(MakeRule(1, parameters.value()));
    node.store().Register(rules.back());
    return rules.back().get();
  };
  std::atomic<const store::Rule*> rule_of_one{load(one, false)};
  std::atomic<const store::Rule*> rule_of_two{load(two, false)};
  std::atomic<const store::Rule*> rule_of_three{load(three, false)};
  GrantHistory history(rule_of_one.load()->parameters);
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (int c = 0; c < 24; ++c) {
    RedisNode& node = c % 3 == 0 ? one : c % 3 == 1 ? two : three;
    const std::atomic<const store::Rule*>& rule = c % 3 == 0   ? rule_of_one
                                                  : c % 3 == 1 ? rule_of_two
                                                               : rule_of_three;
    clients.emplace_back([&] {
      while (!stop.load()) {
        const Acquired got = Acquire(node.store(), *rule.load(), "k");
        if (got.granted()) history.Add(got.now_ns, 1);
      }
    });
  }
  const auto await = [&](uint64_t more) {
    const uint64_t until = history.permits() + more;
    while (history.permits() < until) PassTime(std::chrono::milliseconds(1));
  };
  for (int i = 0; i < 4; ++i) {
    for (const bool low : {true, false}) {
      rule_of_one.store(load(one, low));
      await(200);  // one differs from the others
      rule_of_two.store(load(two, low));
      rule_of_three.store(load(three, low));
      await(200);
    }
  }
  stop.store(true);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(history.Check(), "");
  std::printf("  %s\n", history.Summary().c_str());
}

}  // namespace
}  // namespace sluice::testing
