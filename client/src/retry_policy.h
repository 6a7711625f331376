// Which failed calls are tried again, and after what pause. The one rule that matters: what may
// have been executed is not sent again, unless doing it twice is the same as doing it once.
#ifndef SLUICE_CLIENT_SRC_RETRY_POLICY_H_
#define SLUICE_CLIENT_SRC_RETRY_POLICY_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice::client_internal {

enum class Operation {
  kAcquire,  // takes permits: twice is not once
  kQuery,    // takes nothing
  kRefund,   // has an id: the server executes it once
};

// Immutable, thread-safe.
class RetryPolicy {
 public:
  RetryPolicy(const RetryOptions& options, uint32_t servers);

  // The pause before the next attempt, or nothing: give up. `attempts` were made, the last one
  // ended with `status`, `left` is the time until the call's deadline, `random` is in [0, 1).
  std::optional<std::chrono::nanoseconds> Pause(Operation operation, const Status& status,
                                                int attempts, std::chrono::nanoseconds left,
                                                double random) const;

  // The pause after `failures` failures in a row (at least 1), before it is spread.
  std::chrono::nanoseconds Backoff(int failures) const;

 private:
  const RetryOptions options_;
  const uint32_t servers_;
};

// In [0, 1), of this thread's own generator.
double Random();

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_RETRY_POLICY_H_
