// The four algorithms as one would explain them: slow, with plain vectors and 128-bit integers,
// obviously right. Shares no code with the server, and where it can be helped no way of thinking:
// the token bucket here counts tokens and refills them, the log keeps every entry for ever.
#ifndef SLUICE_TESTS_SUPPORT_REFERENCE_H_
#define SLUICE_TESTS_SUPPORT_REFERENCE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "tests/support/window_checker.h"

namespace sluice::test_support {

// A bucket of tokens that is refilled as time passes. A token is `unit` parts, and a nanosecond
// brings `parts_per_ns` parts. Nothing is rounded. `now` may step back: what it takes back is
// taken back from the bucket.
class ReferenceTokenBucket {
 public:
  ReferenceTokenBucket(uint64_t unit, uint64_t parts_per_ns, uint64_t burst, uint64_t debt)
      : unit_(unit), parts_per_ns_(parts_per_ns), burst_(burst), debt_(debt) {}

  // In parts; negative: owed.
  Wide StoredAt(int64_t now_ns) const {
    const Wide full = burst_ * unit_;
    if (!used_) return full;
    return std::min<Wide>(full,
                          stored_ + (static_cast<Wide>(now_ns) - last_grant_ns_) * parts_per_ns_);
  }

  bool CanTake(uint64_t permits, int64_t now_ns) const {
    const Wide stored = StoredAt(now_ns);
    const Wide cost = permits * unit_;
    if (stored >= cost) return true;
    return debt_ > 0 && stored >= 0 && cost - stored <= debt_ * unit_;
  }

  bool TryTake(uint64_t permits, int64_t now_ns) {
    if (!CanTake(permits, now_ns)) return false;
    stored_ = StoredAt(now_ns) - permits * unit_;
    last_grant_ns_ = now_ns;
    used_ = true;
    return true;
  }

  // A forced debit. Returns how many parts were counted.
  Wide Force(uint64_t permits, uint64_t max_owed, int64_t now_ns) {
    const Wide stored = StoredAt(now_ns);
    const Wide room = std::max<Wide>(stored + max_owed * unit_, 0);
    const Wide counted = std::min<Wide>(permits * unit_, room);
    if (counted == 0) return 0;
    stored_ = stored - counted;
    last_grant_ns_ = now_ns;
    used_ = true;
    return counted;
  }

  // Whole permits, rounded down.
  Wide RemainingAt(int64_t now_ns) const {
    const Wide stored = StoredAt(now_ns);
    return stored >= 0 ? stored / unit_ : -((-stored + unit_ - 1) / unit_);
  }

 private:
  const Wide unit_, parts_per_ns_, burst_, debt_;
  bool used_ = false;
  Wide stored_ = 0;  // just after the last grant
  int64_t last_grant_ns_ = 0;
};

// Every permit ever taken, with its time rounded up to a multiple of `quantum_ns` (1: exact).
class ReferenceLog {
 public:
  ReferenceLog(uint64_t most, int64_t period_ns, int64_t quantum_ns)
      : most_(most), period_ns_(period_ns), quantum_ns_(quantum_ns) {}

  Wide CountedAt(int64_t now_ns) const {
    const int64_t now = std::max(now_ns, latest_ns_);
    Wide counted = 0;
    for (const Grant& entry : entries_) {
      if (static_cast<Wide>(entry.at_ns) + period_ns_ > now) counted += entry.permits;
    }
    return counted;
  }
  bool CanTake(uint64_t permits, int64_t now_ns) const {
    return CountedAt(now_ns) + permits <= most_;
  }
  // Every question, granted or not, tells the time.
  bool TryTake(uint64_t permits, int64_t now_ns) {
    latest_ns_ = std::max(latest_ns_, now_ns);
    if (!CanTake(permits, now_ns)) return false;
    Count(permits);
    return true;
  }
  // A forced debit. Returns how many permits were counted.
  Wide Force(uint64_t permits, uint64_t max_owed, int64_t now_ns) {
    latest_ns_ = std::max(latest_ns_, now_ns);
    const Wide counted = std::min<Wide>(permits, most_ + max_owed - CountedAt(now_ns));
    Count(static_cast<uint64_t>(counted));
    return counted;
  }

 private:
  void Count(uint64_t permits) {
    int64_t at = latest_ns_ / quantum_ns_ * quantum_ns_;
    if (at < latest_ns_) at += quantum_ns_;
    entries_.push_back({at, permits});
  }

  const Wide most_;
  const int64_t period_ns_, quantum_ns_;
  int64_t latest_ns_ = 0;
  std::vector<Grant> entries_;
};

// A count for every sub-window there ever was.
class ReferenceSlidingWindow {
 public:
  ReferenceSlidingWindow(uint64_t most, int64_t period_ns, uint32_t k)
      : most_(most), period_ns_(period_ns), k_(k) {}

  Wide CountedAt(int64_t now_ns) const {
    const Wide current = std::max(IndexAt(now_ns), latest_);
    Wide counted = 0;
    for (const auto& [index, count] : counts_) {
      if (index >= current - k_) counted += count;
    }
    return counted;
  }
  bool CanTake(uint64_t permits, int64_t now_ns) const {
    return CountedAt(now_ns) + permits <= most_;
  }
  bool TryTake(uint64_t permits, int64_t now_ns) {
    latest_ = std::max(latest_, IndexAt(now_ns));
    if (!CanTake(permits, now_ns)) return false;
    counts_[latest_] += permits;
    return true;
  }
  // A forced debit. Returns how many permits were counted.
  Wide Force(uint64_t permits, uint64_t max_owed, int64_t now_ns) {
    latest_ = std::max(latest_, IndexAt(now_ns));
    const Wide counted = std::min<Wide>(permits, most_ + max_owed - CountedAt(now_ns));
    counts_[latest_] += counted;
    return counted;
  }

 private:
  // Sub-window j is [j * period / k, (j + 1) * period / k).
  Wide IndexAt(int64_t now_ns) const { return static_cast<Wide>(now_ns) * k_ / period_ns_; }

  const Wide most_, period_ns_, k_;
  Wide latest_ = 0;
  std::map<Wide, Wide> counts_;
};

// A count for every window of a wall clock that is never set.
class ReferenceFixedWindow {
 public:
  ReferenceFixedWindow(uint64_t most, int64_t period_ns, int64_t utc_offset_ns)
      : most_(most), period_ns_(period_ns), utc_offset_ns_(utc_offset_ns) {}

  bool TryTake(uint64_t permits, int64_t wall_ns) {
    Wide& count = CountAt(wall_ns);
    if (count + permits > most_) return false;
    count += permits;
    return true;
  }
  // A forced debit. Returns how many permits were counted.
  Wide Force(uint64_t permits, uint64_t max_owed, int64_t wall_ns) {
    Wide& count = CountAt(wall_ns);
    const Wide counted = std::min<Wide>(permits, most_ + max_owed - count);
    count += counted;
    return counted;
  }

 private:
  Wide& CountAt(int64_t wall_ns) {
    // Far enough after the year dot that division rounds down.
    return counts_[(static_cast<Wide>(wall_ns) + utc_offset_ns_ + period_ns_ * kFarBack) /
                   period_ns_];
  }

  static constexpr Wide kFarBack = Wide{1} << 50;
  const Wide most_, period_ns_, utc_offset_ns_;
  std::map<Wide, Wide> counts_;
};

}  // namespace sluice::test_support

#endif  // SLUICE_TESTS_SUPPORT_REFERENCE_H_
