// BucketState: the state of one bucket of any algorithm, with its open receipts and bookings.
//
// The memory store keeps a plain token bucket (no open receipts, no bookings) as its TAT alone and
// calls token_bucket.h; any other bucket is a BucketState. Both use the same functions, so they
// decide alike.
//
// Every decision leaves room for the bookings (calendar.h). Call Fold before any call about a later
// moment than the last call's.
//
// Carry-over: Convert keeps the bucket when its limit's parameters change.
//
// A token bucket keeps its fill in proportion: half full of 10 becomes half full of 30. It keeps
// its debt permit for permit. A full bucket stays full, and it must: a full bucket is the same as
// none, and a bucket that does not exist is full under any burst. Example: 1/s burst 10 holding 4
// -> 1/s burst 5 holds 2; owing 3 -> owes 3. A bucket that stores nothing can only owe: 1/s burst
// 10 holding 4 -> 1/s burst 0 debt 5 owes 3.
//
// Logs and windows keep their counts: 70 of 100 used -> 70 of 80 used.
//
// Between algorithms the used fraction is kept, rounded up, and counted as used now.
//
// Rounding is always against the caller. Yet if neither rate nor burst nor debt falls and the
// period stays, each request that would have been granted is still granted. For a token bucket that
// needs a proof. In units of time let a permit cost U before and V <= U after, the burst be B
// before and C >= B after, S what the bucket lacks, and t the (whole) nanoseconds until some
// request for n permits that would have been granted: S + n*U <= t + B*U. What it lacks afterwards
// is at most S*V/U + (C-B)*V before rounding, and
//     S*V/U + (C-B)*V + n*V  <=  (t + B*U - n*U)*V/U + (C-B)*V + n*V  =  t*V/U + C*V  <=  t + C*V.
// t, C*V and n*V are whole ticks, so rounding what is lacking up to a whole tick does not pass
// them.
//
// Between slots (concurrency) and a rate nothing is kept: a slot is not a use of a rate. Holds end,
// bookings are forgotten (the grant times that were given stand), and the bucket is full.
//
// Open receipts are converted too. A token bucket's receipt is worth the same share of a bucket or
// the same number of permits, whichever is less, since the permits that it would give back may have
// been stored or owed. If the algorithm changes, receipts are closed.
//
// Estimates (estimates.h) are known by the id of their receipt. A take, a forced debit or a booking
// with that id is theirs. They stay whatever happens to the bucket, and a bucket is not full while
// it has any.
//
// Not thread-safe; never blocks. The `parameters` of every call must be the ones that the state was
// made with or last converted to.
#ifndef SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_
#define SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/calendar/calendar.h"
#include "server/algorithm/estimates.h"
#include "server/algorithm/level.h"
#include "server/algorithm/open_receipts.h"
#include "server/algorithm/parameters.h"

namespace sluice::algorithm {

// For std::visit: one function object of several lambdas.
template <typename... Lambdas>
struct Overloaded : Lambdas... {
  using Lambdas::operator()...;
};

class BucketState {
 public:
  // A full bucket.
  explicit BucketState(const Parameters& parameters);
  // A token bucket that was kept as its TAT.
  static BucketState FromTat(uint64_t tat);

  BucketState(BucketState&&) noexcept = default;
  BucketState& operator=(BucketState&&) noexcept = default;
  BucketState(const BucketState& other);

  Kind kind() const { return static_cast<Kind>(state_.index()); }

  // Whether TryTake would grant. Takes nothing. For acquisitions with several charges: ask all
  // buckets, then take from all at the same moment. `set`: Booking::set of the acquisition; it is
  // not granted before the bookings of the same set.
  bool CanTake(const Parameters& parameters, uint64_t permits, Moment at, uint64_t set = 0) const;

  // If granted and receipt_id != 0: opens a receipt; slots are held under it. Sets *evicted, if
  // given, if an older receipt was closed to make room. `kept`: the receipt is kept, as an
  // estimate's is. REQUIRES: receipt_id != 0 for slots.
  bool TryTake(const Parameters& parameters, uint64_t permits, Moment at, uint64_t receipt_id = 0,
               bool* evicted = nullptr, uint64_t set = 0,
               OpenReceipts::Kept kept = OpenReceipts::Kept::kNo);

