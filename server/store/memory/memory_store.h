// MemoryStore: keeps buckets in this process. Answers on the calling thread, and does not allocate
// for a bucket that exists (docs/adr: layout of the memory store).
//
//  - One charge on an existing token bucket: find the record, compute, compare-and-swap. No lock,
//    and no write to shared memory but the bucket's own word.
//  - Several charges, logs, windows, open receipts, bookings: lock the buckets' words in the order
//    of their addresses, decide all at one moment (decide.h), unlock. A thread that finds a locked
//    word spins for a moment, then yields.
//  - Every operation reads the clock once. A batch computes hashes and fetches memory ahead.
//
// Linearizable: each acquisition takes effect at one point between call and return, at its
// compare-and-swap or while it holds its locks. In a batch each has a point of its own.
//
// Bounded: a full bucket is the same as none, so only full buckets are dropped, in small steps with
// each insertion and by Maintain. Each limit has a part of the table, and all share the rest
// (table_room.h). While there is no room for a limit's keys, the overflow policy decides charges on
// keys that have no bucket, and on logs and receipts that would grow.
#ifndef SLUICE_SERVER_STORE_MEMORY_MEMORY_STORE_H_
#define SLUICE_SERVER_STORE_MEMORY_MEMORY_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "common/bounds.h"
#include "common/clock.h"
#include "server/store/memory/bucket_index.h"
#include "server/store/memory/locked_bucket.h"
#include "server/store/memory/remembered_grants.h"
#include "server/store/store.h"
#include "server/store/used_receipts.h"

namespace sluice::store {

struct MemoryStoreOptions {
  uint64_t max_buckets = common::bounds::kDefaultMaxBuckets;
  // Of all buckets: keys and states. 0: not bounded.
  uint64_t max_bytes = 0;
  OverflowPolicy overflow = OverflowPolicy::kDeny;
  // Seed of the hash. 0: a random one, so that clients cannot choose keys that collide.
  uint64_t seed = 0;
  // Buckets that do not exist, but slots, were empty at this moment, as after a loss of data: logs
  // and windows used up. Absent: they are full.
  std::optional<algorithm::Moment> empty_since = std::nullopt;
  // All slot buckets, also those that are restored.
  ClosedSlots closed_slots = {};
};

// Thread-safe. Mutexes are held for microseconds, and only to create, convert or drop a bucket.
// REQUIRES: the clock outlives the store; no operation runs when it is destroyed.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(const common::Clock& clock, const MemoryStoreOptions& options = {});

