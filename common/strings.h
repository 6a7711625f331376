// String functions. Abseil 20220623 has its own string_view, to which std's does not convert.
#ifndef SLUICE_COMMON_STRINGS_H_
#define SLUICE_COMMON_STRINGS_H_

#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/strings/string_view.h"

namespace sluice::common {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view ToStd(absl::string_view s) { return {s.data(), s.size()}; }

// a == b. Compares up to eight bytes at a time: names and keys are too short to call memcmp.
inline bool SameBytes(std::string_view a, std::string_view b) {
  const size_t n = a.size();
  if (n != b.size()) return false;
  const auto same = [&](size_t at, auto as) {
    decltype(as) of_b;
    std::memcpy(&as, a.data() + at, sizeof(as));
    std::memcpy(&of_b, b.data() + at, sizeof(as));
    return as == of_b;
  };
  if (n >= 8) {
    for (size_t i = 0; i + 8 < n; i += 8) {
      if (!same(i, uint64_t{})) return false;
    }
    return same(n - 8, uint64_t{});
  }
  if (n >= 4) return same(0, uint32_t{}) && same(n - 4, uint32_t{});
  if (n >= 2) return same(0, uint16_t{}) && same(n - 2, uint16_t{});
  return n == 0 || a[0] == b[0];
}

}  // namespace sluice::common

#endif  // SLUICE_COMMON_STRINGS_H_
