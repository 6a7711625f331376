// Soak test: nodes on one Redis while one fault follows another. Redis is killed, paused, loses its
// data or its scripts; the network delays, drops and cuts; nodes are killed and paused. At the end
// every window of all grants is checked.
//
//   redis_soak [SECONDS [SEED]]      10 s at least; 60 s and a random seed
//
// Twelve nodes:
//   3 in this process, with buckets of every algorithm, two of them on the bad network
//   3 processes that share a bucket in Redis and a split bucket
//   3 with split limits of every algorithm (sharing: split), two of them on the bad network
//   3 that split while Redis is down (on_store_failure: split), on a good network, since nothing is
//     promised for a single node that is cut off
// Exits with 1 if a window exceeds its limit, or if nothing is granted for 20 s after a fault.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/grant_history.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

void PassSeconds(double seconds) {
  PassTime(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
}

// The limits of the node processes: exact and split.
algorithm::Parameters ExactLimit() {
  return algorithm::MakeTokenBucket({2000, kSecondNs}, 100, 0).value();
}
algorithm::Parameters SplitLimit() {
  return algorithm::MakeSlidingLog({200, kSecondNs / 2}).value();
}

// Their grants.
using Histories = std::array<GrantHistory, 2>;

struct Written {
  size_t limit;
  int64_t at_ns;
};

// Acquires from a bucket of each limit until it is killed, and writes each grant to stdout.
int RunNode(const std::string& url) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  store::RedisStoreOptions options = LoadOptions::BriskOptions();
  options.node_ttl_ns = kNodeTtlNs;
  RedisNode node(url, options);
  const auto split = std::make_shared<store::Rule>(*MakeRule(2, SplitLimit()));
  split->sharing = store::Sharing::kSplit;
  const std::shared_ptr<const store::Rule> rules[] = {MakeRule(1, ExactLimit()), split};
  for (const auto& rule : rules) node.store().Register(rule);
  while (true) {
    bool any = false;
    for (size_t limit = 0; limit < std::size(rules); ++limit) {
      const Acquired one = Acquire(node.store(), *rules[limit], "k");
      if (!one.granted()) continue;
      any = true;
      const Written written = {limit, one.now_ns};
      if (write(STDOUT_FILENO, &written, sizeof(written)) != sizeof(written)) return 0;
    }
    if (!any) PassTime(std::chrono::milliseconds(1));
  }
}

// A process that runs RunNode. Adds its grants to the histories.
class NodeProcess {
 public:
  NodeProcess(std::string url, Histories* histories)
      : url_(std::move(url)), histories_(*histories) {
    Start();
  }
  ~NodeProcess() { Kill(); }

  void Signal(int number) const { kill(pid_, number); }
  void Kill() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    reader_.join();
  }
  void Start() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execl("/proc/self/exe", "redis_soak", "--node", url_.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    reader_ = std::thread([this, fd = ends[0]] {
      Written written = {};
      while (read(fd, &written, sizeof(written)) == sizeof(written)) {
        histories_[written.limit].Add(written.at_ns, 1);
      }
      close(fd);
    });
  }

 private:
  const std::string url_;
  Histories& histories_;
  pid_t pid_ = -1;
  std::thread reader_;
};

// Load in a name space of its own on the same Redis, with split limits.
LoadOptions LoadOf(const std::string& name, store::Sharing sharing, bool split_on_failure) {
  LoadOptions options = LoadOfNodes(sharing, split_on_failure);
  options.store.name_space = name;
  options.clients = 2;
  for (LoadedLimit& limit : options.limits) limit.name = name + "-" + limit.name;
  return options;
}

struct Fault {
  const char* what;
  std::function<void()> make;
};

