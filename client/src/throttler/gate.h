// Gate: who decides for a throttler: a server, or the engine in this process.
#ifndef SLUICE_CLIENT_SRC_THROTTLER_GATE_H_
#define SLUICE_CLIENT_SRC_THROTTLER_GATE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sluice/clock.h"
#include "sluice/status.h"

namespace sluice::throttler_internal {

// The answer to who wants a moment.
struct Booking {
  Status status;                       // not OK: no moment, and nothing was taken
  std::chrono::nanoseconds moment{0};  // on the throttler's clock
  uint64_t permits = 0;
  // What gives it back: an id in this process, or a server's receipt.
  uint64_t receipt_id = 0;
  std::string receipt;
  uint32_t server = 0;
};

// One limit and key. Thread-safe.
class Gate {
 public:
  virtual ~Gate() = default;

  // Now or not: zero: granted; above: how long to sleep before the next try; below: *error says
  // why it could not be decided. Blocks no longer than a server takes to answer.
  virtual std::chrono::nanoseconds Try(uint64_t permits, Status* error) = 0;

  // Books the earliest moment at most max_wait ahead. `done` runs exactly once, within the call or
  // later. Never blocks. Of calls that follow one another the moments do too.
  virtual void Book(uint64_t permits, std::chrono::nanoseconds max_wait,
                    std::function<void(Booking)> done) = 0;

  // Gives back a booking whose moment has not come. False: nothing was given back, as far as is
  // known now. Never blocks.
  virtual bool GiveBack(const Booking& booking) = 0;

  // Moves a booking up to the earliest moment that has become free, in its channel's order. False:
  // it stands. Answers within the call.
  virtual bool MoveUp(Booking* booking) = 0;
};

// One that waits while limits change: its gate, until when its moment may lie, and its booking,
// whose moment or status changes.
struct Rebooking {
  Gate* gate = nullptr;
  std::chrono::nanoseconds latest{0};
  Booking booking;
};

// Where the gates of a throttler come from. Thread-safe.
class GateSource {
 public:
  virtual ~GateSource() = default;

  virtual const std::shared_ptr<Clock>& clock() const = 0;

  // Whether gates answer within the call.
  virtual bool in_process() const = 0;

  virtual Result<std::unique_ptr<Gate>> Open(std::string limit, std::string key) = 0;

  // No gate is asked any more; every `done` has run when it returns.
  virtual void Close() {}
};

}  // namespace sluice::throttler_internal

#endif  // SLUICE_CLIENT_SRC_THROTTLER_GATE_H_
