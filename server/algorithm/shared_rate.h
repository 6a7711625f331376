// SharedRate: a token bucket that several threads take from without a lock, and whose rate may
// change while they do.
//
// It is the GCRA of token_bucket.h with the TAT in one atomic word. Its tick is always the finest,
// whatever the rate, so that a new rate needs no conversion: what was taken at the old rate is
// given back as fast as before.
#ifndef SLUICE_SERVER_ALGORITHM_SHARED_RATE_H_
#define SLUICE_SERVER_ALGORITHM_SHARED_RATE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "server/algorithm/token_bucket.h"

namespace sluice::algorithm {

// Thread-safe, lock-free. At first there is no bound.
class SharedRate {
 public:
  static constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();
  // Up to it the rate is at most 0.07 % low with a period of a second.
  static constexpr uint64_t kMost = 10'000'000;

  explicit SharedRate(int64_t period_ns) : period_ns_(period_ns) {}
  SharedRate(const SharedRate&) = delete;
  SharedRate& operator=(const SharedRate&) = delete;

  // `permits` at once, and as many new ones in each period. REQUIRES: at most kMost, or kUnbounded.
  void SetPermits(uint64_t permits) { permits_.store(permits, std::memory_order_relaxed); }
  uint64_t permits() const { return permits_.load(std::memory_order_relaxed); }

  // Takes as many of `wanted` as there are, and returns how many. Threads whose readings of the
  // clock differ never get more together than one thread with the latest reading.
  uint64_t TakeUpTo(uint64_t wanted, int64_t now_ns) {
    const uint64_t permits = this->permits();
    if (permits == kUnbounded) return wanted;
    if (permits == 0) return 0;
    const TokenBucket bucket = BucketOf(permits);
    const uint64_t now_ticks = ToTicks(bucket, now_ns);
    // Relaxed: the word publishes no other data.
    uint64_t tat = tat_.load(std::memory_order_relaxed);
    while (true) {
      const int64_t left = Remaining(bucket, tat, now_ticks);
      const uint64_t taken = std::min(wanted, static_cast<uint64_t>(std::max<int64_t>(left, 0)));
      uint64_t after = tat;
      if (taken == 0 || !TryTake(bucket, taken, now_ticks, &after)) return 0;
      if (tat_.compare_exchange_weak(tat, after, std::memory_order_relaxed)) return taken;
    }
  }

  // Takes permits that are not there, at most those of one period: later ones are missing then.
  void Owe(uint64_t owed, int64_t now_ns) {
    const uint64_t permits = this->permits();
    if (owed == 0 || permits == kUnbounded || permits == 0) return;
    const TokenBucket bucket = BucketOf(permits);
    const uint64_t now_ticks = ToTicks(bucket, now_ns);
    uint64_t tat = tat_.load(std::memory_order_relaxed);
    for (uint64_t after = tat;; after = tat) {
      Force(bucket, owed, /*max_owed=*/permits, now_ticks, kMaxTat, &after);
      if (tat_.compare_exchange_weak(tat, after, std::memory_order_relaxed)) return;
    }
  }

 private:
  static constexpr uint8_t kShift = 4;

  TokenBucket BucketOf(uint64_t permits) const {
    const uint64_t period_ticks = static_cast<uint64_t>(period_ns_) << kShift;
    TokenBucket bucket;
    bucket.burst = permits;
    bucket.unit_ticks = (period_ticks + permits - 1) / permits;
    bucket.burst_ticks = permits * bucket.unit_ticks;
    bucket.shift = kShift;
    return bucket;
  }

  const int64_t period_ns_;
  std::atomic<uint64_t> permits_{kUnbounded};
  std::atomic<uint64_t> tat_{0};
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_SHARED_RATE_H_
