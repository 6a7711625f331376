// Fixed window: windows aligned to the wall clock, for quotas such as "1000 a day, from midnight".
// It grants up to 2*M around the boundary of two windows; the other algorithms do not.
//
// Window number i is [i*period, (i+1)*period) of the wall clock plus utc_offset. Each has M
// permits. That would be all if wall clocks were never set. So the wall clock only says where
// windows begin and end; the monotonic clock says whether time has passed. The state is the
// window's number, its permits taken, and on the monotonic clock when it was first used (`opened`)
// and when it ends as the wall clock showed then (`ends`). How far the wall clock was set back
// since is its `lag`; a clock that was set forward has a negative lag.
//
//  1. A window opens with the first grant after the one before is over. Its number is the one that
//     the wall clock shows.
//  2. A window is over when it has ended on both clocks: at `ends`, or when the wall clock shows
//     its end, whichever is later. So a wall clock that is set forwards grants nothing, and one
//     that is set back does not grant a number twice.
//  3. A lag of more than a period is not waited for. Then the window is over one period after it
//     was opened. So a clock that is set back by days, or that comes back from days ahead, denies
//     for at most a period.
//  4. While the wall clock shows a number before the window's (lag of at most a period), the
//     window grants nothing: the permits of that number may be spent.
//  5. While the wall clock shows a later number, but the window has not ended, the window's
//     permits are granted, and count for that number too: if it opens next, it starts with them.
//
// A bucket that is dropped forgets its window's number. So it is kept, even with nothing counted,
// until one period after the window's end on the monotonic clock, whatever the wall clock shows;
// by rules 2 and 3 the window is over by then. If permits count for a later number too (rule 5), it
// is kept for one more period, in which that number ends.
//
// Forced debits (BucketState::Force) count for the current window, also while it grants nothing
// (rule 4). What follows is about grants that were not forced.
//
// What holds:
//  - While the wall clock shows number i, in one stretch or several, at most M permits are granted,
//    if the clock is only set forwards, or if it always stays within one period (the greatest less
//    the least difference between the clocks). Permits that were booked before the clock was set
//    keep their grant times.
//  - However it is set: windows do not overlap on the monotonic clock, so each time is worth at
//    most one more window.
//  - A window denies for at most one period after its end on the monotonic clock.
//
// Example: 100 an hour; times as the wall clock shows them.
//   10:10  first use: window 10, opened 10:10, ends in 50 min. take 60: granted
//   10:20  clock set to 11:20 by mistake. take 41: denied (rule 2), earliest in 40 min. take 10:
//          granted; they count for 10 and 11 (rule 5)
//   11:30  set right again, to 10:30. take 31: denied, 70 are taken. In 30 min:
//   11:00  window 11 opens, with 10 taken, and ends in 60 min. take 91: denied. take 60: granted
//   11:05  set back to 10:55. take 1: denied (rule 4), earliest in 5 min:
//   11:00  take 30: granted. take 1: denied until the wall clock shows the end (rule 2), in 60 min,
//          10 min after it has come on the monotonic clock
//   12:00  window 12 opens. take 100: granted
//   If instead the clock is set back by two days at 11:05, window 11 is over one period after it
//   was opened, in 55 min, when the clock shows 12:00 of that day: window 12 of that day opens.
//
// Not thread-safe; never blocks.
#ifndef SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_
#define SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "absl/status/statusor.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/counting_state.h"
#include "server/algorithm/rate.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

struct Parameters;

// Made by MakeFixedWindow.
struct FixedWindow {
  Rate rate;
  int64_t utc_offset_ns = 0;

  // See TokenBucket.
  template <typename Self>
  static auto Given(Self& self) {
    return std::tie(self.rate.permits, self.rate.period_ns, self.utc_offset_ns);
  }
  static uint64_t Unit() { return 0; }
  static size_t DecisionSteps() { return 0; }

  friend bool operator==(const FixedWindow&, const FixedWindow&) = default;
};

// INVALID_ARGUMENT: rate out of bounds, or utc_offset beyond a day.
absl::StatusOr<Parameters> MakeFixedWindow(Rate rate, int64_t utc_offset_ns);
// The same parameters with another rate.
absl::StatusOr<Parameters> WithRate(const FixedWindow& parameters, Rate rate);

