// Store: where buckets live. One atomic operation per acquisition, never get/compute/set.
//
// An operation is an object of the caller's, filled in by the caller, decided by the store and
// completed exactly once: no allocation, no copy of keys, and the same shape for a store that
// answers inline (memory) and one that answers later on an event loop (Redis).
#ifndef SLUICE_SERVER_STORE_STORE_H_
#define SLUICE_SERVER_STORE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "server/algorithm/level.h"
#include "server/store/rule.h"

namespace sluice::store {

inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

// Permits from one bucket. REQUIRES: permits >= 1 and not above what the rule could ever grant
// (algorithm::MaxGrant); key at most bounds::kMaxKeyBytes.
struct Charge {
  const Rule* rule = nullptr;
  std::string_view key;
  uint64_t permits = 1;
};

// How full a bucket is at the moment of the decision.
using BucketLevel = algorithm::Level;

// What happens to a charge on a key that has no bucket when there is no room for one.
enum class OverflowPolicy : uint8_t {
  kDeny = 0,  // denied, Reason::kOverflow
  kAllow,     // granted and not counted, Source::kOverflow
};

enum class Reason : uint8_t {
  kNone = 0,
  kNotEnough,
  kWaitingBound,
  kStoreUnavailable,
  kOverflow,
  kShadowDenied,
  // Not a store's: held, and its deadline comes before its moment.
  kDeadlineTooShort,
  // More than this node's share of a split limit can ever hold.
  kShareTooSmall,
};

enum class Source : uint8_t { kStore = 0, kLease, kStoreUnavailable, kOverflow, kLocal };

struct ChargeResult {
  BucketLevel level;
  Reason reason = Reason::kNone;
  // Granted: how long before the acquisition's now_ns it was debited. Not 0 only where no one
  // decision could be made of all charges (several slots of a Redis Cluster).
  int64_t debited_before_ns = 0;
};

enum class Outcome : uint8_t {
  kPending = 0,
  kGranted,
  kDenied,
  // Nothing was debited; a charge's rule is older than its bucket's: the caller resolves the
  // acquisition against the current limits and asks again.
  kStaleRule,
  // Nothing was debited; the deadline had passed before the decision.
  kDeadlineExceeded,
  // The shared store is away, or did not answer: see Acquisition::may_be_debited.
  kUnavailable,
  // Nothing was debited; this store does not book ahead (max_wait_ns).
  kUnsupported,
  // Nothing was debited; it does not book ahead (max_wait_ns) in buckets of several slots of a
  // Redis Cluster. Acquisition::elsewhere says which.
  kSeveralSlots,
};

// One acquisition: its charges (each of a bucket of its own; the engine has added up those of the
// same bucket), and after completion its result.
struct Acquisition {
  // Caller's, alive until completion.
  absl::Span<const Charge> charges;
  // Caller's, as many as charges. Written by the store.
  ChargeResult* results = nullptr;

  // How far ahead the moment may lie; 0: now or denied. Granted for later is a reservation: it is
  // booked in every bucket, debited there at its moment, and always has a receipt.
  int64_t max_wait_ns = 0;
  bool want_receipt = false;

  // Written by the store.
  Outcome outcome = Outcome::kPending;
  Source source = Source::kStore;
  // Granted: until the moment. Denied: until the same request would be granted if nobody else
  // comes (earliest moment minus max_wait_ns); exact to the nanosecond, rounded up.
  int64_t wait_ns = 0;
  int64_t retry_after_ns = 0;
  // The moment of the decision, on the store's clock.
  int64_t now_ns = 0;
  // With want_receipt and granted, and for every reservation: what Refund is called with, together
  // with now_ns + wait_ns. 0: none.
  uint64_t receipt_id = 0;
  // kSeveralSlots: the place of a charge whose bucket is not in the slot of the first one's.
  size_t elsewhere = 0;
  // kUnavailable: it was asked of the shared store, whose answer is lost, so that it may have been
  // debited. False: nothing was.
  bool may_be_debited = false;
};

// Independent acquisitions, decided in order. The caller owns it and keeps it, and all it points
// to, alive and untouched from Acquire until Done.
class AcquireOperation {
 public:
  absl::Span<Acquisition> acquisitions;
  // On common::Clock::NowNs()'s time line: past it nothing is debited.
  int64_t deadline_ns = kNoDeadline;

