// LatencyRecorder: a histogram with 32 buckets for each power of two, so that a quantile is at most
// 3 % too high.
#ifndef SLUICE_CLIENT_CLI_LATENCY_RECORDER_H_
#define SLUICE_CLIENT_CLI_LATENCY_RECORDER_H_

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sluice::cli {

// Not thread-safe.
class LatencyRecorder {
 public:
  void Record(std::chrono::nanoseconds latency) {
    const auto ns = static_cast<uint64_t>(std::max<int64_t>(latency.count(), 0));
    ++counts_[Index(ns)];
    ++count_;
    max_ = std::max(max_, ns);
  }

  void Add(const LatencyRecorder& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    max_ = std::max(max_, other.max_);
  }

  uint64_t count() const { return count_; }
  std::chrono::nanoseconds max() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(max_));
  }

  // An upper bound of the `share` quantile; share is in (0, 1].
  std::chrono::nanoseconds Quantile(double share) const {
    const auto wanted = static_cast<uint64_t>(std::ceil(share * static_cast<double>(count_)));
    uint64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen >= wanted && seen > 0) {
        return std::chrono::nanoseconds(static_cast<int64_t>(std::min(Upper(i), max_)));
      }
    }
    return std::chrono::nanoseconds(0);
  }

 private:
  static constexpr int kSubBits = 5;

  static size_t Index(uint64_t ns) {
    if (ns < (1u << kSubBits)) return ns;
    const int shift = std::bit_width(ns) - 1 - kSubBits;
    return (static_cast<size_t>(shift + 1) << kSubBits) + ((ns >> shift) - (1u << kSubBits));
  }
  static uint64_t Upper(size_t index) {
    if (index < (1u << kSubBits)) return index;
    const size_t shift = (index >> kSubBits) - 1;
    const uint64_t sub = (index & ((1u << kSubBits) - 1)) + (1u << kSubBits);
    return ((sub + 1) << shift) - 1;
  }

  std::array<uint64_t, (64 - kSubBits + 1) << kSubBits> counts_{};
  uint64_t count_ = 0;
  uint64_t max_ = 0;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLIENT_CLI_LATENCY_RECORDER_H_
