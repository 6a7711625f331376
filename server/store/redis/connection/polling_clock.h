// PollingClock: time the loop spent polling; stalls do not count against Redis.
//
// A loop that was starved of the processor, or busy with a long task, did not read replies
// meanwhile, so it cannot know whether Redis was slow; and a Redis on the same machine was starved
// with it. The clock is read at least every `step`; of a longer time between two readings it counts
// one step.
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

  // Nanoseconds of polling up to `now_ns`, which never runs back.
  int64_t Read(int64_t now_ns) {
    polled_ns_ += std::min(now_ns - read_at_ns_, step_ns_);
    read_at_ns_ = now_ns;
    return polled_ns_;
  }

 private:
  const int64_t step_ns_;
  int64_t polled_ns_ = 0;
  int64_t read_at_ns_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_POLLING_CLOCK_H_
