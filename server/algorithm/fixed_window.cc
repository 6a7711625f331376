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

}  // namespace

bool FixedWindowState::IsOver(const FixedWindow& parameters, Moment at) const {
  if (!window_.used) return true;
  const int64_t now = ClampNow(at.now_ns);
  if (now < window_.ends_ns) return false;
  return IndexAt(parameters, at) > window_.index ||
         now >= window_.opened_ns + parameters.rate.period_ns;
}

int64_t FixedWindowState::OverAtNs(const FixedWindow& parameters, Moment at) const {
  const Int128 now = ClampNow(at.now_ns);
  const Int128 by_wall =
      std::max<Int128>(window_.ends_ns, now + UntilEndOf(parameters, window_.index, at));
  return static_cast<int64_t>(
      std::min<Int128>(by_wall, window_.opened_ns + parameters.rate.period_ns));
}

void FixedWindowState::Open(const FixedWindow& parameters, Moment at) {
  const int64_t now = ClampNow(at.now_ns);
  int64_t index = IndexAt(parameters, at);
  if (window_.used && index == window_.index) ++index;
  const Int128 length =
      std::min<Int128>(UntilEndOf(parameters, index, at), parameters.rate.period_ns);
  window_.used = true;
  window_.index = index;
  window_.opened_ns = now;
  window_.ends_ns = now + static_cast<int64_t>(length);
  window_.count = 0;
  ++window_.serial;
}

uint64_t FixedWindowState::Counted(const FixedWindow& parameters, Moment at) const {
  return IsOver(parameters, at) ? 0 : window_.count;
}

int64_t FixedWindowState::UntilNs(const FixedWindow& parameters, uint64_t, Moment at) const {
  return IsOver(parameters, at) ? ClampNow(at.now_ns) : OverAtNs(parameters, at);
}

uint64_t FixedWindowState::Add(const FixedWindow& parameters, uint64_t permits, Moment at) {
  if (IsOver(parameters, at)) Open(parameters, at);
  window_.count += permits;
  return window_.serial;
}

int64_t FixedWindowState::EarliestNs(const FixedWindow& parameters, uint64_t permits,
                                     Moment at) const {
  if (permits > parameters.rate.permits) return kNeverNs;
  if (CanTake(parameters, permits, at)) return ClampNow(at.now_ns);
  return OverAtNs(parameters, at);
}

bool FixedWindowState::IsFull(const FixedWindow& parameters, Moment at) const {
  return !window_.used || ClampNow(at.now_ns) >= window_.ends_ns + parameters.rate.period_ns;
}

bool FixedWindowState::Counts(const FixedWindow& parameters, uint64_t serial, Moment at) const {
  return window_.used && serial == window_.serial && !IsOver(parameters, at);
}

uint64_t FixedWindowState::Refund(const FixedWindow& parameters, uint64_t serial, uint64_t permits,
                                  Moment at) {
  if (!Counts(parameters, serial, at)) return 0;
  const uint64_t removed = std::min(window_.count, permits);
  window_.count -= removed;
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
