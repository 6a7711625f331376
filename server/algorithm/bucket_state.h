// The state of one bucket, whichever its algorithm, with its open receipts.
//
// A store that knows a bucket to be a plain token bucket (no open receipts) keeps its full_at
// alone and calls token_bucket.h; everything else is one of these, on the heap. Both use the same
// functions, so the decisions are the same.
//
// Not thread-safe; never blocks. `parameters` of every call must be those that the state was made
// with or last converted to.
#ifndef SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_
#define SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "server/algorithm/fixed_window.h"
#include "server/algorithm/level.h"
#include "server/algorithm/moment.h"
#include "server/algorithm/open_receipts.h"
#include "server/algorithm/parameters.h"
#include "server/algorithm/sliding_log.h"
#include "server/algorithm/sliding_window.h"

namespace sluice::algorithm {

class BucketState {
 public:
  // A full bucket.
  explicit BucketState(const Parameters& parameters);
  // A token bucket that was kept as its full_at.
  static BucketState FromFullAt(uint64_t full_at);

  Kind kind() const { return static_cast<Kind>(state_.index()); }

  // Would TryTake grant? Takes nothing. For acquisitions with several charges: ask all, then take
  // all at the same moment.
  bool CanTake(const Parameters& parameters, uint64_t permits, Moment at) const;

  // Granted with receipt_id != 0: opens a receipt. `*evicted`, if given, is set to true if an
  // older receipt was closed for it, else left alone.
  bool TryTake(const Parameters& parameters, uint64_t permits, Moment at, uint64_t receipt_id = 0,
               bool* evicted = nullptr);

  // The first nanosecond (of at.now_ns's clock), not before now, at which TryTake would grant if
  // nobody else takes; kNeverNs if it never would.
  int64_t EarliestNs(const Parameters& parameters, uint64_t permits, Moment at) const;

  Level LevelAt(const Parameters& parameters, Moment at) const;

  // A full bucket is the same as none: it may be dropped. No receipt of it is worth anything.
  bool IsFull(const Parameters& parameters, Moment at) const;

  // Closes the receipt, gives back what it is worth, and returns how much in whole permits, rounded
  // down (a token bucket gives back fractions too). nullopt: no such open receipt, hence worth
  // nothing, ever.
  std::optional<uint64_t> Refund(const Parameters& parameters, uint64_t receipt_id, Moment at);

  // Carry-over: the same bucket under other figures, also of another algorithm. See carry_over.h.
  void Convert(const Parameters& from, const Parameters& to, Moment at);

  size_t open_receipts() const { return token_receipts_.size() + counted_receipts_.size(); }

  // A token bucket without open receipts: full_at is all there is to keep. (Receipts that have
  // become worthless are closed by the next TryTake, Refund or CloseWorthless.)
  bool IsPlainTokenBucket() const {
    return kind() == Kind::kTokenBucket && token_receipts_.empty();
  }
  // REQUIRES: kind() == kTokenBucket.
  uint64_t full_at() const { return std::get<uint64_t>(state_); }

  // Closes receipts that are worth nothing any more.
  void CloseWorthless(const Parameters& parameters, Moment at);

  // Of the object and what it owns.
  size_t MemoryBytes() const;

 private:
  // In the order of Kind.
  std::variant<uint64_t, SlidingLogState, SlidingWindowState, FixedWindowState> state_;
  // At most one of the two is used.
  TokenReceipts token_receipts_;
  CountedReceipts counted_receipts_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_
