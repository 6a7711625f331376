// Cost of one decision of a batch, from the request's bytes to the answer's: decoding alone,
// encoding alone, and both with the decision (validation, look-up, store, counters).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "server/limits/limit_registry.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"
#include "server/transport/http2/buffer.h"
#include "server/transport/services/protobuf_wire.h"
#include "server/transport/services/rate_limiter_codec.h"

namespace sluice {
namespace {

using service::AcquireCall;
using transport::Buffer;
using transport::WireWriter;

constexpr size_t kBatch = 64;

struct Parts {
  common::SystemClock clock;
  common::Metrics metrics;
  store::MemoryStore store{clock};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  service::ReceiptSigner signer;
  service::RateLimiter limiter{registry, store, clock, metrics, usage, signer};

  Parts() {
    limits::LimitSpec spec;
    spec.name = "api";
    // So slow that no bucket becomes full, and is dropped, between two requests.
    spec.rate = {1, 1'000'000'000};
    spec.burst = 1'000'000'000;
    if (!registry.ApplyFile({spec}, "1").ok()) std::abort();
  }
};

// AcquireBatchRequests over `keys` different keys.
std::vector<std::vector<uint8_t>> Requests(size_t keys) {
  std::mt19937_64 random(1);
  std::vector<std::vector<uint8_t>> requests(std::max<size_t>(1, keys / kBatch));
  for (std::vector<uint8_t>& request : requests) {
    request.resize(kBatch * 64);
    WireWriter writer(request.data());
    for (size_t i = 0; i < kBatch; ++i) {
      uint8_t* const acquisition = writer.BeginMessage(1);
      uint8_t* const charge = writer.BeginMessage(1);
      writer.Bytes(1, "api");
      writer.Bytes(2, "user:" + std::to_string(random() % 100'000'000));
      writer.EndMessage(charge);
      writer.EndMessage(acquisition);
    }
    request.resize(static_cast<size_t>(writer.at() - request.data()));
  }
  return requests;
}

enum Stage { kDecode, kEncode, kAll };

void BM_Batch(benchmark::State& state) {
  const auto stage = static_cast<Stage>(state.range(0));
  const auto requests = Requests(static_cast<size_t>(state.range(1)));
  Parts parts;
  AcquireCall call;
  Buffer answer;
  const auto decode = [&](size_t i) {
    if (!transport::DecodeAcquireBatch(requests[i], &call).ok()) std::abort();
  };
  const auto decide = [&] {
    parts.limiter.Acquire(&call, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
  };
  const auto encode = [&] {
    answer.Clear();
    transport::EncodeAcquireBatch(call, &answer);
    benchmark::DoNotOptimize(answer.data());
  };
  size_t next = 0;
  decode(0);
  decide();
  for (auto _ : state) {
    if (stage != kEncode) decode(next);
    if (stage == kAll) decide();
    if (stage == kEncode || stage == kAll) encode();
    if (++next == requests.size()) next = 0;
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kBatch));
}
BENCHMARK(BM_Batch)
    ->ArgsProduct({{kDecode, kEncode, kAll}, {64, 32'768, 100'000}})
    ->ArgNames({"stage", "keys"});

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
