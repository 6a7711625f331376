#include "server/limits/spec_check.h"

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/algorithm/make_parameters.h"
#include "server/limits/notation.h"

namespace sluice::limits {
namespace {

namespace bounds = common::bounds;
using algorithm::Kind;
using common::ToAbsl;
using common::ToStd;

constexpr size_t kShownBytes = 64;

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

// Of algorithm::Make*'s message, which begins with the field's name, the field and the rest.
SpecProblem FromStatus(const absl::Status& status, const GivenParameters& given,
                       const LimitSpec& spec) {
  std::string_view message = ToStd(status.message());
  const size_t end = message.find_first_of(" :");
  const std::string_view first = message.substr(0, end);
  std::string_view advice = message;
  const size_t colon = message.find(": ");
  if (colon != std::string_view::npos) advice = message.substr(colon + 2);
  if (first == "burst") {
    return Problem("burst", absl::StrCat(given.burst.value_or(given.rate.permits)),
                   std::string(advice));
  }
  if (first == "debt") {
    return Problem("debt", absl::StrCat(given.debt.value_or(0)), std::string(advice));
  }
  if (first == "sub_windows") {
    return Problem("sub_windows", absl::StrCat(spec.sub_windows.value_or(0)), std::string(advice));
  }
  if (first == "utc_offset") {
    return Problem("utc_offset", FormatUtcOffset(spec.utc_offset_ns.value_or(0)),
                   std::string(advice));
  }
  if (first != "rate" && first != "period") advice = message;
  return Problem("rate", FormatRate(given.rate), std::string(advice));
}

std::optional<SpecProblem> CheckParameters(const LimitSpec& spec, const GivenParameters& given,
                                           algorithm::Parameters* parameters) {
  if (auto problem = CheckRate(given.rate)) return problem;
  const std::string algorithm(AlgorithmName(spec.algorithm));
  absl::StatusOr<algorithm::Parameters> made;
  if (spec.algorithm == Kind::kTokenBucket) {
    const uint64_t burst = given.burst.value_or(given.rate.permits);
    const uint64_t debt = given.debt.value_or(0);
    if (burst > bounds::kMaxPermits) {
      return Problem("burst", absl::StrCat(burst),
                     absl::StrCat("does not fit; at most ", bounds::kMaxPermits));
    }
    if (debt > bounds::kMaxPermits) {
      return Problem("debt", absl::StrCat(debt),
                     absl::StrCat("does not fit; at most ", bounds::kMaxPermits));
    }
    if (burst == 0 && debt == 0) {
      return Problem("burst", "0",
                     "without debt grants nothing; say at least 1, or add debt to pace evenly");
    }
    made = algorithm::MakeTokenBucket(given.rate, burst, debt);
  } else {
    if (given.burst) {
      return Problem("burst", absl::StrCat(*given.burst),
                     absl::StrCat(algorithm,
                                  " has none; take it out, or say algorithm: "
                                  "token_bucket"));
    }
    if (given.debt) {
      return Problem("debt", absl::StrCat(*given.debt),
                     absl::StrCat(algorithm,
                                  " has none; take it out, or say algorithm: "
                                  "token_bucket"));
    }
    switch (spec.algorithm) {
      case Kind::kSlidingLog:
        made = algorithm::MakeSlidingLog(given.rate);
        break;
      case Kind::kSlidingWindow:
        made = algorithm::MakeSlidingWindow(given.rate,
                                            spec.sub_windows.value_or(bounds::kDefaultSubWindows));
        break;
      case Kind::kFixedWindow:
        made = algorithm::MakeFixedWindow(given.rate, spec.utc_offset_ns.value_or(0));
        break;
      case Kind::kTokenBucket:
        break;
    }
  }
  if (!made.ok()) return FromStatus(made.status(), given, spec);
  *parameters = *made;
  return std::nullopt;
}

std::optional<SpecProblem> CheckWindowFields(const LimitSpec& spec) {
  const std::string algorithm(AlgorithmName(spec.algorithm));
  if (spec.sub_windows) {
    if (spec.algorithm != Kind::kSlidingWindow) {
      return Problem("sub_windows", absl::StrCat(*spec.sub_windows),
                     absl::StrCat(algorithm,
                                  " has none; take it out, or say algorithm: "
                                  "sliding_window"));
    }
    if (*spec.sub_windows < 1 || *spec.sub_windows > bounds::kMaxSubWindows) {
      return Problem("sub_windows", absl::StrCat(*spec.sub_windows),
                     absl::StrCat("must be from 1 to ", bounds::kMaxSubWindows));
    }
  }
  if (spec.utc_offset_ns) {
    if (spec.algorithm != Kind::kFixedWindow) {
      return Problem("utc_offset", FormatUtcOffset(*spec.utc_offset_ns),
                     absl::StrCat(algorithm,
                                  " has none; take it out, or say algorithm: "
                                  "fixed_window"));
    }
    constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;
    if (*spec.utc_offset_ns < -kDayNs || *spec.utc_offset_ns > kDayNs) {
      return Problem("utc_offset", FormatUtcOffset(*spec.utc_offset_ns),
                     "must be from -24:00 to +24:00");
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
      // At the override's own figure if it has it, else at the override as a whole.
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

std::string ShowValue(std::string_view value) {
  size_t shown = value.size();
  if (shown > kShownBytes) {
    shown = kShownBytes;
    // Not in the middle of a character: messages go out as UTF-8.
    while (shown > 0 && (static_cast<unsigned char>(value[shown]) & 0xC0) == 0x80) --shown;
  }
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(ToAbsl(value.substr(0, shown))),
                      shown < value.size() ? "...\": " : "\": ");
}

std::string SpecProblem::Path(const LimitSpec& spec) const {
  std::string path(field);
  if (!index) return path;
  if (field != "keys") return absl::StrCat(path, "[", *index, "]");
  std::string shown = ShowValue(spec.keys[*index].key);
  shown.resize(shown.size() - 2);
  absl::StrAppend(&path, "[", shown, "]");
  if (!key_field.empty()) absl::StrAppend(&path, ".", ToAbsl(key_field));
  return path;
}

std::string ProblemText(std::string_view path, const SpecProblem& problem) {
  return absl::StrCat(ToAbsl(path), ": ", problem.value.empty() ? "" : ShowValue(problem.value),
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