  std::string_view Kind() const override { return "memory"; }
  void Register(std::shared_ptr<const Rule> rule) override;
  void Acquire(AcquireOperation* operation) override;
  void Query(QueryOperation* operation) override;
  void Refund(RefundOperation* operation) override;
  void Renew(RenewOperation* operation) override;
  void Holds(HoldsOperation* operation) override;
  void Settle(SettleOperation* operation) override;
  void Move(MoveOperation* operation) override;
  // Holds the buckets of all items locked, for a microsecond or two per item; other operations on
  // these buckets wait.
  void Rebook(RebookOperation* operation) override;
  void Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) override;
  uint64_t MaxBytesPerKey(const algorithm::Parameters& parameters,
                          uint64_t max_owed) const override {
    return memory::TableRoom::MaxBytesPerKey(parameters, max_owed);
  }
  uint64_t ReservableBytes() const override { return max_bytes_ / 2; }
  size_t BookingsLeft() const override { return index_.bookings_left(); }
  StoreStats Stats() const override;
  bool Maintain() override {
    const bool remembered_more = remembered_.Maintain(clock_.NowNs());
    return index_.Maintain() || remembered_more;
  }

  // ---- What is kept over a restart (memory_store_saved.cc). Moments are as they were decided: the
  // clock of the process that loads them continues that of the one that saved them.

  // What is not in the buckets. Another store goes on with the same seed, empty_since and
  // closed_slots, and with greater receipt ids.
  uint64_t seed() const { return seed_; }
  std::optional<algorithm::Moment> empty_since() const { return index_.empty_since(); }
  const ClosedSlots& closed_slots() const { return index_.closed_slots(); }
  uint64_t next_receipt() const { return next_receipt_.load(std::memory_order_relaxed); }
  std::vector<uint64_t> RefundedReceipts() const { return used_receipts_.All(); }
  using SavedBucket = memory::BucketIndex::Saved;
  static constexpr size_t kSavedParts = memory::BucketIndex::kParts;
  // The buckets of one part, from 0 to below kSavedParts. Decisions go on meanwhile, and wait for
  // microseconds; one on a bucket with a hundred thousand bookings or holds for up to a
  // millisecond.
  void ForEachBucket(size_t part, absl::FunctionRef<void(const SavedBucket&)> visit) {
    index_.ForEachSaved(part, visit);
  }
  void ForEachRemembered(memory::RememberedGrants::Visit visit) const {
    remembered_.ForEach(visit);
  }

  // REQUIRES, of all: nothing was decided yet. For buckets: the rule is registered, and the image
  // is of a state of its parameters. False: the table has no room.
  bool RestoreBucket(const Rule& rule, std::string_view key, uint64_t tat) {
    return index_.Restore(rule, key, tat);
  }
  bool RestoreBucket(const Rule& rule, std::string_view key, const algorithm::BucketImage& image);
  // Some buckets found no room: those that do not exist are empty from this moment on.
  void StartEmpty(algorithm::Moment moment, ClosedSlots closed) {
    index_.SetEmptySince(moment, std::move(closed));
  }
  void RestoreReceipts(uint64_t next_receipt, const std::vector<uint64_t>& refunded);
  void RestoreRemembered(const RequestId& id, const RememberedGrant& grant, int64_t end_ns) {
    remembered_.Restore(id, grant, end_ns);
  }

 private:
  // The buckets of one operation, by charge.
  using Buckets = absl::InlinedVector<memory::LockedBucket, common::bounds::kMaxCharges>;

  // What one operation may do before it stops (Operation::most_work).
  struct Work {
    explicit Work(SearchBudget* budget, int64_t most = Operation::kAnyWork)
        : budget(budget), begins_at(budget->work()), most(most) {}

    int64_t taken() const { return budget->work() - begins_at; }
    bool done() const { return taken() >= most; }

    SearchBudget* const budget;
    const int64_t begins_at;
    const int64_t most;
    BucketMaker maker = {};  // of AcquireOperation
  };

  // Returns how many acquisitions, the last ones, it leaves undecided.
  size_t AcquireBatch(absl::Span<Acquisition> acquisitions, int64_t now_ns, Work work);
  // One charge on a token bucket, without a receipt.
  static bool IsSimple(const Acquisition& acquisition);
  // Decides a simple acquisition on a plain word and writes its results. The decision is not in
  // force yet: *new_word is what the word is to become; equal if nothing is taken. Returns false if
  // permits are to be reserved, which needs the lock.
  static bool Try(Acquisition& acquisition, uint64_t word, int64_t now_ns, uint64_t* new_word);
  // Puts the decision in force. Returns false if the word has changed.
  static bool Commit(memory::Record* record, uint64_t word, uint64_t new_word);
  // `hash`: of the first charge's bucket. Returns false if it leaves the acquisition undecided.
  bool AcquireOne(Acquisition& acquisition, uint64_t hash, int64_t now_ns, Work work);
  bool AcquireLocked(Acquisition& acquisition, int64_t now_ns, Work work);
  // The same of an acquisition with a request id.
  bool AcquireOnce(Acquisition& acquisition, uint64_t hash, int64_t now_ns, Work work);
  ABSL_ATTRIBUTE_ALWAYS_INLINE bool Decide(Acquisition& acquisition, uint64_t hash, int64_t now_ns,
                                           Work work);
  // Answers with a grant that is remembered. Returns false as AcquireOne does.
  bool RepeatOne(Acquisition& acquisition, const RememberedGrant& grant, int64_t now_ns, Work work);
  // Returns false if bookings are left to be folded first.
  bool QueryOne(QueryItem& item, int64_t now_ns, Work work);
  // nullopt: bookings are left to be folded first.
  std::optional<RefundOutcome> RefundNow(const RefundOperation& operation, Work work);
  std::optional<RefundOutcome> RefundBuckets(const RefundOperation& operation, Work work);
  // nullopt: as RefundNow.
  std::optional<RenewOutcome> RenewOne(Renewal* renewal, int64_t now_ns, Work work);
  HoldsOperation::Outcome HoldsNow(HoldsOperation* operation);
  // As RefundNow.
  std::optional<SettleOutcome> SettleNow(SettleOperation* operation, Work work);
  MoveOutcome MoveNow(MoveOperation* operation);
  RebookStatus RebookNow(absl::Span<Rebooking> asked);

  Buckets BucketsOf(absl::Span<const Charge> charges);
  enum class Opened : uint8_t {
    kOpen,
    // Nothing is locked:
    kStaleRule,
    kHasDue,       // bookings are left to be folded or converted
    kTooManyNew,   // a bucket would be made beyond the rate of Work::maker
    kShareUsedUp,  // beyond its share of the room
  };
  // Finds the buckets, creates missing ones if `create_at_ns` is given, and locks them all.
  Opened LockAll(absl::Span<memory::LockedBucket> buckets, std::optional<int64_t> create_at_ns,
                 const Work& work);
  // Opens all buckets at the moment of the operation: now_ns, or later, which it writes to *at_ns.
  // Folds at most `folds` bookings. Returns false if more of them are left. REQUIRES: locked.
  bool OpenAll(absl::Span<memory::LockedBucket> buckets, int64_t now_ns, size_t folds,
               int64_t* at_ns);
  // LockAll and OpenAll, again and again as long as `work` is not done. Unlocks the buckets after
  // each kFoldsAtOnce bookings: it takes milliseconds to fold all that a bucket can have.
  Opened LockAndOpen(absl::Span<memory::LockedBucket> buckets, bool create, int64_t now_ns,
                     Work work, int64_t* at_ns);
  void UnlockAll(absl::Span<memory::LockedBucket> buckets, int64_t now_ns);

  const common::Clock& clock_;
  const OverflowPolicy overflow_;
  const uint64_t max_buckets_;
  const uint64_t max_bytes_;
  const uint64_t seed_;
  memory::BucketIndex index_;
  UsedReceipts used_receipts_;
  UsedReceipts settled_receipts_;  // of acquisitions with slots, without settle_within
  memory::RememberedGrants remembered_;

  alignas(64) std::atomic<uint64_t> next_receipt_{1};
  std::atomic<uint64_t> overflow_allowed_{0};
  std::atomic<uint64_t> overflow_denied_{0};
  std::atomic<uint64_t> receipts_evicted_{0};
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_MEMORY_MEMORY_STORE_H_
