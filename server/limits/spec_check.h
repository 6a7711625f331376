// Whether a limit as written makes sense by itself, and the parameters that it comes to. The one
// place for it: the limits file and PutLimit give the same errors.
#ifndef SLUICE_SERVER_LIMITS_SPEC_CHECK_H_
#define SLUICE_SERVER_LIMITS_SPEC_CHECK_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/algorithm/parameters.h"
#include "server/limits/limit_spec.h"

namespace sluice::limits {

// What is wrong with one field of a limit.
struct SpecProblem {
  std::string_view field;  // "rate", "charges", "keys", ...; a literal
  // charges and keys: which of them; else absent.
  std::optional<size_t> index;
  // keys: which figure of the override; empty: the key itself.
  std::string_view key_field;
  // As a person would write it; what the file says, if there is one, is to be shown instead.
  std::string value;
  // What would be right.
  std::string advice;

  // "rate", "charges[1]", "keys[\"user:42\"].burst".
  std::string Path(const LimitSpec& spec) const;
};

// The value in quotes, made printable and not too long, with a colon and a blank after it.
std::string ShowValue(std::string_view value);

// `path: "value": advice`.
std::string ProblemText(std::string_view path, const SpecProblem& problem);

// What a limit comes to, with defaults filled in.
struct SpecParameters {
  algorithm::Parameters own;
  std::vector<algorithm::Parameters> keys;  // one for each of spec.keys
};

// The first problem, or none; then `parameters`, if not null, is filled in. Whether `charges` name
// limits that exist is not looked at: charges.h does. Pure; thread-safe.
//
// Defaults: an absent burst is the permits of the rate in force, which for an override without
// burst is the override's rate, unless the limit has a burst.
std::optional<SpecProblem> CheckSpec(const LimitSpec& spec, SpecParameters* parameters);

// A name's problem: what would be right, or none.
std::optional<std::string> CheckName(std::string_view name);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_SPEC_CHECK_H_
