// Parameters: the parameters of a limit of any algorithm.
#ifndef SLUICE_SERVER_ALGORITHM_PARAMETERS_H_
#define SLUICE_SERVER_ALGORITHM_PARAMETERS_H_

#include <cstdint>

#include "server/algorithm/fixed_window.h"
#include "server/algorithm/kind.h"
#include "server/algorithm/sliding_log.h"
#include "server/algorithm/sliding_window.h"
#include "server/algorithm/token_bucket.h"

namespace sluice::algorithm {

// Only the member that `kind` names is used, also by ==.
struct Parameters {
  Kind kind = Kind::kTokenBucket;
  TokenBucket token_bucket;
  SlidingLog sliding_log;
  SlidingWindow sliding_window;
  FixedWindow fixed_window;

  friend bool operator==(const Parameters& a, const Parameters& b);
};

// The rate, whatever the algorithm.
const Rate& RateOf(const Parameters& parameters);

// Most permits that a bucket can hold: burst, or a window's permits.
inline uint64_t Capacity(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket ? parameters.token_bucket.burst
                                               : RateOf(parameters).permits;
}

// How long a log or window counts a permit, rounding aside: its period. 0: a token bucket.
inline int64_t WindowNs(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket ? 0 : RateOf(parameters).period_ns;
}

// Whether decisions need Moment::wall_ns.
inline bool UsesWallClock(const Parameters& parameters) {
  return parameters.kind == Kind::kFixedWindow;
}

// Most permits that one request can ever be granted: burst + debt, or a window's permits.
inline uint64_t MaxGrant(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket
             ? parameters.token_bucket.burst + parameters.token_bucket.debt
             : Capacity(parameters);
}

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_PARAMETERS_H_
