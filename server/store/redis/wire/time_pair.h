// A moment or duration as scripts count it: whole microseconds, and parts of one. The parts are
// nanoseconds for logs and windows; for a token bucket its ticks, of which a microsecond has
// 1000 << shift. Lua's doubles hold neither of the two in one number.
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_TIME_PAIR_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_TIME_PAIR_H_

#include <cstdint>
#include <limits>

#include "server/algorithm/parameters.h"
#include "server/algorithm/wide.h"

namespace sluice::store::redis {

struct TimePair {
  int64_t us = 0;
  int64_t parts = 0;
};

inline int64_t PartsPerUs(const algorithm::TokenBucket& parameters) {
  return int64_t{1000} << parameters.shift;
}

inline TimePair PairOfTicks(const algorithm::TokenBucket& parameters, uint64_t ticks) {
  const auto parts = static_cast<uint64_t>(PartsPerUs(parameters));
  return {static_cast<int64_t>(ticks / parts), static_cast<int64_t>(ticks % parts)};
}

// Rounds towards the past.
inline TimePair PairOfNs(int64_t ns) {
  int64_t us = ns / 1000;
  int64_t rest = ns % 1000;
  if (rest < 0) {
    --us;
    rest += 1000;
  }
  return {us, rest};
}

// Saturates.
inline int64_t NsOf(int64_t us, int64_t ns) {
  const algorithm::Int128 sum = static_cast<algorithm::Int128>(us) * 1000 + ns;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return sum > kMost ? kMost : static_cast<int64_t>(sum);
}

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_TIME_PAIR_H_
