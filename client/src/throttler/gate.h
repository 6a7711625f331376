// Gate: decides for a throttler, by asking a server or the engine in this process.
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

// A reservation.
struct Booking {
  Status status;                           // not OK: no grant time, and nothing was taken
  std::chrono::nanoseconds grant_time{0};  // on the throttler's clock
  uint64_t permits = 0;
  // What refunds it: a receipt id in this process, or a server's receipt.
  uint64_t receipt_id = 0;
  std::string receipt;
  uint32_t server = 0;
};

// One limit and key. Thread-safe.
class Gate {
 public:
  virtual ~Gate() = default;

  // Takes the permits now or not at all. Returns zero (granted), a positive time to sleep before
  // the next try (denied), or a negative value and sets *error. Blocks at most until a server
  // answers.
  virtual std::chrono::nanoseconds Try(uint64_t permits, Status* error) = 0;

  // Books the earliest grant time at most max_wait ahead. `done` runs exactly once, within the call
  // or later. Never blocks. Grant times follow the order of the calls.
  virtual void Book(uint64_t permits, std::chrono::nanoseconds max_wait,
                    std::function<void(Booking)> done) = 0;

  // Refunds a booking before its grant time. Returns false if the permits are not known to be back.
  // Never blocks.
  virtual bool Refund(const Booking& booking) = 0;

  // Moves a booking to the earliest grant time that is free now, in its channel's order. Returns
  // false if it stays. Never blocks.
  virtual bool MoveUp(Booking* booking) = 0;
};

// A booking that waits while limits change. The change sets its new grant time or status.
struct Rebooking {
  Gate* gate = nullptr;
  std::chrono::nanoseconds latest{0};  // the latest acceptable grant time
  Booking booking;
};

// Opens the gates of one throttler. Thread-safe.
class GateSource {
 public:
  virtual ~GateSource() = default;

  virtual const std::shared_ptr<Clock>& clock() const = 0;

  // Whether Gate::Book calls `done` before it returns.
  virtual bool in_process() const = 0;

  virtual Result<std::unique_ptr<Gate>> Open(std::string limit, std::string key) = 0;

  // Called after the last use of a gate. Every `done` has run when it returns.
  virtual void Close() {}
};

}  // namespace sluice::throttler_internal

#endif  // SLUICE_CLIENT_SRC_THROTTLER_GATE_H_
