// RandomWord: 64 random bits from the operating system, for seeds and for names that do not repeat.
#ifndef SLUICE_COMMON_RANDOM_H_
#define SLUICE_COMMON_RANDOM_H_

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::common {

// Thread-safe.
inline uint64_t RandomWord() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// 16 hex digits.
inline std::string RandomName() { return absl::StrCat(absl::Hex(RandomWord(), absl::kZeroPad16)); }

}  // namespace sluice::common

#endif  // SLUICE_COMMON_RANDOM_H_
