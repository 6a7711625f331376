#include "common/metrics.h"

#include <algorithm>

namespace sluice::common {
namespace {

uint32_t IndexOf(std::vector<std::string>& names, const std::string& name, size_t most) {
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<uint32_t>(it - names.begin());
  // Names are given while wiring, by us: one too many shares the last one's counters.
  if (names.size() == most) return static_cast<uint32_t>(most - 1);
  names.push_back(name);
  return static_cast<uint32_t>(names.size() - 1);
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

MetricsSnapshot Metrics::Snapshot(uint32_t limit_id_end) const {
  MetricsSnapshot out;
  out.limits.resize(limit_id_end);
  {
    MutexLock lock(&mu_);
    out.methods.resize(methods_.size());
    for (size_t i = 0; i < methods_.size(); ++i) out.methods[i].method = methods_[i];
    out.transports.resize(transports_.size());
    for (size_t i = 0; i < transports_.size(); ++i) out.transports[i].transport = transports_[i];
  }
  shards_.ForEach([&](const Shard& shard) {
    out.granted += shard.granted.Read();
    out.denied += shard.denied.Read();
    for (size_t c = 0; c * Shard::kChunk < limit_id_end && c < Shard::kChunks; ++c) {
      const auto* chunk = shard.limits_[c].load(std::memory_order_acquire);
      if (chunk == nullptr) continue;
      for (size_t i = 0; i < Shard::kChunk && c * Shard::kChunk + i < limit_id_end; ++i) {
        const LimitCounters& from = (*chunk)[i];
        LimitTotals& to = out.limits[c * Shard::kChunk + i];
        to.granted += from.granted.Read();
        to.denied += from.denied.Read();
        to.shadow_denied += from.shadow_denied.Read();
        to.permits_granted += from.permits_granted.Read();
        to.refunded_permits += from.refunded_permits.Read();
        to.overflow_allowed += from.overflow_allowed.Read();
        to.overflow_denied += from.overflow_denied.Read();
        to.allowed_while_unavailable += from.allowed_while_unavailable.Read();
        to.denied_while_unavailable += from.denied_while_unavailable.Read();
      }
    }
    for (size_t m = 0; m < out.methods.size(); ++m) {
      const MethodCounters* from = shard.methods_[m].load(std::memory_order_acquire);
      if (from == nullptr) continue;
      MethodTotals& to = out.methods[m];
      for (size_t code = 0; code < kStatusCodes; ++code) to.codes[code] += from->codes[code].Read();
      from->latency.AddTo(to.latency);
      to.bytes_received += from->bytes_received.Read();
      to.bytes_sent += from->bytes_sent.Read();
      to.messages_received += from->messages_received.Read();
      to.messages_sent += from->messages_sent.Read();
    }
    for (size_t t = 0; t < out.transports.size(); ++t) {
      const TransportCounters& from = shard.transports_[t];
      TransportTotals& to = out.transports[t];
      to.connections_accepted += from.connections_accepted.Read();
      to.connections_closed += from.connections_closed.Read();
      to.connections_refused += from.connections_refused.Read();
      to.streams_accepted += from.streams_accepted.Read();
      to.streams_closed += from.streams_closed.Read();
      to.sheds += from.sheds.Read();
    }
  });
  return out;
}

}  // namespace sluice::common
