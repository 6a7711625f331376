#include "server/algorithm/fixed_window.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

Int128 LocalNs(const FixedWindow& parameters, Moment at) {
  return static_cast<Int128>(at.wall_ns) + parameters.utc_offset_ns;
}

// The wall clock may show a time before 1970.
int64_t IndexAt(const FixedWindow& parameters, Moment at) {
  return static_cast<int64_t>(FloorDiv(LocalNs(parameters, at), parameters.rate.period_ns));
}

// Until the wall clock, if it is not set, shows the end of window `index`; negative if it is past.
Int128 UntilEndOf(const FixedWindow& parameters, int64_t index, Moment at) {
  return (static_cast<Int128>(index) + 1) * parameters.rate.period_ns - LocalNs(parameters, at);
}

// The usual case, in 64 bits: the window has not ended on the monotonic clock, and the wall clock
// shows its number. So it is neither over nor early, whatever its lag, which is below a period.
// `*until_end_ns`: until the wall clock shows its end.
bool IsCurrent(const OpenWindow& window, const FixedWindow& parameters, Moment at,
               int64_t* until_end_ns) {
  int64_t end_ns = 0;
  return window.used && ClampNow(at.now_ns) < window.ends_ns &&
         !__builtin_add_overflow(window.index, 1, &end_ns) &&
         !__builtin_mul_overflow(end_ns, parameters.rate.period_ns, &end_ns) &&
         !__builtin_sub_overflow(end_ns, parameters.utc_offset_ns, &end_ns) &&
         !__builtin_sub_overflow(end_ns, at.wall_ns, until_end_ns) && *until_end_ns > 0 &&
         *until_end_ns <= parameters.rate.period_ns;
}

}  // namespace

Int128 FixedWindowState::LagNs(const FixedWindow& parameters, Moment at) const {
  const Int128 until_end_ns = static_cast<Int128>(window_.ends_ns) - ClampNow(at.now_ns);
  return UntilEndOf(parameters, window_.index, at) - until_end_ns;
}

int64_t FixedWindowState::OverAtNs(const FixedWindow& parameters, Moment at) const {
  const Int128 lag_ns = LagNs(parameters, at);
  if (lag_ns > parameters.rate.period_ns) return window_.opened_ns + parameters.rate.period_ns;
  return lag_ns <= 0 ? window_.ends_ns : window_.ends_ns + static_cast<int64_t>(lag_ns);
}

bool FixedWindowState::IsEarly(const FixedWindow& parameters, Moment at) const {
  const Int128 lag_ns = LagNs(parameters, at);
  return lag_ns > 0 && lag_ns <= parameters.rate.period_ns &&
         UntilEndOf(parameters, window_.index - 1, at) > 0;
}

bool FixedWindowState::IsOver(const FixedWindow& parameters, Moment at) const {
  return !window_.used || ClampNow(at.now_ns) >= OverAtNs(parameters, at);
}

int64_t FixedWindowState::KeptUntilNs(const FixedWindow& parameters) const {
  return window_.ends_ns + (window_.later_count == 0 ? 1 : 2) * parameters.rate.period_ns;
}

uint64_t FixedWindowState::Carried(const FixedWindow& parameters, int64_t index,
                                   int64_t now_ns) const {
  const bool counts =
      window_.used && index == window_.later_index && ClampNow(now_ns) < KeptUntilNs(parameters);
  return counts ? window_.later_count : 0;
}

void FixedWindowState::Open(const FixedWindow& parameters, Moment at) {
  const int64_t index = IndexAt(parameters, at);
  window_.count = Carried(parameters, index, at.now_ns);
  window_.later_count = 0;
  window_.used = true;
  window_.index = index;
  window_.opened_ns = ClampNow(at.now_ns);
  window_.ends_ns = window_.opened_ns + static_cast<int64_t>(UntilEndOf(parameters, index, at));
  ++window_.serial;
}

uint64_t FixedWindowState::Counted(const FixedWindow& parameters, Moment at) const {
  if (!window_.used) return 0;
  int64_t until_end_ns = 0;
  if (IsCurrent(window_, parameters, at, &until_end_ns)) return window_.count;
  if (IsOver(parameters, at)) return Carried(parameters, IndexAt(parameters, at), at.now_ns);
  if (!IsEarly(parameters, at)) return window_.count;
  return std::max(window_.count, parameters.rate.permits);
}

int64_t FixedWindowState::UntilNs(const FixedWindow& parameters, uint64_t, Moment at) const {
  return IsOver(parameters, at) ? ClampNow(at.now_ns) : OverAtNs(parameters, at);
}

uint64_t FixedWindowState::Add(const FixedWindow& parameters, uint64_t permits, Moment at) {
  int64_t until_end_ns = 0;
  if (IsCurrent(window_, parameters, at, &until_end_ns)) {
    window_.count += permits;
    return window_.serial;
  }
  if (IsOver(parameters, at)) Open(parameters, at);
  window_.count += permits;
  if (UntilEndOf(parameters, window_.index, at) > 0) return window_.serial;
  const int64_t shown = IndexAt(parameters, at);
  if (shown != window_.later_index) window_.later_count = 0;
  window_.later_index = shown;
  window_.later_count += permits;
  return window_.serial;
}

