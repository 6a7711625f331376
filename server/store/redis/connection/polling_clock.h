// PollingClock: how long somebody has looked out for answers.
//
// A loop that was starved of the processor, or busy with a long piece of work, finds on its return
// that much time has passed, but it did not look meanwhile: that Redis has not answered in that
// time it cannot know, and a Redis on the same machine was starved with it. So this clock is read
// at least every `step`, and where more time has passed between two readings, it counts one step.
//
// Not thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_POLLING_CLOCK_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_POLLING_CLOCK_H_

#include <algorithm>
#include <cstdint>

namespace sluice::store::redis {

class PollingClock {
 public:
  explicit PollingClock(int64_t step_ns) : step_ns_(step_ns) {}

  // Nanoseconds of attention up to `now_ns`, which never runs back.
  int64_t Read(int64_t now_ns) {
    attended_ns_ += std::min(now_ns - read_at_ns_, step_ns_);
    read_at_ns_ = now_ns;
    return attended_ns_;
  }

 private:
  const int64_t step_ns_;
  int64_t attended_ns_ = 0;
  int64_t read_at_ns_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_POLLING_CLOCK_H_
