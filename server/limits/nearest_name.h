// Finds the name that a mistyped name was probably meant to be.
#ifndef SLUICE_SERVER_LIMITS_NEAREST_NAME_H_
#define SLUICE_SERVER_LIMITS_NEAREST_NAME_H_

#include <string_view>

#include "absl/types/span.h"
#include "server/limits/limit_table.h"

namespace sluice::limits {

// The candidate with the fewest single-character edits (swapping two neighbours is one), or empty
// if none is near. Looks at the first 10,000 candidates. Pure; thread-safe.
std::string_view NearestName(std::string_view name, absl::Span<const std::string_view> candidates);

// The limit's name that an unknown `name` was probably meant to be; empty: none is near. Valid as
// long as the table. Takes at most 100 us: of a table with hundreds of limits it compares the first
// ones only.
std::string_view NearestLimit(const LimitTable& table, std::string_view name);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_NEAREST_NAME_H_
