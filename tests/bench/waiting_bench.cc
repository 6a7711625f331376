// Measures bookings at the store's interface: the first on a bucket, one behind many, one in a gap
// between many; how long a bucket is locked while its reservations are rebooked; and the memory of
// a log. Setup is not timed.
//
// A set of buckets keeps its order, so only another set can fill gaps: here acquisitions with two
// charges. Compare them with BM_FirstBookingOfTwo, which costs two to three times BM_FirstBooking.
#include <benchmark/benchmark.h>
#include <time.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "server/algorithm/bucket_state.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/memory/memory_store.h"

namespace sluice::store {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Bookings that are timed together, so that the cost of reading the clock does not matter.
constexpr int kTogether = 200;

std::shared_ptr<const Rule> MakeRule(uint32_t id, const algorithm::Parameters& parameters) {
  auto rule = std::make_shared<Rule>();
  rule->id = id;
  rule->limit_id = 1;
  rule->limit_name = "bench";
  rule->parameters = parameters;
  return rule;
}

algorithm::Parameters ParametersOf(int64_t kind, uint64_t permits = 10) {
  const algorithm::Rate rate{permits, kSecond};
  switch (kind) {
    case 0:
      return algorithm::MakeTokenBucket(rate, permits, 0).value();
    case 1:
      return algorithm::MakeSlidingLog(rate).value();
    case 2:
      return algorithm::MakeSlidingWindow(rate, 10).value();
    default:
      return algorithm::MakeFixedWindow(rate, 0).value();
  }
}

struct Asking final : AcquireOperation {
  explicit Asking(const Rule& rule, std::string_view key, int64_t max_wait_ns) {
    charge = {&rule, key, 1};
    acquisition.charges = absl::MakeConstSpan(&charge, 1);
    acquisition.results = &result;
    acquisition.max_wait_ns = max_wait_ns;
    acquisitions = absl::MakeSpan(&acquisition, 1);
  }
  void Done() override {}
  int64_t grant_time_ns() const { return acquisition.now_ns + acquisition.wait_ns; }
  Charge charge;
  ChargeResult result;
  Acquisition acquisition;
};

struct GivingBack final : RefundOperation {
  explicit GivingBack(const Asking& asked) {
    receipt_id = asked.acquisition.receipt_id;
    grant_time_ns = asked.grant_time_ns();
    charges = asked.acquisition.charges;
    refunded = &permits;
  }
  void Done() override {}
  uint64_t permits = 0;
};

constexpr int64_t kMaxWaitNs = int64_t{20} * 3600 * kSecond;

void Spend(MemoryStore& store, const Rule& rule, std::string_view key) {
  for (;;) {
    Asking asking(rule, key, 0);
    store.Acquire(&asking);
    if (asking.acquisition.outcome != Outcome::kGranted) return;
  }
}

// CPU time of this thread, so that other processes do not count.
int64_t CpuNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * kSecond + now.tv_nsec;
}

