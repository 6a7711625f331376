// Store: keeps buckets, and decides each acquisition in one atomic operation, never
// get/compute/set.
//
// An operation is an object that the caller owns and fills in. The store decides it and completes
// it exactly once. So nothing is allocated, no key is copied, and the memory store, which answers
// before it returns, has the same interface as the Redis store, which answers later on an event
// loop.
#ifndef SLUICE_SERVER_STORE_STORE_H_
#define SLUICE_SERVER_STORE_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/algorithm/calendar/calendar.h"
#include "server/algorithm/level.h"
#include "server/algorithm/open_receipts.h"
#include "server/algorithm/shared_rate.h"
#include "server/store/once.h"
#include "server/store/queue_place.h"
#include "server/store/rule.h"

namespace sluice::store {

using algorithm::SearchBudget;

inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

// The retry hint where it is not known when there will be room.
inline constexpr int64_t kOverflowRetryNs = 100'000'000;

// Permits from one bucket. REQUIRES: permits >= 1, and unless it is forced or given back not above
// what the rule can ever grant (algorithm::MaxGrant); key at most bounds::kMaxKeyBytes.
struct Charge {
  const Rule* rule = nullptr;
  std::string_view key;
  uint64_t permits = 1;
};

// How far ahead an acquisition of these charges may be booked: the least max_wait of their limits.
// Shadow limits do not count, since they never deny.
inline int64_t LeastMaxWaitNs(absl::Span<const Charge> charges) {
  int64_t least_ns = common::bounds::kMaxWaitNs;
  for (const Charge& charge : charges) {
    if (!charge.rule->shadow) least_ns = std::min(least_ns, charge.rule->max_wait_ns);
  }
  return least_ns;
}

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
  // Not from a store: the caller waits, and its deadline comes before its grant time.
  kDeadlineTooShort,
  // More than this node's share of a split limit can ever hold.
  kShareTooSmall,
};

enum class Source : uint8_t { kStore = 0, kStoreUnavailable, kOverflow, kLocal };

struct ChargeResult {
  // After the acquisition. A negative remaining is owed.
  BucketLevel level;
  Reason reason = Reason::kNone;
  // Granted: how long before the acquisition's now_ns the charge was debited. 0 unless the charges
  // could not be decided at one moment (several slots of a Redis Cluster), or the grant is repeated
  // and the charge is on slots: then how long before it they were held or renewed.
  int64_t debited_before_ns = 0;
  // Forced: the permits that the bucket did not count, and that are not owed.
  uint64_t forgiven = 0;
};

// What an acquisition does to its buckets.
enum class Debit : uint8_t {
  kIfAllowed = 0,  // takes the permits if every bucket has them
  // Always granted. Each bucket counts the permits as far as its rule's max_owed and its bookings
  // leave room; the rest is forgiven. The reason of a charge is kNotEnough if it did not fit.
  kForced,
  // Always granted: takes the permits off what the current window has counted, down to 0.
  // REQUIRES: every charge is on a fixed_window; no receipt.
  kGiveBack,
};

enum class Outcome : uint8_t {
  kPending = 0,
  kGranted,
  kDenied,
  // Nothing was debited: a charge's rule is older than its bucket's. The caller resolves the
  // acquisition against the current limits and tries again.
  kStaleRule,
  // Nothing was debited; the deadline had passed before the decision.
  kDeadlineExceeded,
  // The shared store is unavailable or did not answer; see Acquisition::may_be_debited.
  kUnavailable,
  // Nothing was debited; this store does not make reservations (max_wait_ns).
  kUnsupported,
  // Nothing was debited; the store makes no reservation (max_wait_ns) and no estimate
  // (settle_within_ns), and remembers no grant (Once), in buckets of several slots of a Redis
  // Cluster. Acquisition::other_slot_charge names one.
  kSeveralSlots,
  // Nothing was debited: another request was granted under the same request id (Once).
  kOtherRequest,
  // Nothing was debited: the grant could not be remembered (Once::may_remember).
  kNotRemembered,
  // Nothing was debited; there is no room for an estimate (settle_within_ns).
  kNoRoomForEstimate,
  // Nothing was debited: the grant that is remembered was refunded, or has lost slots (Once).
  kEnded,
  // Nothing was debited: a bucket would have been made beyond BucketMaker::rate.
  kTooManyNewBuckets,
  // Nothing was debited: a bucket would have been made beyond BucketMaker::percent.
  kTableShareUsedUp,
};

