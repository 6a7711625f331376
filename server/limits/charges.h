// Expands `charges`: finds all limits that each limit charges, directly and through other limits.
#ifndef SLUICE_SERVER_LIMITS_CHARGES_H_
#define SLUICE_SERVER_LIMITS_CHARGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "server/limits/limit_spec.h"
#include "server/limits/spec_check.h"

namespace sluice::limits {

// A problem of the field "charges" of `specs[limit]`, or of its name.
struct ChargesProblem {
  enum class Kind : uint8_t { kDuplicateName, kUnknown, kCycle, kTooMany };
  Kind kind = Kind::kUnknown;
  size_t limit = 0;
  SpecProblem problem = {};
};

// Fills `parents` with the indices of the limits that each of `specs` adds: breadth first in the
// order written, each once. Refuses names that are given twice, unknown names, cycles, and more
// than bounds::kMaxCharges charges including the limit itself. Looks for cycles from `first` before
// the other limits, so that a cycle through it is reported as its own. Pure; thread-safe.
std::optional<ChargesProblem> ExpandCharges(absl::Span<const LimitSpec* const> specs, size_t first,
                                            std::vector<std::vector<uint32_t>>* parents);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_CHARGES_H_
