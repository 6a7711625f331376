// HoldList: the holds of one slot bucket in the order of their ends, and found by id.
//
// Holds are cut into chunks, each with the sum of its permits, so that a decision passes over a
// chunk by reading its sum: with 10,000 holds it looks at some 160 sums and 64 holds. A grant or a
// renewal usually ends last, and then it is added to the last chunk.
//
// Not thread-safe; never blocks.
#ifndef SLUICE_SERVER_ALGORITHM_HOLD_LIST_H_
#define SLUICE_SERVER_ALGORITHM_HOLD_LIST_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"

namespace sluice::algorithm {

// The permits that one acquisition holds until end_ns, not including that moment.
struct Hold {
  int64_t end_ns = 0;
  uint64_t id = 0;  // of its receipt
  uint64_t permits = 0;

  friend bool operator==(const Hold&, const Hold&) = default;
};

class HoldList {
 public:
  bool empty() const { return chunks_.empty(); }
  size_t size() const { return ends_.size(); }
  // Of all holds.
  uint64_t permits() const { return permits_; }
  const Hold& front() const { return chunks_.front().holds.front(); }
  const Hold& back() const { return chunks_.back().holds.back(); }

  // Adds it behind all holds of the same end. REQUIRES: no hold has its id; the permits of all
  // holds fit in 64 bits.
  void Add(const Hold& hold);
  std::optional<Hold> Find(uint64_t id) const;
  // Returns the hold that was removed. nullopt: there is none of that id.
  std::optional<Hold> Remove(uint64_t id);
  // Removes the holds that end up to now_ns, at most `most` of them. Returns how many.
  size_t RemoveEnded(int64_t now_ns, size_t most = std::numeric_limits<size_t>::max());
  void Clear();

  // The number and the permits of the holds that end up to now_ns.
  struct Ended {
    size_t holds = 0;
    uint64_t permits = 0;
  };
  Ended EndedUpTo(int64_t now_ns) const;
  // The end of the first hold that, with those before it, has that many permits. REQUIRES: all
  // holds together have as many.
  int64_t EndOfPermits(uint64_t permits) const;
  // The first end after now_ns; nullopt: there is none.
  std::optional<int64_t> FirstEndAfter(int64_t now_ns) const;

  // How many holds come before that of the id; size() if there is none.
  size_t RankOf(uint64_t id) const;

  // Calls visit(hold) for each of `count` holds behind the first `skip` ones, in order.
  template <typename Visit>
  void ForEach(Visit visit, size_t skip = 0,
               size_t count = std::numeric_limits<size_t>::max()) const {
    for (const Chunk& chunk : chunks_) {
      if (skip >= chunk.holds.size()) {
        skip -= chunk.holds.size();
        continue;
      }
      for (; skip < chunk.holds.size(); ++skip) {
        if (count-- == 0) return;
        visit(chunk.holds[skip]);
      }
      skip = 0;
    }
  }

  size_t MemoryBytes() const;

 private:
  static constexpr size_t kMaxPerChunk = 64;

  struct Chunk {
    uint64_t permits = 0;
    std::vector<Hold> holds;
  };
  struct Position {
    size_t chunk = 0;
    size_t index = 0;
  };

  // The first chunk whose last end is after end_ns; chunks_.size() if there is none.
  size_t FirstChunkAfter(int64_t end_ns) const;
  // REQUIRES: there is a hold of that id and end.
  Position PositionOf(uint64_t id, int64_t end_ns) const;
  // Makes one chunk of this and the next one, if both together are small.
  void MergeWithNext(size_t chunk);

  std::vector<Chunk> chunks_;  // none is empty
  uint64_t permits_ = 0;
  // By id. A tree, since a hash table of a million holds grows in one step of 30 ms.
  absl::btree_map<uint64_t, int64_t> ends_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_HOLD_LIST_H_