// One acquisition: its charges, and after completion its result. No two charges are on the same
// bucket; the service adds them up before.
struct Acquisition {
  // Owned by the caller, alive until completion.
  absl::Span<const Charge> charges;
  // Owned by the caller, as many as charges. Written by the store.
  ChargeResult* results = nullptr;

  // How far ahead the grant time may be; 0: now or denied. A grant for later is a reservation: it
  // is booked in every bucket, debited there at its grant time, and always has a receipt.
  int64_t max_wait_ns = 0;
  // REQUIRES: true if a charge is on slots, which are held under the receipt.
  bool want_receipt = false;
  // REQUIRES: max_wait_ns == 0 unless it is kIfAllowed.
  Debit debit = Debit::kIfAllowed;
  // Not 0: a grant is an estimate, which Settle may correct until so long after the grant time.
  // REQUIRES: want_receipt. (In these bits an acquisition is no larger than without it.)
  int64_t settle_within_ns : 48 = 0;
  // For kForced: per charge, the set of the charges whose limits charge this one in turn, as bits.
  // A charge counts at most the permits that its own request named and what these counted, so that
  // a caller of one limit cannot close another one for all. Owned by the caller; null: there are
  // none. REQUIRES: transitive.
  const uint16_t* charged_by = nullptr;
  // With charged_by, per charge: the permits that its own request named, without those of the
  // charges in its set. Owned by the caller; null: they follow from the charges, which are all
  // there.
  const uint64_t* own = nullptr;
  // The request id, with which the acquisition is executed once; null: none. Owned by the caller.
  // REQUIRES: null if the caller is held.
  Once* once = nullptr;
  // Of a caller that waits for slots; null: it does not. Owned by the caller. A store that is not
  // shared ignores it.
  const QueuePlace* place = nullptr;
  // Other callers wait for slots that it charges: it is denied, as if none were free.
  bool behind_others = false;

  // Written by the store.
  Outcome outcome = Outcome::kPending;
  Source source = Source::kStore;
  // Granted: until the grant time. Denied: until the same request would be granted if no other
  // takes permits (earliest grant time minus max_wait_ns); exact to the nanosecond, rounded up.
  int64_t wait_ns = 0;
  int64_t retry_after_ns = 0;
  // When it was decided, on the store's clock.
  int64_t now_ns = 0;
  // The receipt of a grant with want_receipt and of every reservation; pass it to Refund together
  // with now_ns + wait_ns. 0: none.
  uint64_t receipt_id = 0;
  // kSeveralSlots: the index of a charge whose bucket is in another slot than the first one's.
  size_t other_slot_charge = 0;
  // kUnavailable: true if the request was sent and its answer is lost, so that it may have been
  // debited. False: nothing was debited.
  bool may_be_debited = false;
};

// Whether the charge was denied because its slots are in use. Slots have no calendar, so it cannot
// be booked.
inline bool LacksSlots(const Charge& charge, const ChargeResult& result) {
  return algorithm::IsConcurrency(charge.rule->parameters) && !charge.rule->shadow &&
         (result.reason == Reason::kNotEnough || result.reason == Reason::kWaitingBound);
}

// Whether it was denied because slots are in use, so that it may be granted when holds end.
// `outcome`: that of the decision.
inline bool LacksSlots(const Acquisition& acquisition, Outcome outcome) {
  if (outcome != Outcome::kDenied || acquisition.source != Source::kStore) return false;
  for (size_t i = 0; i < acquisition.charges.size(); ++i) {
    if (LacksSlots(acquisition.charges[i], acquisition.results[i])) return true;
  }
  return false;
}

inline bool LacksSlots(const Acquisition& acquisition) {
  return LacksSlots(acquisition, acquisition.outcome);
}

// Whether a caller that waits for slots keeps waiting after this decision.
inline bool StaysInLine(const Acquisition& acquisition, Outcome outcome) {
  return acquisition.retry_after_ns != algorithm::kNeverNs && LacksSlots(acquisition, outcome);
}

