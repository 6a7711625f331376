// FutexWait and FutexWake: threads that wait for a word to change, each for its own bits of a set,
// so that one system call wakes those whose bits are named (Linux).
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_FUTEX_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "sluice/connection.h"

namespace sluice::client_internal {

// Sleeps while *word == seen, until FutexWake names one of `bits`. Returns early now and then.
// Returns false if the deadline has passed.
inline bool FutexWait(const std::atomic<uint32_t>* word, uint32_t seen, TimePoint deadline,
                      uint32_t bits) {
  timespec until = {};
  const timespec* limit = nullptr;
  if (deadline != TimePoint::max()) {
    // steady_clock is CLOCK_MONOTONIC, whose absolute times FUTEX_WAIT_BITSET takes.
    const int64_t ns = std::chrono::nanoseconds(deadline.time_since_epoch()).count();
    until.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
    until.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    limit = &until;
  }
  const long result = syscall(SYS_futex, reinterpret_cast<const uint32_t*>(word),
                              FUTEX_WAIT_BITSET_PRIVATE, seen, limit, nullptr, bits);
  return !(result != 0 && errno == ETIMEDOUT);
}

inline void FutexWake(const std::atomic<uint32_t>* word, uint32_t bits) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(word), FUTEX_WAKE_BITSET_PRIVATE, INT_MAX,
          nullptr, nullptr, bits);
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_FUTEX_H_
