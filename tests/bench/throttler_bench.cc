// Measures the embedded throttler: the cost of a function while permits are available, alone and on
// a channel that also charges a parent; the cost of the store's decision alone; the cost of
// waiting.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "server/limits/limit_registry.h"
#include "server/store/memory/memory_store.h"
#include "sluice/embedded.h"
#include "sluice/throttler.h"

namespace sluice {
namespace {

using std::chrono::seconds;

// Never without permits: 10^9 per second.
struct Free {
  std::shared_ptr<Embedded> embedded =
      Embedded::Create(
          {{.name = "free", .rate = {1'000'000'000, seconds(1)}, .burst = 1'000'000'000},
           {.name = "channel",
            .rate = {1'000'000'000, seconds(1)},
            .burst = 1'000'000'000,
            .charges = {"free"}}})
          .value();
  Throttler throttler = Throttler::Create(embedded, {.limit = "free"}).value();
  ThrottlerChannel channel = throttler.Channel("channel").value();
};

Free& Shared() {
  static Free& free = *new Free;
  return free;
}

void BM_Run(benchmark::State& state) {
  const Throttler& throttler = Shared().throttler;
  int ran = 0;
  for (auto _ : state) {
    const Status status = throttler.Run([&] { benchmark::DoNotOptimize(++ran); });
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
}
BENCHMARK(BM_Run)->ThreadRange(1, 2);

void BM_RunOnAChannel(benchmark::State& state) {
  const ThrottlerChannel& channel = Shared().channel;
  int ran = 0;
  for (auto _ : state) {
    const Status status = channel.Run([&] { benchmark::DoNotOptimize(++ran); });
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
}
BENCHMARK(BM_RunOnAChannel)->ThreadRange(1, 2);

void BM_TryStartDenied(benchmark::State& state) {
  const auto embedded =
      Embedded::Create({{.name = "scarce", .rate = {1, std::chrono::hours(24)}}}).value();
  const Throttler throttler = Throttler::Create(embedded, {.limit = "scarce"}).value();
  static_cast<void>(throttler.TryStart());
  for (auto _ : state) benchmark::DoNotOptimize(throttler.TryStart().value());
}
BENCHMARK(BM_TryStartDenied);

class Operation final : public store::AcquireOperation {
 public:
  void Done() override {}
};

// The decision of BM_Run, by the store alone.
void BM_StoreAlone(benchmark::State& state) {
  const common::SystemClock clock;
  store::MemoryStore store(clock);
  limits::LimitRegistry registry(&store);
  limits::LimitSpec spec;
  spec.name = "free";
  spec.rate = {1'000'000'000, 1'000'000'000};
  if (!registry.ApplyFile({spec}, "1").ok()) state.SkipWithError("limits");
  const store::Charge charge{&registry.Local()->Find("free")->rule(), {}, 1};
  store::ChargeResult result;
  store::Acquisition acquisition;
  acquisition.charges = absl::MakeConstSpan(&charge, 1);
  acquisition.results = &result;
  Operation operation;
  operation.acquisitions = absl::MakeSpan(&acquisition, 1);
  for (auto _ : state) {
    store.Acquire(&operation);
    if (acquisition.outcome != store::Outcome::kGranted) state.SkipWithError("denied");
  }
}
BENCHMARK(BM_StoreAlone);

// Submits `range` functions, and runs them on a virtual clock.
void BM_SubmitWaitRun(benchmark::State& state) {
  const auto clock = std::make_shared<VirtualClock>();
  const auto embedded =
      Embedded::Create({{.name = "paced", .rate = {1000, seconds(1)}, .burst = 1}},
                       {.clock = clock})
          .value();
  const Throttler throttler =
      Throttler::Create(embedded,
                        {.limit = "paced", .executor = std::make_shared<InlineExecutor>()})
          .value();
  const int64_t functions = state.range(0);
  int64_t ran = 0;
  for (auto _ : state) {
    for (int64_t i = 0; i < functions; ++i) {
      benchmark::DoNotOptimize(throttler.Submit([&ran] { ++ran; }));
    }
    clock->Advance(std::chrono::milliseconds(functions));
  }
  if (ran != functions * static_cast<int64_t>(state.iterations())) {
    state.SkipWithError("not all have run");
  }
  state.SetItemsProcessed(ran);
}
BENCHMARK(BM_SubmitWaitRun)->Arg(100)->Arg(10'000);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
