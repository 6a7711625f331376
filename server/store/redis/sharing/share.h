// Share: what one of several nodes may grant of a limit by itself, so that all of them together
// never grant more than the limit.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_SHARE_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_SHARE_H_

#include <cstdint>
#include <optional>

#include "server/algorithm/parameters.h"

namespace sluice::store::redis {

// The parameters divided by `divisor` and rounded down, so that divisor shares together are at most
// the whole: a token bucket's burst, debt and rate (a period that is so many times as long, or
// fewer permits where that period does not fit), a window's permits. nullopt: nothing is left.
// Pure; thread-safe. REQUIRES: divisor >= 1.
std::optional<algorithm::Parameters> ShareOf(const algorithm::Parameters& whole, uint32_t divisor);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_SHARE_H_
