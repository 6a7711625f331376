// Rolling window in bounded memory. (essay to be written here)
#ifndef SLUICE_SERVER_ALGORITHM_SLIDING_WINDOW_H_
#define SLUICE_SERVER_ALGORITHM_SLIDING_WINDOW_H_

#include <cstdint>

#include "server/algorithm/rate.h"

namespace sluice::algorithm {

struct SlidingWindow {
  Rate rate;
  uint32_t sub_windows = 10;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_SLIDING_WINDOW_H_
