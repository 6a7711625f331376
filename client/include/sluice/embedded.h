// Embedded: Sluice inside the process, without a server. It has the limits and their buckets, for
// the Throttlers and Clients (embedded_connection.h) of one program. Limits and decisions are the
// same as a server's.
#ifndef SLUICE_EMBEDDED_H_
#define SLUICE_EMBEDDED_H_

#include <memory>
#include <vector>

#include "sluice/clock.h"
#include "sluice/limit.h"
#include "sluice/status.h"

namespace sluice {

namespace throttler_internal {
class EmbeddedState;
}

struct EmbeddedOptions {
  // Null: a SystemClock.
  std::shared_ptr<Clock> clock = {};
};

// Thread-safe. Throttlers share ownership.
class Embedded {
 public:
  // INVALID_ARGUMENT: a limit is invalid. The message has the limit, the field, the value and a
  // correction.
  static Result<std::shared_ptr<Embedded>> Create(const std::vector<LimitInfo>& limits,
                                                  EmbeddedOptions options = {});
  ~Embedded();
  Embedded(const Embedded&) = delete;
  Embedded& operator=(const Embedded&) = delete;

  // Replaces all limits at once while throttlers run. On an error (see Create) nothing changes.
  // Buckets carry over: a token bucket keeps its fill in proportion, logs and windows keep their
  // counts. Functions and callers that wait are booked again in one step, in the order of their
  // bookings: sooner where a limit was raised, later where it was lowered. DEADLINE_EXCEEDED
  // ends a call whose max_wait does not allow the new grant time.
  Status SetLimits(const std::vector<LimitInfo>& limits);

  const std::shared_ptr<Clock>& clock() const;

 private:
  friend class Throttler;
  friend class throttler_internal::EmbeddedState;
  explicit Embedded(std::unique_ptr<throttler_internal::EmbeddedState> state);
  const std::unique_ptr<throttler_internal::EmbeddedState> state_;
};

}  // namespace sluice

#endif  // SLUICE_EMBEDDED_H_
