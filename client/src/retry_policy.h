// RetryPolicy: decides which failed calls are retried, and after what pause. A call that a server
// may have executed is retried only if a second execution changes nothing.
#ifndef SLUICE_CLIENT_SRC_RETRY_POLICY_H_
#define SLUICE_CLIENT_SRC_RETRY_POLICY_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice::client_internal {

enum class Operation {
  kAcquire,  // not idempotent: takes permits each time
  kQuery,    // idempotent: takes nothing
  kRefund,   // idempotent: the server executes a receipt once
};

// Immutable, thread-safe.
class RetryPolicy {
 public:
  RetryPolicy(const RetryOptions& options, uint32_t servers);

  // The pause before the next attempt; absent: give up. `attempts` were made, and the last one
  // ended with `status`. `left` is the time until the call's deadline; `random` is in [0, 1).
  std::optional<std::chrono::nanoseconds> Pause(Operation operation, const Status& status,
                                                int attempts, std::chrono::nanoseconds left,
                                                double random) const;

  // The pause after `failures` failures in a row (at least 1), before it is randomized.
  std::chrono::nanoseconds Backoff(int failures) const;

 private:
  const RetryOptions options_;
  const uint32_t servers_;
};

// In [0, 1), from a generator of this thread.
double Random();

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_RETRY_POLICY_H_
