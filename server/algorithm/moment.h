// A moment, as both clocks show it.
#ifndef SLUICE_SERVER_ALGORITHM_MOMENT_H_
#define SLUICE_SERVER_ALGORITHM_MOMENT_H_

#include <cstdint>

namespace sluice::algorithm {

struct Moment {
  // common::Clock::NowNs(): the time line of every decision.
  int64_t now_ns = 0;
  // common::Clock::WallNs(): only fixed_window looks at it; for the others it need not be read.
  int64_t wall_ns = 0;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_MOMENT_H_
