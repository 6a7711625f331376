// ClockWatch: detects that a Redis server's clock was set, and says how the fence is to correct it.
//
// All times in Redis are on the server's clock minus the correction in the fence (the corrected
// time), which is never ahead of the server's clock. A node compares the corrected time with its
// own monotonic clock (ClockRange), and passes the times that it thinks possible to each script,
// which decides nothing if the server's clock shows another. Then the node replaces the fence, with
// a correction by which the corrected time goes on as it did. So there is one time for all nodes,
// and none decides by an old correction.
//
// A node believes a fence that another node wrote: it begins to compare from scratch. So two nodes
// whose own clocks differ (a virtual machine that was paused) never correct each other's
// corrections (docs/adr/0101).
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_CLOCK_WATCH_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_CLOCK_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/store/redis/connection/clock_range.h"
#include "server/store/redis/fencing/fence.h"

namespace sluice::store::redis {

// Of one event loop and one server. Not thread-safe.
class ClockWatch {
 public:
  // From now on the node goes by this fence. `reading`: made after the fence was read.
  void Adopt(const Fence& fence, const ClockReading& reading);

  // False: the clock was set, and the fence is to be replaced (Revise).
  bool See(const ClockReading& reading);

  // How scripts read the server's clock now.
  ServerClock ClockAt(int64_t our_us) const;

  // Completes the step that the node is about to make: adds the correction to what it writes; or if
  // it was to adopt the fence, and the clock was set, says what it writes instead. `found`, `word`:
  // as in NextFence. Returns whether the clock was set.
  bool Revise(const std::optional<Fence>& found, const ClockReading& reading,
              const FencePolicy& policy, std::string_view word, FenceStep* step);

 private:
  void CountDropped(const ClockReading& reading, const FencePolicy& policy, FenceStep* step) const;
  ClockReading Corrected(const ClockReading& reading) const {
    return {reading.sent_us, reading.answered_us, reading.redis_us - correction_us_};
  }

  ClockRange range_;  // of the corrected time
  // Of the fence that range_ goes by.
  std::string word_;
  uint64_t number_ = 0;
  int64_t correction_us_ = 0;
  std::string ours_;  // the word of the fence that this node wrote last
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_CLOCK_WATCH_H_
