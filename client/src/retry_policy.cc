#include "client/src/retry_policy.h"

#include <algorithm>
#include <random>

namespace sluice::client_internal {
namespace {

// Of a call without a deadline, more is left.
constexpr std::chrono::hours kLongestDeadline{24 * 365};

}  // namespace

RetryPolicy::RetryPolicy(const RetryOptions& options, uint32_t servers)
    : options_(options), servers_(std::max<uint32_t>(1, servers)) {}

std::chrono::nanoseconds RetryPolicy::Backoff(int failures) const {
  std::chrono::nanoseconds pause = std::max(options_.initial_backoff, std::chrono::nanoseconds(1));
  for (int i = 1; i < failures && pause < options_.max_backoff; ++i) pause *= 2;
  return std::min(pause, std::max(options_.max_backoff, std::chrono::nanoseconds(1)));
}

std::chrono::nanoseconds RetryPolicy::TimeOf(Operation operation, int attempt,
                                             std::chrono::nanoseconds left) const {
  const bool leaves_half = operation == Operation::kAcquireOnce && options_.max_attempts > 1 &&
                           attempt < static_cast<int>(servers_);
  return leaves_half ? left / 2 : left;
}

std::optional<std::chrono::nanoseconds> RetryPolicy::Pause(Operation operation,
                                                           const Status& status, int attempts,
                                                           std::chrono::nanoseconds left,
                                                           double random) const {
  // Only UNAVAILABLE: after DEADLINE_EXCEEDED no time is left (but see TimeOf), RESOURCE_EXHAUSTED
  // means that the server is overloaded, and other errors would occur again.
  const bool once = operation == Operation::kAcquireOnce;
  if (status.code() != StatusCode::kUnavailable &&
      !(once && status.code() == StatusCode::kDeadlineExceeded)) {
    return std::nullopt;
  }
  const bool until_deadline = once && options_.max_attempts > 1 && left < kLongestDeadline;
  if (attempts >= options_.max_attempts && !until_deadline) return std::nullopt;
  if (operation == Operation::kAcquire && status.may_have_executed()) return std::nullopt;
  std::chrono::nanoseconds pause{0};
  // No pause as long as there is a server that was not tried.
  if (const int servers = static_cast<int>(servers_); attempts >= servers) {
    const auto backoff = Backoff(attempts - servers + 1);
    pause = std::chrono::nanoseconds(
        static_cast<int64_t>(static_cast<double>(backoff.count()) * (0.5 + random)));
  }
  if (pause >= left) return std::nullopt;
  return pause;
}

double Random() {
  thread_local std::minstd_rand generator(std::random_device{}());
  return std::uniform_real_distribution<double>(0.0, 1.0)(generator);
}

}  // namespace sluice::client_internal