  // Called exactly once, by the memory store before Acquire returns, on the calling thread; by a
  // shared store later, on the event loop that the operation was started on.
  virtual void Done() = 0;

 protected:
  ~AcquireOperation() = default;
};

struct QueryItem {
  const Rule* rule = nullptr;
  std::string_view key;
  // Written by the store.
  BucketLevel level;
  bool exists = false;
  Source source = Source::kStore;
  bool unavailable = false;
  // Bookings, and the time until the next one's moment; 0: none.
  uint64_t waiting = 0;
  int64_t next_grant_after_ns = 0;
};

class QueryOperation {
 public:
  absl::Span<QueryItem> items;
  int64_t deadline_ns = kNoDeadline;
  virtual void Done() = 0;

 protected:
  ~QueryOperation() = default;
};

enum class RefundOutcome : uint8_t {
  kPending = 0,
  kRefunded,
  kAlreadyRefunded,
  kExpired,
  kStaleRule,
  kUnavailable,
};

// Before a reservation's moment: cancels it, whole; moments already given to others stand.
class RefundOperation {
 public:
  uint64_t receipt_id = 0;
  // now_ns + wait_ns of the acquisition; 0 if it was granted for now.
  int64_t grant_time_ns = 0;
  // The acquisition's charges, with the permits that were taken.
  absl::Span<const Charge> charges;
  // Caller's, as many as charges: whole permits given back. Written by the store.
  uint64_t* refunded = nullptr;
  int64_t deadline_ns = kNoDeadline;
  // Written by the store.
  RefundOutcome outcome = RefundOutcome::kPending;
  virtual void Done() = 0;

 protected:
  ~RefundOperation() = default;
};

enum class MoveOutcome : uint8_t {
  // It stands where it stood: there is no earlier place, or this store does not move bookings.
  kStays = 0,
  kMoved,
  // Its moment has come, or there is no such booking.
  kGone,
  kStaleRule,
  // The shared store is away; it may or may not have moved.
  kUnavailable,
};

// A reservation whose moment nobody was told of yet.
class MoveOperation {
 public:
  uint64_t receipt_id = 0;
  absl::Span<const Charge> charges;
  // As it is booked; written by the store when it moved.
  int64_t grant_time_ns = 0;
  // Written by the store.
  MoveOutcome outcome = MoveOutcome::kStays;
  virtual void Done() = 0;

 protected:
  ~MoveOperation() = default;
};

// One of a RebookOperation.
struct Rebooking {
  enum class Outcome : uint8_t {
    kPending = 0,
    // For grant_time_ns; if that is now_ns, debited.
    kBooked,
    // It does not fit until until_ns, and was given up.
    kDenied,
    // Its moment came before, and it stands as it was granted.
    kGone,
  };

  uint64_t receipt_id = 0;
  absl::Span<const Charge> charges;
  // Caller's, as many as charges. Written by the store if it is denied.
  ChargeResult* results = nullptr;
  // As it is booked; written by the store.
  int64_t grant_time_ns = 0;
  // The moment may be no later, on the clock of grant_time_ns.
  int64_t until_ns = 0;

  // Written by the store.
  Outcome outcome = Outcome::kPending;
  int64_t now_ns = 0;
  int64_t retry_after_ns = 0;  // kDenied
};

enum class RebookStatus : uint8_t {
  kPending = 0,
  kDone,
  // Nothing was changed.
  kStaleRule,
  kUnsupported,
  // The shared store is away; what became of them is not known.
  kUnavailable,
};

// Reservations that nobody was told of, under the rules that their charges name now.
class RebookOperation {
 public:
  absl::Span<Rebooking> items;
  // Written by the store.
  RebookStatus status = RebookStatus::kPending;
  virtual void Done() = 0;

