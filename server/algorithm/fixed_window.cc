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
  if (!used_) return true;
  const int64_t now = ClampNow(at.now_ns);
  if (now < ends_ns_) return false;
  return IndexAt(parameters, at) > index_ || now >= opened_ns_ + parameters.rate.period_ns;
}

int64_t FixedWindowState::OverAtNs(const FixedWindow& parameters, Moment at) const {
  const Int128 now = ClampNow(at.now_ns);
  const Int128 by_wall = std::max<Int128>(ends_ns_, now + UntilEndOf(parameters, index_, at));
  return static_cast<int64_t>(std::min<Int128>(by_wall, opened_ns_ + parameters.rate.period_ns));
}

void FixedWindowState::Open(const FixedWindow& parameters, Moment at) {
  const int64_t now = ClampNow(at.now_ns);
  int64_t index = IndexAt(parameters, at);
  if (used_ && index == index_) ++index;
  const Int128 length =
      std::min<Int128>(UntilEndOf(parameters, index, at), parameters.rate.period_ns);
  used_ = true;
  index_ = index;
  opened_ns_ = now;
  ends_ns_ = now + static_cast<int64_t>(length);
  count_ = 0;
  ++serial_;
}

uint64_t FixedWindowState::Counted(const FixedWindow& parameters, Moment at) const {
  return IsOver(parameters, at) ? 0 : count_;
}

int64_t FixedWindowState::UntilNs(const FixedWindow& parameters, uint64_t, Moment at) const {
  return IsOver(parameters, at) ? ClampNow(at.now_ns) : OverAtNs(parameters, at);
}

bool FixedWindowState::CanTake(const FixedWindow& parameters, uint64_t permits, Moment at) const {
  return Fits(Counted(parameters, at), permits, parameters.rate.permits);
}

bool FixedWindowState::TryTake(const FixedWindow& parameters, uint64_t permits, Moment at,
                               uint64_t* serial) {
  // A window is opened only by a grant: `opened` is its first use.
  if (!CanTake(parameters, permits, at)) return false;
  const uint64_t in = Add(parameters, permits, at);
  if (serial != nullptr) *serial = in;
  return true;
}

uint64_t FixedWindowState::Add(const FixedWindow& parameters, uint64_t permits, Moment at) {
  if (IsOver(parameters, at)) Open(parameters, at);
  count_ += permits;
  return serial_;
}

int64_t FixedWindowState::EarliestNs(const FixedWindow& parameters, uint64_t permits,
                                     Moment at) const {
  if (permits > parameters.rate.permits) return kNeverNs;
  if (CanTake(parameters, permits, at)) return ClampNow(at.now_ns);
  return OverAtNs(parameters, at);
}

Level FixedWindowState::LevelAt(const FixedWindow& parameters, Moment at) const {
  Level level;
  level.capacity = parameters.rate.permits;
  const uint64_t counted = Counted(parameters, at);
  level.remaining = RemainingOf(level.capacity, counted);
  if (counted > 0) level.reset_after_ns = OverAtNs(parameters, at) - ClampNow(at.now_ns);
  if (level.remaining < 1) level.next_permit_after_ns = level.reset_after_ns;
  return level;
}

bool FixedWindowState::IsFull(const FixedWindow& parameters, Moment at) const {
  return !used_ || count_ == 0 || ClampNow(at.now_ns) >= opened_ns_ + parameters.rate.period_ns;
}

bool FixedWindowState::Counts(const FixedWindow& parameters, uint64_t serial, Moment at) const {
  return used_ && serial == serial_ && !IsOver(parameters, at);
}

uint64_t FixedWindowState::Refund(const FixedWindow& parameters, uint64_t serial, uint64_t permits,
                                  Moment at) {
  if (!Counts(parameters, serial, at)) return 0;
  const uint64_t removed = std::min(count_, permits);
  count_ -= removed;
  return removed;
}

void FixedWindowState::ToImage(BucketImage* image) const {
  image->used = used_;
  image->index = index_;
  image->opened_ns = opened_ns_;
  image->ends_ns = ends_ns_;
  image->count = count_;
  image->serial = serial_;
}

FixedWindowState FixedWindowState::FromImage(const FixedWindow&, const BucketImage& image) {
  FixedWindowState window;
  window.used_ = image.used;
  window.index_ = image.index;
  window.opened_ns_ = image.opened_ns;
  window.ends_ns_ = image.ends_ns;
  window.count_ = image.count;
  window.serial_ = image.serial;
  return window;
}

FixedWindowState FixedWindowState::ConvertTo(const FixedWindow& from, const FixedWindow& to,
                                             Moment at) const {
  if (!used_ ||
      (from.rate.period_ns == to.rate.period_ns && from.utc_offset_ns == to.utc_offset_ns)) {
    return *this;
  }
  FixedWindowState converted;
  converted.serial_ = serial_ - 1;  // Open makes it this one's: receipts go on
  const uint64_t counted = Counted(from, at);
  if (counted == 0) {
    converted.serial_ = serial_;
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
