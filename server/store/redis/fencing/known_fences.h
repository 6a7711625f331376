// KnownFences: the last fence of each key that any loop of this process adopted.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_KNOWN_FENCES_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_KNOWN_FENCES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/store/redis/fencing/fence.h"

namespace sluice::store::redis {

// Thread-safe.
class KnownFences {
 public:
  std::optional<Fence> Get(const std::string& key) const {
    common::MutexLock lock(&mu_);
    const auto found = fences_.find(key);
    if (found == fences_.end()) return std::nullopt;
    return found->second;
  }

  // Keys and fences.
  std::vector<std::pair<std::string, Fence>> All() const {
    common::MutexLock lock(&mu_);
    return {fences_.begin(), fences_.end()};
  }

  // False: another loop has adopted a later one; everything is to be read again.
  bool Adopt(const std::string& key, const Fence& fence) {
    common::MutexLock lock(&mu_);
    const auto [known, is_new] = fences_.try_emplace(key, fence);
    if (!is_new && !fence.Same(known->second) && fence.number <= known->second.number) {
      return false;
    }
    // Other loops may have raised it since it was read.
    const Fence before = std::exchange(known->second, fence);
    if (fence.Same(before) && fence.raises < before.raises) known->second = before;
    // Only moved: what was promised still holds.
    if (!fence.Same(before) && fence.floor_us == before.floor_us) known->second.Merge(before);
    int64_t floor_us = fence.floor_us;
    for (const auto& [limit, times] : fence.limits) floor_us = std::max(floor_us, times.Floor());
    if (floor_us > MaxFloorUs()) max_floor_us_.store(floor_us);
    return true;
  }

  // `fence` was read again: it may have been raised.
  void OnRaise(const std::string& key, const Fence& fence) {
    common::MutexLock lock(&mu_);
    const auto known = fences_.find(key);
    if (known == fences_.end() || !fence.Same(known->second)) return;
    if (fence.raises > known->second.raises) known->second = fence;
  }

  // Its server has its fence under another key now.
  void Forget(const std::string& key) {
    common::MutexLock lock(&mu_);
    fences_.erase(key);
  }

  // The greatest floor of all fences that were ever adopted, those of single limits included.
  int64_t MaxFloorUs() const { return max_floor_us_.load(std::memory_order_relaxed); }

 private:
  mutable common::Mutex mu_;
  absl::flat_hash_map<std::string, Fence> fences_ ABSL_GUARDED_BY(mu_);
  // The loop that adopts a fence sees its floor; other loops see it when they adopt the fence.
  std::atomic<int64_t> max_floor_us_{0};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_KNOWN_FENCES_H_
