// Sliding log: an exact rolling window. No window of one period, wherever it begins, holds more
// than the rate's permits M.
//
// Write down when each permit was taken, and grant n more iff the permits of the last period and n
// together are at most M. That is exact: a counter that is reset each period grants up to 2*M
// around its reset, and a token bucket up to M + M. The cost is a timestamp per permit; most of the
// code here reduces it:
//
//  - Times are whole quanta of period/65536, rounded UP. Permits of one quantum are one run, and
//    bursts merge. Rounding up makes a permit count a little too long (at most 1/65536 of the
//    period), never too short, so no window is ever over and the rate is 0.0015 % low at worst.
//  - Only distances between runs are kept, and everything as variable-length integers: a run is
//    2 to 4 bytes while counts stay below 128. 10,000 a day in bursts of 100: 100 runs.
//  - The first run's time, the last run and the sum are kept decoded, so that most decisions decode
//    no run.
//  - A long log keeps, for every 512 bytes of runs, the time of one run and the sum of those before
//    it. So what has expired, the moment at which permits fit, and the run of a refund are found by
//    binary search and by decoding about 512 bytes.
//
// Example: 3 permits a second, quantum 15,259 ns (shown as if it were 1 ms; times in ms).
//   t=0.0    counted 0      take 2: granted, written at 0       runs [0:2]
//   t=400.2  counted 2      take 1: granted, rounded up to 401  runs [0:2 401:1]
//   t=700    counted 3      take 1: denied; earliest: when run 0 is a period old, 1000
//   t=1000   counted 1      take 2: granted: [0,1000) held 3, [400.2,1400.2) holds 3
//
// Windows are half-open, [t, t+period): what was taken at t no longer counts at t+period.
//
// Invariant: let a permit taken at t be written down as t' with t <= t' < t + quantum. When a
// permit is granted at u, every permit of (u-period, u] has t' + period > u and is counted, so the
// window that ends with u holds at most M; and each window's last permit is some such u.
//
// If the clock steps back, the log uses the latest time that it has seen, as if the clock had
// stopped.
//
// Memory is bounded for any M: at most 65,537 runs. Not thread-safe (the store locks); never
// blocks.
#ifndef SLUICE_SERVER_ALGORITHM_SLIDING_LOG_H_
#define SLUICE_SERVER_ALGORITHM_SLIDING_LOG_H_

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

// Made by MakeSlidingLog.
struct SlidingLog {
  Rate rate;
  int64_t quantum_ns = 0;  // ceil(period / 65536)

  // See TokenBucket.
  template <typename Self>
  static auto Given(Self& self) {
    return std::tie(self.rate.permits, self.rate.period_ns);
  }
  uint64_t Unit() const { return static_cast<uint64_t>(quantum_ns); }
  static size_t DecisionSteps() { return 600; }  // it is walked several times

  friend bool operator==(const SlidingLog&, const SlidingLog&) = default;
};

// INVALID_ARGUMENT: rate out of bounds.
absl::StatusOr<Parameters> MakeSlidingLog(Rate rate);
// The same parameters with another rate.
absl::StatusOr<Parameters> WithRate(const SlidingLog& parameters, Rate rate);

inline constexpr int64_t kQuantaPerPeriod = 65536;

// The state of one key. Every call must pass the same parameters until ConvertTo is called.
class SlidingLogState : public CountingState<SlidingLogState, SlidingLog, int64_t> {
 public:
  // As CountingState; the log has then seen now_ns, granted or not.
  bool TryTake(const SlidingLog& parameters, uint64_t permits, int64_t now_ns,
               uint64_t* quantum = nullptr) {
    Advance(parameters, now_ns);
    return CountingState::TryTake(parameters, permits, now_ns, quantum);
  }
  // Writes permits down whether or not they fit (carry-over). Returns the quantum.
  uint64_t Add(const SlidingLog& parameters, uint64_t permits, int64_t now_ns);

