// One decision of the memory store, beside what one would write first: absl::flat_hash_map from
// the key to the bucket, in 64 shards with a mutex each. Both read the clock, hash, look up,
// decide by the same function and fill in the same answer.
//
//   store_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
//
// Keys are drawn at random, so that at 4M every decision misses the caches; they are laid out in
// the order of use, as keys of requests are, so that reading the key itself does not miss.
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/algorithm/make_parameters.h"
#include "server/algorithm/token_bucket.h"
#include "server/store/memory/memory_store.h"

namespace sluice {
namespace {

using store::Acquisition;
using store::Charge;
using store::ChargeResult;
using store::MemoryStore;
using store::Rule;

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kKeyBytes = 13;

class Operation final : public store::AcquireOperation {
 public:
  void Done() override {}
};

std::shared_ptr<const Rule> MakeRule(uint32_t id, uint32_t limit_id, uint64_t permits,
                                     uint64_t burst) {
  auto rule = std::make_shared<Rule>();
  rule->id = id;
  rule->limit_id = limit_id;
  rule->limit_name = "api";
  rule->parameters = algorithm::MakeTokenBucket({permits, kSecond}, burst, 0).value();
  return rule;
}

std::string KeyOf(int64_t n) {
  char key[32];
  return std::string(key, static_cast<size_t>(std::snprintf(key, sizeof key, "user:%08ld", n)));
}

// The keys of a run, in the order of use, one behind the other in memory. A million of them for
// millions of keys; fewer where all of them shall be met, so that the sequence itself does not
// fill the cache.
class KeySequence {
 public:
  KeySequence(int64_t keys, uint64_t seed)
      : length_(keys > 200'000 ? size_t{1} << 20 : size_t{1} << 17) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < length_; ++i) {
      bytes_ += KeyOf(static_cast<int64_t>(random() % static_cast<uint64_t>(keys)));
    }
  }
  std::string_view Next() {
    const size_t i = next_++ & (length_ - 1);
    return {bytes_.data() + i * kKeyBytes, kKeyBytes};
  }

