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
  kAcquire,      // not idempotent: takes permits each time
  kAcquireOnce,  // idempotent: the server executes a request id once
  kQuery,        // idempotent: takes nothing
  kRefund,       // idempotent: the server executes a receipt once
  kSettle,       // idempotent: says all that was taken, not what was added
  kRenew,        // idempotent: a renewal never shortens a hold
};

// How long a call that is executed once may take, with all its attempts. A server remembers a grant
// for 60 s from its execution on; an attempt must not be executed later than that, after the first
// one was. The rest is for requests that arrive late.
inline constexpr std::chrono::seconds kRepeatWithin{50};

// Immutable, thread-safe.
class RetryPolicy {
 public:
  RetryPolicy(const RetryOptions& options, uint32_t servers);

  // The pause before the next attempt; absent: give up. `attempts` were made, and the last one
  // ended with `status`. `left` is the time until the call's deadline; `random` is in [0, 1).
  std::optional<std::chrono::nanoseconds> Pause(Operation operation, const Status& status,
                                                int attempts, std::chrono::nanoseconds left,
                                                double random) const;

  // The time for an attempt, of the time that is left for its call. If there are servers to try
  // next, an attempt that is executed once leaves half of it for them: its own may be hung.
  std::chrono::nanoseconds TimeOf(Operation operation, int attempt,
                                  std::chrono::nanoseconds left) const;

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
