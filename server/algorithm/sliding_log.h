// Exact rolling window. (essay to be written here)
#ifndef SLUICE_SERVER_ALGORITHM_SLIDING_LOG_H_
#define SLUICE_SERVER_ALGORITHM_SLIDING_LOG_H_

#include <cstdint>

#include "server/algorithm/rate.h"

namespace sluice::algorithm {

struct SlidingLog {
  Rate rate;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_SLIDING_LOG_H_
