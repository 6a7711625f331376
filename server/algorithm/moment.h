// Moment: one point in time on both clocks.
#ifndef SLUICE_SERVER_ALGORITHM_MOMENT_H_
#define SLUICE_SERVER_ALGORITHM_MOMENT_H_

#include <cstdint>

namespace sluice::algorithm {

struct Moment {
  // common::Clock::NowNs(): the time line of every decision.
  int64_t now_ns = 0;
  // common::Clock::WallNs(): used by fixed_window only; for other algorithms it may be anything.
  int64_t wall_ns = 0;
};

// The moment that is by_ns later on both clocks.
inline Moment Moved(Moment at, int64_t by_ns) { return {at.now_ns + by_ns, at.wall_ns + by_ns}; }
// now_ns, with the wall clock as far ahead as it is in `at`.
inline Moment At(Moment at, int64_t now_ns) { return Moved(at, now_ns - at.now_ns); }

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_MOMENT_H_
