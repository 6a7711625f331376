// Finds the name that a mistyped name was probably meant to be.
#ifndef SLUICE_SERVER_LIMITS_NEAREST_NAME_H_
#define SLUICE_SERVER_LIMITS_NEAREST_NAME_H_

#include <string_view>

#include "absl/types/span.h"

namespace sluice::limits {

// The candidate with the fewest single-character edits (swapping two neighbours is one), or empty
// if none is near. Looks at the first 10,000 candidates. Pure; thread-safe.
std::string_view NearestName(std::string_view name, absl::Span<const std::string_view> candidates);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_NEAREST_NAME_H_
