// BootNow: the time on the system's clock that also goes on while the machine is suspended.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_BOOT_CLOCK_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_BOOT_CLOCK_H_

#include <time.h>

#include <chrono>

#include "sluice/connection.h"

namespace sluice::client_internal {

inline TimePoint BootNow() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return TimePoint(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_BOOT_CLOCK_H_
