// The embedded throttler: what Run costs while permits are available, alone and under a shared
// limit, and what submitting costs.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>

#include "sluice/throttler.h"

namespace sluice {
namespace {

std::unique_ptr<Throttler> Create() {
  ThrottlerOptions options;
  options.limits = {{.name = "free", .permits = 1'000'000'000},
                    {.name = "channel", .permits = 1'000'000'000, .charges = {"free"}}};
  return std::move(*Throttler::Embedded(std::move(options)));
}

void BM_Run(benchmark::State& state) {
  const auto throttler = Create();
  int ran = 0;
  for (auto _ : state) {
    const Status status = throttler->Run("free", [&] { benchmark::DoNotOptimize(++ran); });
    benchmark::DoNotOptimize(status.ok());
  }
}
BENCHMARK(BM_Run);

void BM_RunOnAChannel(benchmark::State& state) {
  const auto throttler = Create();
  int ran = 0;
  for (auto _ : state) {
    const Status status = throttler->Run("channel", [&] { benchmark::DoNotOptimize(++ran); });
    benchmark::DoNotOptimize(status.ok());
  }
}
BENCHMARK(BM_RunOnAChannel);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
