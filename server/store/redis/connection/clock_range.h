// ClockRange: how far ahead of our clock Redis' clock is, at least and at most.
//
// Redis read its clock some time between sending and reply, so each reading gives two bounds. The
// range is what all readings allow: they narrow it, and time widens it by the drift that two clocks
// may have. It never follows a clock that was set. So from any moment on, Redis' clock can gain at
// most the tolerance and the drift over ours without being noticed, in however many steps.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_RANGE_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_RANGE_H_

#include <algorithm>
#include <cstdint>

namespace sluice::store::redis {

// Microseconds. The first two are on our monotonic clock, which has another origin than Redis'.
struct ClockReading {
  int64_t sent_us = 0;
  int64_t answered_us = 0;
  int64_t redis_us = 0;

  // Too uncertain to correct a clock by it, if there can be a better one.
  bool slow() const { return answered_us - sent_us > 100'000; }
};

// Not thread-safe. Microseconds.
class ClockRange {
 public:
  // A clock that differs by more was set.
  static constexpr int64_t kToleranceUs = 1'000'000;
  // 500 ppm, the most by which a kernel slews its clock.
  static constexpr int64_t kUsPerDriftUs = 2000;

  bool known() const { return known_; }
  void Forget() { known_ = false; }
  // Begins again with this reading alone.
  void Begin(const ClockReading& reading) {
    least_us_ = reading.redis_us - reading.answered_us;
    most_us_ = reading.redis_us - reading.sent_us;
    at_us_ = reading.answered_us;
    last_ = reading;
    known_ = true;
  }
  // REQUIRES of all that follow: known().
  //
  // Narrows the range, unless the reading is outside.
  void Narrow(const ClockReading& reading) {
    if (!reading.slow()) last_ = reading;
    const int64_t drift_us = DriftUs(reading.answered_us);
    const int64_t least_us = std::max(least_us_ - drift_us, reading.redis_us - reading.answered_us);
    const int64_t most_us = std::min(most_us_ + drift_us, reading.redis_us - reading.sent_us);
    if (least_us > most_us) return;
    least_us_ = least_us;
    most_us_ = most_us;
    at_us_ = std::max(at_us_, reading.answered_us);
  }
  // What Redis' clock shows at a moment of ours.
  int64_t LeastAt(int64_t our_us) const { return our_us + least_us_ - DriftUs(our_us); }
  int64_t MostAt(int64_t our_us) const { return our_us + most_us_ + DriftUs(our_us); }
  // What it shows at least if it has not been set since the last reading, which may be less: it may
  // have been set back by less than the tolerance before.
  int64_t WentOnAt(int64_t our_us) const {
    const int64_t since_us = our_us - last_.answered_us;
    return std::min(LeastAt(our_us), last_.redis_us + since_us - since_us / kUsPerDriftUs - 1);
  }
  // Redis' clock was set forward, or back, by more than the tolerance.
  bool IsAhead(const ClockReading& reading) const {
    return reading.redis_us > MostAt(reading.answered_us) + kToleranceUs;
  }
  bool IsBehind(const ClockReading& reading, int64_t by_us = kToleranceUs) const {
    return reading.redis_us < LeastAt(reading.sent_us) - by_us;
  }

 private:
  int64_t DriftUs(int64_t our_us) const {
    return our_us <= at_us_ ? 0 : (our_us - at_us_) / kUsPerDriftUs + 1;
  }

  bool known_ = false;
  // Redis' clock minus ours at at_us_.
  int64_t least_us_ = 0;
  int64_t most_us_ = 0;
  int64_t at_us_ = 0;
  ClockReading last_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_RANGE_H_
