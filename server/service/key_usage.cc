#include "server/service/key_usage.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace sluice::service {

KeyUsage::Top KeyUsage::MostUsed(KeyOrder order, uint32_t wanted, size_t most) const {
  using Bucket = std::pair<uint32_t, std::string>;
  absl::flat_hash_map<Bucket, uint64_t> counts;
  Top top;
  top.guaranteed = kCounters / 2;
  uint64_t error = 0;
  sketches_.ForEach([&](Sketches& sketches) {
    const uint64_t missed =
        (order == KeyOrder::kUse ? sketches.missed_used : sketches.missed_denied).value();
    common::MutexLock lock(&sketches.mu);
    const FrequentKeys& sketch = order == KeyOrder::kUse ? sketches.used : sketches.denied;
    error += sketch.offset() + missed;
    top.total += sketch.total() + missed;
    sketch.ForEach([&](uint64_t, uint32_t limit_id, const std::string& key, uint64_t count) {
      if (wanted != kAllLimits && wanted != limit_id) return;
      counts[Bucket(limit_id, key)] += count;
    });
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