// What the caller of the store owns: it keeps the operation and all it points to alive and
// unchanged until Done.
class Operation {
 public:
  // Called exactly once: by the memory store on the calling thread, before its function returns; by
  // a shared store later, on the event loop that the operation was started on.
  virtual void Done() = 0;

  // ---- Work in parts. A memory store works on the calling thread, which may be an event loop with
  // other callers. A shared store ignores this.
  //
  // Steps of work, as SearchBudget counts them, after which the store may stop between two items of
  // the operation, or before one whose bucket has thousands of bookings to fold. It has then come
  // nearer to deciding it.
  static constexpr int64_t kAnyWork = std::numeric_limits<int64_t>::max();
  int64_t most_work = kAnyWork;
  // Written by the store: the steps that it took, and how many items, the last ones, it left
  // undecided. They are to be sent again.
  int64_t work = 0;
  size_t undecided = 0;

  // About as many as a decision on one bucket takes.
  static constexpr int64_t kStepsPerDecision = 25;
  // A slice of work for an event loop, in decisions on one bucket: about 50 us; and in steps.
  static constexpr size_t kSliceDecisions = 512;
  static constexpr int64_t kSliceWork = kSliceDecisions * kStepsPerDecision;
  size_t work_in_decisions() const { return static_cast<size_t>(work / kStepsPerDecision); }
  void ResetWork() {
    most_work = kAnyWork;
    work = 0;
    undecided = 0;
  }

 protected:
  ~Operation() = default;
};

// Whoever makes the buckets of an operation, and how much it may make. A shared store ignores it.
struct BucketMaker {
  // One is taken for each bucket. Null: without a bound.
  algorithm::SharedRate* rate = nullptr;
  // The store adds up the memory of all buckets that the maker of this number made. 0: it does not.
  uint16_t number = 0;
  // While these take that part of the memory which all limits share, in hundredths, the maker gets
  // memory only from the reserved parts of limits.
  uint8_t percent = 100;
};

// Independent acquisitions, decided in order.
class AcquireOperation : public Operation {
 public:
  absl::Span<Acquisition> acquisitions;
  // What searches among bookings may do for all acquisitions together. A caller that sends one
  // batch in several operations passes the same object to all of them, one after the other. Null:
  // each operation has a budget of its own. A shared store has one for each command.
  SearchBudget* search_budget = nullptr;
  // On common::Clock::NowNs()'s time line. After it nothing is debited.
  int64_t deadline_ns = kNoDeadline;
  BucketMaker maker;
};

struct QueryItem {
  const Rule* rule = nullptr;
  std::string_view key;
  // Whether `refundable` is asked for: a memory store walks all open receipts for it.
  bool with_refundable = true;
  // Written by the store.
  BucketLevel level = {};
  bool exists = false;
  Source source = Source::kStore;
  bool unavailable = false;
  // Number of bookings, and the time until the next grant time; 0: none.
  uint64_t waiting = 0;
  int64_t next_grant_after_ns = 0;
  // Open receipts of grants whose time has come, and what they would give back.
  algorithm::Refundable refundable = {};
  // Of slots: the number of holds, and the time until the first end; 0: none.
  uint64_t holds = 0;
  int64_t next_end_after_ns = 0;
  // Asked of a memory store's slots: the receipt of a hold; 0: none. And its end; nullopt: it has
  // ended.
  uint64_t hold_id = 0;
  std::optional<int64_t> held_until_ns = {};
};

class QueryOperation : public Operation {
 public:
  absl::Span<QueryItem> items;
  int64_t deadline_ns = kNoDeadline;
};

enum class RefundOutcome : uint8_t {
  kPending = 0,
  kRefunded,
  kAlreadyRefunded,
  kExpired,
  // It is an estimate that was settled. Nothing was changed.
  kSettled,
  kStaleRule,
  kUnavailable,
};

