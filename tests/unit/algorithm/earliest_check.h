// Tries every moment up to the earliest time at which a request would be granted.
#ifndef SLUICE_TESTS_UNIT_ALGORITHM_EARLIEST_CHECK_H_
#define SLUICE_TESTS_UNIT_ALGORITHM_EARLIEST_CHECK_H_

#include <rapidcheck.h>

#include <cstdint>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/parameters.h"

namespace sluice::algorithm {

// Within a property of RapidCheck: a request that is not forced is denied at each moment before
// EarliestNs, and granted then if no other comes. REQUIRES: tiny parameters.
inline void CheckEarliest(const BucketState& state, const Parameters& parameters, uint64_t permits,
                          int64_t now_ns) {
  const int64_t earliest_ns = state.EarliestNs(parameters, permits, {now_ns, now_ns});
  RC_ASSERT(earliest_ns >= now_ns);
  if (earliest_ns == kNeverNs) {
    RC_ASSERT(permits > MaxGrant(parameters));
    return;
  }
  BucketState later(state);
  int64_t at_ns = now_ns;
  const auto granted = [&] {
    later.Fold(parameters, {at_ns, at_ns});
    return later.CanTake(parameters, permits, {at_ns, at_ns});
  };
  while (at_ns < earliest_ns && !granted()) ++at_ns;
  RC_ASSERT(at_ns == earliest_ns);
  RC_ASSERT(granted());
}

}  // namespace sluice::algorithm

#endif  // SLUICE_TESTS_UNIT_ALGORITHM_EARLIEST_CHECK_H_
