// BucketIndex: finds, creates, converts and drops the records of a memory store.
//
// There are 4096 shards by hash. Each is an open-addressed table of 8-byte slots: 16 bits of the
// hash (the tag) over 48 bits of the record's address. Readers take no lock: they load the shard's
// table, read slots, and read the records whose tag fits. A shard changes only under its mutex. A
// shard that grows or shrinks gets a new table while readers use the old one, which is then
// retired. A table is small, so no resize takes long, and shards resize one by one.
//
// A record that has left its slot is marked dead before it is retired: a thread that found it
// earlier can no longer change it, and looks the key up again.
#ifndef SLUICE_SERVER_STORE_MEMORY_BUCKET_INDEX_H_
#define SLUICE_SERVER_STORE_MEMORY_BUCKET_INDEX_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/bounds.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/bucket_state.h"
#include "server/algorithm/calendar/calendar.h"
#include "server/algorithm/moment.h"
#include "server/algorithm/shared_rate.h"
#include "server/store/bucket_hash.h"
#include "server/store/memory/closed_slots.h"
#include "server/store/memory/epoch.h"
#include "server/store/memory/extents.h"
#include "server/store/memory/record.h"
#include "server/store/memory/rule_registry.h"
#include "server/store/memory/slab.h"
#include "server/store/memory/table_room.h"
#include "server/store/rule.h"

namespace sluice::store::memory {

// Thread-safe. Find takes no lock; the rest takes a shard's mutex, which is held for microseconds.
// What is returned is valid until the caller leaves its guard of epochs().
class BucketIndex {
 public:
  // max_bytes 0: only the number of buckets is bounded. `empty_since`: a bucket that does not exist
  // is not full, but as far as it has filled since it was empty at that moment. `closed`: of slots.
  BucketIndex(const common::Clock& clock, uint64_t max_buckets, uint64_t max_bytes, uint64_t seed,
              std::optional<algorithm::Moment> empty_since = std::nullopt, ClosedSlots closed = {});
  // REQUIRES: no thread uses it.
  ~BucketIndex();
  BucketIndex(const BucketIndex&) = delete;
  BucketIndex& operator=(const BucketIndex&) = delete;

  uint64_t Hash(const Rule& rule, std::string_view key) const { return hash_(rule.limit_id, key); }

  // Brings the slot of a hash into the cache.
  void PrefetchSlot(uint64_t hash) const {
    const uint64_t table = tables_[ShardOf(hash)].load(std::memory_order_acquire);
    __builtin_prefetch(SlotsOf(table) + StartOf(hash, CapacityOf(table)));
  }

  // The first record whose tag fits, which most likely is the right one: prefetch it before it is
  // read. May be null. REQUIRES: in a guard.
  Record* Candidate(uint64_t hash) const {
    return FindTag(hash, [](const Record*) { return true; });
  }

  // The bucket's record, if there is one and its state was computed by this very rule; else null.
  // REQUIRES: in a guard.
  Record* Find(uint64_t hash, const Rule& rule, std::string_view key) const {
    return FindTag(hash, [&](const Record* record) {
      return record->rule_id() == rule.id && record->HasKey(key);
    });
  }

  enum class Status : uint8_t {
    kFound,
    kAbsent,
    kStaleRule,
    kOverflow,
    kTooManyNew,
    kShareUsedUp,
    kHasDue,
  };
  struct Lookup {
    Status status = Status::kAbsent;
    Record* record = nullptr;  // kFound, kStaleRule
  };