FixedWindowState::Course FixedWindowState::CourseFrom(const FixedWindow& parameters,
                                                      Moment at) const {
  const int64_t now = ClampNow(at.now_ns);
  Course course;
  course.opens_ns = course.over_ns = course.wall_ends_ns = now;
  int64_t until_end_ns = 0;
  if (window_.later_count == 0 && IsCurrent(window_, parameters, at, &until_end_ns)) {
    course.count = window_.count;
    course.wall_ends_ns = now + until_end_ns;
    course.over_ns = std::max(window_.ends_ns, course.wall_ends_ns);
    course.carried_until_ns = course.over_ns;  // nothing is carried
    return course;
  }
  if (!IsOver(parameters, at)) {
    course.over_ns = OverAtNs(parameters, at);
    course.count = window_.count;
    // Within two periods of now, unless the window is over before.
    const Int128 wall_ends = now + UntilEndOf(parameters, window_.index, at);
    course.wall_ends_ns = static_cast<int64_t>(std::min<Int128>(wall_ends, course.over_ns));
    if (IsEarly(parameters, at)) {
      course.opens_ns = now + static_cast<int64_t>(UntilEndOf(parameters, window_.index - 1, at));
    }
  }
  const Moment over = Moved(at, course.over_ns - now);
  const int64_t next = IndexAt(parameters, over);
  course.carried = Carried(parameters, next, course.over_ns);
  course.carried_until_ns =
      course.over_ns + static_cast<int64_t>(UntilEndOf(parameters, next, over));
  // A window that is over may be asked after the clock was set to show its later number again.
  if (course.carried > 0) {
    course.carried_until_ns = std::min(course.carried_until_ns, KeptUntilNs(parameters));
  }
  return course;
}

uint64_t FixedWindowState::Course::CountedAt(int64_t now_ns, uint64_t capacity) const {
  if (now_ns < over_ns) return now_ns < opens_ns ? std::max(count, capacity) : count;
  return now_ns < carried_until_ns ? carried : 0;
}

int64_t FixedWindowState::Course::FirstAtMostNs(uint64_t permits, int64_t now_ns) const {
  if (now_ns < over_ns && count <= permits) return std::max(now_ns, opens_ns);
  return std::max(now_ns, carried <= permits ? over_ns : carried_until_ns);
}

int64_t FixedWindowState::EarliestNs(const FixedWindow& parameters, uint64_t permits,
                                     Moment at) const {
  if (permits > parameters.rate.permits) return kNeverNs;
  return CourseFrom(parameters, at)
      .FirstAtMostNs(parameters.rate.permits - permits, ClampNow(at.now_ns));
}

bool FixedWindowState::IsFull(const FixedWindow& parameters, Moment at) const {
  return !window_.used || ClampNow(at.now_ns) >= KeptUntilNs(parameters);
}

bool FixedWindowState::Counts(const FixedWindow& parameters, uint64_t serial, Moment at) const {
  return window_.used && serial == window_.serial && !IsOver(parameters, at);
}

uint64_t FixedWindowState::Refund(const FixedWindow& parameters, uint64_t serial, uint64_t permits,
                                  Moment at) {
  if (!Counts(parameters, serial, at)) return 0;
  const uint64_t removed = std::min(window_.count, permits);
  window_.count -= removed;
  window_.later_count = std::min(window_.later_count, window_.count);
  return removed;
}

FixedWindowState FixedWindowState::ConvertTo(const FixedWindow& from, const FixedWindow& to,
                                             Moment at) const {
  if (!window_.used ||
      (from.rate.period_ns == to.rate.period_ns && from.utc_offset_ns == to.utc_offset_ns)) {
    return *this;
  }
  FixedWindowState converted;
  converted.window_.serial = window_.serial - 1;  // Open makes it this one's: receipts go on
  const uint64_t counted = Counted(from, at);
  if (counted == 0) {
    converted.window_.serial = window_.serial;
    return converted;
  }
  converted.Add(to, counted, at);
  return converted;
}

absl::StatusOr<Parameters> MakeFixedWindow(Rate rate, int64_t utc_offset_ns) {
  if (absl::Status status = CheckRate(rate); !status.ok()) return status;
  if (utc_offset_ns > common::bounds::kMaxUtcOffsetNs ||
      utc_offset_ns < -common::bounds::kMaxUtcOffsetNs) {
    return absl::InvalidArgumentError(
        absl::StrCat("utc_offset ", DurationText(utc_offset_ns), ": must be within a day of UTC"));
  }
  Parameters parameters;
  parameters.kind = Kind::kFixedWindow;
  parameters.fixed_window.rate = rate;
  parameters.fixed_window.utc_offset_ns = utc_offset_ns;
  return parameters;
}

absl::StatusOr<Parameters> WithRate(const FixedWindow& parameters, Rate rate) {
  return MakeFixedWindow(rate, parameters.utc_offset_ns);
}

}  // namespace sluice::algorithm