// Before a reservation's grant time: cancels it entirely. Grant times given to others stay.
class RefundOperation : public Operation {
 public:
  uint64_t receipt_id = 0;
  // The request id of the acquisition, whose grant is not repeated any more; null: it has none.
  const RequestId* request_id = nullptr;
  // now_ns + wait_ns of the acquisition; 0 if it was granted for now.
  int64_t grant_time_ns = 0;
  // The acquisition's charges, with the permits that were taken.
  absl::Span<const Charge> charges;
  // Of a caller that waited for slots: its tickets are removed. Null: it has none. If it was
  // granted nothing, receipt_id is 0.
  const QueuePlace* place = nullptr;
  // Owned by the caller, as many as charges: whole permits given back. Written by the store.
  uint64_t* refunded = nullptr;
  int64_t deadline_ns = kNoDeadline;
  // Written by the store.
  RefundOutcome outcome = RefundOutcome::kPending;
};

enum class RenewOutcome : uint8_t {
  kPending = 0,
  // All slots of the acquisition are held for longer.
  kRenewed,
  // One of them at least has ended; nothing was renewed.
  kGone,
  // Nothing was changed.
  kStaleRule,
  // The shared store is unavailable; the slots may have been renewed.
  kUnavailable,
};

// An acquisition whose slots are to be held for longer.
struct Renewal {
  uint64_t receipt_id = 0;
  // Its charges on slots; at least one.
  absl::Span<const Charge> charges;
  // Written by the store.
  RenewOutcome outcome = RenewOutcome::kPending;
  int64_t held_for_ns = 0;  // kRenewed: the least time until a slot ends
};

// Renewals, carried out in order. Each is atomic.
class RenewOperation : public Operation {
 public:
  absl::Span<Renewal> items;
  int64_t deadline_ns = kNoDeadline;
};

// Lists the holds of a slot bucket, or ends one of them. REQUIRES: the rule is of slots.
class HoldsOperation : public Operation {
 public:
  enum class Outcome : uint8_t { kPending = 0, kDone, kStaleRule, kUnavailable };
  struct Held {
    uint64_t receipt_id = 0;
    uint64_t permits = 0;
    int64_t ends_in_ns = 0;
  };

  // Alive until completion.
  const Rule* rule = nullptr;
  std::string_view key;
  // 0: list; else end this hold and list none.
  uint64_t receipt_id = 0;
  size_t most_listed = 0;
  // Written by the store: the holds that end first; the number of all; whether the hold was ended.
  std::vector<Held> listed;
  uint64_t holds = 0;
  BucketLevel level = {};
  bool ended = false;
  Outcome outcome = Outcome::kPending;
};

enum class SettleOutcome : uint8_t {
  kPending = 0,
  kSettled,
  // With another actual. Nothing was changed, here and below.
  kAlreadySettled,
  // After its end: what it took beyond the estimate was charged, and nothing given back. (This does
  // change the buckets.)
  kLate,
  // No bucket knows of the acquisition.
  kUnknown,
  kRefunded,
  // Its grant time is ahead.
  kTooEarly,
  // The actual of charge SettleOperation::decreased_charge is lower than in an earlier settlement.
  kActualDecreased,
  kStaleRule,
  kUnavailable,
  // Actuals were named of an acquisition without settle_within_ns, and there is no room for their
  // account.
  kNoRoom,
  // Its buckets are in several slots of a Redis Cluster.
  kSeveralSlots,
};

// What all settlements of one acquisition changed in one bucket: whole permits given back, those
// counted beyond the estimate, and those that were not counted.
struct SettledPermits {
  uint64_t given_back = 0;
  uint64_t charged = 0;
  uint64_t forgiven = 0;
  // Of these, what this settlement changed.
  uint64_t given_back_now = 0;
  uint64_t charged_now = 0;

  friend bool operator==(const SettledPermits&, const SettledPermits&) = default;
};

// Settles an acquisition that had settle_within_ns or slots, whose holds it ends.
class SettleOperation : public Operation {
 public:
  // In place of an actual: as many permits as were taken so far.
  static constexpr uint64_t kAsTaken = std::numeric_limits<uint64_t>::max();

