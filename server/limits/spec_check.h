// Checks a limit as written, makes its parameters, and finds all limits that it charges. The limits
// file and PutLimit both use it, so they give the same errors.
#ifndef SLUICE_SERVER_LIMITS_SPEC_CHECK_H_
#define SLUICE_SERVER_LIMITS_SPEC_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/algorithm/parameters.h"
#include "server/limits/limit_spec.h"

namespace sluice::limits {

// What is wrong with one field of a limit.
struct SpecProblem {
  std::string_view field = {};  // "rate", "charges", "keys", ...; a literal
  // As a person would write it; for a limits file, its own text is shown instead.
  std::string value = {};
  // What to write.
  std::string advice = {};
  // charges and keys: which of them; else absent.
  std::optional<size_t> index = {};
  // keys: which parameter of the override; empty: the key itself.
  std::string_view key_field = {};

  // "rate", "charges[1]", "keys[\"user:42\"].burst".
  std::string Path(const LimitSpec& spec) const;
};

// The value in quotes, printable and cut after 64 bytes.
std::string Quoted(std::string_view value);

// `path: "value": advice`.
std::string ProblemText(std::string_view path, const SpecProblem& problem);
// INVALID_ARGUMENT: the text with the problem's path behind `prefix`.
absl::Status ProblemStatus(std::string_view prefix, const LimitSpec& spec,
                           const SpecProblem& problem);

// The parameters of a limit, with defaults filled in.
struct SpecParameters {
  algorithm::Parameters own;
  std::vector<algorithm::Parameters> keys;  // one for each of spec.keys
};

// Returns the first problem. If there is none, fills in `parameters`, unless null. Does not check
// that the limits in `charges` exist: ExpandCharges does. Pure; thread-safe.
//
// Whether a limit without a rate was given one cannot be seen in `spec`: see CheckHasRate.
//
// Defaults: an override without rate, burst or debt has the limit's. A burst that neither has is
// the permits of the rate in force.
std::optional<SpecProblem> CheckSpec(const LimitSpec& spec, SpecParameters* parameters);

// Whether a rate was given that must not be, or was not given that must be; to be called before
// CheckSpec.
std::optional<SpecProblem> CheckHasRate(const LimitSpec& spec, bool has_rate);

// A problem of the field "charges" of `specs[limit]`, or of its name.
struct ChargesProblem {
  enum class Kind : uint8_t { kDuplicateName, kUnknown, kCycle, kTooMany, kSplitsSlots };
  Kind kind = Kind::kUnknown;
  size_t limit = 0;
  SpecProblem problem = {};
};

// Fills `parents` with the indices of the limits that each of `specs` adds: breadth first in the
// order written, each once. Refuses names that are given twice, unknown names, cycles, and more
// than bounds::kMaxCharges charges including the limit itself, and slots together with a split
// limit. Looks for cycles from `first` before
// the other limits, so that a cycle through it is reported as its own. Pure; thread-safe.
std::optional<ChargesProblem> ExpandCharges(absl::Span<const LimitSpec* const> specs, size_t first,
                                            std::vector<std::vector<uint32_t>>* parents);

// What to write instead of a bad limit's name; absent: the name is good.
std::optional<std::string> CheckName(std::string_view name);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_SPEC_CHECK_H_
