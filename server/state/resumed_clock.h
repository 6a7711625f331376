// ResumedClock: the system's clocks, with NowNs() on the time line of an earlier process, also
// after the machine has booted again.
#ifndef SLUICE_SERVER_STATE_RESUMED_CLOCK_H_
#define SLUICE_SERVER_STATE_RESUMED_CLOCK_H_

#include <cstdint>

#include "common/clock.h"

namespace sluice::state {

// Thread-safe once the time line is set. Never blocks.
class ResumedClock final : public common::Clock {
 public:
  int64_t NowNs() const override { return system_.NowNs() + ahead_ns_; }
  int64_t WallNs() const override { return system_.WallNs(); }

  // By how much NowNs() is ahead of BOOTTIME (StateKeeper::clock_ahead_ns). REQUIRES: no other
  // thread uses the clock yet.
  void SetAhead(int64_t ahead_ns) { ahead_ns_ = ahead_ns; }

 private:
  const common::SystemClock system_;
  int64_t ahead_ns_ = 0;
};

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_RESUMED_CLOCK_H_