  // A forced debit. Counts the permits as far as the bucket then owes at most max_owed, now and at
  // the grant time of each booking; a log or window counts at most its capacity and max_owed. The
  // rest is forgiven: it is not owed. Returns the permits that were not counted as a whole. If
  // receipt_id != 0, opens a receipt for what was counted, unless that is nothing.
  uint64_t Force(const Parameters& parameters, uint64_t permits, uint64_t max_owed, Moment at,
                 uint64_t receipt_id = 0, bool* evicted = nullptr);

  // Takes permits off what the current window has counted, down to 0, and off what each open
  // receipt is worth. REQUIRES: a fixed_window.
  void GiveBack(const Parameters& parameters, uint64_t permits, Moment at);

  // The first nanosecond (on at.now_ns's clock) at which TryTake would grant if no other permits
  // are taken; kNeverNs if it never would. Not before now, from_ns or the bookings of `set`.
  // `budget`: of the search among the bookings; null: one of its own.
  int64_t EarliestNs(const Parameters& parameters, uint64_t permits, Moment at, uint64_t set = 0,
                     int64_t from_ns = std::numeric_limits<int64_t>::min(),
                     SearchBudget* budget = nullptr) const;

  Level LevelAt(const Parameters& parameters, Moment at, SearchBudget* budget = nullptr) const;

  // A full bucket is the same as none: it may be dropped. Its receipts are worth nothing.
  bool IsFull(const Parameters& parameters, Moment at) const;

  // Closes the receipt, gives back what it is worth, and returns how much in whole permits, rounded
  // down (a token bucket gets back fractions too). nullopt: the receipt is not open; it will never
  // be worth anything.
  std::optional<uint64_t> Refund(const Parameters& parameters, uint64_t receipt_id, Moment at);

  // Begins an estimate: to be called before the take, the forced debit or the booking with this
  // receipt, or in place of it if the bucket is not charged. REQUIRES: receipt_id != 0.
  void BeginEstimate(uint64_t receipt_id, uint64_t permits, int64_t grant_time_ns,
                     int64_t within_ns);
  // Whether another one may begin. Removes some that are over, and appends their ids to `removed`.
  bool HasRoomForEstimate(Moment at, std::vector<uint64_t>* removed = nullptr);
  // Null: there is none.
  const Estimate* FindEstimate(uint64_t receipt_id) const {
    return estimates_ == nullptr ? nullptr : estimates_->Find(receipt_id);
  }
  // Null: there are none.
  const Estimates* estimates() const { return estimates_.get(); }
  // How many are not settled and could still give permits back.
  size_t open_estimates() const { return receipts_.kept(); }

  struct Settlement {
    uint64_t actual = 0;
    // The most that is counted of what it adds to Estimate::asked_so_far; the rest is forgiven.
    uint64_t share = 0;
    uint64_t max_owed = 0;
    bool more = false;  // the work goes on
  };
  // Settles an estimate, after its end if that has passed. Returns the permits that were counted.
  // REQUIRES: there is such an estimate, it is not closed, actual is not less than before, and it
  // is not booked.
  uint64_t Settle(const Parameters& parameters, uint64_t receipt_id, const Settlement& settlement,
                  Moment at);

  // The acquisition can no longer be refunded. Returns whether it could.
  bool CloseReceipt(uint64_t receipt_id) { return receipts_.Drop(receipt_id); }

  // The receipt of a take with Kept::kYes becomes one like any other.
  void KeepReceiptNoLonger(uint64_t receipt_id) { receipts_.KeepNoLonger(receipt_id); }

  // What refunds of all open receipts would give back now. Bookings are not counted.
  Refundable RefundableAt(const Parameters& parameters, Moment at) const;

  // Books at a grant time that EarliestNs returned for the same `at`, later than at.now_ns. At the
  // grant time the booking becomes a take with booking.id as its receipt. Slots are taken at once,
  // and held for hold_for after the grant time; so they have no bookings, but CancelBooking and
  // FindBooking find what was booked.
  void Book(const Parameters& parameters, const Booking& booking, Moment at);

