#include "server/algorithm/sliding_window.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
uint64_t SubWindowAt(const SlidingWindow& parameters, int64_t now_ns) {
  return static_cast<uint64_t>(static_cast<Uint128>(ClampNow(now_ns)) * parameters.sub_windows /
                               static_cast<Uint128>(parameters.rate.period_ns));
}

int64_t SubWindowStartNs(const SlidingWindow& parameters, uint64_t index) {
  return SaturateToInt64(
      CeilDiv(static_cast<Uint128>(index) * parameters.rate.period_ns, parameters.sub_windows));
}

uint64_t SlidingWindowState::Effective(const SlidingWindow& parameters, int64_t now_ns) const {
  return std::max(SubWindowAt(parameters, now_ns), last_);
}

uint64_t SlidingWindowState::CountedAt(const SlidingWindow& parameters, uint64_t index) const {
  if (total_ == 0 || index - last_ > parameters.sub_windows) return 0;
  // Each sub-window that has begun since dropped the oldest one that counted.
  uint64_t counted = total_;
  size_t oldest = OldestAt(last_);
  for (uint64_t begun = last_; begun < index; ++begun) {
    counted -= counts_[oldest];
    if (++oldest == counts_.size()) oldest = 0;
  }
  return counted;
}

void SlidingWindowState::Advance(const SlidingWindow& parameters, uint64_t index) {
  if (counts_.empty()) {
    counts_.assign(size_t{parameters.sub_windows} + 1, 0);
  } else if (index - last_ >= counts_.size()) {
    std::fill(counts_.begin(), counts_.end(), 0);
    total_ = 0;
  } else {
    size_t oldest = OldestAt(last_);
    for (uint64_t begun = last_; begun < index; ++begun) {
      total_ -= std::exchange(counts_[oldest], 0);
      if (++oldest == counts_.size()) oldest = 0;
    }
  }
  last_ = index;
}

uint64_t SlidingWindowState::Counted(const SlidingWindow& parameters, int64_t now_ns) const {
  return CountedAt(parameters, Effective(parameters, now_ns));
}

uint64_t SlidingWindowState::Add(const SlidingWindow& parameters, uint64_t permits,
                                 int64_t now_ns) {
  Advance(parameters, Effective(parameters, now_ns));
  AddTo(last_, permits);
  return last_;
}

int64_t SlidingWindowState::EarliestNs(const SlidingWindow& parameters, uint64_t permits,
                                       int64_t now_ns) const {
  const uint64_t capacity = parameters.rate.permits;
  if (permits > capacity) return kNeverNs;
  const int64_t now = ClampNow(now_ns);
  const uint64_t index = Effective(parameters, now);
  uint64_t counted = CountedAt(parameters, index);
  if (Fits(counted, permits, capacity)) return now;
  // Each sub-window that begins drops the oldest one that counts. When all are dropped, it fits.
  size_t oldest = OldestAt(index);
  for (uint64_t j = index + 1;; ++j) {
    counted -= counts_[oldest];
    if (Fits(counted, permits, capacity)) return SubWindowStartNs(parameters, j);
    if (++oldest == counts_.size()) oldest = 0;
  }
}

bool SlidingWindowState::Counts(const SlidingWindow& parameters, uint64_t index,
                                int64_t now_ns) const {
  return !counts_.empty() && index <= last_ &&
         index + parameters.sub_windows >= Effective(parameters, now_ns);
}

uint64_t SlidingWindowState::Refund(const SlidingWindow& parameters, uint64_t index,
                                    uint64_t permits, int64_t now_ns) {
  if (!Counts(parameters, index, now_ns)) return 0;
  Advance(parameters, Effective(parameters, now_ns));
  uint64_t& count = counts_[index % counts_.size()];
  const uint64_t removed = std::min(count, permits);
  count -= removed;
  total_ -= removed;
  return removed;
}

int64_t SlidingWindowState::NotBefore(const SlidingWindow& parameters, int64_t now_ns) const {
  return std::max(ClampNow(now_ns), SubWindowStartNs(parameters, last_));
}

int64_t SlidingWindowState::UntilNs(const SlidingWindow& parameters, uint64_t index, int64_t) {
  return SubWindowStartNs(parameters, index + parameters.sub_windows + 1);
}

uint64_t SlidingWindowState::ConvertWhen(const SlidingWindow& from, const SlidingWindow& to,
                                         uint64_t index, int64_t now_ns) const {
  if (from.rate.period_ns == to.rate.period_ns && from.sub_windows == to.sub_windows) {
    return index;
  }
  return SubWindowAt(to, std::min(SubWindowStartNs(from, index + 1) - 1, NotBefore(from, now_ns)));
}

void SlidingWindowState::ToImage(BucketImage* image) const {
  image->last = last_;
  if (counts_.empty()) return;
  const uint64_t size = counts_.size();
  for (uint64_t j = last_ >= size ? last_ - size + 1 : 0; j <= last_; ++j) {
    if (counts_[j % size] != 0) image->counts.push_back({j, counts_[j % size]});
  }
}

SlidingWindowState SlidingWindowState::FromImage(const SlidingWindow& parameters,
                                                 const BucketImage& image) {
  SlidingWindowState window;
  if (image.last == 0 && image.counts.empty()) return window;
  window.Advance(parameters, image.last);
  for (const auto& [index, permits] : image.counts) {
    if (index <= image.last && index + parameters.sub_windows >= image.last) {
      window.AddTo(index, permits);
    }
  }
  return window;
}

SlidingWindowState SlidingWindowState::ConvertTo(const SlidingWindow& from, const SlidingWindow& to,
                                                 int64_t now_ns) const {
  if (counts_.empty() ||
      (from.rate.period_ns == to.rate.period_ns && from.sub_windows == to.sub_windows)) {
    return *this;
  }
  const int64_t now = NotBefore(from, now_ns);
  const uint64_t index = SubWindowAt(from, now);
  SlidingWindowState converted;
  converted.Advance(to, SubWindowAt(to, now));
  const uint64_t oldest = index > from.sub_windows ? index - from.sub_windows : 0;
  for (uint64_t j = oldest; j <= last_; ++j) {
    const uint64_t at = ConvertWhen(from, to, j, now);
    if (converted.Counts(to, at, now)) {
      converted.AddTo(at, counts_[j % counts_.size()]);
    }
  }
  return converted;
}

absl::StatusOr<Parameters> MakeSlidingWindow(Rate rate, uint32_t sub_windows) {
  if (absl::Status status = CheckRate(rate); !status.ok()) return status;
  if (sub_windows == 0 || sub_windows > common::bounds::kMaxSubWindows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sub_windows ", sub_windows, ": must be from 1 to ", common::bounds::kMaxSubWindows));
  }
  Parameters parameters;
  parameters.kind = Kind::kSlidingWindow;
  parameters.sliding_window.rate = rate;
  parameters.sliding_window.sub_windows = sub_windows;
  return parameters;
}

absl::StatusOr<Parameters> WithRate(const SlidingWindow& parameters, Rate rate) {
  return MakeSlidingWindow(rate, parameters.sub_windows);
}

}  // namespace sluice::algorithm
