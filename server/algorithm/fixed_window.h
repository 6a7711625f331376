// Windows aligned to the wall clock. (essay to be written here)
#ifndef SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_
#define SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_

#include <cstdint>

#include "server/algorithm/rate.h"

namespace sluice::algorithm {

struct FixedWindow {
  Rate rate;
  int64_t utc_offset_ns = 0;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_FIXED_WINDOW_H_
