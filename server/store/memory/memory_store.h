// MemoryStore: buckets in this process. Answers inline, on the calling thread, and does not
// allocate on a bucket that exists (docs/adr: layout of the memory store).
//
//  - One charge on a token bucket that exists: find the record, compute, compare-and-swap. No
//    lock, and no write to memory that others share but the bucket's own word.
//  - Several charges, logs, windows, open receipts, bookings: the buckets' words are locked, in the
//  order of
//    their addresses, all is decided at one moment, all is taken or nothing, and they are unlocked.
//    Whoever meets a locked word spins for a moment, then yields.
//  - Every operation reads the clock once. A batch hashes and fetches ahead.
//
// Linearizable: each acquisition takes effect at one point between call and return, at its
// compare-and-swap or while it holds its locks. In a batch each has a point of its own.
//
// Bounded: a full bucket is the same as none, so full buckets, and no others, are dropped, in
// small steps with each insertion and by Maintain. When max_buckets live buckets exist, the
// overflow policy decides about keys that have none.
#ifndef SLUICE_SERVER_STORE_MEMORY_MEMORY_STORE_H_
#define SLUICE_SERVER_STORE_MEMORY_MEMORY_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "common/bounds.h"
#include "common/clock.h"
#include "server/store/memory/bucket_index.h"
#include "server/store/memory/used_receipts.h"
#include "server/store/store.h"

namespace sluice::store {

// What becomes of a charge on a bucket that does not exist and for which there is no room.
enum class OverflowPolicy : uint8_t {
  kDeny = 0,  // denied, Reason::kOverflow
  kAllow,     // granted and not counted, Source::kOverflow
};

struct MemoryStoreOptions {
  uint64_t max_buckets = common::bounds::kDefaultMaxBuckets;
  OverflowPolicy overflow = OverflowPolicy::kDeny;
  // Of the hash. 0: a random one, which is what a server that faces strangers wants.
  uint64_t seed = 0;
};

// Thread-safe. Never blocks for long: mutexes are held for microseconds, and only where a bucket
// is made, converted or dropped. REQUIRES: the clock outlives it; no operation runs when it is
// destroyed.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(const common::Clock& clock, const MemoryStoreOptions& options = {});
  ~MemoryStore() override;

  std::string_view Kind() const override { return "memory"; }
  void Register(std::shared_ptr<const Rule> rule) override;
  void Acquire(AcquireOperation* operation) override;
  void Query(QueryOperation* operation) override;
  void Refund(RefundOperation* operation) override;
  void Move(MoveOperation* operation) override;
  // Holds all the items' buckets for as long as it takes, a microsecond or two for each: those who
  // come for one of them wait.
  void Rebook(RebookOperation* operation) override;
  void Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) override;
  StoreStats Stats() const override;
  bool Maintain() override { return index_.Maintain(); }

 private:
  // A charge on its way through a decision that holds locks.
  struct Held;

  void AcquireBatch(absl::Span<Acquisition> acquisitions, int64_t now_ns);
  // One charge on a token bucket, without a receipt.
  static bool IsSimple(const Acquisition& acquisition);
  // Decides a simple one by a plain word, and fills in the answer. Not yet in force: *new_word is
  // what the word is to become; the same: nothing is taken. False: it is one to be reserved, under
  // the lock.
  static bool Try(Acquisition& acquisition, uint64_t word, int64_t now_ns, uint64_t* new_word);
  // Puts it in force; false if the word has changed.
  static bool Commit(memory::Record* record, uint64_t word, uint64_t new_word);
  void AcquireSimple(Acquisition& acquisition, uint64_t hash, int64_t now_ns);
  void AcquireLocked(Acquisition& acquisition, int64_t now_ns);
  // Finds the buckets, makes those that do not exist if `create_at_ns` is given, and locks them
  // all. False: a rule is stale, and nothing is locked.
  bool LockAll(absl::Span<Held> held, std::optional<int64_t> create_at_ns);
  // With room for the order in which they are locked.
  bool LockAll(absl::Span<Held> held, std::optional<int64_t> create_at_ns, Held** order);
  // Decides what is locked; leaves the words as they are to become in `held`.
  void Decide(Acquisition& acquisition, absl::Span<Held> held, int64_t now_ns);
  // Of an acquisition that does not fit now: books it if it fits within its max_wait, else says
  // when it will. True: booked.
  bool Reserve(Acquisition& acquisition, absl::Span<Held> held, algorithm::Moment at, uint64_t set);
  void MoveNow(MoveOperation& operation);
  struct Rebooked;
  void RebookNow(RebookOperation& operation);
  void TakeOut(absl::Span<const Rebooking> items, Rebooked& all, algorithm::Moment at);
  void PlaceAnew(absl::Span<Rebooking> items, Rebooked& all, algorithm::Moment at);
  void MoveLocked(MoveOperation& operation, absl::Span<Held> held, algorithm::Moment at);
  // Debits what is booked up to now.
  void Fold(Held& held, algorithm::Moment at);
  // The held bucket's state; makes one of a plain word.
  algorithm::BucketState* StateOf(Held& held);
  void Take(Held& held, const Charge& charge, algorithm::Moment at, uint64_t receipt_id,
            uint64_t set);
  // A pointer whose state is but a token bucket's tat becomes a plain word again.
  uint64_t Collapse(const Rule& rule, uint64_t word, algorithm::Moment at);
  void QueryOne(QueryItem& item, int64_t now_ns);

  const common::Clock& clock_;
  const OverflowPolicy overflow_;
  const uint64_t max_buckets_;
  memory::BucketIndex index_;
  memory::UsedReceipts used_receipts_;

  alignas(64) std::atomic<uint64_t> next_receipt_{1};
  std::atomic<uint64_t> overflow_allowed_{0};
  std::atomic<uint64_t> overflow_denied_{0};
  std::atomic<uint64_t> receipts_evicted_{0};
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_MEMORY_MEMORY_STORE_H_
