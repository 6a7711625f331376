// Histogram: latencies in log-linear buckets, 8 per doubling from 64 ns to about 70 s. A bucket's
// upper bound is at most 12.5 % above any sample in it.
#ifndef SLUICE_COMMON_HISTOGRAM_H_
#define SLUICE_COMMON_HISTOGRAM_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice::common {

// A counter that one thread writes and any thread may read, without locked instructions. Relaxed:
// a reader of two counters may see one of them before and the other after an event.
class OwnedCounter {
 public:
  void Add(uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void Subtract(uint64_t n = 1) { Add(-n); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

inline constexpr int kHistogramSubBits = 3;
inline constexpr int kHistogramFirstBit = 6;    // all below 2^6 ns fall into the first bucket
inline constexpr int kHistogramDoublings = 30;  // up to 2^36 ns; all above into the last
inline constexpr size_t kHistogramBuckets = (size_t{kHistogramDoublings} << kHistogramSubBits) + 1;

// Index of the bucket that holds a sample.
inline size_t HistogramBucket(uint64_t ns) {
  if (ns <= (uint64_t{1} << kHistogramFirstBit)) return 0;
  const uint64_t below = ns - 1;  // bounds are inclusive
  const int top = std::bit_width(below) - 1;
  const size_t sub = (below >> (top - kHistogramSubBits)) & ((size_t{1} << kHistogramSubBits) - 1);
  const size_t index =
      (static_cast<size_t>(top - kHistogramFirstBit) << kHistogramSubBits) + sub + 1;
  return index < kHistogramBuckets ? index : kHistogramBuckets - 1;
}

// Greatest sample of a bucket. The last bucket also has all greater samples.
inline uint64_t HistogramUpperNs(size_t bucket) {
  if (bucket == 0) return uint64_t{1} << kHistogramFirstBit;
  const size_t doubling = (bucket - 1) >> kHistogramSubBits;
  const size_t sub = (bucket - 1) & ((size_t{1} << kHistogramSubBits) - 1);
  const uint64_t low = uint64_t{1} << (kHistogramFirstBit + doubling);
  return low + (low >> kHistogramSubBits) * (sub + 1);
}

// The sum of one or several histograms.
struct HistogramTotals {
  std::array<uint64_t, kHistogramBuckets> counts{};
  uint64_t count = 0;
  uint64_t sum_ns = 0;
};

// Written by one thread, read by any.
class Histogram {
 public:
  void Record(uint64_t ns) {
    counts_[HistogramBucket(ns)].Add(1);
    sum_ns_.Add(ns);
  }
  void AddTo(HistogramTotals& totals) const {
    for (size_t i = 0; i < kHistogramBuckets; ++i) {
      const uint64_t n = counts_[i].value();
      totals.counts[i] += n;
      totals.count += n;
    }
    totals.sum_ns += sum_ns_.value();
  }

 private:
  std::array<OwnedCounter, kHistogramBuckets> counts_;
  OwnedCounter sum_ns_;
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_HISTOGRAM_H_
