// Fixed window: windows aligned to the wall clock, for quotas such as "1000 a day, from midnight".
// It grants up to 2*M around the boundary of two windows; the other algorithms do not.
//
// Window number i is [i*period, (i+1)*period) of the wall clock plus utc_offset. Each has M
// permits. That would be all if wall clocks were never set forwards or backwards. So the wall clock
// only says where windows begin and end; the monotonic clock says whether time has passed. The
// state is the window's number, the permits taken, and on the monotonic clock when the window was
// first used (`opened`) and when it ends (`ends`):
//
//  1. Before `ends` it is the same window, whatever the wall clock shows. A wall clock that jumps
//     forwards (and back) grants nothing.
//  2. After `ends`, if the wall clock shows a later window, that one opens.
//  3. After `ends`, if it does not, the wall clock was set back. Opening the same window again
//     would grant it twice, so the old one stays open, but not beyond opened + period: then a
//     window opens whatever the wall clock shows. If the wall clock shows the number that was just
//     used up, the next window opens early, and is not opened again when the wall clock gets there.
//
// So a window is over at the latest one period after its first use, and denial never lasts longer
// than one period; no window begins before the previous one has ended; and a wall clock that is set
// by less than a period does not make one number grant twice.
//
// Example: 100 an hour; times as the wall clock shows them.
//   10:10  first use: window 10, opened 10:10, ends in 50 min. take 100: granted
//   10:20  clock set to 11:20 by mistake. take 1: denied (rule 1), earliest in 40 min
//   11:30  set right again, to 10:30. take 1: denied. In 30 min:
//   11:00  window 11 (rule 2): take 100: granted
//   If instead the clock is set back to 10:50 at 11:00, at the end of window 10: denied (rule 3)
//   until the clock shows 11:00, 10 min later. That is 11:10 by the old time, one hour after the
//   first use, so both parts of rule 3 give the same moment.
//
// A bucket that is dropped forgets its window's number. So it is kept, even with nothing counted,
// until one period after the window's end on the monotonic clock, whatever the wall clock shows.
// Not thread-safe; never blocks.
#ifndef SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_
#define SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/counting_state.h"
#include "server/algorithm/rate.h"

namespace sluice::algorithm {

struct Parameters;

// Made by MakeFixedWindow.
struct FixedWindow {
  Rate rate;
  int64_t utc_offset_ns = 0;

  friend bool operator==(const FixedWindow&, const FixedWindow&) = default;
};

// INVALID_ARGUMENT: rate out of bounds, or utc_offset beyond a
// day.
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
  bool IsOver(const FixedWindow& parameters, Moment at) const;
  // The first moment at which IsOver. REQUIRES: !IsOver(at).
  int64_t OverAtNs(const FixedWindow& parameters, Moment at) const;
  void Open(const FixedWindow& parameters, Moment at);

  OpenWindow window_;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_
