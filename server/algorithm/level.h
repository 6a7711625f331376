// Level: how full a bucket is at one moment.
#ifndef SLUICE_SERVER_ALGORITHM_LEVEL_H_
#define SLUICE_SERVER_ALGORITHM_LEVEL_H_

#include <cstdint>

namespace sluice::algorithm {

struct Level {
  // Permits that could be taken now, without debt; negative: owed. Rounded down; saturates.
  int64_t remaining = 0;
  // Most that the bucket can hold.
  uint64_t capacity = 0;
  // Until it is full if no permits are taken; rounded up to the nanosecond.
  int64_t reset_after_ns = 0;
  // Until one permit could be taken; 0: now. kNeverNs: never.
  int64_t next_permit_after_ns = 0;

  friend bool operator==(const Level&, const Level&) = default;
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_LEVEL_H_
