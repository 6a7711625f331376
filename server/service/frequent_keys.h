// FrequentKeys: the keys with the most weight of a stream, in bounded memory. A Misra-Gries
// sketch for weighted items, purged by its median (Misra and Gries 1982; the purge as in Anderson
// et al. 2017, "A high-performance algorithm for identifying frequent items in data streams").
//
// How. There are K counters. A key that has one gets its weight added; a new key takes a free one.
// When none is free, the median of all counters is subtracted from each, those that fall to
// nothing are freed, and the sum of what was subtracted, `offset`, is remembered. A key's true
// weight lies within [count, count + offset], and a key without a counter has at most `offset`.
//
// Its error. Each purge by c takes c from at least half of the counters, so at least c*K/2 of the
// total weight is gone for it: offset <= 2/K of the total. So every key with more than 2/K of the
// total has a counter. Sketches of several streams add up: counts by key, offsets too, and the
// bound holds for the sum.
//
// Why not Space-Saving: it has the same kind of bound with half the counters, but keeps them
// ordered, which costs each new key a walk down a heap; here a new key costs its share of a purge.
//
// Example, K = 4: a 5, b 3, c 1, d 1, then e 2. None is free: the counts sorted are 1 1 3 5, the
// upper median is 3. Subtract: a 2, the others are freed, offset 3; then e 2. True weights: a 5 in
// [2, 5], e 2 in [2, 5], b 3 in [0, 3].
#ifndef SLUICE_SERVER_SERVICE_FREQUENT_KEYS_H_
#define SLUICE_SERVER_SERVICE_FREQUENT_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::service {

// Not thread-safe. Allocates only for a key longer than any that its counter had before.
class FrequentKeys {
 public:
  // Rounded up to a power of two; 4 to 32768.
  explicit FrequentKeys(size_t counters = 1024);

  // `hash` is of (limit_id, key), and the same for all sketches that are to be added up.
  void Add(uint64_t hash, uint32_t limit_id, std::string_view key, uint64_t weight);

  // Visits (hash, limit_id, key, count).
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > 0) visit(hashes_[i], keys_[i].limit_id, keys_[i].key, counts_[i]);
    }
  }

  size_t counters() const { return counts_.size(); }
  uint64_t offset() const { return offset_; }
  // All weight added. Saturates.
  uint64_t total() const { return total_; }

 private:
  struct Key {
    uint32_t limit_id = 0;
    std::string key;
  };

  void Purge();
  uint64_t UpperMedian();
  void Place(uint16_t counter);

  // A counter is a place in each of the three. Where no key is frequent all counters are purged
  // every so many keys, so what a purge and a search look at lies close together.
  std::vector<uint64_t> counts_;  // 0: free
  std::vector<uint64_t> hashes_;
  std::vector<Key> keys_;
  std::vector<uint16_t> free_;
  // Open addressing: index of a counter plus 1; 0: empty. At most a quarter full.
  std::vector<uint16_t> slots_;
  std::vector<uint64_t> sorted_;  // of a purge
  uint64_t offset_ = 0;
  uint64_t total_ = 0;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_FREQUENT_KEYS_H_
