// SharingState: what all event loops of a store share in order to decide without Redis.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_SHARING_STATE_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_SHARING_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/store/redis/sharing/local_buckets.h"
#include "server/store/redis/sharing/node_registry.h"

namespace sluice::store::redis {

// Permits that relaxed limits granted beyond what their buckets held. Thread-safe.
class Overshoot {
 public:
  void Add(uint32_t limit_id, uint64_t permits) {
    common::MutexLock lock(&mu_);
    permits_[limit_id] += permits;
  }
  uint64_t Of(uint32_t limit_id) const {
    common::MutexLock lock(&mu_);
    const auto found = permits_.find(limit_id);
    return found == permits_.end() ? 0 : found->second;
  }

 private:
  mutable common::Mutex mu_;
  absl::flat_hash_map<uint32_t, uint64_t> permits_ ABSL_GUARDED_BY(mu_);
};

struct SharingState {
  static constexpr size_t kMaxLocalBuckets = size_t{1} << 20;

  // Both tables together have at most so many bytes. Unless this is called, each has at most
  // LocalBuckets::kDefaultMaxBytes. Any thread.
  void SetMaxLocalBytes(size_t bytes) {
    split.SetMaxBytes(bytes / 2);
    unavailable.SetMaxBytes(bytes / 2);
  }

  int64_t node_ttl_ns = 0;
  size_t loops = 0;
  LocalBuckets split{kMaxLocalBuckets};        // of limits with sharing: split
  LocalBuckets unavailable{kMaxLocalBuckets};  // of on_store_failure: split, while it is
  Overshoot overshoot;
  std::unique_ptr<NodeRegistry> nodes;  // set before the loops run
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_SHARING_STATE_H_
