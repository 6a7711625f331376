// The parameters of a limit, whichever its algorithm.
#ifndef SLUICE_SERVER_ALGORITHM_PARAMETERS_H_
#define SLUICE_SERVER_ALGORITHM_PARAMETERS_H_

#include <cstdint>

#include "server/algorithm/fixed_window.h"
#include "server/algorithm/sliding_log.h"
#include "server/algorithm/sliding_window.h"
#include "server/algorithm/token_bucket.h"

namespace sluice::algorithm {

enum class Kind : uint8_t { kTokenBucket = 0, kSlidingLog, kSlidingWindow, kFixedWindow };

// Only the member that `kind` names means anything, also to ==.
struct Parameters {
  Kind kind = Kind::kTokenBucket;
  TokenBucket token_bucket;
  SlidingLog sliding_log;
  SlidingWindow sliding_window;
  FixedWindow fixed_window;

  friend bool operator==(const Parameters& a, const Parameters& b);
};

// Most permits that a bucket can hold: burst, or a window's permits.
uint64_t Capacity(const Parameters& parameters);

// Most permits that one request could ever be granted: burst + debt, or a window's permits.
inline uint64_t MaxGrant(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket
             ? parameters.token_bucket.burst + parameters.token_bucket.debt
             : Capacity(parameters);
}

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_PARAMETERS_H_