// The state of one key. Every call must pass the same parameters until ConvertTo is called.
class FixedWindowState : public CountingState<FixedWindowState, FixedWindow, Moment> {
 public:
  // Counts permits whether or not they fit (carry-over). Opens a window if the last one is over:
  // only a grant does, so `opened` is its first use. Returns the window's serial.
  uint64_t Add(const FixedWindow& parameters, uint64_t permits, Moment at);

  // The first nanosecond on the monotonic clock, not before at.now_ns, at which TryTake would grant
  // if no other permits are taken and the wall clock is not set; kNeverNs if permits > M.
  int64_t EarliestNs(const FixedWindow& parameters, uint64_t permits, Moment at) const;
  bool IsFull(const FixedWindow& parameters, Moment at) const;
  uint64_t Counted(const FixedWindow& parameters, Moment at) const;
  // When the current window is over, if the wall clock is not set; now if there is none.
  int64_t UntilNs(const FixedWindow& parameters, uint64_t serial, Moment at) const;

  // The permits that count from now on, if no others are taken and the wall clock is not set. They
  // never become more.
  struct Course {
    int64_t opens_ns = 0;      // the window grants nothing before (rule 4); now: it does
    int64_t wall_ends_ns = 0;  // from then on the wall clock shows a later number (rule 5)
    int64_t over_ns = 0;       // now: there is no window
    uint64_t count = 0;        // until over_ns
    uint64_t carried = 0;      // from over_ns until carried_until_ns
    int64_t carried_until_ns = 0;

    uint64_t CountedAt(int64_t now_ns, uint64_t capacity) const;
    // The first moment, not before now_ns, at which at most `permits` count.
    int64_t FirstAtMostNs(uint64_t permits, int64_t now_ns) const;
  };
  Course CourseFrom(const FixedWindow& parameters, Moment at) const;

  // Takes permits off what the current window has counted, down to 0. Returns how many.
  uint64_t GiveBack(const FixedWindow& parameters, uint64_t permits, Moment at) {
    return Refund(parameters, window_.serial, permits, at);
  }

  // Takes permits out of the window, if it is still the current one. Returns how many.
  uint64_t Refund(const FixedWindow& parameters, uint64_t serial, uint64_t permits, Moment at);
  bool Counts(const FixedWindow& parameters, uint64_t serial, Moment at) const;

  // Receipts keep their serial (ConvertTo).
  static uint64_t ConvertWhen(const FixedWindow&, const FixedWindow&, uint64_t serial, Moment) {
    return serial;
  }
  // The same count in the current window of other parameters. With the period and offset unchanged
  // nothing changes; else the window opens now.
  FixedWindowState ConvertTo(const FixedWindow& from, const FixedWindow& to, Moment at) const;

  void ToImage(BucketImage* image) const { static_cast<OpenWindow&>(*image) = window_; }
  static FixedWindowState FromImage(const FixedWindow&, const BucketImage& image) {
    FixedWindowState state;
    state.window_ = image;
    return state;
  }

  static size_t MemoryBytes() { return 0; }
  static size_t MaxMemoryBytes(const FixedWindow&) { return 0; }

 private:
  // How far the wall clock was set back since the window was opened; negative: forwards.
  // REQUIRES, here and below: a window was opened.
  Int128 LagNs(const FixedWindow& parameters, Moment at) const;
  // When the window is over, if the wall clock is not set.
  int64_t OverAtNs(const FixedWindow& parameters, Moment at) const;
  // Rule 4.
  bool IsEarly(const FixedWindow& parameters, Moment at) const;
  // Also if no window was opened.
  bool IsOver(const FixedWindow& parameters, Moment at) const;
  // The permits with which window `index` starts, if it opens now.
  uint64_t Carried(const FixedWindow& parameters, int64_t index, int64_t now_ns) const;
  int64_t KeptUntilNs(const FixedWindow& parameters) const;
  void Open(const FixedWindow& parameters, Moment at);

  OpenWindow window_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_
