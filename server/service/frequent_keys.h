// FrequentKeys: finds the keys with the most weight in a stream, in bounded memory. A Misra-Gries
// sketch for weighted items, purged by its median (Misra and Gries 1982; the purge as in Anderson
// et al. 2017, "A high-performance algorithm for identifying frequent items in data streams").
//
// Algorithm. There are K counters. The weight of a key with a counter is added to it; a new key
// takes a free counter. If none is free, a purge subtracts the median of all counters from each of
// them and frees those that fall to 0; `offset` is the sum of all medians subtracted so far. A
// key's true weight lies within [count, count + offset], and a key without a counter has at most
// `offset`.
//
// Error. A purge by c removes c from at least half of the counters, so at least c*K/2 of the total
// weight: offset <= 2/K of the total. So every key with more than 2/K of the total has a counter.
// Names of keys have a bounded room, too. When it is full, a purge frees the lower half of the
// counters in use, so in a stream of the longest keys K is 256 instead of 1024.
// Sketches of several streams can be added up, counts by key and offsets, and the bound holds for
// the sum.
//
// Why not Space-Saving: it has the same kind of bound with half the counters, but keeps them
// ordered, so each new key costs a walk down a heap; here a new key costs its share of a purge.
//
// Example, K = 4: a 5, b 3, c 1, d 1, then e 2. No counter is free. The sorted counts are 1 1 3 5,
// so the upper median is 3. Subtract it: a has 2, the others are freed, offset is 3; then e has 2.
// True weights: a 5 in [2, 5], e 2 in [2, 5], b 3 in [0, 3].
#ifndef SLUICE_SERVER_SERVICE_FREQUENT_KEYS_H_
#define SLUICE_SERVER_SERVICE_FREQUENT_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "common/bounds.h"

namespace sluice::service {

// Not thread-safe. Allocates only for the first long key.
class FrequentKeys {
 public:
  // Rounded up to a power of two; 4 to 32768.
  explicit FrequentKeys(size_t counters = 1024);

  // `hash` is of (limit_id, key), by the same function in all sketches that are added up. Keys of
  // more than bounds::kMaxKeyBytes are cut.
  void Add(uint64_t hash, uint32_t limit_id, std::string_view key, uint64_t weight);

  // Forgets all keys and weights. Keeps the room that keys took.
  void Clear();

  // Visits (hash, limit_id, key, count).
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > 0) visit(hashes_[i], keys_[i].limit_id, KeyAt(i), counts_[i]);
    }
  }

  size_t counters() const { return counts_.size(); }
  uint64_t offset() const { return offset_; }
  // All weight added. Saturates.
  uint64_t total() const { return total_; }

 private:
  static constexpr size_t kShortBytes = 16;

  struct Key {
    uint32_t limit_id = 0;
    uint32_t bytes = 0;
    std::array<char, kShortBytes> short_key = {};  // of a long key: its place in long_keys_
  };

  std::string_view KeyAt(size_t counter) const {
    const Key& key = keys_[counter];
    const char* const text =
        key.bytes <= kShortBytes ? key.short_key.data() : long_keys_.get() + LongKeyAt(key);
    return {text, key.bytes};
  }
  static uint32_t LongKeyAt(const Key& key) {
    uint32_t at;
    std::memcpy(&at, key.short_key.data(), sizeof at);
    return at;
  }
  bool HasRoomFor(std::string_view key) const {
    return key.size() <= kShortBytes || key.size() <= LongKeysBytes() - long_keys_end_;
  }
  // A quarter of what the longest keys would take.
  size_t LongKeysBytes() const { return keys_.size() * common::bounds::kMaxKeyBytes / 4; }
  void SetKey(size_t counter, std::string_view key);
  void Purge();
  // Of the counters in use.
  uint64_t UpperMedian();
  void CompactLongKeys();
  void Place(uint16_t counter);

  // Counter i is element i of these three. In a stream without frequent keys purges are frequent,
  // so the numbers that a purge and a search read lie close together.
  std::vector<uint64_t> counts_;  // 0: free
  std::vector<uint64_t> hashes_;
  std::vector<Key> keys_;
  // One behind the other, in one block: among the memory of calls, each would keep a page of it.
  // Those of counters that were freed are dropped by the next purge.
  std::unique_ptr<char[]> long_keys_;
  size_t long_keys_end_ = 0;
  std::vector<uint16_t> free_;
  // Open addressing: index of a counter plus 1; 0: empty. At most a quarter full.
  std::vector<uint16_t> slots_;
  std::vector<uint64_t> sorted_;  // used by a purge
  uint64_t offset_ = 0;
  uint64_t total_ = 0;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_FREQUENT_KEYS_H_