  uint64_t receipt_id = 0;
  // As RefundOperation::grant_time_ns.
  int64_t grant_time_ns = 0;
  // It had settle_within_ns. Without, it can be settled once, as long as it holds slots.
  bool estimate = true;
  // The acquisition's charges, with the permits that were asked for.
  absl::Span<const Charge> charges;
  // Permits of its further charges, whose limits were deleted: their buckets are gone, but those
  // that they charge are settled by their actual. In charged_by and actual they are behind charges.
  absl::Span<const uint64_t> deleted;
  // As Acquisition::charged_by was: a charge's permits are those that its request named and those
  // of the charges in its set.
  const uint16_t* charged_by = nullptr;
  // For each charge the permits that its request would have named: at most 2^63-1, or kAsTaken. Of
  // slots: kAsTaken.
  const uint64_t* actual = nullptr;
  // The work goes on, and slots stay. REQUIRES: estimate.
  bool more = false;
  int64_t deadline_ns = kNoDeadline;

  // Owned by the caller, as many as charges. Written by the store.
  SettledPermits* settled = nullptr;
  SettleOutcome outcome = SettleOutcome::kPending;
  // kActualDecreased: the charge, and its actual so far.
  size_t decreased_charge = 0;
  uint64_t actual_before = 0;
};

enum class MoveOutcome : uint8_t {
  // Not moved: there is no earlier place, or this store does not move bookings.
  kStays = 0,
  kMoved,
  // Its grant time has come, or there is no such booking.
  kGone,
  kStaleRule,
  // The shared store is unavailable; the booking may have been moved.
  kUnavailable,
};

// A reservation whose grant time was not yet sent to its caller.
class MoveOperation : public Operation {
 public:
  uint64_t receipt_id = 0;
  absl::Span<const Charge> charges;
  // As it is booked. Written by the store if it moved.
  int64_t grant_time_ns = 0;
  // Written by the store.
  MoveOutcome outcome = MoveOutcome::kStays;
};

// One of a RebookOperation.
struct Rebooking {
  enum class Outcome : uint8_t {
    kPending = 0,
    // Booked for grant_time_ns; if that is now_ns, debited.
    kBooked,
    // It does not fit until until_ns, and was cancelled.
    kDenied,
    // Its grant time came before, and it stays as it was granted.
    kGone,
  };

  uint64_t receipt_id = 0;
  absl::Span<const Charge> charges;
  // Owned by the caller, as many as charges. Written by the store if it is denied.
  ChargeResult* results = nullptr;
  // As it is booked. Written by the store.
  int64_t grant_time_ns = 0;
  // The latest grant time, on the clock of grant_time_ns.
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
  // The shared store is unavailable; it is not known what happened to the items.
  kUnavailable,
};

// Reservations whose grant times were not yet sent to their callers, to be booked again under the
// rules that their charges name now.
class RebookOperation : public Operation {
 public:
  absl::Span<Rebooking> items;
  // Written by the store.
  RebookStatus status = RebookStatus::kPending;
};

enum class ResetOutcome : uint8_t {
  // The bucket is full, and was not.
  kReset = 0,
  kNotInUse,
  // The shared store is unavailable, and nothing was sent.
  kUnavailable,
  // The request was sent, and its answer is lost.
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

  // Of a shared store: requests of this process since it started.
  uint64_t commands = 0;
  uint64_t decisions = 0;
  // Commands that were sent and not answered in time, or at all; they may have been executed.
  uint64_t unanswered = 0;
  // Commands answered with an error.
  uint64_t errors = 0;
  // Buckets converted from other parameters.
  uint64_t conversions = 0;
  // Nodes that share the store, with this one, as in StoreHealth; 0: no limit needs to know.
  uint64_t nodes = 0;
  // How often this process detected first that the store's clock was set.
  uint64_t clock_jumps = 0;
};

// A process that shares the store.
struct StoreNode {
  std::string id;
  bool self = false;
  bool lapsed = false;  // its heartbeat has expired
  // The number by which it divides split limits; 0: it has no share.
  uint32_t divisor = 0;
};

// A limit for which another node has other parameters.
struct DifferingLimit {
  std::string limit;
  std::string ours;    // as "token_bucket 10 per 1h, burst 10, debt 0"
  std::string theirs;  // those seen last
  uint64_t times = 0;
  int64_t last_wall_ns = 0;
};

