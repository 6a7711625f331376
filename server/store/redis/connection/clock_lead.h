// ClockLead: how far Redis' clock is ahead of ours, at most, from what answers tell of it.
//
// Redis looked at its clock some time between the sending and the answer, so each answer gives two
// bounds. The estimate is moved no further than to lie within them: an answer that took long (it
// lay in a stopped Redis' socket) says little, and makes no good estimate worse; a clock that was
// set is followed.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_LEAD_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_LEAD_H_

#include <algorithm>
#include <cstdint>

namespace sluice::store::redis {

// Not thread-safe. Microseconds, ours and Redis' each on a clock of its own.
class ClockLead {
 public:
  void OnAnswer(int64_t sent_us, int64_t answered_us, int64_t redis_us) {
    const int64_t least_us = redis_us - answered_us;
    const int64_t most_us = redis_us - sent_us;
    lead_us_ = known_ ? std::clamp(lead_us_, least_us, most_us) : most_us;
    known_ = true;
  }
  // False: there was no answer yet.
  bool known() const { return known_; }
  int64_t us() const { return lead_us_; }

 private:
  bool known_ = false;
  int64_t lead_us_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CLOCK_LEAD_H_
