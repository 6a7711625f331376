// Cost of one decision of a batch, from the request's bytes to the answer's: decoding alone,
// encoding alone, and both with the decision (validation, look-up, store, counters).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/protobuf_wire.h"
#include "server/transport/services/rate_limiter_codec.h"
#include "tests/bench/service_parts.h"

namespace sluice {
namespace {

using common::WireWriter;
using service::AcquireCall;
using transport::Buffer;

constexpr size_t kBatch = 64;

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
  // So slow that no bucket is full again, and dropped, between two requests.
  ServiceParts parts(1, 1'000'000'000);
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