 protected:
  ~RebookOperation() = default;
};

enum class ResetOutcome : uint8_t {
  // The bucket is full, and was not.
  kReset = 0,
  kNotInUse,
  // The shared store is away, and was not asked.
  kUnavailable,
  // It was asked, and its answer is lost.
  kUnknown,
};

struct StoreStats {
  uint64_t buckets = 0;
  uint64_t max_buckets = 0;
  uint64_t memory_bytes = 0;
  uint64_t created = 0;
  uint64_t dropped = 0;
  uint64_t overflow_allowed = 0;
  uint64_t overflow_denied = 0;
  uint64_t open_receipts = 0;
  uint64_t receipts_evicted = 0;
  uint64_t bookings = 0;
  uint64_t lock_yields = 0;

  // Of a shared store: what this process asked of it since it started.
  uint64_t commands = 0;
  uint64_t decisions = 0;
  // Sent, and not answered in time or ever; may have been executed.
  uint64_t unanswered = 0;
  // Answered with an error.
  uint64_t errors = 0;
  // Buckets that were taken over from other parameters.
  uint64_t conversions = 0;
  // That are there, this one too, as StoreHealth has them; 0: limits need not know.
  uint64_t nodes = 0;
};

// A process that shares the store.
struct StoreNode {
  std::string id;
  bool self = false;
  bool lapsed = false;  // not heard of any more
  // What it divides split limits by; 0: it has no share.
  uint32_t divisor = 0;
};

// Whether a shared store answers. Moments are of the wall clock.
struct StoreHealth {
  bool shared = false;  // false: the store is this process' own, and never away
  bool away = false;
  int64_t since_wall_ns = 0;  // since when it is there, or away
  uint64_t times_unavailable = 0;
  std::string why;  // it was away last; empty: it never was
  // As far as limits need to know of each other; else empty.
  std::vector<StoreNode> nodes;
};

// Thread-safe. Never blocks.
class Store {
 public:
  virtual ~Store() = default;

  // "memory", "redis".
  virtual std::string_view Kind() const = 0;

  // Must be called with a rule before an operation names it. The store keeps old rules for as
  // long as a bucket of theirs exists, in order to convert it to the newer one (carry-over).
  virtual void Register(std::shared_ptr<const Rule> rule) = 0;

  virtual void Acquire(AcquireOperation* operation) = 0;

  // Takes nothing, creates no bucket.
  virtual void Query(QueryOperation* operation) = 0;

  virtual void Refund(RefundOperation* operation) = 0;

  // Moves a booking up to the earliest moment at which it fits, not before the one that stands
  // before it in the order of its set of buckets. Never moves it back.
  virtual void Move(MoveOperation* operation) {
    operation->outcome = MoveOutcome::kStays;
    operation->Done();
  }

  // As one step that nobody else sees half of: takes all items out, also those that were debited
  // since, and books them again in the order of their receipts, each at the earliest moment that
  // fits behind those of its set of buckets with a lesser receipt. They keep their receipts.
  virtual void Rebook(RebookOperation* operation) {
    operation->status = RebookStatus::kUnsupported;
    operation->Done();
  }

  // Whether other processes decide about the same buckets, so that a rule's sharing matters.
  virtual bool Shared() const { return false; }

  // Whether the moments in its answers are on common::Clock::NowNs()'s time line. False: they are
  // on a clock of the store's own.
  virtual bool UsesLocalClock() const { return true; }

  // Makes the bucket full; its open receipts become worthless. `done` runs once, as
  // AcquireOperation::Done does.
  using ResetDone = void (*)(void* context, ResetOutcome outcome);
  virtual void Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) = 0;

  virtual StoreStats Stats() const = 0;

  virtual StoreHealth Health() const { return {}; }

  // Of a limit whose sharing is relaxed: permits granted beyond what its buckets held.
  virtual uint64_t OvershootPermits(uint32_t /*limit_id*/) const { return 0; }

  // Does a small, bounded step of housekeeping: drops full buckets, gives memory back. Called by
  // a timer, also when no requests come. Returns true while there is more to do soon.
  virtual bool Maintain() { return false; }
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_STORE_H_
