// Token bucket, as the generic cell rate algorithm (GCRA; ITU-T I.371, "virtual scheduling").
// (essay to be written here)
#ifndef SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_
#define SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/algorithm/rate.h"

namespace sluice::algorithm {

// Ticks are 2^-shift ns (shift >= 0), so that ticks(now) = now_ns << shift is exact and linear.
// A permit costs unit_ticks = ceil(period / permits) ticks; n permits cost n * unit_ticks exactly,
// so that n single permits and one request of n cost the same and no window is ever over.
struct TokenBucket {
  Rate rate;
  uint64_t burst = 1;  // permits
  uint64_t debt = 0;   // permits
  uint64_t unit_ticks = 0;
  uint64_t burst_ticks = 0;  // burst * unit_ticks
  uint64_t debt_ticks = 0;   // debt * unit_ticks
  uint8_t shift = 0;
};

// The whole state is one number: the tick at which the bucket is full again (GCRA's theoretical
// arrival time, TAT). A bucket that was never used is full: full_at <= now. It always fits 62
// bits: the store keeps two flags beside it.
inline constexpr int kTatBits = 62;
inline constexpr uint64_t kMaxTat = (uint64_t{1} << kTatBits) - 1;

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_