  // Finds the bucket, creates it if there is none, converts it if its rule is older. kStaleRule:
  // its rule is newer. kOverflow: there is none, and no room for one. REQUIRES: in a guard. With
  // kYes it also drops full buckets that it finds, even one that was just created. Searches for
  // room that find none take from `budget` (null: there is no budget). Where it is spent, there is
  // no search. kTooManyNew: there is room, but nothing of the maker's rate is left. kShareUsedUp:
  // of its share of the room. kHasDue: its rule is older, and bookings are left to be folded before
  // it is converted; ask again.
  enum class MaySweep : bool { kNo = false, kYes = true };
  Lookup FindOrCreate(uint64_t hash, const Rule& rule, std::string_view key, int64_t now_ns,
                      MaySweep may_sweep, algorithm::SearchBudget* budget,
                      const BucketMaker& maker);
  // As above, but creates none: kAbsent.
  Lookup FindExisting(uint64_t hash, const Rule& rule, std::string_view key);

  // The state of a bucket that does not exist.
  algorithm::BucketState NewState(const Rule& rule) const {
    algorithm::BucketState state(rule.parameters);
    Exhaust(rule, &state);
    return state;
  }
  // Takes from a full bucket what it lacks since empty_since, if that was given. Closes slots.
  void Exhaust(const Rule& rule, algorithm::BucketState* state) const;
  std::optional<algorithm::Moment> empty_since() const { return empty_since_; }
  const ClosedSlots& closed_slots() const { return closed_slots_; }
  // Whether a bucket that does not exist may be less than full.
  bool lost_data() const { return empty_since_.has_value() || !closed_slots_.empty(); }
  // REQUIRES: no other thread uses the index.
  void SetEmptySince(algorithm::Moment moment, ClosedSlots closed) {
    empty_since_ = moment;
    closed_slots_ = std::move(closed);
  }

  // Decisions in the bucket's shard are not dated before this moment: up to it a bucket was dropped
  // as full, or a log or window was decided on. A thread that read the clock a little earlier must
  // not decide there as of that time. (Token buckets that exist need no such care: their invariant
  // holds in any order.)
  int64_t NotBefore(uint64_t hash) const {
    return shards_[ShardOf(hash)].not_before_ns.load(std::memory_order_acquire);
  }
  void SetNotBefore(uint64_t hash, int64_t now_ns) {
    RaiseNotBefore(shards_[ShardOf(hash)], now_ns);
  }

  // Moves what the state of a bucket owns away if that is much, to be freed by Maintain: an event
  // loop would need milliseconds.
  void FreeLater(algorithm::BucketState* state);
  // The same of the holds of slots, which are all to end.
  void FreeHoldsLater(algorithm::BucketState* state) {
    algorithm::BucketState holds = state->TakeHolds();
    FreeLater(&holds);
  }

  // Visits a bounded number of buckets, drops the full ones, shrinks tables that are mostly empty,
  // frees retired memory and large states, and moves memory to huge pages. Returns true while there
  // was something to do. May take milliseconds: not for event loops.
  bool Maintain();

  // One bucket, as it is saved. Pointers are valid during the visit.
  struct Saved {
    const Rule* rule = nullptr;
    std::string_view key;
    uint64_t tat = 0;                               // if `image` is null: it is a plain word
    const algorithm::BucketImage* image = nullptr;  // else
  };
  static constexpr size_t kParts = size_t{1} << 12;
  // Visits each bucket of one part (of kParts) that exists all the while; others perhaps. Holds the
  // part's mutex for microseconds, and a bucket only while it is copied. No bucket waits for the
  // visit. If a bucket is converted meanwhile, it may be visited twice; the later visit counts.
  // REQUIRES: not in a guard.
  void ForEachSaved(size_t part, absl::FunctionRef<void(const Saved&)> visit);
  // Puts a bucket into the table, in place of the one that exists. Returns false if there is no
  // room. REQUIRES: the rule is registered; no other thread uses the index.
  bool Restore(const Rule& rule, std::string_view key, uint64_t tat) {
    return RestoreWord(rule, key, Record::WordOf(tat));
  }
  bool Restore(const Rule& rule, std::string_view key, algorithm::BucketState state);

