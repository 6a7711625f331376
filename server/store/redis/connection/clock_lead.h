// ClockLead: estimates how far Redis' clock is ahead of ours, at most.
//
// Redis read its clock some time between sending and reply, so each reply gives two bounds. The
// estimate moves only as far as needed to lie within them: a slow reply (one that waited in the
// socket of a stopped Redis) has wide bounds and does not worsen a good estimate; a clock that was
// set is followed.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_LEAD_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_LEAD_H_

#include <algorithm>
#include <cstdint>

namespace sluice::store::redis {

// Not thread-safe. Microseconds; our clock and Redis' clock need not have the same origin.
class ClockLead {
 public:
  void OnAnswer(int64_t sent_us, int64_t answered_us, int64_t redis_us) {
    const int64_t least_us = redis_us - answered_us;
    const int64_t most_us = redis_us - sent_us;
    lead_us_ = known_ ? std::clamp(lead_us_, least_us, most_us) : most_us;
    known_ = true;
  }
  // False: there was no reply yet.
  bool known() const { return known_; }
  int64_t us() const { return lead_us_; }

 private:
  bool known_ = false;
  int64_t lead_us_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_LEAD_H_
