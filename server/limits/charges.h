// What each limit charges besides itself, once the `charges` of those it charges are followed.
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

// A problem of `specs[limit]`, with a field of "charges".
struct ChargesProblem {
  enum class Kind : uint8_t { kUnknown, kCycle, kTooMany };
  Kind kind = Kind::kUnknown;
  size_t limit = 0;
  SpecProblem problem;
};

// Fills `parents` with, for each of `specs`, the indices of the limits that it adds: breadth
// first in the order written, each once. Refuses names that are not there, cycles, and more than
// bounds::kMaxCharges charges, the limit itself included. Limits are looked at in their order,
// but `first` before all, so that a cycle through it is said to be its. Pure; thread-safe.
// REQUIRES: names are unique.
std::optional<ChargesProblem> ExpandCharges(absl::Span<const LimitSpec* const> specs, size_t first,
                                            std::vector<std::vector<uint32_t>>* parents);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_CHARGES_H_
