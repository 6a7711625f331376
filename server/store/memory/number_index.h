// NumberIndex: finds numbered entries by the hashes of their ids. Private to the memory store.
//
// A hash table of groups, each a line of the cache: 15 places and a count. An entry is in the group
// that its hash names, or in a later one if that was full; then each group that it passed counts it
// (the overflow counts of F14, engineering.fb.com/2019/04/25/developer-tools/f14). So a lookup
// usually touches one line, and a place is free again as soon as its entry is erased, which a table
// that is full of short-lived entries needs. The table does not read ids: a place holds 8 bits of
// the hash and 24 of the number.
#ifndef SLUICE_SERVER_STORE_MEMORY_NUMBER_INDEX_H_
#define SLUICE_SERVER_STORE_MEMORY_NUMBER_INDEX_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace sluice::store::memory {

// Not thread-safe. At most 2^24 entries.
class NumberIndex {
 public:
  // Numbers are told apart modulo 2^24.
  static constexpr uint32_t kNumberMask = (uint32_t{1} << 24) - 1;

  // Returns the number for which same(number) is true, among those that were inserted with this
  // hash, and with few others.
  template <typename Same>
  std::optional<uint32_t> Find(uint64_t hash, Same same) const {
    const EntryPlace found =
        FindPlace(hash, [&](uint32_t place) { return same(place & kNumberMask); });
    if (found.group == groups_.size()) return std::nullopt;
    return groups_[found.group].places[found.index] & kNumberMask;
  }

  // REQUIRES: !Full().
  void Insert(uint64_t hash, uint32_t number) {
    ++size_;
    for (size_t i = First(hash);; i = Next(i)) {
      Group& group = groups_[i];
      const auto free = std::find(group.places.begin(), group.places.end(), 0);
      if (free != group.places.end()) {
        *free = TagOf(hash) | (number & kNumberMask);
        return;
      }
      ++group.passed;
    }
  }

  // Does nothing if the number is not there.
  void Erase(uint64_t hash, uint32_t number) {
    const uint32_t erased = TagOf(hash) | (number & kNumberMask);
    const EntryPlace found = FindPlace(hash, [&](uint32_t place) { return place == erased; });
    if (found.group == groups_.size()) return;
    for (size_t i = First(hash); i != found.group; i = Next(i)) --groups_[i].passed;
    groups_[found.group].places[found.index] = 0;
    --size_;
  }

  // True at first, and until Clear makes room.
  bool Full() const { return size_ >= kMeant * groups_.size(); }
  size_t size() const { return size_; }

  // Erases all, and makes room for `entries`; none: frees the memory.
  void Clear(size_t entries) {
    size_t groups = entries > 0 ? 1 : 0;
    while (kMeant * groups < entries) groups *= 2;
    std::vector<Group>(groups).swap(groups_);
    size_ = 0;
  }

  // Loads the line that a hash names.
  void Prefetch(uint64_t hash) const {
    if (!groups_.empty()) __builtin_prefetch(&groups_[First(hash)]);
  }

  size_t memory_bytes() const { return groups_.capacity() * sizeof(Group); }

 private:
  struct alignas(64) Group {
    uint32_t passed = 0;  // entries that are in later groups since this one was full
    std::array<uint32_t, 15> places = {};  // 0: free
  };
  static_assert(sizeof(Group) == 64);
  // Entries of a group, on average, in a full table: more than 15 in few of them.
  static constexpr size_t kMeant = 12;

  struct EntryPlace {
    size_t group;  // groups_.size(): there is none
    size_t index;
  };

  template <typename Same>
  EntryPlace FindPlace(uint64_t hash, Same same) const {
    const uint32_t tag = TagOf(hash);
    size_t i = First(hash);
    for (size_t left = groups_.size(); left > 0; --left, i = Next(i)) {
      const Group& group = groups_[i];
      for (size_t j = 0; j < group.places.size(); ++j) {
        if ((group.places[j] & ~kNumberMask) == tag && same(group.places[j])) return {i, j};
      }
      if (group.passed == 0) break;
    }
    return {groups_.size(), 0};
  }

  // Not 0, so that no place in use is 0. Shards take the highest bits of a hash, groups the lowest.
  static uint32_t TagOf(uint64_t hash) {
    return static_cast<uint32_t>(1 + (hash >> 40) % 255) << 24;
  }
  size_t First(uint64_t hash) const { return hash & (groups_.size() - 1); }
  size_t Next(size_t group) const { return (group + 1) & (groups_.size() - 1); }

  std::vector<Group> groups_;  // a power of two, or none
  size_t size_ = 0;
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_NUMBER_INDEX_H_