 private:
  const size_t length_;
  std::string bytes_;
  size_t next_ = 0;
};

// Never runs out: what is measured is a grant, the dearer answer.
std::shared_ptr<const Rule> BigRule() {
  static const auto rule = MakeRule(1, 1, 1'000'000, 1'000'000'000);
  return rule;
}

// ---- Request ids ----

// Decisions with a new request id each (with_id), or without, on one of a thousand keys. 16,000 a
// second of the clock's time, so that a million grants are remembered all the time.
void BM_Once(benchmark::State& state, bool with_id) {
  common::FakeClock clock;
  MemoryStore store(clock, {});
  store.Register(BigRule());
  KeySequence keys(1000, 1);
  std::mt19937_64 random(7);
  Operation operation;
  ChargeResult result;
  store::Once once;
  once.fingerprint = 1;
  const auto ask = [&] {
    clock.Advance(kSecond / 16'000);
    const std::string_view key = keys.Next();
    once.id = {{random(), random()}};
    const Charge charge{BigRule().get(), key, 1};
    Acquisition acquisition;
    acquisition.charges = absl::MakeConstSpan(&charge, 1);
    acquisition.results = &result;
    if (with_id) acquisition.once = &once;
    operation.acquisitions = absl::MakeSpan(&acquisition, 1);
    store.Acquire(&operation);
    benchmark::DoNotOptimize(result);
  };
  for (int i = 0; i < 2'000'000; ++i) ask();
  const uint64_t without = MemoryStore(clock, {}).Stats().memory_bytes;
  state.counters["bytes"] = static_cast<double>(store.Stats().memory_bytes - without);
  for (auto _ : state) ask();
}
BENCHMARK_CAPTURE(BM_Once, with_id, true);
BENCHMARK_CAPTURE(BM_Once, without, false);

// ---- A: the memory store ----

// One store per number of keys, filled, shared by all benchmarks of it.
MemoryStore& FilledStore(int64_t keys) {
  static const common::SystemClock clock;
  static common::Mutex mu;
  const common::MutexLock lock(&mu);
  static std::vector<std::pair<int64_t, std::unique_ptr<MemoryStore>>> stores;
  for (auto& [n, filled] : stores) {
    if (n == keys) return *filled;
  }
  auto filled = std::make_unique<MemoryStore>(clock, store::MemoryStoreOptions{});
  filled->Register(BigRule());
  Operation operation;
  ChargeResult result;
  for (int64_t i = 0; i < keys; ++i) {
    const std::string key = KeyOf(i);
    Charge charge{BigRule().get(), key, 1'000'000'000};  // not full again for a quarter of an hour
    Acquisition acquisition;
    acquisition.charges = absl::MakeConstSpan(&charge, 1);
    acquisition.results = &result;
    operation.acquisitions = absl::MakeSpan(&acquisition, 1);
    charge.permits = 900'000'000;
    filled->Acquire(&operation);
  }
  // Moves the memory to huge pages, as a server's own thread does.
  while (filled->Maintain()) {
  }
  stores.emplace_back(keys, std::move(filled));
  return *stores.back().second;
}

void BM_Store(benchmark::State& state) {
  MemoryStore& filled = FilledStore(state.range(0));
  KeySequence keys(state.range(0), 7 + static_cast<uint64_t>(state.thread_index()));
  Operation operation;
  Charge charge{BigRule().get(), {}, 1};
  ChargeResult result;
  Acquisition acquisition;
  acquisition.charges = absl::MakeConstSpan(&charge, 1);
  acquisition.results = &result;
  operation.acquisitions = absl::MakeSpan(&acquisition, 1);
  for (auto _ : state) {
    charge.key = keys.Next();
    filled.Acquire(&operation);
    benchmark::DoNotOptimize(result);
  }
  state.SetItemsProcessed(state.iterations());
}

void BM_StoreBatch64(benchmark::State& state) {
  constexpr size_t kBatch = 64;
  MemoryStore& filled = FilledStore(state.range(0));
  KeySequence keys(state.range(0), 11);
  Operation operation;
  std::vector<Charge> charges(kBatch, Charge{BigRule().get(), {}, 1});
  std::vector<ChargeResult> results(kBatch);
  std::vector<Acquisition> acquisitions(kBatch);
  for (size_t i = 0; i < kBatch; ++i) {
    acquisitions[i].charges = absl::MakeConstSpan(&charges[i], 1);
    acquisitions[i].results = &results[i];
  }
  operation.acquisitions = absl::MakeSpan(acquisitions);
  for (auto _ : state) {
    for (Charge& charge : charges) charge.key = keys.Next();
    filled.Acquire(&operation);
    benchmark::DoNotOptimize(results.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kBatch));
  state.counters["each"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kBatch,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// ---- B: a hash map behind mutexes ----

class MutexMap {
 public:
  explicit MutexMap(const common::Clock& clock) : clock_(clock) {}

  void Acquire(const Charge& charge, Acquisition* acquisition) {
    const absl::string_view key(charge.key.data(), charge.key.size());
    const algorithm::TokenBucket& parameters = charge.rule->parameters.token_bucket;
    const int64_t now_ns = clock_.NowNs();
    Shard& shard = shards_[absl::Hash<absl::string_view>()(key) >> 58];
    common::MutexLock lock(&shard.mu);
    auto found = shard.buckets.find(key);
    if (found == shard.buckets.end()) found = shard.buckets.emplace(key, 0).first;
    const bool taken = algorithm::TryTake(parameters, charge.permits,
                                          algorithm::ToTicks(parameters, now_ns), &found->second);
    const algorithm::Level level = algorithm::LevelAt(parameters, found->second, now_ns);
    acquisition->results->level = {level.remaining, level.capacity, level.reset_after_ns,
                                   level.next_permit_after_ns};
    acquisition->outcome = taken ? store::Outcome::kGranted : store::Outcome::kDenied;
    acquisition->now_ns = now_ns;
  }

 private:
  struct alignas(64) Shard {
    common::Mutex mu;
    absl::flat_hash_map<std::string, uint64_t> buckets ABSL_GUARDED_BY(mu);
  };
  const common::Clock& clock_;
  Shard shards_[64];
};

MutexMap& FilledMap(int64_t keys) {
  static const common::SystemClock clock;
  static common::Mutex mu;
  const common::MutexLock lock(&mu);
  static std::vector<std::pair<int64_t, std::unique_ptr<MutexMap>>> maps;
  for (auto& [n, map] : maps) {
    if (n == keys) return *map;
  }
  auto map = std::make_unique<MutexMap>(clock);
  ChargeResult result;
  Acquisition acquisition;
  acquisition.results = &result;
  for (int64_t i = 0; i < keys; ++i) {
    const std::string key = KeyOf(i);
    map->Acquire(Charge{BigRule().get(), key, 900'000'000}, &acquisition);
  }
  maps.emplace_back(keys, std::move(map));
  return *maps.back().second;
}

void BM_MutexMap(benchmark::State& state) {
  MutexMap& map = FilledMap(state.range(0));
  KeySequence keys(state.range(0), 7 + static_cast<uint64_t>(state.thread_index()));
  Charge charge{BigRule().get(), {}, 1};
  ChargeResult result;
  Acquisition acquisition;
  acquisition.results = &result;
  for (auto _ : state) {
    charge.key = keys.Next();
    map.Acquire(charge, &acquisition);
    benchmark::DoNotOptimize(result);
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_Store)->Arg(1'000)->Arg(100'000)->Arg(4'000'000);
BENCHMARK(BM_MutexMap)->Arg(1'000)->Arg(100'000)->Arg(4'000'000);
BENCHMARK(BM_StoreBatch64)->Arg(1'000)->Arg(100'000)->Arg(4'000'000);

// ---- Threads ----

BENCHMARK(BM_Store)->Name("BM_StoreHotKey")->Arg(1)->ThreadRange(1, 2);
BENCHMARK(BM_Store)->Name("BM_StoreSpread")->Arg(100'000)->ThreadRange(1, 2);

BENCHMARK(BM_MutexMap)->Name("BM_MutexMapHotKey")->Arg(1)->ThreadRange(1, 2);
BENCHMARK(BM_MutexMap)->Name("BM_MutexMapSpread")->Arg(100'000)->ThreadRange(1, 2);

// Latencies in nanoseconds, for percentiles.
class Latencies {
 public:
  void Add(int64_t ns) { ns_.push_back(static_cast<uint32_t>(std::min<int64_t>(ns, 4e9))); }
  void Add(const Latencies& other) { ns_.insert(ns_.end(), other.ns_.begin(), other.ns_.end()); }
  double At(double quantile) {
    const auto i = static_cast<size_t>(quantile * static_cast<double>(ns_.size() - 1));
    std::nth_element(ns_.begin(), ns_.begin() + static_cast<std::ptrdiff_t>(i), ns_.end());
    return ns_[i];
  }

 private:
  std::vector<uint32_t> ns_;
};

int64_t Read(clockid_t id) {
  timespec ts;
  clock_gettime(id, &ts);
  return int64_t{ts.tv_sec} * kSecond + ts.tv_nsec;
}

// 16 threads whose every acquisition charges a key of their own and one shared bucket, on however
// many cores there are: how long is one kept waiting by another that was descheduled with the
// shared bucket locked? Wall time, so the scheduler's own time slices are in it.
void BM_SharedBucket16Threads(benchmark::State& state) {
  static const common::SystemClock clock;
  static MemoryStore shared(clock, {});
  static Latencies all;
  static common::Mutex mu;
  static const auto overall = MakeRule(10, 10, 1'000'000, 1'000'000'000);
  static const auto user = MakeRule(11, 11, 1'000'000, 1'000'000'000);
  if (state.thread_index() == 0) {
    shared.Register(overall);
    shared.Register(user);
    all = {};
  }
  const std::string key = KeyOf(state.thread_index());
  const Charge charges[] = {{user.get(), key, 1}, {overall.get(), "", 1}};
  ChargeResult results[2];
  Acquisition acquisition;
  acquisition.charges = charges;
  acquisition.results = results;
  Operation operation;
  operation.acquisitions = absl::MakeSpan(&acquisition, 1);
  Latencies mine;
  for (auto _ : state) {
    const int64_t start = Read(CLOCK_MONOTONIC);
    shared.Acquire(&operation);
    mine.Add(Read(CLOCK_MONOTONIC) - start);
  }
  {
    common::MutexLock lock(&mu);
    all.Add(mine);
  }
  state.SetItemsProcessed(state.iterations());
  if (state.thread_index() == 0) {
    // The other threads have added theirs when this one has waited for them at the loop's end, or
    // are about to: a percentile of nearly all will do.
    common::MutexLock lock(&mu);
    state.counters["p50_ns"] = all.At(0.5);
    state.counters["p99_ns"] = all.At(0.99);
    state.counters["p99.9_ns"] = all.At(0.999);
    state.counters["max_ns"] = all.At(1);
    state.counters["yields"] = static_cast<double>(shared.Stats().lock_yields);
  }
}
BENCHMARK(BM_SharedBucket16Threads)->Threads(16)->Iterations(100'000);

// Decisions on 10,000 limits while all of them are replaced, again and again, so that nearly every
// decision finds a bucket of an older rule and converts it. The longest decision, in CPU time of
// its thread (what the store costs) and in wall time (what other processes on the machine add).
void BM_ReloadOf10000Limits(benchmark::State& state) {
  constexpr uint32_t kLimits = 10'000;
  using Table = std::vector<std::shared_ptr<const Rule>>;
  const common::SystemClock clock;
  MemoryStore store(clock, {});
  uint32_t next_id = 100;
  const auto make = [&] {
    auto table = std::make_shared<Table>();
    for (uint32_t i = 0; i < kLimits; ++i) {
      ++next_id;
      table->push_back(MakeRule(next_id, i + 1, 1000 + next_id % 7, 1'000'000));
      store.Register(table->back());
    }
    return table;
  };
  std::shared_ptr<const Table> current = make();
  common::Mutex mu;
  std::atomic<bool> stop{false};
  int reloads = 0;
  std::thread reloader([&] {
    while (!stop) {
      auto next = make();
      {
        common::MutexLock lock(&mu);
        current = std::move(next);
      }
      ++reloads;
      for (int i = 0; i < 50; ++i) store.Maintain();
    }
  });
  Latencies cpu;
  Latencies wall;
  Operation operation;
  ChargeResult result;
  std::mt19937 random(3);
  std::shared_ptr<const Table> table;
  uint64_t n = 0;
  for (auto _ : state) {
    if (n++ % 64 == 0) {
      common::MutexLock lock(&mu);
      table = current;
    }
    const std::string key = KeyOf(random() % 10);
    const Charge charge{(*table)[random() % kLimits].get(), key, 1};
    Acquisition acquisition;
    acquisition.charges = absl::MakeConstSpan(&charge, 1);
    acquisition.results = &result;
    operation.acquisitions = absl::MakeSpan(&acquisition, 1);
    const int64_t wall_start = Read(CLOCK_MONOTONIC);
    const int64_t cpu_start = Read(CLOCK_THREAD_CPUTIME_ID);
    store.Acquire(&operation);
    cpu.Add(Read(CLOCK_THREAD_CPUTIME_ID) - cpu_start);
    wall.Add(Read(CLOCK_MONOTONIC) - wall_start);
  }
  stop = true;
  reloader.join();
  state.counters["reloads"] = reloads;
  state.counters["cpu_p99.9_ns"] = cpu.At(0.999);
  state.counters["cpu_max_ns"] = cpu.At(1);
  state.counters["wall_p99.9_ns"] = wall.At(0.999);
  state.counters["wall_max_ns"] = wall.At(1);
}
BENCHMARK(BM_ReloadOf10000Limits)->Iterations(1'000'000);

// ---- Memory ----

int64_t ResidentBytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  long pages = 0;
  long resident = 0;
  if (file == nullptr || std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  if (file != nullptr) std::fclose(file);
  return int64_t{resident} * sysconf(_SC_PAGESIZE);
}

// Fills a store, then lets all its buckets become full, and keeps house until nothing is left.
void BM_Memory(benchmark::State& state) {
  for (auto _ : state) {
    common::FakeClock clock;
    const int64_t resident_before = ResidentBytes();
    MemoryStore store(clock, {});
    store.Register(BigRule());
    const auto bytes_empty = static_cast<double>(store.Stats().memory_bytes);
    Operation operation;
    ChargeResult result;
    const int64_t keys = state.range(0);
    for (int64_t i = 0; i < keys; ++i) {
      const std::string key = KeyOf(i);
      const Charge charge{BigRule().get(), key, 1'000'000};
      Acquisition acquisition;
      acquisition.charges = absl::MakeConstSpan(&charge, 1);
      acquisition.results = &result;
      operation.acquisitions = absl::MakeSpan(&acquisition, 1);
      store.Acquire(&operation);
    }
    const double each = static_cast<double>(keys);
    state.counters["buckets"] = static_cast<double>(store.Stats().buckets);
    state.counters["B_each_beside_key"] =
        static_cast<double>(store.Stats().memory_bytes) / each - kKeyBytes;
    state.counters["RSS_B_each_beside_key"] =
        static_cast<double>(ResidentBytes() - resident_before) / each - kKeyBytes;
    clock.Advance(3600 * kSecond);
    int64_t steps = 0;
    int64_t longest_ns = 0;
    while (store.Stats().buckets > 0 || store.Maintain()) {
      const int64_t start = Read(CLOCK_THREAD_CPUTIME_ID);
      store.Maintain();
      longest_ns = std::max(longest_ns, Read(CLOCK_THREAD_CPUTIME_ID) - start);
      ++steps;
    }
    // One more round, in which nothing is found: then what was kept for more is given back.
    for (int i = 0; i < 10; ++i) store.Maintain();
    state.counters["idle_B_more"] = static_cast<double>(store.Stats().memory_bytes) - bytes_empty;
    state.counters["idle_RSS_MB_more"] =
        static_cast<double>(ResidentBytes() - resident_before) / 1e6;
    state.counters["maintain_steps"] = static_cast<double>(steps);
    state.counters["maintain_longest_us"] = static_cast<double>(longest_ns) / 1e3;
  }
}
BENCHMARK(BM_Memory)->Arg(4'000'000)->Iterations(1)->Unit(benchmark::kMillisecond);

// What the clock and the empty loop cost, to subtract.
void BM_Clock(benchmark::State& state) {
  const common::SystemClock clock;
  for (auto _ : state) benchmark::DoNotOptimize(clock.NowNs());
}
BENCHMARK(BM_Clock);
void BM_Keys(benchmark::State& state) {
  KeySequence keys(100'000, 7);
  for (auto _ : state) benchmark::DoNotOptimize(keys.Next().data()[0]);
}
BENCHMARK(BM_Keys);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
