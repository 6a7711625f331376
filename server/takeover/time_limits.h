// How long one process of a takeover waits for the other.
#ifndef SLUICE_SERVER_TAKEOVER_TIME_LIMITS_H_
#define SLUICE_SERVER_TAKEOVER_TIME_LIMITS_H_

#include <chrono>

namespace sluice::takeover {

// For a message that takes no work.
inline constexpr std::chrono::milliseconds kAnswerLimit{5'000};
// From the offer until the new process has read its files and bound its other ports; with Redis,
// until it serves. The old one serves meanwhile.
inline constexpr std::chrono::milliseconds kPrepareLimit{60'000};
// To write the state of any number of buckets, and to load it: seconds for millions.
inline constexpr std::chrono::milliseconds kLoadLimit{60'000};
// Until the old process has read that the state is loaded. It waits for that, unless it is stopped
// (SIGSTOP).
inline constexpr std::chrono::milliseconds kYoursLimit{60'000};

}  // namespace sluice::takeover

#endif  // SLUICE_SERVER_TAKEOVER_TIME_LIMITS_H_