int Soak(double seconds, uint32_t seed) {
  std::printf("soak of %.0f s, seed %u\n", seconds, seed);
  RedisServer server;
  const std::string path = server.folder() + "/flaky.sock";
  FaultProxy proxy(server.socket_path(), path);
  const std::string unreliable = "unix://" + path;
  Histories histories = {GrantHistory(ExactLimit()), GrantHistory(SplitLimit())};
  std::vector<std::unique_ptr<NodeProcess>> processes;
  for (const std::string& url : {unreliable, server.url(), server.url()}) {
    processes.push_back(std::make_unique<NodeProcess>(url, &histories));
  }
  SharedLoad load({unreliable, unreliable, server.url()});
  SharedLoad split({unreliable, unreliable, server.url()},
                   LoadOf("split", store::Sharing::kSplit, false));
  SharedLoad going({server.url(), server.url(), server.url()},
                   LoadOf("going", store::Sharing::kExact, true));
  const std::array<const SharedLoad*, 2> by_share = {&split, &going};

  std::minstd_rand random(seed);
  const double stop_s = std::min(10.0, seconds / 6);
  const auto proxy_fault = [&](FaultProxy::Fault fault) {
    return [&proxy, fault] {
      proxy.Inject(fault, /*times=*/3);
      proxy.AwaitInjected();
    };
  };
  const auto any_process = [&]() -> NodeProcess& { return *processes[random() / 7 % 3]; };
  using Kind = FaultProxy::Fault;
  const std::vector<Fault> faults = {
      {"Redis is killed and starts without its data",
       [&] {
         server.Kill();
         PassSeconds(0.3);
         server.Start();
       }},
      {"Redis is paused",
       [&] {
         server.Pause();
         PassSeconds(std::min(5.0, seconds / 10));
         server.Resume();
       }},
      {"FLUSHALL", [&] { RedisCalls(server).Call({"FLUSHALL"}); }},
      {"SCRIPT FLUSH", [&] { RedisCalls(server).Call({"SCRIPT", "FLUSH"}); }},
      {"replies are delayed", proxy_fault(Kind::kDelay)},
      {"requests are dropped", proxy_fault(Kind::kBlackHole)},
      {"replies are lost", proxy_fault(Kind::kLoseReply)},
      {"connections are reset", proxy_fault(Kind::kReset)},
      {"replies are cut", proxy_fault(Kind::kCutReply)},
      {"a node is killed and starts again",
       [&] {
         NodeProcess& process = any_process();
         process.Kill();
         process.Start();
       }},
      {"a node is paused",
       [&] {
         NodeProcess& process = any_process();
         process.Signal(SIGSTOP);
         PassSeconds(stop_s);
         process.Signal(SIGCONT);
       }},
  };

  bool served = load.AwaitGrants(500) && split.AwaitGrants(100) && going.AwaitGrants(100);
  const auto begin = std::chrono::steady_clock::now();
  const auto passed_s = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // Each fault once in random order, then again.
  std::vector<size_t> order;
  size_t made = 0;
  while (served && passed_s() < seconds) {
    if (order.empty()) {
      for (size_t i = 0; i < faults.size(); ++i) order.push_back(i);
      std::shuffle(order.begin(), order.end(), random);
    }
    const Fault& fault = faults[order.back()];
    order.pop_back();
    std::printf("%7.1f s  %s\n", passed_s(), fault.what);
    std::fflush(stdout);
    fault.make();
    ++made;
    const uint64_t before[] = {histories[0].permits(), histories[1].permits()};
    served = load.AwaitGrants(200, 0);
    for (const SharedLoad* one : by_share) served = served && one->AwaitGrants(100);
    for (size_t limit = 0; limit < histories.size(); ++limit) {
      for (int i = 0; served && histories[limit].permits() < before[limit] + 100; ++i) {
        served = i < 4000;
        PassSeconds(0.005);
      }
    }
    if (!served) std::printf("nothing was granted for 20 s after: %s\n", fault.what);
  }
  for (const auto& process : processes) process->Kill();
  std::string over;
  for (SharedLoad* one : {&load, &split, &going}) over += one->Check();
  std::printf("  granted by shares while Redis was down: %llu\n",
              static_cast<unsigned long long>(going.granted_while_unavailable()));
  const char* const names[] = {"processes", "processes, split"};
  for (size_t i = 0; i < histories.size(); ++i) {
    std::printf("  %-17s %s\n", names[i], histories[i].Summary().c_str());
    const std::string one = histories[i].Check();
    if (!one.empty()) over += std::string(names[i]) + ": " + one + "\n";
  }
  std::printf("%zu faults in %.0f s. Verdict: %s\n", made, passed_s(),
              !over.empty() ? ("TOO MUCH GRANTED\n" + over).c_str()
              : served      ? "no window exceeded its limit"
                            : "no window exceeded its limit, but grants stopped");
  return over.empty() && served ? 0 : 1;
}

}  // namespace
}  // namespace sluice::testing

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--node") == 0) return sluice::testing::RunNode(argv[2]);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 60;
  if (seconds < 10 || seconds > 24 * 3600 || argc > 3) {
    std::fprintf(stderr, "usage: redis_soak [SECONDS [SEED]], with 10 to 86400 seconds\n");
    return 2;
  }
  return sluice::testing::Soak(
      seconds, argc > 2 ? static_cast<uint32_t>(std::atoll(argv[2])) : std::random_device()());
}
