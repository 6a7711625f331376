// Windows aligned to the wall clock: "1000 a day, anew at midnight". For compatibility with what
// others do; it lets up to 2*M through around a boundary, and the other algorithms do not.
//
// Window number i is [i*period, (i+1)*period) of the wall clock plus utc_offset. Each has M
// permits. With a wall clock that just runs, that is all. But wall clocks are set: forwards,
// backwards, and back again. So the wall clock only says where windows begin and end; that time
// has passed is for the monotonic clock to say. The state is the window's number, what was taken,
// when it was first used (`opened`) and when it ends (`ends`), both on the monotonic clock:
//
//  1. Before `ends` it is the same window, whatever the wall clock shows. A wall clock that jumps
//     forwards (and back) grants nothing.
//  2. After `ends`, if the wall clock shows a later window, that one opens.
//  3. After `ends`, if it does not, the wall clock was set back. To open the same window again
//     would grant it twice, so the old one goes on, but not beyond opened + period: then a window
//     opens whatever the wall clock shows. If it shows the very number that was just spent, the
//     window that opens is the next one, early, and when the wall clock gets there it is not
//     opened again.
//
// So a spent window is over at the latest one period after its first use, and denial never lasts
// longer than one period; no window begins before the one before it has ended; and a wall clock
// set by less than a period does not make one number grant twice.
//
// Example: 100 an hour; times as the wall clock shows them.
//   10:10  first use: window 10, opened 10:10, ends in 50 min. take 100: granted
//   10:20  clock set to 11:20 by mistake. take 1: denied (rule 1), earliest in 40 min
//   11:30  set right again, to 10:30. take 1: denied. In 30 min:
//   11:00  window 11 (rule 2): take 100: granted
//   and had the clock instead been set back to 10:50 at 11:00, at the end of window 10: denied
//   (rule 3) until the clock shows 11:00, 10 min later, which is 11:10 by the old time, one hour
//   after the first use. Either way, then.
//
// A bucket is full when nothing is counted or one period has passed since the window opened.
// Not thread-safe; never blocks.
#ifndef SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_
#define SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_

#include <cstdint>

#include "server/algorithm/bucket_image.h"
#include "server/algorithm/level.h"
#include "server/algorithm/moment.h"
#include "server/algorithm/rate.h"

namespace sluice::algorithm {

// Made by MakeFixedWindow.
struct FixedWindow {
  Rate rate;
  int64_t utc_offset_ns = 0;

  friend bool operator==(const FixedWindow&, const FixedWindow&) = default;
};

// The state of one key. Every call must pass the same parameters until ConvertTo is called.
class FixedWindowState {
 public:
  bool CanTake(const FixedWindow& parameters, uint64_t permits, Moment at) const;
  // Granted: `*serial`, if given, names the window it was counted in (for Refund).
  bool TryTake(const FixedWindow& parameters, uint64_t permits, Moment at,
               uint64_t* serial = nullptr);
  // Counts permits whether or not they fit (carry-over). Returns the window's serial.
  uint64_t Add(const FixedWindow& parameters, uint64_t permits, Moment at);

  // The first nanosecond on the monotonic clock, not before at.now_ns, at which TryTake would
  // grant if nobody else takes and nobody sets the wall clock; kNeverNs if permits > M.
  int64_t EarliestNs(const FixedWindow& parameters, uint64_t permits, Moment at) const;
  Level LevelAt(const FixedWindow& parameters, Moment at) const;
  bool IsFull(const FixedWindow& parameters, Moment at) const;
  uint64_t Counted(const FixedWindow& parameters, Moment at) const;
  // When the window that counts now is over, if nobody sets the wall clock; now if none counts.
  int64_t CurrentUntilNs(const FixedWindow& parameters, Moment at) const;

  // Takes permits out of the window, if it is still the current one. Returns how many.
  uint64_t Refund(const FixedWindow& parameters, uint64_t serial, uint64_t permits, Moment at);
  bool Counts(const FixedWindow& parameters, uint64_t serial, Moment at) const;

  // The same count in the current window of other parameters. With the period and offset unchanged
  // nothing changes; else the window opens now.
  FixedWindowState ConvertTo(const FixedWindow& from, const FixedWindow& to, Moment at) const;

  void ToImage(BucketImage* image) const;
  static FixedWindowState FromImage(const BucketImage& image);

 private:
  bool IsOver(const FixedWindow& parameters, Moment at) const;
  // The first moment at which IsOver. REQUIRES: !IsOver(at).
  int64_t OverAtNs(const FixedWindow& parameters, Moment at) const;
  void Open(const FixedWindow& parameters, Moment at);

  bool used_ = false;
  int64_t index_ = 0;      // of the wall clock's windows
  int64_t opened_ns_ = 0;  // monotonic
  int64_t ends_ns_ = 0;    // monotonic; at most opened + period
  uint64_t count_ = 0;
  // Grows by one with each window opened; an index may come again, this does not.
  uint64_t serial_ = 0;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_
