// KnownFences: the last fence of each key that any loop of this process adopted.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_KNOWN_FENCES_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_KNOWN_FENCES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
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
    SlotFloors latest = *latest_;
    latest.floor_us = std::max(latest.floor_us, fence.floor_us);
    for (const auto& [limit, times] : fence.limits) {
      const int64_t hold_for_us = HoldForOf(limit);
      if (hold_for_us == 0) {
        latest.floor_us = std::max(latest.floor_us, times.Floor());
      } else if (times.Floor() > 0) {
        int64_t& end_us = latest.limits[HoldsEntryOfAny(hold_for_us)];
        end_us = std::max(end_us, times.Floor());
      }
    }
    if (latest != *latest_) latest_ = std::make_shared<const SlotFloors>(std::move(latest));
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

  // What a slot may have brought along whose note is not read yet: the latest floor of all fences
  // that were ever adopted, those of single limits included, and the ends of holds of all limits.
  std::shared_ptr<const SlotFloors> Latest() const {
    common::MutexLock lock(&mu_);
    return latest_;
  }

 private:
  mutable common::Mutex mu_;
  absl::flat_hash_map<std::string, Fence> fences_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const SlotFloors> latest_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<const SlotFloors>();
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_KNOWN_FENCES_H_
