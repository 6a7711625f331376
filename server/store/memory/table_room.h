// TableRoom: divides the room of the memory store's table between the limits, so that the keys of
// one limit cannot use it up for all.
//
// Half of the table is reserved. A limit with min_keys has the worst-case room of so many keys; the
// other limits have equal parts of what is left. A part is never lent: a bucket of a daily limit
// that borrowed it could not be returned for a day. All limits share the other half. So a limit may
// have one more bucket iff it stays within its own part, or if what all limits use beyond their
// parts stays within the shared rest.
//
// Example: room for 100 buckets, two limits, each with a part of 25. The first may have 75: its 25
// and the shared 50. Then the second still has its 25. A third limit comes: the parts are 16 now,
// and the rest is 52. The first uses 59 beyond its part: its 75 stay, but it gets no more until it
// has fewer than 68. Meanwhile the third takes its part as far as there is room in the table at
// all.
//
// A maker (store::BucketMaker) with a share of less than the whole gets room beyond the reserved
// part of a limit only while all the buckets that it made take less than its share of the rest. So
// it cannot use up what all limits share, however its buckets are divided between them.
//
// Parts change when limits come, go, or are held by no table of limits any more (RuleRegistry says
// so). They are computed when they are needed, since a reload of 100,000 limits changes them
// 100,000 times.
#ifndef SLUICE_SERVER_STORE_MEMORY_TABLE_ROOM_H_
#define SLUICE_SERVER_STORE_MEMORY_TABLE_ROOM_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/store/rule.h"
#include "server/store/store.h"

namespace sluice::store::memory {

// Thread-safe. Its mutex is held for nanoseconds, but for the time that it takes to compute all
// parts: some nanoseconds for each limit.
class TableRoom {
 public:
  // The room of one limit's buckets. Numbers are bytes; buckets if the table is not bounded in
  // bytes.
  struct Part {
    const uint32_t limit_id;
    // Guarded by the room's mutex.
    uint64_t used = 0;
    uint64_t reserved = 0;
    std::optional<uint64_t> min_keys = {};
    uint32_t rules = 0;  // that have joined and not left
    // Of each of these that a table of limits holds: the worst-case room of a key, by its min_keys.
    std::map<std::optional<uint64_t>, std::multiset<uint64_t>> per_key = {};
    // Whether it uses more than is reserved for it.
    std::atomic<bool> beyond{false};
  };

  // max_bytes 0: only the number of buckets is bounded.
  TableRoom(uint64_t max_buckets, uint64_t max_bytes);

  // The part of the rule's limit; the rule is held.
  std::shared_ptr<Part> Join(const Rule& rule);
  // A table of limits holds one of the limit's rules again, or no longer.
  void SetHeld(Part& part, const Rule& rule, bool held);
  // To be called once for each Join, when the rule is forgotten. REQUIRES: it is not held.
  void Leave(const Part& part);

  // Computes the parts if limits have come or gone.
  void Refresh();

  enum class Taken : uint8_t { kYes, kNoRoom, kShareUsedUp };
  // Takes the room of a new bucket, and gives it back. `key_bytes`: the length of its key. Give's
  // `maker` is the number of Take's. `beyond`: whether it may be beyond the part of the limit.
  Taken Take(Part& part, size_t key_bytes, const BucketMaker& maker = {}, bool beyond = true);
  void Give(Part& part, size_t key_bytes, uint16_t maker = 0);
  // Takes the room of a bucket that was saved: from what all limits share too, whatever the parts
  // are now. Returns false if the whole table has none.
  bool TakeSaved(Part& part, size_t key_bytes);
  // To be called when the state of a bucket of this maker has grown or shrunk.
  void Grow(Part& part, int64_t bytes, uint16_t maker = 0);

  // Whether this maker should not let the limit's buckets grow: the limit uses more than its part,
  // and the shared rest, or the maker's share of it, is used up.
  bool Full(const Part& part, const BucketMaker& maker = {}) {
    if (!part.beyond.load(std::memory_order_relaxed)) return false;
    if (rest_used_up_.load(std::memory_order_relaxed)) return true;
    if (maker.number == 0) return false;
    if (PercentOf(maker.number) != maker.percent) NoteShare(maker);
    return ShareUsedUp(maker.number);
  }

  // The most bytes that a key takes, without open receipts and bookings, which have bounds of their
  // own (bounds.h).
  static uint64_t MaxBytesPerKey(const algorithm::Parameters& parameters, uint64_t max_owed = 0);
  // What all limits together may reserve, in bytes; 0: the table is not bounded in bytes.
  uint64_t ReservableBytes() const { return max_bytes_ / 2; }

 private:
  // What a key of the rule takes at most.
  uint64_t PerKey(const Rule& rule) const;
  // The room of a bucket without its state.
  uint64_t CostOf(size_t key_bytes) const;
  void ComputeParts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static uint64_t Beyond(const Part& part) {
    return part.used > part.reserved ? part.used - part.reserved : 0;
  }
  void SetUsed(Part& part, uint64_t used) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds to what the buckets of this maker use; negative numbers wrap around.
  void CountFor(uint16_t maker, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The maker's share has changed.
  void NoteShare(const BucketMaker& maker);
  void SetShare(const BucketMaker& maker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether what it made takes more than its share.
  void JudgeShare(uint16_t maker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    SetShare({.number = maker, .percent = PercentOf(maker)});
  }
  uint64_t ShareOf(uint8_t percent) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return rest_ / 100 * percent + rest_ % 100 * percent / 100;
  }
  uint8_t PercentOf(uint16_t maker) const {
    const uint8_t share = shares_[maker].load(std::memory_order_relaxed);
    return static_cast<uint8_t>(100 - (share & ~kUsedUp));
  }
  bool ShareUsedUp(uint16_t maker) const {
    return (shares_[maker].load(std::memory_order_relaxed) & kUsedUp) != 0;
  }

  const uint64_t max_bytes_;
  // Each bucket counts as at least that much, so that there are never more than max_buckets.
  const uint64_t least_cost_;
  const uint64_t size_;  // of the whole table
  std::atomic<bool> rest_used_up_{false};
  // Of each maker: what its share lacks of the whole, in hundredths, and kUsedUp. Changed with mu_
  // held.
  static constexpr uint8_t kUsedUp = 0x80;
  std::array<std::atomic<uint8_t>, size_t{UINT16_MAX} + 1> shares_ = {};

  common::Mutex mu_;
  absl::flat_hash_map<uint32_t, std::shared_ptr<Part>> parts_ ABSL_GUARDED_BY(mu_);
  bool stale_ ABSL_GUARDED_BY(mu_) = false;   // the parts are to be computed
  uint64_t rest_ ABSL_GUARDED_BY(mu_);        // what limits share
  uint64_t beyond_ ABSL_GUARDED_BY(mu_) = 0;  // what all limits use beyond their parts
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;    // what all limits use
  // By number of the maker: what all buckets that it made use.
  std::vector<uint64_t> used_by_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_TABLE_ROOM_H_
