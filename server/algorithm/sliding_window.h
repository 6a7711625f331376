// Sliding window: a rolling window in little memory, k+1 counters instead of a log, for limits such
// as ten million a day.
//
// The period is cut into k sub-windows (default 10), and each has a counter. A window of one
// period that ends now overlaps the current sub-window and the k before it; all k+1 count whole,
// although the oldest overlaps only in part:
//
//   granted iff count[J-k] + ... + count[J] + permits <= M          J: the current sub-window
//
// Counting the oldest in proportion, as other implementations do, assumes that its permits were
// taken evenly, and lets bursts pass twice. Counting it whole never does. The price: M permits come
// back after k+1 sub-windows, not k, so the sustained rate is at least M*k/(k+1) a period, 91 % for
// k=10.
//
// Example: 10 permits a second, k=10, so sub-windows of 100 ms (times in ms).
//   t=50    sub-window 0, sum 0     take 10: granted
//   t=1040  sub-window 10, sum of 0..10 is 10: denied, rightly: 50 and 1040 are in one window
//   t=1060  sub-window 10: denied, although [60,1060) is empty. That is the price
//   t=1100  sub-window 11, sum of 1..11 is 0: granted
//
// Boundaries are exact: sub-window j begins at j*period/k, a rational; the index is
// floor(now*k/period), computed in 128 bits.
//
// Invariant: never more than M in any half-open window [t, t+period). Proof: index(t+period) =
// index(t)+k exactly, so a window that contains a grant at u touches no sub-window before
// index(u)-k, and the sum checked at its last grant covers every permit in it.
//
// If the clock steps back, it counts as stopped. Not thread-safe; never blocks.
#ifndef SLUICE_SERVER_ALGORITHM_SLIDING_WINDOW_H_
#define SLUICE_SERVER_ALGORITHM_SLIDING_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/counting_state.h"
#include "server/algorithm/rate.h"

namespace sluice::algorithm {

struct Parameters;

// Made by MakeSlidingWindow.
struct SlidingWindow {
  Rate rate;
  uint32_t sub_windows = 10;

  // See TokenBucket.
  template <typename Self>
  static auto Given(Self& self) {
    return std::tie(self.rate.permits, self.rate.period_ns, self.sub_windows);
  }
  static uint64_t Unit() { return 0; }
  size_t DecisionSteps() const { return size_t{6} * sub_windows; }  // walked several times

  friend bool operator==(const SlidingWindow&, const SlidingWindow&) = default;
};

// INVALID_ARGUMENT: rate or sub_windows out of bounds.
absl::StatusOr<Parameters> MakeSlidingWindow(Rate rate, uint32_t sub_windows);
// The same parameters with another rate.
absl::StatusOr<Parameters> WithRate(const SlidingWindow& parameters, Rate rate);

// The sub-window that now_ns is in, and the first nanosecond of a sub-window.
uint64_t SubWindowAt(const SlidingWindow& parameters, int64_t now_ns);
int64_t SubWindowStartNs(const SlidingWindow& parameters, uint64_t index);

// The state of one key. Every call must pass the same parameters until ConvertTo is called.
class SlidingWindowState : public CountingState<SlidingWindowState, SlidingWindow, int64_t> {
 public:
  // As CountingState; the state has then seen now_ns, granted or not.
  bool TryTake(const SlidingWindow& parameters, uint64_t permits, int64_t now_ns,
               uint64_t* index = nullptr) {
    Advance(parameters, Effective(parameters, now_ns));
    return CountingState::TryTake(parameters, permits, now_ns, index);
  }
  // Counts permits whether or not they fit (carry-over). Returns the sub-window.
  uint64_t Add(const SlidingWindow& parameters, uint64_t permits, int64_t now_ns);

  // The first nanosecond, not before now_ns, at which TryTake would grant if no other permits are
  // taken; kNeverNs if permits > M.
  int64_t EarliestNs(const SlidingWindow& parameters, uint64_t permits, int64_t now_ns) const;
  uint64_t Counted(const SlidingWindow& parameters, int64_t now_ns) const;

  // Takes permits out of sub-window `index`, as far as it still counts. Returns how many.
  uint64_t Refund(const SlidingWindow& parameters, uint64_t index, uint64_t permits,
                  int64_t now_ns);
  bool Counts(const SlidingWindow& parameters, uint64_t index, int64_t now_ns) const;
  // The sub-window that permits taken at now_ns would be counted in.
  uint64_t WhenFor(const SlidingWindow& parameters, int64_t now_ns) const {
    return Effective(parameters, now_ns);
  }

  // The first nanosecond at which permits counted in sub-window `index` no longer count.
  static int64_t UntilNs(const SlidingWindow& parameters, uint64_t index, int64_t now_ns);

  // The same counts under other parameters: each sub-window's permits are counted where its last
  // nanosecond falls, or now, whichever is earlier.
  SlidingWindowState ConvertTo(const SlidingWindow& from, const SlidingWindow& to,
                               int64_t now_ns) const;
  uint64_t ConvertWhen(const SlidingWindow& from, const SlidingWindow& to, uint64_t index,
                       int64_t now_ns) const;

  void ToImage(BucketImage* image) const;
  static SlidingWindowState FromImage(const SlidingWindow& parameters, const BucketImage& image);

  // Heap memory beside the object itself.
  size_t MemoryBytes() const { return counts_.capacity() * sizeof(uint64_t); }
  static size_t MaxMemoryBytes(const SlidingWindow& parameters) {
    return (size_t{parameters.sub_windows} + 1) * sizeof(uint64_t);
  }

 private:
  uint64_t Effective(const SlidingWindow& parameters, int64_t now_ns) const;
  // now_ns, or the begin of the latest sub-window seen if the clock has stepped back before it.
  int64_t NotBefore(const SlidingWindow& parameters, int64_t now_ns) const;
  uint64_t CountedAt(const SlidingWindow& parameters, uint64_t index) const;
  // Zeroes the counters of sub-windows that have come since the last one.
  void Advance(const SlidingWindow& parameters, uint64_t index);

  // Where the count of the oldest sub-window is that counts at `index`.
  size_t OldestAt(uint64_t index) const { return (index + 1) % counts_.size(); }
  void AddTo(uint64_t index, uint64_t permits) {
    counts_[index % counts_.size()] += permits;
    total_ += permits;
  }

  // count of sub-window j at j % (k+1), for last_-k .. last_. Empty until first used.
  std::vector<uint64_t> counts_;
  uint64_t total_ = 0;  // of counts_
  uint64_t last_ = 0;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_SLIDING_WINDOW_H_