  // What a bucket's state adds to the totals.
  struct Counts {
    uint64_t bytes = 0;
    uint64_t receipts = 0;
    uint64_t bookings = 0;
  };
  static Counts CountsOf(const algorithm::BucketState& state) {
    return {state.MemoryBytes(), state.open_receipts(), state.bookings()};
  }
  // To be called when the state of a bucket has changed, come (`before` is {}) or gone. `maker`:
  // the bucket's.
  void Recount(const Rule& rule, uint16_t maker, const Counts& before, const Counts& after) {
    // Unsigned sums wrap: the total is right whatever the order.
    if (after.bytes != before.bytes) {
      state_bytes_.fetch_add(after.bytes - before.bytes, std::memory_order_relaxed);
      room_.Grow(*rules_.Find(rule.id)->part, static_cast<int64_t>(after.bytes - before.bytes),
                 maker);
    }
    if (after.receipts != before.receipts) {
      open_receipts_.fetch_add(after.receipts - before.receipts, std::memory_order_relaxed);
    }
    if (after.bookings != before.bookings) {
      bookings_.fetch_add(after.bookings - before.bookings, std::memory_order_relaxed);
      BookingsOf(rule).fetch_add(static_cast<uint32_t>(after.bookings - before.bookings),
                                 std::memory_order_relaxed);
    }
  }

  // Whether an operation of this maker should not let the states of the limit's buckets grow.
  bool Full(const Rule& rule, const BucketMaker& maker) {
    return room_.Full(*rules_.Find(rule.id)->part, maker);
  }

  RuleRegistry& rules() { return rules_; }
  EpochDomain& epochs() { return epochs_; }
  std::atomic<uint64_t>* lock_yields() const { return &lock_yields_; }

