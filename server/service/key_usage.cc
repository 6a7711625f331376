#include "server/service/key_usage.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace sluice::service {

void KeyUsage::Advance(int64_t now_ns, int64_t wall_ns) {
  if (begun_wall_ns_ != 0 && now_ns - begun_ns_ < kPeriodNs) return;
  if (begun_wall_ns_ == 0) {
    since_wall_ns_.store(wall_ns, std::memory_order_relaxed);
  } else {
    since_wall_ns_.store(begun_wall_ns_, std::memory_order_relaxed);
    period_.fetch_add(1, std::memory_order_relaxed);
  }
  begun_ns_ = now_ns;
  begun_wall_ns_ = wall_ns;
}

void KeyUsage::Turn(Sketches& sketches, uint32_t period) {
  const bool follows = period == sketches.period + 1;
  sketches.period = period;
  std::swap(sketches.running, sketches.before);
  sketches.running.missed_used = sketches.missed_used.value();
  sketches.running.missed_denied = sketches.missed_denied.value();
  for (Period* old : {&sketches.running, follows ? nullptr : &sketches.before}) {
    if (old == nullptr) continue;
    old->used.Clear();
    old->denied.Clear();
  }
}

KeyUsage::Top KeyUsage::MostUsed(KeyOrder order, uint32_t wanted, size_t most) const {
  using Bucket = std::pair<uint32_t, std::string>;
  absl::flat_hash_map<Bucket, uint64_t> counts;
  Top top;
  top.guaranteed = kCounters / 2;
  top.since_wall_ns = since_wall_ns_.load(std::memory_order_relaxed);
  uint64_t error = 0;
  const bool used = order == KeyOrder::kUse;
  const auto add = [&](const Period& period) {
    const FrequentKeys& sketch = used ? period.used : period.denied;
    error += sketch.offset();
    top.total += sketch.total();
    sketch.ForEach([&](uint64_t, uint32_t limit_id, std::string_view key, uint64_t count) {
      if (wanted != kAllLimits && wanted != limit_id) return;
      counts[Bucket(limit_id, std::string(key))] += count;
    });
  };
  sketches_.ForEach([&](Sketches& sketches) {
    common::MutexLock lock(&sketches.mu);
    // The thread may not have recorded since a period or two began.
    const uint32_t age = period_.load(std::memory_order_relaxed) - sketches.period;
    if (age > 1) return;
    const Period& oldest = age == 0 ? sketches.before : sketches.running;
    const uint64_t missed = used ? sketches.missed_used.value() - oldest.missed_used
                                 : sketches.missed_denied.value() - oldest.missed_denied;
    error += missed;
    top.total += missed;
    add(sketches.running);
    if (age == 0) add(sketches.before);
  });
  top.keys.reserve(counts.size());
  for (auto& [bucket, count] : counts) {
    top.keys.push_back({bucket.first, bucket.second, count + error, error});
  }
  const auto more = [](const Key& a, const Key& b) {
    if (a.estimate != b.estimate) return a.estimate > b.estimate;
    return std::tie(a.limit_id, a.key) < std::tie(b.limit_id, b.key);
  };
  const size_t kept = std::min(most, top.keys.size());
  std::partial_sort(top.keys.begin(), top.keys.begin() + static_cast<std::ptrdiff_t>(kept),
                    top.keys.end(), more);
  top.keys.resize(kept);
  return top;
}

}  // namespace sluice::service
