// UsedReceipts: remembers the receipts that were refunded lately, so that a second refund is
// answered "already refunded", not "expired"; or those whose slots were settled, so that the same
// settlement is answered alike. Bounded: the oldest are forgotten.
#ifndef SLUICE_SERVER_STORE_USED_RECEIPTS_H_
#define SLUICE_SERVER_STORE_USED_RECEIPTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/mutex.h"

namespace sluice::store {

// Thread-safe.
class UsedReceipts {
 public:
  // Receipts that are remembered: more than clients have in flight, and 2 MB.
  static constexpr size_t kMost = size_t{1} << 16;

  void Add(uint64_t id) {
    common::MutexLock lock(&mu_);
    if (!ids_.insert(id).second) return;
    if (order_.size() < kMost) {
      order_.push_back(id);
      return;
    }
    ids_.erase(order_[next_]);
    order_[next_] = id;
    next_ = (next_ + 1) % kMost;
  }

  bool Contains(uint64_t id) const {
    common::MutexLock lock(&mu_);
    return ids_.contains(id);
  }

  // Oldest first.
  std::vector<uint64_t> All() const {
    common::MutexLock lock(&mu_);
    std::vector<uint64_t> all(order_.begin() + static_cast<std::ptrdiff_t>(next_), order_.end());
    all.insert(all.end(), order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(next_));
    return all;
  }

  uint64_t memory_bytes() const {
    common::MutexLock lock(&mu_);
    return order_.capacity() * sizeof(uint64_t) + ids_.capacity() * (sizeof(uint64_t) + 1);
  }

 private:
  mutable common::Mutex mu_;
  absl::flat_hash_set<uint64_t> ids_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> order_ ABSL_GUARDED_BY(mu_);  // a ring, oldest at next_ once it is full
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_USED_RECEIPTS_H_
