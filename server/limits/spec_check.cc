#include "server/limits/spec_check.h"

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/algorithm/make_parameters.h"
#include "server/limits/notation.h"

namespace sluice::limits {
namespace {

namespace bounds = common::bounds;
using algorithm::Kind;
using common::ToAbsl;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == ':' || c == '/' || c == '@';
}

// A limit's parameters, or an override's with the limit's filled in.
struct GivenParameters {
  algorithm::Rate rate;
  std::optional<uint64_t> burst;
  std::optional<uint64_t> debt;
};

SpecProblem Problem(std::string_view field, std::string value, std::string advice) {
  SpecProblem problem;
  problem.field = field;
  problem.value = std::move(value);
  problem.advice = std::move(advice);
  return problem;
}

// A field that only the algorithm `owner` has.
std::optional<SpecProblem> CheckHas(const LimitSpec& spec, Kind owner, std::string_view field,
                                    std::string value) {
  if (spec.algorithm == owner) return std::nullopt;
  return Problem(field, std::move(value),
                 absl::StrCat(ToAbsl(algorithm::KindName(spec.algorithm)),
                              " has none; take it out, or say algorithm: ",
                              ToAbsl(algorithm::KindName(owner))));
}

std::optional<SpecProblem> CheckRate(algorithm::Rate rate) {
  if (rate.permits == 0) {
    return Problem("rate", FormatRate(rate),
                   "grants nothing; say at least 1 permit per period, e.g. 1/s");
  }
  if (rate.permits > bounds::kMaxPermits) {
    return Problem("rate", FormatRate(rate),
                   absl::StrCat("the permits do not fit; at most ", bounds::kMaxPermits));
  }
  if (rate.period_ns < bounds::kMinPeriodNs || rate.period_ns > bounds::kMaxPeriodNs) {
    return Problem("rate", rate.period_ns < 0 ? std::string() : FormatRate(rate),
                   "the period must be from 1ms to 366d");
  }
  static_assert(bounds::kMaxPermitsPerSecond == 1'000'000'000, "one permit a nanosecond");
  if (rate.permits > static_cast<uint64_t>(rate.period_ns)) {
    return Problem("rate", FormatRate(rate),
                   absl::StrCat("is too fast; at most ", bounds::kMaxPermitsPerSecond, "/s"));
  }
  return std::nullopt;
}

// burst and debt, each by itself and whether there is either.
std::optional<SpecProblem> CheckBurstAndDebt(const LimitSpec& spec, const GivenParameters& given) {
  for (const auto& [field, value] :
       {std::pair("burst", given.burst), std::pair("debt", given.debt)}) {
    if (!value) continue;
    if (auto problem = CheckHas(spec, Kind::kTokenBucket, field, absl::StrCat(*value))) {
      return problem;
    }
    if (*value > bounds::kMaxPermits) {
      return Problem(field, absl::StrCat(*value),
                     absl::StrCat("does not fit; at most ", bounds::kMaxPermits));
    }
  }
  if (given.burst.value_or(1) == 0 && given.debt.value_or(0) == 0) {
    return Problem("burst", "0",
                   "without debt grants nothing; say at least 1, or add debt to pace evenly");
  }
  return std::nullopt;
}

absl::StatusOr<algorithm::Parameters> Make(const LimitSpec& spec, const GivenParameters& given) {
  switch (spec.algorithm) {
    case Kind::kTokenBucket:
      return algorithm::MakeTokenBucket(given.rate, given.burst.value_or(given.rate.permits),
                                        given.debt.value_or(0));
    case Kind::kSlidingLog:
      return algorithm::MakeSlidingLog(given.rate);
    case Kind::kSlidingWindow:
      return algorithm::MakeSlidingWindow(given.rate,
                                          spec.sub_windows.value_or(bounds::kDefaultSubWindows));
    case Kind::kFixedWindow:
      return algorithm::MakeFixedWindow(given.rate, spec.utc_offset_ns.value_or(0));
  }
  return absl::InternalError("no such algorithm");
}

std::optional<SpecProblem> CheckParameters(const LimitSpec& spec, const GivenParameters& given,
                                           algorithm::Parameters* parameters) {
  if (auto problem = CheckRate(given.rate)) return problem;
  if (auto problem = CheckBurstAndDebt(spec, given)) return problem;
  const auto made = Make(spec, given);
  if (made.ok()) {
    *parameters = *made;
    return std::nullopt;
  }
  // Only burst and debt are left to be wrong: together they may not fit. The message begins with
  // the field to blame.
  const std::string_view message = common::ToStd(made.status().message());
  const size_t colon = message.find(": ");
  const std::string advice(colon == message.npos ? message : message.substr(colon + 2));
  return message.starts_with("debt")
             ? Problem("debt", absl::StrCat(given.debt.value_or(0)), advice)
             : Problem("burst", absl::StrCat(given.burst.value_or(given.rate.permits)), advice);
}

std::optional<SpecProblem> CheckWindowFields(const LimitSpec& spec) {
  if (spec.sub_windows) {
    const std::string value = absl::StrCat(*spec.sub_windows);
    if (auto problem = CheckHas(spec, Kind::kSlidingWindow, "sub_windows", value)) return problem;
    if (*spec.sub_windows < 1 || *spec.sub_windows > bounds::kMaxSubWindows) {
      return Problem("sub_windows", value,
                     absl::StrCat("must be from 1 to ", bounds::kMaxSubWindows));
    }
  }
  if (spec.utc_offset_ns) {
    const std::string value = FormatUtcOffset(*spec.utc_offset_ns);
    if (auto problem = CheckHas(spec, Kind::kFixedWindow, "utc_offset", value)) return problem;
    if (*spec.utc_offset_ns < -bounds::kMaxUtcOffsetNs ||
        *spec.utc_offset_ns > bounds::kMaxUtcOffsetNs) {
      return Problem("utc_offset", value,
                     absl::StrCat("must be from ", FormatUtcOffset(-bounds::kMaxUtcOffsetNs),
                                  " to ", FormatUtcOffset(bounds::kMaxUtcOffsetNs)));
    }
  }
  return std::nullopt;
}

std::optional<SpecProblem> CheckChargesField(const LimitSpec& spec) {
  for (size_t i = 0; i < spec.charges.size(); ++i) {
    const std::string& name = spec.charges[i];
    if (i + 1 >= bounds::kMaxCharges) {
      return Problem("charges", "",
                     absl::StrCat("names ", spec.charges.size(), " limits; at most ",
                                  bounds::kMaxCharges - 1));
    }
    SpecProblem problem = Problem("charges", name, "");
    problem.index = i;
    if (auto advice = CheckName(name)) {
      problem.advice = *advice;
      return problem;
    }
    for (size_t j = 0; j < i; ++j) {
      if (spec.charges[j] == name) {
        problem.advice = "is named twice; a limit is charged once, name it once";
        return problem;
      }
    }
  }
  return std::nullopt;
}

std::optional<SpecProblem> CheckHashTag(const LimitSpec& spec) {
  if (!spec.hash_tag.has_value()) return std::nullopt;
  if (spec.hash_tag->empty()) {
    return Problem("hash_tag", "", "is empty; take it out, or say a word, e.g. orders");
  }
  if (auto advice = CheckName(*spec.hash_tag)) return Problem("hash_tag", *spec.hash_tag, *advice);
  return std::nullopt;
}

std::optional<SpecProblem> CheckKeys(const LimitSpec& spec, SpecParameters* given) {
  absl::flat_hash_map<absl::string_view, size_t> seen;
  for (size_t i = 0; i < spec.keys.size(); ++i) {
    const KeyOverride& override = spec.keys[i];
    SpecProblem about_key = Problem("keys", override.key, "");
    about_key.index = i;
    if (override.key.size() > bounds::kMaxKeyBytes) {
      about_key.advice = absl::StrCat("the key has ", override.key.size(), " bytes; at most ",
                                      bounds::kMaxKeyBytes);
      return about_key;
    }
    if (!seen.emplace(override.key, i).second) {
      about_key.advice = "the key is given twice; keep one";
      return about_key;
    }
    if (!override.rate && !override.burst && !override.debt) {
      about_key.advice = "says nothing; give it a rate, burst or debt, or take it out";
      return about_key;
    }
    GivenParameters of_key;
    of_key.rate = override.rate.value_or(spec.rate);
    of_key.burst = override.burst ? override.burst : spec.burst;
    of_key.debt = override.debt ? override.debt : spec.debt;
    algorithm::Parameters parameters;
    if (auto problem = CheckParameters(spec, of_key, &parameters)) {
      // Blame the override's own parameter if it has one, else the override as a whole.
      const bool own = (problem->field == "rate" && override.rate) ||
                       (problem->field == "burst" && override.burst) ||
                       (problem->field == "debt" && override.debt);
      problem->key_field = own ? problem->field : std::string_view();
      if (!own) {
        problem->advice =
            absl::StrCat("its ", ToAbsl(problem->field), " of ", problem->value,
                         " (the limit's or the default) does not go with it: ", problem->advice);
        problem->value = override.key;
      }
      problem->field = "keys";
      problem->index = i;
      return problem;
    }
    if (given != nullptr) given->keys.push_back(parameters);
  }
  return std::nullopt;
}

}  // namespace

std::string Quoted(std::string_view value) {
  constexpr size_t kMostShown = 64;
  return absl::StrCat("\"", common::errors::Shown(value, kMostShown), "\"");
}

std::string SpecProblem::Path(const LimitSpec& spec) const {
  if (!index) return std::string(field);
  if (field != "keys") return absl::StrCat(ToAbsl(field), "[", *index, "]");
  return absl::StrCat("keys[", Quoted(spec.keys[*index].key), "]", key_field.empty() ? "" : ".",
                      ToAbsl(key_field));
}

std::string ProblemText(std::string_view path, const SpecProblem& problem) {
  return absl::StrCat(ToAbsl(path), ": ",
                      problem.value.empty() ? "" : absl::StrCat(Quoted(problem.value), ": "),
                      problem.advice);
}

std::optional<std::string> CheckName(std::string_view name) {
  if (name.size() > bounds::kMaxLimitNameBytes) {
    return absl::StrCat("the name has ", name.size(), " characters; at most ",
                        bounds::kMaxLimitNameBytes);
  }
  for (const char c : name) {
    if (!IsNameCharacter(c)) {
      return std::string("a name has only letters, digits and - _ . : / @");
    }
  }
  if (name.empty()) return std::string("is empty; say a name of letters, digits and - _ . : / @");
  return std::nullopt;
}

std::optional<SpecProblem> CheckSpec(const LimitSpec& spec, SpecParameters* given) {
  if (auto advice = CheckName(spec.name)) return Problem("name", spec.name, *advice);
  if (auto problem = CheckHashTag(spec)) return problem;
  SpecParameters made;
  if (auto problem = CheckWindowFields(spec)) return problem;
  if (auto problem = CheckParameters(spec, {spec.rate, spec.burst, spec.debt}, &made.own)) {
    return problem;
  }
  if (auto problem = CheckChargesField(spec)) return problem;
  if (auto problem = CheckKeys(spec, &made)) return problem;
  if (given != nullptr) *given = std::move(made);
  return std::nullopt;
}

}  // namespace sluice::limits
