#include "common/metrics.h"

#include <algorithm>

namespace sluice::common {
namespace {

uint32_t IndexOf(std::vector<std::string>& names, const std::string& name, size_t most) {
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<uint32_t>(it - names.begin());
  // The program knows all names. One too many shares the counters of the last one.
  if (names.size() == most) return static_cast<uint32_t>(most - 1);
  names.push_back(name);
  return static_cast<uint32_t>(names.size() - 1);
}

// Adds a shard's counters to totals of the same kind.
template <typename Totals, typename Counters>
void AddCounts(Counters& from, Totals& to) {
  std::apply(
      [&](const auto&... counters) {
        std::apply([&](auto&... totals) { ((totals += counters.value()), ...); }, to.Tie());
      },
      from.Tie());
}

}  // namespace

Metrics::Shard::~Shard() {
  for (auto& chunk : limits_) delete chunk.load(std::memory_order_acquire);
  for (auto& method : methods_) delete method.load(std::memory_order_acquire);
}

Metrics::Shard::LimitChunk* Metrics::Shard::AddLimitChunk(uint32_t limit_id) {
  auto* chunk = new LimitChunk();
  limits_[(limit_id / kChunk) % kChunks].store(chunk, std::memory_order_release);
  return chunk;
}

MethodCounters& Metrics::Shard::AddMethod(uint32_t method) {
  auto* counters = new MethodCounters();
  methods_[method].store(counters, std::memory_order_release);
  return *counters;
}

uint32_t Metrics::AddMethod(const std::string& name) {
  MutexLock lock(&mu_);
  return IndexOf(methods_, name, kMaxMethods);
}

uint32_t Metrics::AddTransport(const std::string& name) {
  MutexLock lock(&mu_);
  return IndexOf(transports_, name, kMaxTransports);
}

std::vector<LimitTotals> Metrics::LimitSums(uint32_t first_id, uint32_t end_id) const {
  std::vector<LimitTotals> out(end_id - first_id);
  end_id = std::min(end_id, static_cast<uint32_t>(Shard::kChunk * Shard::kChunks));
  shards_.ForEach([&](Shard& shard) {
    for (uint32_t id = first_id; id < end_id;) {
      const uint32_t chunk_end =
          std::min<uint32_t>(end_id, (id / Shard::kChunk + 1) * Shard::kChunk);
      auto* chunk = shard.limits_[id / Shard::kChunk].load(std::memory_order_acquire);
      for (; chunk != nullptr && id < chunk_end; ++id) {
        AddCounts((*chunk)[id % Shard::kChunk], out[id - first_id]);
      }
      id = chunk_end;
    }
  });
  return out;
}

MetricsSnapshot Metrics::Snapshot(uint32_t limit_id_end) const {
  MetricsSnapshot out;
  out.limits = LimitSums(0, limit_id_end);
  {
    MutexLock lock(&mu_);
    out.methods.resize(methods_.size());
    for (size_t i = 0; i < methods_.size(); ++i) out.methods[i].method = methods_[i];
    out.transports.resize(transports_.size());
    for (size_t i = 0; i < transports_.size(); ++i) out.transports[i].transport = transports_[i];
  }
  shards_.ForEach([&](Shard& shard) {
    out.granted += shard.granted.value();
    out.denied += shard.denied.value();
    for (size_t m = 0; m < out.methods.size(); ++m) {
      MethodCounters* from = shard.methods_[m].load(std::memory_order_acquire);
      if (from == nullptr) continue;
      MethodTotals& to = out.methods[m];
      for (size_t code = 0; code < kStatusCodes; ++code)
        to.codes[code] += from->codes[code].value();
      from->latency.AddTo(to.latency);
      AddCounts(*from, to);
    }
    for (size_t s = 0; s < out.steps.size(); ++s) shard.steps_[s].AddTo(out.steps[s]);
    for (size_t t = 0; t < out.transports.size(); ++t) {
      AddCounts(shard.transports_[t], out.transports[t]);
    }
  });
  return out;
}

}  // namespace sluice::common