// A second bucket, which never delays.
std::shared_ptr<const Rule> OtherRule() {
  auto rule = std::make_shared<Rule>();
  rule->id = 2;
  rule->limit_id = 2;
  rule->limit_name = "other";
  rule->parameters = algorithm::MakeTokenBucket({1'000'000'000, kSecond}, 1'000'000'000, 0).value();
  return rule;
}

// One permit from each of two buckets.
struct Both final : AcquireOperation {
  Both(const Rule& first, std::string_view key, const Rule& second) {
    charges[0] = {&first, key, 1};
    charges[1] = {&second, "", 1};
    acquisition.charges = absl::MakeConstSpan(charges, 2);
    acquisition.results = results;
    acquisition.max_wait_ns = kMaxWaitNs;
    acquisitions = absl::MakeSpan(&acquisition, 1);
  }
  void Done() override {}
  Charge charges[2];
  ChargeResult results[2];
  Acquisition acquisition;
};

double Seconds(int64_t since_ns) { return static_cast<double>(CpuNs() - since_ns) * 1e-9; }

// The first booking on each of kTogether empty buckets. Args: algorithm.
void BM_FirstBooking(benchmark::State& bench) {
  const auto rule = MakeRule(1, ParametersOf(bench.range(0)));
  std::vector<std::string> keys;
  for (int i = 0; i < kTogether; ++i) keys.push_back("key" + std::to_string(i));
  for (auto _ : bench) {
    common::FakeClock clock{1000 * kSecond};
    MemoryStore store(clock);
    store.Register(rule);
    std::vector<Asking> asking;
    for (const std::string& key : keys) {
      Spend(store, *rule, key);
      asking.emplace_back(*rule, key, kMaxWaitNs);
    }
    for (Asking& one : asking) {
      one.acquisition.charges = absl::MakeConstSpan(&one.charge, 1);
      one.acquisition.results = &one.result;
      one.acquisitions = absl::MakeSpan(&one.acquisition, 1);
    }
    const auto start = CpuNs();
    for (Asking& one : asking) store.Acquire(&one);
    bench.SetIterationTime(Seconds(start) / kTogether);
    if (asking.back().acquisition.wait_ns == 0) bench.SkipWithError("not booked");
  }
}

// The same with a second bucket, which all bookings share. Args: algorithm.
void BM_FirstBookingOfTwo(benchmark::State& bench) {
  const auto rule = MakeRule(1, ParametersOf(bench.range(0)));
  const auto other = OtherRule();
  std::vector<std::string> keys;
  for (int i = 0; i < kTogether; ++i) keys.push_back("key" + std::to_string(i));
  for (auto _ : bench) {
    common::FakeClock clock{1000 * kSecond};
    MemoryStore store(clock);
    store.Register(rule);
    store.Register(other);
    std::vector<std::unique_ptr<Both>> both;
    for (const std::string& key : keys) {
      Spend(store, *rule, key);
      both.push_back(std::make_unique<Both>(*rule, key, *other));
    }
    const auto start = CpuNs();
    for (auto& one : both) store.Acquire(one.get());
    bench.SetIterationTime(Seconds(start) / kTogether);
    if (both.back()->acquisition.wait_ns == 0) bench.SkipWithError("not booked");
  }
}

// Behind the bookings of one bucket, or in gaps between them. Args: algorithm, bookings, gaps.
void BM_Booking(benchmark::State& bench) {
  const auto rule = MakeRule(1, ParametersOf(bench.range(0)));
  const int64_t bookings = bench.range(1);
  const bool gaps = bench.range(2) != 0;
  common::FakeClock clock{1000 * kSecond};
  MemoryStore store(clock);
  store.Register(rule);
  Spend(store, *rule, "k");
  std::vector<std::unique_ptr<Asking>> booked;
  for (int64_t i = 0; i < bookings + (gaps ? kTogether : 0); ++i) {
    booked.push_back(std::make_unique<Asking>(*rule, "k", kMaxWaitNs));
    store.Acquire(booked.back().get());
  }
  // Another set of buckets may fill the gaps that refunds leave.
  const auto other = OtherRule();
  store.Register(other);
  int64_t in_gaps = 0;
  for (auto _ : bench) {
    if (gaps) {
      const size_t step = booked.size() / kTogether;
      for (size_t i = step / 2; i < booked.size(); i += step) {
        GivingBack back(*booked[i]);
        store.Refund(&back);
      }
    }
    std::vector<std::unique_ptr<Both>> both;
    std::vector<std::unique_ptr<Asking>> more;
    for (int i = 0; i < kTogether; ++i) {
      both.push_back(std::make_unique<Both>(*rule, "k", *other));
      more.push_back(std::make_unique<Asking>(*rule, "k", kMaxWaitNs));
    }
    const int64_t last_ns = booked.empty() ? 0 : booked.back()->grant_time_ns();
    const auto start = CpuNs();
    if (gaps) {
      for (auto& one : both) store.Acquire(one.get());
    } else {
      for (auto& one : more) store.Acquire(one.get());
    }
    bench.SetIterationTime(Seconds(start) / kTogether);
    if (gaps) {
      for (auto& one : both) {
        in_gaps += one->acquisition.now_ns + one->acquisition.wait_ns < last_ns;
      }
    }
    // Restore the bucket.
    for (auto it = more.rbegin(); !gaps && it != more.rend(); ++it) {
      GivingBack back(**it);
      store.Refund(&back);
    }
    if (gaps) {
      for (auto& one : both) {
        struct Back final : RefundOperation {
          void Done() override {}
          uint64_t permits[2];
        } back;
        back.receipt_id = one->acquisition.receipt_id;
        back.grant_time_ns = one->acquisition.now_ns + one->acquisition.wait_ns;
        back.charges = one->acquisition.charges;
        back.refunded = back.permits;
        store.Refund(&back);
      }
    }
  }
  if (gaps) bench.SetLabel("two charges: compare with BM_FirstBookingOfTwo");
  if (gaps) bench.counters["in_gaps_of_200"] = static_cast<double>(in_gaps);
}

// How long one bucket is locked while all its reservations are rebooked. Those of a fixed window
// all have one grant time. Args: algorithm, reservations. The time is the total; the counter is per
// reservation.
void BM_Rebook(benchmark::State& bench) {
  const int64_t callers = bench.range(1);
  const auto parameters = [&](uint32_t id) {
    if (bench.range(0) == 3) return ParametersOf(3, static_cast<uint64_t>(callers) + id % 2);
    return ParametersOf(bench.range(0), id % 2 == 0 ? 5 : 10);
  };
  uint32_t id = 1;
  common::FakeClock clock{1000 * kSecond};
  MemoryStore store(clock);
  std::vector<std::shared_ptr<const Rule>> rules{MakeRule(id, parameters(id))};
  store.Register(rules.back());
  Spend(store, *rules.back(), "k");
  std::vector<std::unique_ptr<Asking>> booked;
  std::vector<Rebooking> items;
  for (int64_t i = 0; i < callers; ++i) {
    booked.push_back(std::make_unique<Asking>(*rules.back(), "k", kMaxWaitNs));
    store.Acquire(booked.back().get());
    Rebooking& item = items.emplace_back();
    item.receipt_id = booked.back()->acquisition.receipt_id;
    item.grant_time_ns = booked.back()->grant_time_ns();
    item.until_ns = item.grant_time_ns * 100;
    item.results = &booked.back()->result;
  }
  double all = 0;
  for (auto _ : bench) {
    ++id;
    rules.push_back(MakeRule(id, parameters(id)));
    store.Register(rules.back());
    struct Operation final : RebookOperation {
      void Done() override {}
    } operation;
    for (int64_t i = 0; i < callers; ++i) {
      const auto n = static_cast<size_t>(i);
      booked[n]->charge.rule = rules.back().get();
      items[n].charges = absl::MakeConstSpan(&booked[n]->charge, 1);
    }
    operation.items = absl::MakeSpan(items);
    const auto start = CpuNs();
    store.Rebook(&operation);
    const double seconds = Seconds(start);
    bench.SetIterationTime(seconds);
    all += seconds;
    if (operation.status != RebookStatus::kDone) bench.SkipWithError("not rebooked");
  }
  bench.counters["ns_each"] =
      all * 1e9 / static_cast<double>(bench.iterations()) / static_cast<double>(callers);
}

// A full log of 10,000 a day, taken in bursts. Args: the burst.
void BM_LogOfTenThousandADay(benchmark::State& bench) {
  const auto burst = static_cast<uint64_t>(bench.range(0));
  size_t bytes = 0;
  for (auto _ : bench) {
    const algorithm::Parameters parameters =
        algorithm::MakeSlidingLog({10'000, 24 * 3600 * kSecond}).value();
    algorithm::BucketState state(parameters);
    for (uint64_t taken = 0; taken < 10'000; taken += burst) {
      const int64_t at_ns = 1000 * kSecond + static_cast<int64_t>(taken) * 8 * kSecond;
      state.TryTake(parameters, burst, {at_ns, at_ns});
    }
    bytes = state.MemoryBytes();
  }
  bench.counters["bytes_a_key"] = static_cast<double>(bytes);
  bench.counters["bytes_a_permit"] = static_cast<double>(bytes) / 10'000;
}

BENCHMARK(BM_FirstBooking)->DenseRange(0, 3)->UseManualTime()->Iterations(200);
BENCHMARK(BM_FirstBookingOfTwo)->DenseRange(0, 3)->UseManualTime()->Iterations(200);
BENCHMARK(BM_Booking)
    ->ArgNames({"algorithm", "bookings", "gaps"})
    ->ArgsProduct({{0, 1, 2, 3}, {1, 10'000}, {0}})
    ->UseManualTime()
    ->Iterations(200);
// Compare with BM_FirstBookingOfTwo.
BENCHMARK(BM_Booking)
    ->ArgNames({"algorithm", "bookings", "gaps"})
    ->ArgsProduct({{0, 1, 2, 3}, {10'000}, {1}})
    ->UseManualTime()
    ->Iterations(1)
    ->Repetitions(5)
    ->ReportAggregatesOnly();
BENCHMARK(BM_Rebook)
    ->ArgsProduct({{0, 1, 2, 3}, {1'000, 10'000, 100'000}})
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_LogOfTenThousandADay)->Arg(1)->Arg(100)->Iterations(3);

}  // namespace
}  // namespace sluice::store

BENCHMARK_MAIN();
