// state_bench DIR BUCKETS: how long a state takes to write and to load, and how long decisions take
// while a copy is written. DIR must not exist, or be empty.
//
// One bucket in a hundred is a log with an open receipt; the others are token buckets. Decisions
// are measured on one thread, with and without a copy: the longest, how many took over 1 ms, and
// how often the thread gave up its core because a bucket was locked. Where that is 0, long
// decisions are those of a thread that had no core: compare both lines.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/log.h"
#include "server/limits/limit_registry.h"
#include "server/state/resumed_clock.h"
#include "server/state/state_keeper.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/store_calls.h"

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;

double SecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

// Of the process: on a busy machine it says more than the time.
double CpuSeconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "state_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

limits::LimitSpec SpecOf(const char* name, algorithm::Kind kind) {
  limits::LimitSpec spec;
  spec.name = name;
  spec.algorithm = kind;
  spec.rate = {1000, kDayNs};  // none is full again while this runs
  return spec;
}

std::string KeyOf(uint64_t i) { return "customer:" + std::to_string(i); }

// A server with its state.
struct Server {
  explicit Server(const std::string& folder, uint64_t buckets)
      : log(clock, common::LogLevel::kWarning, STDERR_FILENO) {
    auto opened = state::StateKeeper::Open(
        {.folder = folder, .after_crash = state::AfterCrash::kTrust, .copy_every_ns = kDayNs},
        &log);
    Check(opened.status());
    keeper = *std::move(opened);
    clock.SetAhead(keeper->clock_ahead_ns());
    store::MemoryStoreOptions options{.max_buckets = 2 * buckets + 1000};
    keeper->SetOptions(&options);
    store = std::make_unique<store::MemoryStore>(clock, options);
    registry = std::make_unique<limits::LimitRegistry>(store.get());
    keeper->RestoreIds(registry.get());
    Check(registry
              ->ApplyFile({SpecOf("log", algorithm::Kind::kSlidingLog),
                           SpecOf("tokens", algorithm::Kind::kTokenBucket)},
                          "v1")
              .status());
    Check(keeper->Load(store.get(), registry.get()));
    table = registry->Current();
    tokens = &table->Find("tokens")->rule();
    logs = &table->Find("log")->rule();
  }
  // Before it ends its copies.
  ~Server() { keeper.reset(); }

  void Begin() {
    Check(keeper->Begin({clock, *store, *registry, [] { return std::string("key"); }}));
    keeper->StartCopies();
  }

  state::ResumedClock clock;
  common::Log log;
  std::unique_ptr<state::StateKeeper> keeper;
  std::unique_ptr<store::MemoryStore> store;
  std::unique_ptr<limits::LimitRegistry> registry;
  std::shared_ptr<const limits::LimitTable> table;
  const store::Rule* tokens = nullptr;
  const store::Rule* logs = nullptr;
};

// Decides on existing and new keys until `done` or for at most a minute.
void MeasureDecisions(Server& server, uint64_t buckets, const char* what,
                      const std::function<bool()>& done) {
  const auto start = steady_clock::now();
  int64_t longest_ns = 0;
  uint64_t decisions = 0;
  uint64_t over = 0;
  uint64_t random = 1;
  const uint64_t yields = server.store->Stats().lock_yields;
  while (true) {
    random = random * 6364136223846793005 + 1442695040888963407;
    const std::string key =
        decisions % 16 == 0 ? "new:" + std::to_string(decisions) : KeyOf((random >> 33) % buckets);
    const store::Rule& rule = (random >> 60) == 0 ? *server.logs : *server.tokens;
    const auto before = steady_clock::now();
    testing::Acquire(*server.store, rule, key);
    const int64_t ns = (steady_clock::now() - before) / std::chrono::nanoseconds(1);
    longest_ns = std::max(longest_ns, ns);
    over += ns > 1'000'000 ? 1 : 0;
    ++decisions;
    if (decisions % 1024 == 0 && (done() || SecondsSince(start) > 60)) break;
  }
  std::printf(
      "%-28s %8.3f s, %llu decisions, longest %.0f us, over 1 ms: %llu, waits for a lock: %llu\n",
      what, SecondsSince(start), static_cast<unsigned long long>(decisions),
      static_cast<double>(longest_ns) / 1000, static_cast<unsigned long long>(over),
      static_cast<unsigned long long>(server.store->Stats().lock_yields - yields));
}

int Run(const std::string& folder, uint64_t buckets) {
  {
    Server server(folder, buckets);
    for (uint64_t i = 0; i < buckets; ++i) {
      if (i % 100 == 0) {
        testing::Acquire(*server.store, *server.logs, KeyOf(i), 1, {.want_receipt = true});
      } else {
        testing::Acquire(*server.store, *server.tokens, KeyOf(i));
      }
    }
    const auto start = steady_clock::now();
    MeasureDecisions(server, buckets, "decisions without a copy",
                     [&] { return SecondsSince(start) > 2; });
    server.Begin();
    const std::string state = folder + "/state";
    MeasureDecisions(server, buckets, "decisions during a copy",
                     [&] { return access(state.c_str(), F_OK) == 0; });
    const auto saving = steady_clock::now();
    const double cpu = CpuSeconds();
    Check(server.keeper->Save());
    std::printf("%-28s %8.3f s, CPU %.3f s, %llu buckets\n", "write at a drain",
                SecondsSince(saving), CpuSeconds() - cpu,
                static_cast<unsigned long long>(server.store->Stats().buckets));
  }
  const auto loading = steady_clock::now();
  const double cpu = CpuSeconds();
  const Server server(folder, buckets);
  std::printf("%-28s %8.3f s, CPU %.3f s, %llu buckets\n", "check and load", SecondsSince(loading),
              CpuSeconds() - cpu, static_cast<unsigned long long>(server.store->Stats().buckets));
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const uint64_t buckets = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (buckets == 0) {
    std::fprintf(stderr, "usage: state_bench DIR BUCKETS\n");
    return 2;
  }
  return sluice::Run(argv[1], buckets);
}
