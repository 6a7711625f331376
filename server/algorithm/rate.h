// Rate: a number of permits per period, the one parameter that all algorithms have.
#ifndef SLUICE_SERVER_ALGORITHM_RATE_H_
#define SLUICE_SERVER_ALGORITHM_RATE_H_

#include <cstdint>

namespace sluice::algorithm {

// REQUIRES everywhere: permits from 1 to 2^63-1, period_ns within bounds.h, and at most
// kMaxPermitsPerSecond sustained; the config layer refuses the rest.
struct Rate {
  uint64_t permits = 1;
  int64_t period_ns = 1'000'000'000;

  friend bool operator==(const Rate&, const Rate&) = default;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_RATE_H_
