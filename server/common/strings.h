// Abseil 20220623 has a string_view of its own; std's does not convert to it.
#ifndef SLUICE_SERVER_COMMON_STRINGS_H_
#define SLUICE_SERVER_COMMON_STRINGS_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace sluice::common {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view ToStd(absl::string_view s) { return {s.data(), s.size()}; }

}  // namespace sluice::common

#endif  // SLUICE_SERVER_COMMON_STRINGS_H_