  // The first nanosecond, not before now_ns, at which TryTake would grant if no other permits are
  // taken; kNeverNs if permits > M.
  int64_t EarliestNs(const SlidingLog& parameters, uint64_t permits, int64_t now_ns) const;

  // The quantum at which permits taken at now_ns would be written down. Not before the last run:
  // other parameters, or a clock that was set back, may have left it in the future.
  uint64_t WhenFor(const SlidingLog& parameters, int64_t now_ns) const;
  // The first nanosecond at which permits written down at `quantum` no longer count.
  static int64_t UntilNs(const SlidingLog& parameters, uint64_t quantum, int64_t now_ns);

  // Permits that still count at now_ns.
  uint64_t Counted(const SlidingLog& parameters, int64_t now_ns) const;

  // Removes permits written down at `quantum`, as far as they still count. Returns how many.
  uint64_t Refund(const SlidingLog& parameters, uint64_t quantum, uint64_t permits, int64_t now_ns);
  // Does what was written down at `quantum` still count?
  bool Counts(const SlidingLog& parameters, uint64_t quantum, int64_t now_ns) const;

  // The same log under other parameters. Keeps counts; times are rounded up to the new quantum.
  SlidingLogState ConvertTo(const SlidingLog& from, const SlidingLog& to, int64_t now_ns) const;
  static uint64_t ConvertWhen(const SlidingLog& from, const SlidingLog& to, uint64_t quantum,
                              int64_t now_ns);

  // Its runs from `from` on, a quantum.
  void ToImage(BucketImage* image, uint64_t from = 0) const;
  static SlidingLogState FromImage(const SlidingLog& parameters, const BucketImage& image);

  // Heap memory beside the object itself.
  size_t MemoryBytes() const {
    return bytes_.capacity() + checkpoints_.capacity() * sizeof(Checkpoint);
  }
  static size_t MaxMemoryBytes(const SlidingLog& parameters);
  size_t runs() const;

 private:
  // The moment of a call: not before the moment of an earlier call.
  int64_t Effective(int64_t now_ns) const;
  // Forgets what no longer counts.
  void Advance(const SlidingLog& parameters, int64_t now_ns);
  void Append(uint64_t quantum, uint64_t permits);
  // Encodes the last run; the next one comes `distance` quanta later.
  void AppendLast(uint64_t distance);
  void Clear();

  // A run that is not the last, and the permits of the runs before it.
  struct Checkpoint {
    size_t offset = 0;  // in bytes_
    uint64_t quantum = 0;
    uint64_t before = 0;  // of all runs since the log was empty: dropped_ of them are gone
  };
  // The last checkpoint for which is_before(checkpoint) holds; the oldest run if there is none.
  // REQUIRES: it holds for no checkpoint after one for which it does not.
  template <typename IsBefore>
  Checkpoint Seek(IsBefore is_before) const;
  // Calls visit(quantum, count) from that run on until it returns false. REQUIRES: total_ != 0.
  template <typename Visit>
  void ForEachRunFrom(Checkpoint run, Visit visit) const;
  template <typename Visit>
  void ForEachRun(Visit visit) const {
    if (total_ != 0) ForEachRunFrom({head_, first_quantum_, dropped_}, visit);
  }
  // The permits of the runs that have expired at now_ns, and the first run that has not, as far as
  // it is not the last.
  Checkpoint FirstCounted(const SlidingLog& parameters, int64_t now_ns) const;

  // All runs but the last, oldest at head_: count, then quanta until the next run; varints.
  std::vector<uint8_t> bytes_;
  std::vector<Checkpoint> checkpoints_;  // in order; none before head_
  size_t head_ = 0;
  uint64_t first_quantum_ = 0;  // of the run at head_, or of the last one if there is no other
  uint64_t last_quantum_ = 0;
  uint64_t last_count_ = 0;
  uint64_t total_ = 0;    // of all runs kept; 0: empty
  uint64_t dropped_ = 0;  // permits of the runs that have expired since the log was empty; wraps
  int64_t seen_ns_ = 0;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_SLIDING_LOG_H_
