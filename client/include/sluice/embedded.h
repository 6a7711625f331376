// Embedded: Sluice in the process. Limits, the engine and the store in memory, without a server:
// for a Throttler of one program, with the same limits and the same answers.
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
  // Null: the system's.
  std::shared_ptr<Clock> clock = {};
};

// Thread-safe. Throttlers share it, and keep it alive.
class Embedded {
 public:
  // INVALID_ARGUMENT: a limit is bad; the message names it, the field, the value and what would be
  // right.
  static Result<std::shared_ptr<Embedded>> Create(const std::vector<LimitInfo>& limits,
                                                  EmbeddedOptions options = {});
  ~Embedded();
  Embedded(const Embedded&) = delete;
  Embedded& operator=(const Embedded&) = delete;

  // The limits are now these, while throttlers run: all of them at once, or, on an error, none.
  // Buckets carry over: a token bucket keeps its fill in proportion, logs and windows keep their
  // counts. All that waits in throttlers then gets new moments, in one step and in the order in
  // which it was asked for: sooner where a limit was raised, later where it was lowered, and
  // DEADLINE_EXCEEDED where max_wait no longer allows it.
  Status SetLimits(const std::vector<LimitInfo>& limits);

  const std::shared_ptr<Clock>& clock() const;

 private:
  friend class Throttler;
  explicit Embedded(std::unique_ptr<throttler_internal::EmbeddedState> state);
  const std::unique_ptr<throttler_internal::EmbeddedState> state_;
};

}  // namespace sluice

#endif  // SLUICE_EMBEDDED_H_
