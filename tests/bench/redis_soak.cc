// Nodes over one Redis, for as long as is wanted, while everything fails in turn: Redis is killed,
// stands still, loses its data or its scripts; the network delays, drops and cuts; nodes are killed
// and stand still. All that was granted is recorded, and at the end every window of it is checked.
//
//   redis_soak [SECONDS [SEED]]      10 s at least; 60 s and a random seed
//
// Three nodes are threads with clients, on buckets of every algorithm; three more are processes
// that share another bucket. Exits with 1 when a window holds more than it may, or when nothing is
// granted for 20 s after a fault.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

#include "server/algorithm/make.h"
#include "tests/faults/flaky_proxy.h"
#include "tests/support/grant_history.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

void PassSeconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

algorithm::Parameters ProcessesLimit() {
  return algorithm::MakeTokenBucket({2000, kSecondNs}, 100, 0).value();
}

// Asks for one bucket until it is killed, and writes the moments of what it is granted to stdout.
int RunNode(const std::string& url) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  RedisNode node(url, LoadOptions::BriskOptions());
  const auto rule = MakeRule(1, ProcessesLimit());
  node.store().Register(rule);
  while (true) {
    const Acquired one = Acquire(node.store(), *rule, "k");
    if (!one.granted()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const int64_t at_ns = one.now_ns;
    if (write(STDOUT_FILENO, &at_ns, sizeof(at_ns)) != sizeof(at_ns)) return 0;
  }
}

// A process of RunNode, whose grants go to a history.
class NodeProcess {
 public:
  NodeProcess(std::string url, GrantHistory* history) : url_(std::move(url)), history_(*history) {
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
      int64_t at_ns = 0;
      while (read(fd, &at_ns, sizeof(at_ns)) == sizeof(at_ns)) history_.Add(at_ns, 1);
      close(fd);
    });
  }

 private:
  const std::string url_;
  GrantHistory& history_;
  pid_t pid_ = -1;
  std::thread reader_;
};

struct Fault {
  const char* what;
  std::function<void()> make;
};

int Soak(double seconds, uint32_t seed) {
  std::printf("soak of %.0f s, seed %u\n", seconds, seed);
  RedisServer server;
  const std::string path = server.folder() + "/flaky.sock";
  FlakyProxy proxy(server.socket_path(), path);
  const std::string unreliable = "unix://" + path;
  GrantHistory history(ProcessesLimit());
  std::vector<std::unique_ptr<NodeProcess>> processes;
  for (const std::string& url : {unreliable, server.url(), server.url()}) {
    processes.push_back(std::make_unique<NodeProcess>(url, &history));
  }
  SharedLoad load({unreliable, unreliable, server.url()});

  std::minstd_rand random(seed);
  const double stop_s = std::min(10.0, seconds / 6);
  const auto proxy_fault = [&](FlakyProxy::Fault fault) {
    return [&proxy, fault] {
      proxy.Inject(fault, /*times=*/3);
      proxy.AwaitInjected();
    };
  };
  const auto any_process = [&]() -> NodeProcess& { return *processes[random() / 7 % 3]; };
  using Kind = FlakyProxy::Fault;
  const std::vector<Fault> faults = {
      {"Redis is killed and starts without its data",
       [&] {
         server.Kill();
         PassSeconds(0.3);
         server.Start();
       }},
      {"Redis stands still for a while",
       [&] {
         server.Pause();
         PassSeconds(std::min(5.0, seconds / 10));
         server.Resume();
       }},
      {"FLUSHALL", [&] { RedisCalls(server).Call({"FLUSHALL"}); }},
      {"SCRIPT FLUSH", [&] { RedisCalls(server).Call({"SCRIPT", "FLUSH"}); }},
      {"answers are delayed", proxy_fault(Kind::kDelay)},
      {"requests vanish", proxy_fault(Kind::kBlackHole)},
      {"answers are lost", proxy_fault(Kind::kLoseReply)},
      {"connections break", proxy_fault(Kind::kReset)},
      {"answers are cut", proxy_fault(Kind::kCutReply)},
      {"a node is killed and starts again",
       [&] {
         NodeProcess& process = any_process();
         process.Kill();
         process.Start();
       }},
      {"a node stands still",
       [&] {
         NodeProcess& process = any_process();
         process.Signal(SIGSTOP);
         PassSeconds(stop_s);
         process.Signal(SIGCONT);
       }},
  };

  bool served = load.AwaitGrants(500);
  const auto begin = std::chrono::steady_clock::now();
  const auto passed_s = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // Each once, in an order of its own, before any comes again.
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
    const uint64_t of_processes = history.permits();
    served = load.AwaitGrants(200, 0);
    for (int i = 0; served && history.permits() < of_processes + 100; ++i) {
      served = i < 4000;
      PassSeconds(0.005);
    }
    if (!served) std::printf("nothing was granted for 20 s after: %s\n", fault.what);
  }
  for (const auto& process : processes) process->Kill();
  std::string over = load.Check();
  std::printf("  %-10s%s\n", "processes", history.Summary().c_str());
  if (const std::string one = history.Check(); !one.empty()) over += "processes: " + one + "\n";
  std::printf("%zu faults in %.0f s. Verdict: %s\n", made, passed_s(),
              !over.empty() ? ("TOO MUCH GRANTED\n" + over).c_str()
              : served      ? "no window of any bucket held more than it may"
                            : "nothing granted too much, but not served again");
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