  // Removes a booking whose grant time has not come. False: there is none of that id and grant
  // time.
  bool CancelBooking(const Parameters& parameters, int64_t grant_time_ns, uint64_t id);

  // Finds a booking, and the grant time of the one before it in its set (INT64_MIN: none).
  bool FindBooking(int64_t grant_time_ns, uint64_t id, Booking* booking,
                   int64_t* previous_ns) const;

  // How many bookings come before that one; bookings() if there is none of that id and grant time.
  size_t BookingRank(int64_t grant_time_ns, uint64_t id) const;
  // How many bookings have a grant time up to and with that one.
  size_t BookingsUpTo(int64_t grant_time_ns) const;

  // In the order of grant times: `count` bookings behind the first `skip` ones.
  void ForEachBooking(absl::FunctionRef<void(const Booking&)> visit, size_t skip = 0,
                      size_t count = std::numeric_limits<size_t>::max()) const;

  // Goes on with a conversion, of `most` bookings or some more. Then turns the bookings whose grant
  // times have come into takes, at most `most` of them in all. Returns how many older receipts were
  // closed to make room for theirs. Of slots: removes ended holds, which do not count in any case.
  size_t Fold(const Parameters& parameters, Moment at,
              size_t most = std::numeric_limits<size_t>::max());
  // Whether that is to be called (again).
  bool HasDue(int64_t now_ns) const;
  // Whether Convert has left bookings to Fold.
  bool converting() const;

  // Makes the bucket full. Bookings stay.
  void Reset(const Parameters& parameters, Moment at);

  // While there are bookings, decisions are not dated before this moment.
  int64_t NotBeforeNs() const;

  size_t bookings() const;
  // kNeverNs: none.
  int64_t NextGrantTimeNs() const;
  int64_t LastGrantTimeNs() const;

  // ---- Slots (Concurrency).

  // Ends the hold of the receipt and returns its permits. nullopt: it has ended, or these are no
  // slots.
  std::optional<uint64_t> EndHold(uint64_t receipt_id, Moment at);
  // Holds for longer, and returns the end. nullopt: as EndHold.
  std::optional<int64_t> RenewHold(const Parameters& parameters, uint64_t receipt_id, Moment at);
  // The end of the hold. nullopt: as EndHold.
  std::optional<int64_t> HeldUntilNs(uint64_t receipt_id, Moment at) const;
  // A bucket of slots with all its holds, which this one no longer has, so that they can be freed
  // elsewhere. Of other algorithms an empty one.
  BucketState TakeHolds();
  // Adds a hold as it was. REQUIRES: slots, and no hold has its id.
  void RestoreHold(const Hold& hold) { MutableSlots()->Restore(hold); }
  // Null: these are no slots.
  const ConcurrencyState* slots() const { return std::get_if<ConcurrencyState>(&state_); }

  // Carry-over: the same bucket under other parameters, also of another algorithm. Bookings stay.
  // `moved_ns` is added to all moments: a store may count token buckets and windows from different
  // origins. Converts at most `most` bookings; Fold converts the others. Until then nothing but
  // Fold, HasDue, what is known of the bookings, MemoryBytes and ToImage may be called. REQUIRES:
  // moved_ns is 0, or the algorithms differ; with `most`, !HasDue(at.now_ns), moved_ns is 0, most
  // is not.
  void Convert(const Parameters& from, const Parameters& to, Moment at, int64_t moved_ns = 0,
               size_t most = std::numeric_limits<size_t>::max());

  // With the holds of slots.
  size_t open_receipts() const {
    return receipts_.size() + (slots() == nullptr ? 0 : slots()->holds().size());
  }

  // What RefundableAt walks.
  size_t receipt_places() const {
    return receipts_.places() + (slots() == nullptr ? 0 : slots()->holds().size());
  }

  // A token bucket without open receipts, estimates and bookings: the TAT is its whole state.
  // (Receipts that have become worthless are closed by the next TryTake, Refund or CloseWorthless.)
  bool IsPlainTokenBucket() const {
    return kind() == Kind::kTokenBucket && receipts_.empty() && calendar_ == nullptr &&
           estimates_ == nullptr;
  }
  // Without the bookings. REQUIRES: kind() == kTokenBucket.
  uint64_t tat() const { return std::get<TokenBucketState>(state_).tat; }