// Whether a shared store answers. Times are of the wall clock.
struct StoreHealth {
  bool shared = false;  // false: the store is in this process, and always available
  bool unavailable = false;
  int64_t since_wall_ns = 0;  // when it became available or unavailable
  uint64_t times_unavailable = 0;
  std::string why;  // reason of the last time it was unavailable; empty: it never was
  // Empty if no limit is shared in a way that depends on the nodes.
  std::vector<StoreNode> nodes;
  std::vector<DifferingLimit> differing;  // by name
};

// Thread-safe. Never blocks.
class Store {
 public:
  virtual ~Store() = default;

  // "memory", "redis".
  virtual std::string_view Kind() const = 0;

  // Must be called with a rule before an operation names it. The store keeps old rules as long as
  // one of their buckets exists, in order to convert it to the newer rule (carry-over).
  virtual void Register(std::shared_ptr<const Rule> rule) = 0;

  virtual void Acquire(AcquireOperation* operation) = 0;

  // Takes nothing, creates no bucket.
  virtual void Query(QueryOperation* operation) = 0;

  virtual void Refund(RefundOperation* operation) = 0;

  virtual void Renew(RenewOperation* operation) {
    for (Renewal& item : operation->items) item.outcome = RenewOutcome::kUnavailable;
    operation->Done();
  }

  virtual void Holds(HoldsOperation* operation) {
    operation->outcome = HoldsOperation::Outcome::kUnavailable;
    operation->Done();
  }

  virtual void Settle(SettleOperation* operation) {
    operation->outcome = SettleOutcome::kUnavailable;
    operation->Done();
  }

  // Moves a booking up to the earliest moment at which it fits, but not before the booking that
  // precedes it in the order of its set of buckets. Never moves it to a later time.
  virtual void Move(MoveOperation* operation) {
    operation->outcome = MoveOutcome::kStays;
    operation->Done();
  }

  // In one atomic step: takes all items out, including items that were debited meanwhile, and books
  // them again in the order of their receipts, each at the earliest moment that fits and that is
  // not before a booking of its set of buckets with a lower receipt. Receipts stay the same.
  virtual void Rebook(RebookOperation* operation) {
    operation->status = RebookStatus::kUnsupported;
    operation->Done();
  }

  // Whether other processes decide on the same buckets, so that Rule::sharing matters.
  virtual bool Shared() const { return false; }

  // Whether times in results are on common::Clock::NowNs()'s time line. False: on a clock of the
  // store.
  virtual bool UsesLocalClock() const { return true; }

  // Makes the bucket full; its open receipts become worthless. `done` runs once, as
  // AcquireOperation::Done does.
  using ResetDone = void (*)(void* context, ResetOutcome outcome);
  virtual void Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) = 0;

  // The most bytes that one key of a limit with these parameters and max_owed takes, and the bytes
  // that all limits together may reserve (Rule::min_keys). 0: this store reserves no room.
  virtual uint64_t MaxBytesPerKey(const algorithm::Parameters& /*parameters*/,
                                  uint64_t /*max_owed*/) const {
    return 0;
  }
  virtual uint64_t ReservableBytes() const { return 0; }

  // Lifts the floor of its own that a limit has since a shared store lost data. `done` runs once:
  // with the end of that floor in nanoseconds since 1970, 0: the limit has none, nullopt: the store
  // is unavailable.
  using FloorDone = absl::AnyInvocable<void(std::optional<int64_t> floor_wall_ns)>;
  virtual void LiftFloor(std::string_view /*limit*/, FloorDone done) { done(0); }

  // How many bookings more it takes, of all limits together.
  virtual size_t BookingsLeft() const { return common::bounds::kMaxBookings; }

  virtual StoreStats Stats() const = 0;

  virtual StoreHealth Health() const { return {}; }

  // For a limit with relaxed sharing: permits granted beyond what its buckets held.
  virtual uint64_t OvershootPermits(uint32_t /*limit_id*/) const { return 0; }

  // Does a small, bounded step of maintenance: drops full buckets, returns memory. Called by a
  // timer, also when there are no requests. Returns true while there is more to do soon.
  virtual bool Maintain() { return false; }
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_STORE_H_
