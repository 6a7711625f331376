// After: a time plus a duration, at most TimePoint::max(), which means "never".
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_TIME_AFTER_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_TIME_AFTER_H_

#include <chrono>

#include "sluice/connection.h"

namespace sluice::client_internal {

// Callers may pass nanoseconds::max() for "no deadline". REQUIRES: `from` is not negative.
inline TimePoint After(TimePoint from, std::chrono::nanoseconds by) {
  return by >= TimePoint::max() - from ? TimePoint::max() : from + by;
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_TIME_AFTER_H_