  uint64_t buckets() const { return buckets_.load(std::memory_order_relaxed); }
  uint64_t created() const { return created_.load(std::memory_order_relaxed); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // May be off for an instant while states change.
  uint64_t open_receipts() const {
    const uint64_t count = open_receipts_.load(std::memory_order_relaxed);
    return count >> 63 != 0 ? 0 : count;
  }
  // In all, and of a limit's buckets. May be off for an instant while states change.
  uint64_t bookings() const {
    const uint64_t count = bookings_.load(std::memory_order_relaxed);
    return count >> 63 != 0 ? 0 : count;
  }
  // Of kMaxBookings. `more`: bookings that are not counted yet; may wrap.
  uint64_t bookings_left(uint64_t more = 0) const {
    constexpr uint64_t kMost = common::bounds::kMaxBookings;
    return kMost - std::min(kMost, bookings() + more);
  }
  uint64_t bookings_of_limit(const Rule& rule) const {
    const uint32_t count = BookingsOf(rule).load(std::memory_order_relaxed);
    return count >> 31 != 0 ? 0 : count;
  }
  uint64_t memory_bytes() const;

 private:
  // Closes slots beside their holds, if closed_slots has the limit.
  void CloseSlots(const Rule& rule, algorithm::BucketState* state) const;
  // The same when a bucket is converted to slots: those that were closed stay so, and so do those
  // that the limit has more now.
  void KeepSlotsClosed(const algorithm::Parameters& from, const Rule& rule,
                       algorithm::BucketState* state) const;

  static constexpr int kShardBits = 12;
  static constexpr size_t kShards = size_t{1} << kShardBits;
  static_assert(kShards == kParts);
  static constexpr uint64_t kEmpty = 0;
  static constexpr uint64_t kTombstone = 1;  // was used: look on
  static constexpr uint64_t kAddressMask = (uint64_t{1} << 48) - 1;
  static constexpr size_t kMinCapacity = 8;

  // Kinds of what is retired.
  enum Retired : uint8_t { kRecord, kTable, kRule };

  // Used only to change the shard.
  struct alignas(64) Shard {
    common::Mutex mu;
    uint32_t live ABSL_GUARDED_BY(mu) = 0;
    uint32_t used ABSL_GUARDED_BY(mu) = 0;  // live and tombstones
    uint32_t sweep_next ABSL_GUARDED_BY(mu) = 0;
    // Never falls. Raised before a slot is emptied or a word is unlocked.
    std::atomic<int64_t> not_before_ns{0};
  };

  static void RaiseNotBefore(Shard& shard, int64_t now_ns) {
    int64_t seen = shard.not_before_ns.load(std::memory_order_relaxed);
    while (seen < now_ns &&
           !shard.not_before_ns.compare_exchange_weak(seen, now_ns, std::memory_order_release,
                                                      std::memory_order_relaxed)) {
    }
  }

  // A table is one word, so that readers load it at once: its capacity / 8 over the address of its
  // slots.
  static size_t CapacityOf(uint64_t table) { return (table >> 48) * 8; }
  static std::atomic<uint64_t>* SlotsOf(uint64_t table) {
    return reinterpret_cast<std::atomic<uint64_t>*>(table & kAddressMask);
  }
  static uint64_t TableOf(std::atomic<uint64_t>* slots, size_t capacity) {
    return reinterpret_cast<uintptr_t>(slots) | uint64_t{capacity / 8} << 48;
  }
  // Bits 52..63 choose the shard, 20..51 the slot, 0..15 are the tag.
  static size_t ShardOf(uint64_t hash) { return hash >> (64 - kShardBits); }
  static size_t StartOf(uint64_t hash, size_t capacity) {
    return (uint64_t{static_cast<uint32_t>(hash >> 20)} * capacity) >> 32;
  }
  static uint64_t TagOf(uint64_t slot) { return slot >> 48; }
  static uint64_t TagOfHash(uint64_t hash) { return hash & 0xffff; }
  static Record* RecordOf(uint64_t slot) { return reinterpret_cast<Record*>(slot & kAddressMask); }
  static uint64_t SlotOf(Record* record, uint64_t hash) {
    return reinterpret_cast<uintptr_t>(record) | TagOfHash(hash) << 48;
  }

  // The first record whose tag fits and that `is_it` accepts; null if there is none.
  template <typename IsIt>
  Record* FindTag(uint64_t hash, IsIt is_it) const {
    const uint64_t table = tables_[ShardOf(hash)].load(std::memory_order_acquire);
    const size_t capacity = CapacityOf(table);
    const std::atomic<uint64_t>* slots = SlotsOf(table);
    for (size_t i = StartOf(hash, capacity);;) {
      const uint64_t slot = slots[i].load(std::memory_order_acquire);
      if (slot == kEmpty) return nullptr;
      if (TagOf(slot) == TagOfHash(hash) && slot != kTombstone && is_it(RecordOf(slot))) {
        return RecordOf(slot);
      }
      if (++i == capacity) i = 0;
    }
  }

  static void FreeRetired(void* self, uint8_t kind, uint64_t object);

  // The slot of (limit, key) under whatever rule, or null. Where it is null and `insert_at` is
  // given, that is where it would go.
  std::atomic<uint64_t>* Locate(uint64_t table, uint64_t hash, const Rule& rule,
                                std::string_view key, std::atomic<uint64_t>** insert_at) const;
  // The lookup result for a record that was located, converted to `rule` if its rule is older.
  Lookup Settle(Shard& shard, size_t shard_index, std::atomic<uint64_t>* slot, uint64_t hash,
                const Rule& rule) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // Null: bookings are left to be folded or converted by the old rule first.
  Record* Convert(Shard& shard, size_t shard_index, std::atomic<uint64_t>* slot, uint64_t hash,
                  const Rule& rule) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  Record* Create(Shard& shard, size_t shard_index, uint64_t hash, const Rule& rule,
                 std::string_view key, uint16_t maker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // Makes the record and puts it into the slot.
  Record* Place(size_t shard_index, std::atomic<uint64_t>* slot, uint64_t hash, uint64_t word,
                const Rule& rule, std::string_view key, uint16_t maker);
  // Returns false if the record is dead.
  bool VisitSaved(Record* record, absl::FunctionRef<void(const Saved&)> visit);
  bool RestoreWord(const Rule& rule, std::string_view key, uint64_t word);
  // Makes room in the shard's table for one more.
  void Reserve(Shard& shard, size_t shard_index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // Looks for room in other shards. Returns whether it dropped a bucket.
  bool SweepElsewhere(int64_t now_ns);

  // Looks at `slots` slots of the shard and drops full buckets; with `vacates`, it also moves
  // records out of slabs that are mostly empty. Returns how many of both. Folds at most `folds`
  // bookings.
  size_t Sweep(Shard& shard, size_t shard_index, size_t slots, int64_t now_ns, size_t folds,
               bool vacates = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // Puts the slot's record elsewhere, unless it is locked. Returns whether it did. REQUIRES: the
  // shard's mutex is held.
  bool Move(size_t shard_index, std::atomic<uint64_t>* slot);
  // Whether there is memory for a record with a key of that length, beyond the reserved parts of
  // limits. There is less than the table has room for while many slabs are mostly empty, until
  // Maintain has moved their records.
  bool HasMemory(size_t shard_index, size_t key_bytes);
  // Drops the slot's bucket if it is full. Folds at most *folds bookings, which it lowers.
  bool DropIfFull(Shard& shard, uint64_t table, size_t index, int64_t now_ns, size_t* folds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  void Resize(Shard& shard, size_t shard_index, size_t capacity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  void ShrinkIfMostlyEmpty(Shard& shard, size_t shard_index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  std::atomic<uint64_t>* AllocateSlots(size_t shard_index, size_t capacity);
  void FreeTable(uint64_t table);
  // The least capacity that holds `live` at most that full.
  static size_t CapacityFor(size_t live);

  const common::Clock& clock_;
  const BucketHash hash_;
  const uint64_t max_bytes_;  // 0: only the number of buckets is bounded
  // Constant once decisions are made:
  std::optional<algorithm::Moment> empty_since_;
  ClosedSlots closed_slots_;
  // What a shard without buckets has, so that readers need not ask.
  alignas(64) std::atomic<uint64_t> no_slots_[kMinCapacity] = {};
  // 32 KiB that all readers share and few write: they stay in the first cache.
  const std::unique_ptr<std::atomic<uint64_t>[]> tables_;
  const std::unique_ptr<Shard[]> shards_;

  SlabAllocator slabs_;        // of records
  SlabAllocator table_slabs_;  // of small tables, which are not moved
  ExtentAllocator extents_;
  TableRoom room_;
  EpochDomain epochs_;
  RuleRegistry rules_;

  alignas(64) std::atomic<uint64_t> buckets_{0};
  std::atomic<uint64_t> created_{0};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<uint64_t> state_bytes_{0};
  std::atomic<uint64_t> open_receipts_{0};
  std::atomic<uint64_t> bookings_{0};
  // By limit. Limits whose ids differ by a multiple of kBookingCounters share a counter.
  static constexpr size_t kBookingCounters = 4096;
  std::atomic<uint32_t>& BookingsOf(const Rule& rule) const {
    return limit_bookings_[rule.limit_id % kBookingCounters];
  }
  const std::unique_ptr<std::atomic<uint32_t>[]> limit_bookings_{
      new std::atomic<uint32_t>[kBookingCounters] {}};
  mutable std::atomic<uint64_t> lock_yields_{0};
  std::atomic<uint32_t> overflow_next_{0};  // the next shard to sweep for room

  common::Mutex maintain_mu_;
  size_t maintain_shard_ ABSL_GUARDED_BY(maintain_mu_) = 0;
  bool round_found_ ABSL_GUARDED_BY(maintain_mu_) = false;

  common::Mutex to_free_mu_;
  std::vector<algorithm::BucketState> to_free_ ABSL_GUARDED_BY(to_free_mu_);
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_BUCKET_INDEX_H_
