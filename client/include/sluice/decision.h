// Requests and answers of the client, as plain values.
#ifndef SLUICE_DECISION_H_
#define SLUICE_DECISION_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sluice/status.h"

namespace sluice {

// Permits from one bucket: the state of one key under one limit.
struct Charge {
  std::string limit = {};  // the name of a configured limit
  std::string key = {};    // at most 512 bytes of UTF-8; empty: the limit's shared bucket
  uint64_t permits = 1;    // at least 1
};

// One or several charges, granted all or none.
struct Acquisition {
  Acquisition() = default;
  explicit Acquisition(std::vector<Charge> all) : charges(std::move(all)) {}
  explicit Acquisition(std::string limit, std::string key = {}, uint64_t permits = 1) {
    charges.push_back({std::move(limit), std::move(key), permits});
  }

  // 1 to 16, including the charges that limits add.
  std::vector<Charge> charges = {};
  // Request a receipt, for Client::Refund. Slots have one without it.
  bool want_receipt = false;
  // Debit permits that were used already: always granted, now. What the buckets may not owe is
  // forgiven (ChargeStatus::forgiven). The limits must have max_owed. Not with max_wait.
  bool force = false;
  // 0: granted now or denied. Greater, at most 24 h: a reservation may be granted at most this far
  // ahead, but not further than the limits' own max_wait. It has a receipt. Proceed after
  // Decision::wait, or cancel it with Client::Refund.
  std::chrono::nanoseconds max_wait{0};
  // With max_wait: the server answers at the grant time. max_wait is added to the call's deadline.
  // Not allowed in a batch or a stream.
  bool hold = false;
  // Not 0: the permits are an estimate. Client::Settle says within this time, at most 24 h, how
  // many the work took. It has a receipt.
  std::chrono::nanoseconds settle_within{0};
  // 16 random bytes; empty: none. For 60 s the server remembers a grant under its id. The same
  // acquisition with the same id then takes nothing and gets that grant again (Decision::repeated),
  // from any server of the same Redis. CallOptions::exactly_once makes an id for each call; set one
  // here to repeat an acquisition over several calls. Not with hold, nor on limits with sharing
  // split or relaxed, or on_store_failure split.
  std::string request_id = {};
};

// What decided.
enum class Source {
  kUnspecified = 0,
  kStore = 1,             // the store: exact
  kStoreUnavailable = 3,  // the limit's on_store_failure: the shared store was unavailable
  kOverflow = 4,          // the server's overflow policy: its bucket table was full
  kLocal = 5,             // one node alone: sharing is split or relaxed
  // OnUnavailable of the client: no server decided in time. Decision::status has the cause.
  kUnavailable = 100,
};

// For example "store" or "unavailable".
std::string_view SourceName(Source source);

// Why a charge denied its acquisition.
enum class Reason {
  kNone = 0,              // the charge did not deny
  kNotEnough = 1,         // too few permits within max_wait
  kWaitingBound = 2,      // too many reservations wait
  kStoreUnavailable = 3,  // by on_store_failure
  kOverflow = 4,          // the bucket table is full
  kShadowDenied = 5,      // granted, because the limit is in shadow mode
  kDeadlineTooShort = 6,  // with hold: the grant time is after the call's deadline
  kShareTooSmall = 7,     // the node's share of a split limit never holds so many permits
};

// For example "not_enough"; empty for kNone.
std::string_view ReasonName(Reason reason);

// A bucket after the decision.
struct ChargeStatus {
  int64_t remaining = 0;  // permits available now; negative: permits owed
  uint64_t capacity = 0;
  std::chrono::nanoseconds reset_after{0};  // until the bucket is full, if it is not used
  Reason reason = Reason::kNone;
  // Set for charges that a limit's `charges` added; they follow the requested ones.
  std::string limit = {};
  // With force: permits that the bucket did not count, and that are not owed.
  uint64_t forgiven = 0;
  // Granted, of a limit with algorithm concurrency: until the slots are taken back, unless
  // Client::Renew holds them for longer. Counted from the grant time. 0: no slots.
  std::chrono::nanoseconds held_for{0};
};

// The answer to an acquisition.
struct Decision {
  bool granted = false;
  Source source = Source::kUnspecified;
  // Denied: the same acquisition would be granted after this time, if no other caller takes
  // permits. With source kUnavailable: ClientOptions::unavailable_retry_after.
  std::chrono::nanoseconds retry_after{0};
  // Granted: how long the caller has to wait before it proceeds.
  std::chrono::nanoseconds wait{0};
  std::vector<ChargeStatus> charges = {};  // empty with source kUnavailable
  // Opaque bytes; present with want_receipt or settle_within, for every reservation and for slots.
  std::string receipt = {};
  // An earlier attempt, or an earlier call with the same request_id, was granted. This is that
  // grant; `wait` is what is left of it.
  bool repeated = false;
  // With source kUnavailable: why no server decided. Its may_have_executed() says whether permits
  // may have been taken nevertheless. Else OK.
  Status status = {};
  // The index in ClientOptions::servers of the server that answered, which accepts the receipt.
  uint32_t server = 0;
};

// A bucket to query.
struct Bucket {
  std::string limit = {};
  std::string key = {};
};

struct BucketStatus {
  std::string limit = {};
  std::string key = {};
  int64_t remaining = 0;
  uint64_t capacity = 0;
  std::chrono::nanoseconds reset_after{0};
  std::chrono::nanoseconds next_permit_after{0};  // until one permit could be taken
  bool exists = false;                            // a bucket that does not exist is full
  uint64_t waiting = 0;                           // reservations to come; callers in slot queues
  std::chrono::nanoseconds next_grant_after{0};   // until the first of these grant times
  // Receipts that can still give permits back, without those of reservations to come, and the whole
  // permits that the bucket gets back if all of them are refunded now.
  uint64_t open_receipts = 0;
  uint64_t refundable = 0;
  // Of a limit with algorithm concurrency: acquisitions that hold slots, and the time until the
  // first of them is taken back unless it is renewed.
  uint64_t holds = 0;
  std::chrono::nanoseconds next_end_after{0};
  Source source = Source::kUnspecified;
  Status status = {};  // not OK: the bucket could not be read; ignore the other fields
};

enum class RefundOutcome {
  kRefunded = 1,
  // The receipt was used before; nothing changed. If RefundResult::attempts is above 1, that may
  // have been this call's own earlier attempt, whose answer was lost.
  kAlreadyRefunded = 2,
  kExpired = 3,  // nothing is left to refund
};

// For example "refunded".
std::string_view RefundOutcomeName(RefundOutcome outcome);

struct RefundedCharge {
  std::string limit = {};
  std::string key = {};
  uint64_t permits = 0;  // whole permits that the bucket got back
};

struct RefundResult {
  RefundOutcome outcome = RefundOutcome::kExpired;
  std::vector<RefundedCharge> charges = {};
  int attempts = 1;
};

enum class RenewOutcome {
  kRenewed = 1,
  // The acquisition holds no slots any more: stop the work that they allowed.
  kGone = 2,
};

// For example "renewed".
std::string_view RenewOutcomeName(RenewOutcome outcome);

// The outcome of one receipt.
struct Renewal {
  RenewOutcome outcome = RenewOutcome::kGone;
  // kRenewed: the least time, from the answer on, until a slot of the acquisition is taken back.
  std::chrono::nanoseconds held_for{0};
  // Not OK: it is not known whether the slots are held; ignore the other fields.
  Status status = {};
};

// What the work of an acquisition with settle_within took.
struct Settlement {
  std::string receipt = {};
  // The total used so far, for each limit and key of the acquisition; permits may be 0. Absent
  // charges stay as taken.
  std::vector<Charge> actual = {};
  // The work goes on: permits beyond the estimate are charged, nothing is given back, and
  // settle_within begins again.
  bool more = false;
};

enum class SettleOutcome {
  kSettled = 1,
  kAlreadySettled = 2,  // before, with another actual; nothing changed
  kLate = 3,            // after settle_within; nothing was given back
  kUnknown = 4,         // the server has forgotten the acquisition; nothing changed
};

// For example "settled".
std::string_view SettleOutcomeName(SettleOutcome outcome);

// What all settlements of the acquisition changed in one bucket.
struct SettledCharge {
  std::string limit = {};
  std::string key = {};
  uint64_t given_back = 0;  // whole permits
  // Beyond the estimate: permits that the bucket counted, and that it did not count.
  uint64_t charged = 0;
  uint64_t forgiven = 0;
};

struct SettleResult {
  SettleOutcome outcome = SettleOutcome::kUnknown;
  std::vector<SettledCharge> charges = {};
  int attempts = 1;
};

}  // namespace sluice

#endif  // SLUICE_DECISION_H_
