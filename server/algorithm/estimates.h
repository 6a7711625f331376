// Estimates: the acquisitions of one bucket whose callers say later how many permits their work
// took (settle_within), and what was settled.
//
// A settlement that says less than was asked for gives back a part of the acquisition, as a refund
// does (open_receipts.h has what it is worth). One that says more is a forced debit of the excess.
// The estimate itself is only the account of it. So it stays when its receipt has become worthless,
// and when the bucket was reset or has got another algorithm: its excess is still charged.
//
//   asked 10                    state kOpen
//   settle(4, more)             nothing changes: nothing is given back before the end
//   settle(13, more)            kContinued: 3 permits beyond what was asked so far are forced
//   settle(15)                  kSettled: 2 more; changed == 5, as far as the bucket counted them
//   settle(15) again            the same answer; any other actual: already settled
//
// An estimate is kept for kKeptNs after its end, so that a call that is repeated is answered alike.
// Those that are over are removed a few at a time: when others begin, and once none is kept.
//
// Not thread-safe; never blocks. Moments are nanoseconds of the bucket's clock.
#ifndef SLUICE_SERVER_ALGORITHM_ESTIMATES_H_
#define SLUICE_SERVER_ALGORITHM_ESTIMATES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"

namespace sluice::algorithm {

struct Estimate {
  // How long it is kept after its end.
  static constexpr int64_t kKeptNs = 600'000'000'000;

  enum class State : uint64_t {
    kOpen = 0,
    kContinued,  // settled, and the work goes on
    kSettled,
    kLate,  // settled after the end
    kRefunded,
  };

  uint64_t id = 0;  // of its receipt
  uint64_t asked = 0;
  uint64_t actual = 0;   // as it was settled last
  uint64_t changed = 0;  // whole permits given back, if actual <= asked; else charged
  int64_t end_ns = 0;
  uint64_t within_ns : 56 = 0;
  State state : 8 = State::kOpen;

  bool closed() const { return state != State::kOpen && state != State::kContinued; }
  // When it is forgotten.
  int64_t kept_until_ns() const {
    return end_ns > std::numeric_limits<int64_t>::max() - kKeptNs
               ? std::numeric_limits<int64_t>::max()
               : end_ns + kKeptNs;
  }
  // Permits taken or forced so far, and those forgiven.
  uint64_t asked_so_far() const { return state == State::kOpen ? asked : std::max(asked, actual); }

  friend bool operator==(const Estimate&, const Estimate&) = default;
};

// In the order of their ids, in chunks, so that no step touches more than a few of them.
class Estimates {
 public:
  // Null: there is none.
  const Estimate* Find(uint64_t id) const;
  Estimate* Find(uint64_t id) {
    return const_cast<Estimate*>(static_cast<const Estimates&>(*this).Find(id));
  }

  // REQUIRES: there is none of that id. Ends the use of pointers to others.
  Estimate& Add(const Estimate& estimate);
  // To be called when an estimate has a new end.
  void NoteEnd(const Estimate& estimate) {
    kept_until_ns_ = std::max(kept_until_ns_, estimate.kept_until_ns());
  }

  // Removes some of those that are no longer kept, one chunk's, after a call of `removed` for each.
  void RemoveSome(int64_t now_ns, absl::FunctionRef<void(const Estimate&)> removed);
  // Whether any is still kept. May also be true if only removed ones would be.
  bool AnyKept(int64_t now_ns) const { return now_ns <= kept_until_ns_; }

  // None is kept behind it.
  int64_t kept_until_ns() const { return kept_until_ns_; }

  // Adds by_ns to all moments.
  void Move(int64_t by_ns);

  size_t size() const { return size_; }
  size_t MemoryBytes() const {
    // Nodes of the tree are half full to full.
    return sizeof(*this) + chunks_.size() * 2 * sizeof(Chunks::value_type) +
           capacity_ * sizeof(Estimate);
  }

  // In the order of their ids: those from `first` on, up to `until` without it.
  template <typename Visit>
  void ForEach(Visit visit, uint64_t first = 0,
               uint64_t until = std::numeric_limits<uint64_t>::max()) const {
    for (auto chunk = ChunkOf(first); chunk != chunks_.end(); ++chunk) {
      for (const Estimate& estimate : chunk->second) {
        if (estimate.id >= until) return;
        if (estimate.id >= first) visit(estimate);
      }
    }
  }

 private:
  static constexpr size_t kChunk = 64;
  using Chunk = std::vector<Estimate>;
  // Each by the least id that it may have; none is empty. A tree, since a list of all chunks would
  // be moved for each that comes or goes.
  using Chunks = absl::btree_map<uint64_t, Chunk>;

  // The chunk that would have it, or else one behind it.
  Chunks::const_iterator ChunkOf(uint64_t id) const;
  // Makes one chunk of this and the next one if both together are small. Returns this one.
  Chunks::iterator JoinWithNext(Chunks::iterator chunk);

  Chunks chunks_;
  size_t size_ = 0;
  size_t capacity_ = 0;  // of all chunks
  uint64_t next_ = 0;    // RemoveSome looks at the first chunk from this key on
  int64_t kept_until_ns_ = std::numeric_limits<int64_t>::min();
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_ESTIMATES_H_
