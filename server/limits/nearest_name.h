// What somebody who mistyped a name may have meant.
#ifndef SLUICE_SERVER_LIMITS_NEAREST_NAME_H_
#define SLUICE_SERVER_LIMITS_NEAREST_NAME_H_

#include <string_view>

#include "absl/types/span.h"

namespace sluice::limits {

// The candidate that takes the fewest single-character edits (an exchange of neighbours is one),
// or empty when none is near enough to be worth a question. Looks at no more than the first
// 10,000 candidates. Pure; thread-safe.
std::string_view NearestName(std::string_view name, absl::Span<const std::string_view> candidates);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_NEAREST_NAME_H_
