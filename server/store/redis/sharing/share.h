// Shares of a limit: what each of several nodes may grant by itself, so that together they never
// grant more than the limit.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_SHARE_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_SHARE_H_

#include <cstdint>
#include <optional>

#include "server/algorithm/parameters.h"

namespace sluice::store::redis {

// The parameters divided by `divisor` and rounded down, so that `divisor` shares together are at
// most the whole. Divides a token bucket's burst, debt and rate (multiplies the period; where that
// does not fit, divides the permits), or a window's permits. nullopt: nothing is left. Pure;
// thread-safe. REQUIRES: divisor >= 1.
std::optional<algorithm::Parameters> ShareOf(const algorithm::Parameters& whole, uint32_t divisor);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_SHARE_H_
