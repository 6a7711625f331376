// The state of one bucket, whichever its algorithm, with its open receipts.
//
// A store that knows a bucket to be a plain token bucket (no open receipts) keeps its tat
// alone and calls token_bucket.h; everything else is one of these, on the heap. Both use the same
// functions, so the decisions are the same.
//
// What is booked ahead (calendar.h) is kept here too, and heeded by every decision. Fold must be
// called before any other call that is about a later moment than the last one was about.
//
// Not thread-safe; never blocks. `parameters` of every call must be those that the state was made
// with or last converted to.
#ifndef SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_
#define SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <variant>

#include "absl/functional/function_ref.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/calendar/calendar.h"
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
  // A token bucket that was kept as its tat.
  static BucketState FromTat(uint64_t tat);

  BucketState(BucketState&&) noexcept = default;
  BucketState& operator=(BucketState&&) noexcept = default;
  BucketState(const BucketState& other);

  Kind kind() const { return static_cast<Kind>(state_.index()); }

  // Would TryTake grant? Takes nothing. For acquisitions with several charges: ask all, then take
  // all at the same moment. `set`: Booking::set of the acquisition; it is not granted before what
  // is booked for the same set.
  bool CanTake(const Parameters& parameters, uint64_t permits, Moment at, uint64_t set = 0) const;

  // Granted with receipt_id != 0: opens a receipt. `*evicted`, if given, is set to true if an
  // older receipt was closed for it, else left alone.
  bool TryTake(const Parameters& parameters, uint64_t permits, Moment at, uint64_t receipt_id = 0,
               bool* evicted = nullptr, uint64_t set = 0);

  // The first nanosecond (of at.now_ns's clock), not before now, at which TryTake would grant if
  // nobody else takes; kNeverNs if it never would.
  // Not before from_ns either, nor before what is booked for `set`.
  int64_t EarliestNs(const Parameters& parameters, uint64_t permits, Moment at, uint64_t set = 0,
                     int64_t from_ns = std::numeric_limits<int64_t>::min()) const;

  Level LevelAt(const Parameters& parameters, Moment at) const;

  // A full bucket is the same as none: it may be dropped. No receipt of it is worth anything.
  bool IsFull(const Parameters& parameters, Moment at) const;

  // Closes the receipt, gives back what it is worth, and returns how much in whole permits, rounded
  // down (a token bucket gives back fractions too). nullopt: no such open receipt, hence worth
  // nothing, ever.
  std::optional<uint64_t> Refund(const Parameters& parameters, uint64_t receipt_id, Moment at);

  // Books at a moment that EarliestNs gave for the same `at`, later than at.now_ns. When it has
  // come the booking becomes a take with booking.id as its receipt.
  void Book(const Parameters& parameters, const Booking& booking, Moment at);

  // Takes out a booking whose moment has not come. False: there is none of that id and moment.
  bool CancelBooking(const Parameters& parameters, int64_t grant_time_ns, uint64_t id);

  // A booking, and the moment of the one of its set before it (INT64_MIN: none).
  bool FindBooking(int64_t grant_time_ns, uint64_t id, Booking* booking,
                   int64_t* previous_ns) const;

  // In the order of their moments.
  void ForEachBooking(absl::FunctionRef<void(const Booking&)> visit) const;

  // Turns the bookings whose moments have come into takes. Returns how many older receipts were
  // closed for theirs.
  size_t Fold(const Parameters& parameters, Moment at);

  // Makes it full. What is booked stands.
  void Reset(const Parameters& parameters, Moment at);

  // Decisions are not about an earlier moment while something is booked.
  int64_t NotBeforeNs() const;

  size_t bookings() const;
  // kNeverNs: none.
  int64_t NextGrantTimeNs() const;
  int64_t LastGrantTimeNs() const;

  // Carry-over: the same bucket under other parameters, also of another algorithm. See
  // carry_over.h. What is booked stands.
  // `moved_ns` is added to all moments: a store may count token buckets and windows from different
  // origins. REQUIRES: moved_ns is 0, or the algorithms differ.
  void Convert(const Parameters& from, const Parameters& to, Moment at, int64_t moved_ns = 0);

  size_t open_receipts() const { return token_receipts_.size() + counted_receipts_.size(); }

  // A token bucket without open receipts and bookings: tat is all there is to keep. (Receipts
  // that have become worthless are closed by the next TryTake, Refund or CloseWorthless.)
  bool IsPlainTokenBucket() const {
    return kind() == Kind::kTokenBucket && token_receipts_.empty() && calendar_ == nullptr;
  }
  // Without what is booked. REQUIRES: kind() == kTokenBucket.
  uint64_t tat() const { return std::get<uint64_t>(state_); }

  // Closes receipts that are worth nothing any more.
  void CloseWorthless(const Parameters& parameters, Moment at);

  BucketImage ToImage() const;
  // REQUIRES: an image of a state of the same parameters.
  static BucketState FromImage(const Parameters& parameters, const BucketImage& image);

  // Of the object and what it owns.
  size_t MemoryBytes() const;

 private:
  struct Calendar;
  struct DeleteCalendar {
    void operator()(Calendar* calendar) const;
  };

  // As the functions of the same name, but for the past alone.
  bool TryTakePast(const Parameters& parameters, uint64_t permits, Moment at, uint64_t receipt_id,
                   bool* evicted);
  bool CanTakePast(const Parameters& parameters, uint64_t permits, Moment at) const;
  int64_t EarliestPastNs(const Parameters& parameters, uint64_t permits, Moment at) const;
  Level LevelOfPastAt(const Parameters& parameters, Moment at) const;
  std::optional<uint64_t> RefundPast(const Parameters& parameters, uint64_t receipt_id, Moment at,
                                     uint64_t* when);
  void ConvertPast(const Parameters& from, const Parameters& to, Moment at, int64_t moved_ns);
  // A take that was granted when it was booked; closes an older receipt if need be.
  bool TakeBooked(const Parameters& parameters, const Booking& booking, Moment at);
  void NewCalendar(const Parameters& parameters, Moment at);

  // In the order of Kind.
  std::variant<uint64_t, SlidingLogState, SlidingWindowState, FixedWindowState> state_;
  // At most one of the two is used.
  TokenReceipts token_receipts_;
  CountedReceipts counted_receipts_;
  // Null: nothing is booked.
  std::unique_ptr<Calendar, DeleteCalendar> calendar_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_
