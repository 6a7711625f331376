// CountingState: the decisions that all algorithms without tokens share. They count the permits of
// some recent time (Counted) and grant n more iff both together are at most the rate's permits M.
//
// `State` derives from it, and offers Counted, EarliestNs and Add. `Time` is what its functions
// take as the moment: nanoseconds, or a Moment where the wall clock matters. Not thread-safe; never
// blocks.
#ifndef SLUICE_SERVER_ALGORITHM_COUNTING_STATE_H_
#define SLUICE_SERVER_ALGORITHM_COUNTING_STATE_H_

#include <cstdint>

#include "server/algorithm/level.h"
#include "server/algorithm/moment.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

inline int64_t NowNs(int64_t now_ns) { return ClampNow(now_ns); }
inline int64_t NowNs(Moment at) { return ClampNow(at.now_ns); }

template <typename State, typename Limit, typename Time>
class CountingState {
 public:
  // Would TryTake grant?
  bool CanTake(const Limit& parameters, uint64_t permits, Time at) const {
    return Fits(self().Counted(parameters, at), permits, parameters.rate.permits);
  }

  // Granted: `*when`, if given, says when the permits were counted (for Refund).
  bool TryTake(const Limit& parameters, uint64_t permits, Time at, uint64_t* when = nullptr) {
    if (!CanTake(parameters, permits, at)) return false;
    const uint64_t counted = static_cast<State*>(this)->Add(parameters, permits, at);
    if (when != nullptr) *when = counted;
    return true;
  }

  Level LevelAt(const Limit& parameters, Time at) const {
    const int64_t now_ns = NowNs(at);
    Level level;
    level.capacity = parameters.rate.permits;
    level.remaining = RemainingOf(level.capacity, self().Counted(parameters, at));
    level.reset_after_ns = self().EarliestNs(parameters, level.capacity, at) - now_ns;
    if (level.remaining < 1) {
      level.next_permit_after_ns = self().EarliestNs(parameters, 1, at) - now_ns;
    }
    return level;
  }

  // A full bucket is the same as none: it may be dropped.
  bool IsFull(const Limit& parameters, Time at) const {
    return self().Counted(parameters, at) == 0;
  }

 private:
  friend State;
  CountingState() = default;

  const State& self() const { return static_cast<const State&>(*this); }
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_COUNTING_STATE_H_