  // Whether there are estimates, and none is kept.
  bool HasOldEstimates(int64_t now_ns) const {
    return estimates_ != nullptr && !estimates_->AnyKept(now_ns);
  }

  // Closes receipts that are no longer worth anything, and forgets estimates if none is kept. With
  // kSome, of many estimates some: a bucket may have a million. Until all are forgotten, the bucket
  // has estimates.
  enum class Forget : bool { kSome = false, kAll = true };
  void CloseWorthless(const Parameters& parameters, Moment at, Forget forget = Forget::kAll);

  // `with_bookings` false: all but them and the estimates. `runs_from`: of a log the runs from that
  // quantum on.
  BucketImage ToImage(bool with_bookings = true, uint64_t runs_from = 0) const;
  // REQUIRES: an image of a state of the same parameters.
  static BucketState FromImage(const Parameters& parameters, const BucketImage& image);

  // Takes over all but the bookings, which stay. REQUIRES: a token bucket with bookings.
  void SetPast(const Parameters& parameters, const BucketImage& image);

  // Of the object and what it owns.
  size_t MemoryBytes() const;
  // The most that MemoryBytes returns, without open receipts and bookings. 0: a token bucket, which
  // stores keep as its TAT.
  static size_t MaxBytes(const Parameters& parameters, uint64_t max_owed = 0);

 private:
  struct Calendar;
  struct Conversion;
  struct DeleteCalendar {
    void operator()(Calendar* calendar) const;
  };

  ConcurrencyState* MutableSlots() { return std::get_if<ConcurrencyState>(&state_); }
  // A full bucket without receipts.
  void MakeFull(const Parameters& parameters, Moment at);
  // As the functions of the same name, without the bookings.
  bool TryTakePast(const Parameters& parameters, uint64_t permits, Moment at, uint64_t receipt_id,
                   bool* evicted, OpenReceipts::Kept kept);
  std::optional<uint64_t> RefundPast(const Parameters& parameters, uint64_t receipt_id,
                                     uint64_t keep, Moment at, uint64_t* when);
  // As Refund, of all but `keep` permits.
  std::optional<uint64_t> GiveBackReceipt(const Parameters& parameters, uint64_t receipt_id,
                                          uint64_t keep, Moment at);
  // To be called when permits are taken or booked with this receipt: if it is an estimate's, that
  // is open (again).
  OpenReceipts::Kept OpenEstimate(uint64_t receipt_id, int64_t grant_time_ns);
  void SetReceipts(const BucketImage& image);
  // Removes some of those that are over, and appends their ids to `removed`, if given.
  void RemoveSomeEstimates(Moment at, std::vector<uint64_t>* removed = nullptr);
  // Converts `most` bookings more, and lowers it. Returns whether that were all.
  bool ContinueConversion(const Parameters& parameters, size_t* most);
  void ConvertPast(const Parameters& from, const Parameters& to, Moment at, int64_t moved_ns);
  // A take that was granted when it was booked; closes an older receipt if need be.
  bool TakeBooked(const Parameters& parameters, const Booking& booking, Moment at);
  // Converts a token bucket and its receipts.
  void ConvertTokens(const TokenBucket& from, const TokenBucket& to, int64_t now_ns,
                     TokenBucketState* state);
  void NewCalendar(const Parameters& parameters, Moment at);
  // Adds a booking behind the others; RebuildBookings must follow.
  void AppendBooking(const Parameters& parameters, const Booking& booking);
  void RebuildBookings(const Parameters& parameters, Moment at);
  // Until when permits taken now count. A token bucket does not say.
  int64_t CountedUntilNs(const Parameters& parameters, Moment at) const;
  // Returns use(calendar, past): the TokenCalendar with a TokenBucket, or the WindowCalendar with
  // the WindowHistory.
  template <typename Use>
  auto WithBookings(const Parameters& parameters, Moment at, Use use) const;

  AnyState state_;
  OpenReceipts receipts_;  // those of estimates, and of takes that say so, are kept
  // Null: there are none.
  std::unique_ptr<Estimates> estimates_;
  // Null: there are no bookings.
  std::unique_ptr<Calendar, DeleteCalendar> calendar_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_BUCKET_STATE_H_
