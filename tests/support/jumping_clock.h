// JumpingClock: the clocks of a node that jump.
#ifndef SLUICE_TESTS_SUPPORT_JUMPING_CLOCK_H_
#define SLUICE_TESTS_SUPPORT_JUMPING_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace sluice::testing {

// Its wall clock jumps both ways. Its boot clock only jumps ahead, as after a suspend. Thread-safe.
class JumpingClock final : public common::Clock {
 public:
  int64_t NowNs() const override { return system_.NowNs() + slept_ns_.load(); }
  int64_t WallNs() const override { return system_.WallNs() + set_ns_.load(); }
  void Jump(int64_t ns) {
    set_ns_.fetch_add(ns);
    if (ns > 0) slept_ns_.fetch_add(ns);
  }

 private:
  common::SystemClock system_;
  std::atomic<int64_t> set_ns_{0};
  std::atomic<int64_t> slept_ns_{0};
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_JUMPING_CLOCK_H_
