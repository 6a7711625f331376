// 128-bit integers for intermediate products. Pure; thread-safe.
#ifndef SLUICE_SERVER_ALGORITHM_WIDE_H_
#define SLUICE_SERVER_ALGORITHM_WIDE_H_

#include <cstdint>
#include <limits>

namespace sluice::algorithm {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;

// The earliest time of a request that cannot be granted at any time.
inline constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

// Moments are clamped to [0, kMaxNowNs], so that a period can be added to any of them.
inline constexpr int64_t kMaxNowNs = int64_t{1} << 62;

inline constexpr int64_t ClampNow(int64_t now_ns) {
  return now_ns < 0 ? 0 : now_ns > kMaxNowNs ? kMaxNowNs : now_ns;
}

// REQUIRES: divisor > 0.
inline constexpr Uint128 CeilDiv(Uint128 value, Uint128 divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

inline constexpr int64_t SaturateToInt64(Uint128 value) {
  constexpr auto kMax = static_cast<Uint128>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(value > kMax ? kMax : value);
}

// Rounds down, also below 0. REQUIRES: divisor > 0.
inline constexpr Int128 FloorDiv(Int128 value, Int128 divisor) {
  return value / divisor - (value % divisor < 0 ? 1 : 0);
}

// Whether `permits` more fit beside the counted ones. No sum, so nothing overflows.
inline constexpr bool Fits(uint64_t counted, uint64_t permits, uint64_t capacity) {
  return counted <= capacity && permits <= capacity - counted;
}

// The most that a log or window of that capacity may count when max_owed permits may be owed
// beyond it. Saturates: counts are signed in calendars.
inline constexpr uint64_t MostCounted(uint64_t capacity, uint64_t max_owed) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return max_owed < kMost - capacity ? capacity + max_owed : kMost;
}

// Permits that `capacity` leaves beside `used`; negative when more are used.
inline constexpr int64_t RemainingOf(uint64_t capacity, uint64_t used) {
  return capacity >= used ? SaturateToInt64(capacity - used) : -SaturateToInt64(used - capacity);
}

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_WIDE_H_
