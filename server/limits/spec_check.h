// Checks a limit as written, and makes its parameters. The limits file and PutLimit both use it, so
// they give the same errors.
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

// The parameters of a limit, with defaults filled in.
struct SpecParameters {
  algorithm::Parameters own;
  std::vector<algorithm::Parameters> keys;  // one for each of spec.keys
};

// Returns the first problem. If there is none, fills in `parameters`, unless null. Does not check
// that the limits in `charges` exist: charges.h does. Pure; thread-safe.
//
// Defaults: an override without rate, burst or debt has the limit's. A burst that neither has is
// the permits of the rate in force.
std::optional<SpecProblem> CheckSpec(const LimitSpec& spec, SpecParameters* parameters);

// What to write instead of a bad limit's name; absent: the name is good.
std::optional<std::string> CheckName(std::string_view name);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_SPEC_CHECK_H_
