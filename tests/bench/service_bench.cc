// The cost that the use cases add to a decision: validation, look-up by name, counters, key usage.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "server/service/key_usage.h"
#include "server/service/receipt.h"
#include "tests/bench/service_parts.h"

namespace sluice {
namespace {

std::vector<std::string> RandomKeys(size_t count) {
  std::mt19937_64 random(1);
  std::vector<std::string> keys(count);
  for (std::string& key : keys) key = "user:" + std::to_string(random() % 100'000'000);
  return keys;
}

// Whole calls of `batch` acquisitions over `keys` random keys.
void BM_Acquire(benchmark::State& state) {
  ServiceParts parts(1'000'000, 1'000'000);
  const auto keys = RandomKeys(static_cast<size_t>(state.range(0)));
  const auto batch = static_cast<size_t>(state.range(1));
  service::AcquireCall call;
  size_t next = 0;
  for (auto _ : state) {
    call.Reset(service::AcquireCall::Form::kBatch);
    for (size_t i = 0; i < batch; ++i) {
      call.BeginAcquisition({});
      call.AddCharge("api", keys[next], 1);
      if (++next == keys.size()) next = 0;
    }
    parts.limiter.Acquire(&call, store::kNoDeadline, [](void*, service::AcquireCall*) {}, nullptr);
    benchmark::DoNotOptimize(call.result(0).granted);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(batch));
}
BENCHMARK(BM_Acquire)->ArgsProduct({{1, 1000, 100'000}, {1, 64}})->ArgNames({"keys", "batch"});

// Key usage alone.
void BM_KeyUsage(benchmark::State& state) {
  service::KeyUsage usage;
  const auto keys = RandomKeys(static_cast<size_t>(state.range(0)));
  size_t next = 0;
  for (auto _ : state) {
    usage.Record([&](auto record) {
      for (int i = 0; i < 64; ++i) {
        record.Used(0, keys[next], 1);
        if (++next == keys.size()) next = 0;
      }
    });
  }
  state.SetItemsProcessed(state.iterations() * 64);
}
BENCHMARK(BM_KeyUsage)->Arg(1)->Arg(1000)->Arg(100'000)->ArgName("keys");

void BM_Receipt(benchmark::State& state) {
  const service::ReceiptSigner signer;
  store::Rule rule;
  rule.limit_name = "api";
  const store::Charge charge{&rule, "user:42", 1};
  std::string receipt;
  for (auto _ : state) {
    receipt.clear();
    signer.Append(1, 0, absl::MakeConstSpan(&charge, 1), &receipt);
    benchmark::DoNotOptimize(receipt.data());
  }
}
BENCHMARK(BM_Receipt);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
