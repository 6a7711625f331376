// What is asked and what is answered. Plain values.
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
  std::string limit = {};  // name of a configured limit
  std::string key = {};    // at most 512 bytes of UTF-8; empty: the limit's one shared bucket
  uint64_t permits = 1;    // at least 1
};

// One or several charges, taken all or none.
struct Acquisition {
  Acquisition() = default;
  explicit Acquisition(std::vector<Charge> all) : charges(std::move(all)) {}
  explicit Acquisition(std::string limit, std::string key = {}, uint64_t permits = 1) {
    charges.push_back({std::move(limit), std::move(key), permits});
  }

  std::vector<Charge> charges = {};  // 1 to 16, counted after each limit's own `charges` were added
  // Ask for a receipt, with which Client::Refund gives back what was taken.
  bool want_receipt = false;
  // How far ahead a grant may lie. 0: now or denied. Greater, at most 24 h: a reservation, which
  // has a receipt; proceed after Decision::wait, or give the place up with Client::Refund.
  std::chrono::nanoseconds max_wait{0};
  // With max_wait: answered only when the moment has come; max_wait is added to the call's
  // deadline. Not in a batch or a stream.
  bool hold = false;
};

// Who decided.
enum class Source {
  kUnspecified = 0,
  kStore = 1,             // the store: exact
  kLease = 2,             // the server, from permits leased from the shared store
  kStoreUnavailable = 3,  // the limit's on_store_failure, because the shared store was away
  kOverflow = 4,          // the server's overflow policy, because its bucket table was full
  kLocal = 5,             // one node for itself: sharing is split or relaxed
  // No server decided in time: the caller's own on_unavailable did. Decision::status says why.
  kUnavailable = 100,
};

// "store", "unavailable" and so on.
std::string_view SourceName(Source source);

// Why a charge denied its acquisition.
enum class Reason {
  kNone = 0,  // it did not
  kNotEnough = 1,
  kWaitingBound = 2,
  kStoreUnavailable = 3,
  kOverflow = 4,
  kShadowDenied = 5,      // granted, because the limit is in shadow mode
  kDeadlineTooShort = 6,  // held: its moment comes after the call's own deadline
  kShareTooSmall = 7,     // more than the node's share of a split limit can ever hold
};

// "not_enough" and so on; empty for kNone.
std::string_view ReasonName(Reason reason);

// A bucket after the decision.
struct ChargeStatus {
  int64_t remaining = 0;  // permits that could be taken now; negative: owed
  uint64_t capacity = 0;
  std::chrono::nanoseconds reset_after{0};  // until full, if nobody takes from it
  Reason reason = Reason::kNone;
  // Set for the charges that a limit's `charges` added; they follow the requested ones.
  std::string limit = {};
};

// The answer to an acquisition.
struct Decision {
  bool granted = false;
  Source source = Source::kUnspecified;
  // Denied: the same acquisition would be granted then if nobody else came. With kUnavailable: a
  // sensible time before the next try.
  std::chrono::nanoseconds retry_after{0};
  // Granted: how long until the moment at which the caller may proceed.
  std::chrono::nanoseconds wait{0};
  std::vector<ChargeStatus> charges = {};  // empty with kUnavailable
  std::string receipt = {};                // opaque bytes; with want_receipt, or for later
  // OK unless source is kUnavailable: then why no server decided. Its may_have_executed() says
  // whether permits may have been taken all the same.
  Status status = {};
  // Which of ClientOptions::servers answered: a receipt is worth something there.
  uint32_t server = 0;
};

// A bucket to look at.
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
  uint64_t waiting = 0;                           // places in line, held callers' and others'
  std::chrono::nanoseconds next_grant_after{0};   // until the first one's moment
  Source source = Source::kUnspecified;
  Status status = {};  // not OK: this bucket could not be read, and the parameters mean nothing
};

enum class RefundOutcome {
  kRefunded = 1,
  // The receipt had been used before; nothing changed. After a connection that broke, this can be
  // the client's own first attempt: see RefundResult::attempts.
  kAlreadyRefunded = 2,
  kExpired = 3,  // nothing is left to give back
};

// "refunded" and so on.
std::string_view RefundOutcomeName(RefundOutcome outcome);

struct RefundedCharge {
  std::string limit = {};
  std::string key = {};
  uint64_t permits = 0;  // whole permits that the bucket holds more now
};

struct RefundResult {
  RefundOutcome outcome = RefundOutcome::kExpired;
  std::vector<RefundedCharge> charges = {};
  int attempts = 1;
};

}  // namespace sluice

#endif  // SLUICE_DECISION_H_
