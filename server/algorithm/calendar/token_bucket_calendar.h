// The calendar of a token bucket.
//
// Let F be the bucket's TAT (token_bucket.h), B its burst and D its debt, all in ticks. A booking
// of cost c at time t does to F what a take at t does:
//
//   F -> max(F, t) + c      allowed iff   F <= u := min(t + B, t + B + D - c)
//
// Several such steps together have the form
//
//   F -> max(F + C, K)      allowed iff   F <= U
//
// Step 1 followed by step 2 gives: C = C1 + C2, K = max(K1 + C2, K2), U = min(U1, U2 - C1). So
// three numbers describe a chunk of any number of bookings.
//
// Backwards, let L be the greatest F with which all bookings from the i-th on are still allowed:
// L_i = min(u_i, L_{i+1} - c_i). Then a cost c fits between bookings i-1 and i, not before `from`,
// iff
//
//   max(F, from) + c <= L_i          F: what booking i-1 leaves
//
// and its moment is the first at which it is allowed itself: max(t_{i-1}, from, F-B, F+c-B-D).
// L_i - F is the gap's slack: no cost above it fits. A slack only shrinks while bookings are
// added, since F rises and L falls; so the greatest slack of each chunk, and of all, is kept as an
// upper bound. Behind 10,000 bookings that leave no room, the bound of all sends a new one to the
// end at once; and a search for a gap looks into few chunks. A cancelled booking, or a refund,
// makes room: then the next search computes the bounds again.
//
// Example: 1/s, burst 1, full at 0; F in seconds. Booked: 1 permit at 0, 1 and 5.
//   after the first F = 1, the second needs F <= 1 and leaves 2, the third needs F <= 5
//   gaps: before 1: 1 - 1 = 0. before 5: 5 - 2 = 3. So three permits fit, at 2, 3 and 4, and with
//   them F is 5 when the third comes; the next goes behind it, at 6.
//
// A lowered limit may leave bookings that are no longer allowed; they stay. The gaps before them
// then have no slack, which denies too much rather than too little.
#ifndef SLUICE_SERVER_ALGORITHM_CALENDAR_TOKEN_BUCKET_CALENDAR_H_
#define SLUICE_SERVER_ALGORITHM_CALENDAR_TOKEN_BUCKET_CALENDAR_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "server/algorithm/calendar/calendar.h"
#include "server/algorithm/calendar/calendar_chunks.h"
#include "server/algorithm/token_bucket.h"

namespace sluice::algorithm {

struct TokenSummary {
  // F -> max(F + sum, floor), allowed iff F <= limit.
  int64_t sum = 0;
  int64_t floor = 0;
  int64_t limit = 0;
  // The least of t - c - C, where C is what the bookings before the one of cost c at t cost.
  int64_t least = 0;
  // The greatest slack of its gaps is at most this, whenever F before it is at least
  // `slack_from` and L after it at most `slack_to`.
  int64_t slack = 0;
  int64_t slack_from = 0;
  int64_t slack_to = 0;
};

// Not thread-safe; never blocks. Every call must pass the same parameters until Rebuild.
class TokenCalendar : public ChunkedCalendar<Booking, TokenSummary> {
 public:
  // `tat`: what the bucket's past leaves.
  TokenCalendar(const TokenBucket& parameters, uint64_t tat);

  // The first moment, not before now_ns or from_ns, at which `permits` may be booked; kNeverNs if
  // they could not at any. With a spent budget a moment behind all bookings. REQUIRES: what is
  // booked up to now_ns was folded.
  int64_t EarliestNs(const TokenBucket& parameters, uint64_t permits, int64_t now_ns,
                     int64_t from_ns, SearchBudget* budget);

  // Whether that is now_ns, without looking for another moment. REQUIRES: as EarliestNs.
  bool FitsNow(const TokenBucket& parameters, uint64_t permits, int64_t now_ns);

  // REQUIRES: booking.grant_time_ns was got from EarliestNs.
  void Insert(const TokenBucket& parameters, const Booking& booking);

  // Takes out the booking of that id at that moment. False: there is none.
  bool Cancel(const TokenBucket& parameters, int64_t grant_time_ns, uint64_t id);

  // Takes out the next booking, since its moment has come, and debits it.
  void Fold(const TokenBucket& parameters);

  // Permits that could be taken now without harm to what is booked; may be negative.
  int64_t FreePermits(const TokenBucket& parameters, int64_t now_ns);
  // The greatest TAT with which each booking, when it is debited, leaves at most max_owed permits
  // owed. REQUIRES: there are bookings.
  uint64_t MostTat(const TokenBucket& parameters, uint64_t max_owed);
  // When the bucket is full again after all that is booked.
  int64_t FullAgainNs(const TokenBucket& parameters) const {
    return ToNsRoundedUp(parameters, static_cast<uint64_t>(end_));
  }

  // What has been taken and folded up to now leaves this.
  uint64_t tat() const { return static_cast<uint64_t>(base_); }
  // After a take or a refund by others.
  void SetTat(const TokenBucket& parameters, uint64_t tat);

  // To be called when the parameters are others: what was booked stands.
  void Rebuild(const TokenBucket& parameters) {
    RebuildCursor cursor;
    size_t most = std::numeric_limits<size_t>::max();
    RebuildSome(parameters, &cursor, &most);
  }
  // The same in steps: looks at *most bookings, or at some more, and lowers it. Returns whether
  // that was the last step. Until then only bookings are right, and the next call is this one, or
  // SetTat.
  bool RebuildSome(const TokenBucket& parameters, RebuildCursor* cursor, size_t* most);

  size_t MemoryBytes() const;

 private:
  static void Summarize(const TokenBucket& parameters, Chunks::Chunk* chunk);
  void SummarizeFront(const TokenBucket& parameters);
  void FindEnd(const TokenBucket& parameters);
  // Brings limit_before_ up to date.
  void FindLimits(const TokenBucket& parameters);
  int64_t LimitBeforeAll(const TokenBucket& parameters);
  // To be called when the chunk's summary changed; with chunks() when there are more or fewer.
  void SummaryChanged(size_t chunk);
  // Looks for a gap; kNeverNs: none, or the budget is spent.
  int64_t SearchGaps(const TokenBucket& parameters, int64_t cost, int64_t from_ticks,
                     SearchBudget* budget);

  // L before each chunk, and behind the last; right from the limits_from_-th on.
  std::vector<int64_t> limit_before_;
  size_t limits_from_ = 0;
  // L before all of them, if known; kept apart, because a booking at the end changes it.
  int64_t limit_ = std::numeric_limits<int64_t>::max() / 2;
  bool limit_known_ = true;
  int64_t total_ = 0;           // what all of them cost
  int64_t base_;                // F before the first booking
  int64_t end_;                 // F after the last
  int64_t slack_;               // bound of all gaps' slacks
  int64_t now_ = 0;             // latest that was seen
  bool front_changed_ = false;  // the first chunk's summary is of before a Fold
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CALENDAR_TOKEN_BUCKET_CALENDAR_H_
