#include "server/limits/spec_check.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
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

constexpr char kSlotsHaveNoRate[] = "concurrency has none; say permits: 100, or another algorithm";

// A field that only the algorithm `owner` has, and whose value must be in bounds.
std::optional<SpecProblem> CheckField(const LimitSpec& spec, Kind owner, std::string_view field,
                                      std::string value, bool in_bounds, std::string bounds) {
  if (spec.algorithm == owner && in_bounds) return std::nullopt;
  return SpecProblem{field, std::move(value),
                     spec.algorithm == owner
                         ? std::move(bounds)
                         : absl::StrCat(ToAbsl(algorithm::KindName(spec.algorithm)),
                                        " has none; take it out, or say algorithm: ",
                                        ToAbsl(algorithm::KindName(owner)))};
}

std::optional<SpecProblem> CheckGivenRate(algorithm::Rate rate) {
  static_assert(bounds::kMaxPermitsPerSecond == 1'000'000'000, "one permit a nanosecond");
  std::string advice;
  if (rate.permits == 0) {
    advice = "grants nothing; say at least 1 permit per period, e.g. 1/s";
  } else if (rate.permits > bounds::kMaxPermits) {
    advice = absl::StrCat("the permits do not fit; at most ", bounds::kMaxPermits);
  } else if (rate.period_ns < bounds::kMinPeriodNs || rate.period_ns > bounds::kMaxPeriodNs) {
    advice = "the period must be from 1ms to 366d";
  } else if (rate.permits > static_cast<uint64_t>(rate.period_ns)) {
    advice = absl::StrCat("is too fast; at most ", bounds::kMaxPermitsPerSecond, "/s");
  } else {
    return std::nullopt;
  }
  return SpecProblem{"rate", rate.period_ns < 0 ? "" : FormatRate(rate), std::move(advice)};
}

// The slots of a limit or of one of its keys.
std::optional<SpecProblem> CheckPermits(std::optional<uint64_t> permits) {
  if (!permits.has_value()) {
    return SpecProblem{"permits", "", "is missing; say how many may be in use, e.g. permits: 100"};
  }
  if (*permits >= 1 && *permits <= bounds::kMaxPermits) return std::nullopt;
  return SpecProblem{"permits", absl::StrCat(*permits),
                     *permits == 0 ? "grants nothing; say at least 1"
                                   : absl::StrCat("does not fit; at most ", bounds::kMaxPermits)};
}

// permits and hold_for, and what slots do not have.
std::optional<SpecProblem> CheckSlots(const LimitSpec& spec) {
  if (spec.permits && spec.algorithm != Kind::kConcurrency) {
    return CheckField(spec, Kind::kConcurrency, "permits", absl::StrCat(*spec.permits), true, "");
  }
  if (spec.hold_for_ns) {
    const int64_t ns = *spec.hold_for_ns;
    if (auto problem =
            CheckField(spec, Kind::kConcurrency, "hold_for", ns < 0 ? "" : FormatDuration(ns),
                       ns >= bounds::kMinHoldForNs && ns <= bounds::kMaxHoldForNs,
                       "must be from 1ms to 24h")) {
      return problem;
    }
  }
  if (spec.algorithm != Kind::kConcurrency) return std::nullopt;
  if (auto problem = CheckPermits(spec.permits)) return problem;
  constexpr char kExact[] =
      "concurrency is exact, as a slot that is granted twice cannot be taken back; take it out";
  if (spec.sharing != store::Sharing::kExact) {
    return SpecProblem{"sharing", std::string(SharingName(spec.sharing)), kExact};
  }
  if (spec.on_store_failure != OnStoreFailure::kDeny) {
    return SpecProblem{"on_store_failure",
                       spec.on_store_failure == OnStoreFailure::kAllow ? "allow" : "split", kExact};
  }
  if (spec.max_owed.has_value()) {
    return SpecProblem{"max_owed", absl::StrCat(*spec.max_owed),
                       "concurrency has no forced debits, as slots cannot be owed; take it out"};
  }
  return std::nullopt;
}

// burst and debt, each by itself and whether there is either.
std::optional<SpecProblem> CheckBurstAndDebt(const LimitSpec& spec, const KeyOverride& given) {
  for (const auto& [field, value] :
       {std::pair("burst", given.burst), std::pair("debt", given.debt)}) {
    if (!value) continue;
    if (auto problem = CheckField(spec, Kind::kTokenBucket, field, absl::StrCat(*value),
                                  *value <= bounds::kMaxPermits,
                                  absl::StrCat("does not fit; at most ", bounds::kMaxPermits))) {
      return problem;
    }
  }
  if (given.burst.value_or(1) == 0 && given.debt.value_or(0) == 0) {
    return SpecProblem{"burst", "0",
                       "without debt grants nothing; say at least 1, or add debt to pace evenly"};
  }
  return std::nullopt;
}

// `given`: the limit's own parameters, or an override's with the limit's filled in.
absl::StatusOr<algorithm::Parameters> Make(const LimitSpec& spec, algorithm::Rate rate,
                                           const KeyOverride& given) {
  algorithm::Parameters made;
  made.kind = spec.algorithm;
  if (!IsConcurrency(made)) {
    VisitMember(made.kind, [&](auto member) { (made.*member).rate = rate; });
  }
  // Only those of its kind are used.
  made.token_bucket.burst = given.burst.value_or(rate.permits);
  made.token_bucket.debt = given.debt.value_or(0);
  made.sliding_window.sub_windows = spec.sub_windows.value_or(bounds::kDefaultSubWindows);
  made.fixed_window.utc_offset_ns = spec.utc_offset_ns.value_or(0);
  made.concurrency.permits = given.permits.value_or(0);
  made.concurrency.hold_for_ns = spec.hold_for_ns.value_or(bounds::kDefaultHoldForNs);
  return algorithm::Remade(made);
}

std::optional<SpecProblem> CheckParameters(const LimitSpec& spec, const KeyOverride& given,
                                           algorithm::Parameters* parameters) {
  const algorithm::Rate rate = given.rate.value_or(algorithm::Rate{.permits = 0});
  if (spec.algorithm == Kind::kConcurrency) {
    if (auto problem = CheckPermits(given.permits)) return problem;
  } else if (auto problem = CheckGivenRate(rate)) {
    return problem;
  }
  if (auto problem = CheckBurstAndDebt(spec, given)) return problem;
  const auto made = Make(spec, rate, given);
  if (made.ok()) {
    *parameters = *made;
    return std::nullopt;
  }
  // Only burst and debt are left to be wrong: together they may not fit. The message begins with
  // the field to blame.
  const std::string_view message = common::ToStd(made.status().message());
  const size_t colon = message.find(": ");
  const bool debt = message.starts_with("debt");
  return SpecProblem{
      debt ? "debt" : "burst",
      absl::StrCat(debt ? given.debt.value_or(0) : given.burst.value_or(rate.permits)),
      std::string(colon == message.npos ? message : message.substr(colon + 2))};
}

std::optional<SpecProblem> CheckWindowFields(const LimitSpec& spec) {
  if (const auto sub_windows = spec.sub_windows) {
    if (auto problem =
            CheckField(spec, Kind::kSlidingWindow, "sub_windows", absl::StrCat(*sub_windows),
                       *sub_windows >= 1 && *sub_windows <= bounds::kMaxSubWindows,
                       absl::StrCat("must be from 1 to ", bounds::kMaxSubWindows))) {
      return problem;
    }
  }
  if (!spec.utc_offset_ns) return std::nullopt;
  constexpr int64_t kMostNs = bounds::kMaxUtcOffsetNs;
  return CheckField(
      spec, Kind::kFixedWindow, "utc_offset", FormatUtcOffset(*spec.utc_offset_ns),
      *spec.utc_offset_ns >= -kMostNs && *spec.utc_offset_ns <= kMostNs,
      absl::StrCat("must be from ", FormatUtcOffset(-kMostNs), " to ", FormatUtcOffset(kMostNs)));
}

std::optional<SpecProblem> CheckMaxWaitAndMinKeys(const LimitSpec& spec) {
  const int64_t max_wait_ns = spec.max_wait_ns.value_or(0);
  if (max_wait_ns < 0 || max_wait_ns > bounds::kMaxWaitNs) {
    return SpecProblem{
        "max_wait", max_wait_ns < 0 ? "" : FormatDuration(max_wait_ns),
        absl::StrCat("must be from 0s to ", bounds::kMaxWaitNs / 3'600'000'000'000, "h")};
  }
  const uint64_t min_keys = spec.min_keys.value_or(0);
  if (min_keys > bounds::kMaxMinKeys) {
    return SpecProblem{"min_keys", absl::StrCat(min_keys),
                       absl::StrCat("is too many; at most ", bounds::kMaxMinKeys)};
  }
  return std::nullopt;
}

// max_owed, with the parameters of the limit or of one of its keys.
std::optional<SpecProblem> CheckMaxOwed(const LimitSpec& spec,
                                        const algorithm::Parameters& parameters) {
  if (!spec.max_owed.has_value()) return std::nullopt;
  const uint64_t max_owed = *spec.max_owed;
  std::string advice;
  const uint64_t debt = algorithm::Debt(parameters);
  const uint64_t most = algorithm::GreatestOwed(parameters);
  const bool token_bucket = parameters.kind == Kind::kTokenBucket;
  if (spec.sharing != store::Sharing::kExact) {
    advice = absl::StrCat("sharing: ", ToAbsl(SharingName(spec.sharing)),
                          " has no forced debits; take it out, or say sharing: exact");
  } else if (max_owed < debt) {
    advice = absl::StrCat("is below debt, ", debt, "; say at least as many");
  } else if (max_owed > most) {
    advice =
        absl::StrCat("does not fit beside ", token_bucket ? "burst" : "the permits of the rate",
                     ", ", algorithm::Capacity(parameters), "; at most ", most);
  } else {
    return std::nullopt;
  }
  return SpecProblem{"max_owed", absl::StrCat(max_owed), std::move(advice)};
}

std::optional<SpecProblem> CheckChargesField(const LimitSpec& spec) {
  for (size_t i = 0; i < spec.charges.size(); ++i) {
    const std::string& name = spec.charges[i];
    if (i + 1 >= bounds::kMaxCharges) {
      return SpecProblem{"charges", "",
                         absl::StrCat("names ", spec.charges.size(), " limits; at most ",
                                      bounds::kMaxCharges - 1)};
    }
    auto advice = CheckName(name);
    if (!advice && std::find(spec.charges.begin(), spec.charges.begin() + i, name) !=
                       spec.charges.begin() + i) {
      advice = "is named twice; a limit is charged once, name it once";
    }
    if (advice) return SpecProblem{"charges", name, *std::move(advice), i};
  }
  return std::nullopt;
}

std::optional<SpecProblem> CheckHashTag(const LimitSpec& spec) {
  if (!spec.hash_tag.has_value()) return std::nullopt;
  if (spec.hash_tag->empty()) {
    return SpecProblem{"hash_tag", "", "is empty; take it out, or say a word, e.g. orders"};
  }
  if (auto advice = CheckName(*spec.hash_tag))
    return SpecProblem{"hash_tag", *spec.hash_tag, *advice};
  return std::nullopt;
}

std::optional<SpecProblem> CheckKeys(const LimitSpec& spec, SpecParameters* given) {
  absl::flat_hash_set<absl::string_view> seen;
  const bool slots = spec.algorithm == Kind::kConcurrency;
  for (size_t i = 0; i < spec.keys.size(); ++i) {
    const KeyOverride& override = spec.keys[i];
    std::string advice;
    if (override.key.size() > bounds::kMaxKeyBytes) {
      advice = absl::StrCat("the key has ", override.key.size(), " bytes; at most ",
                            bounds::kMaxKeyBytes);
    } else if (!seen.insert(override.key).second) {
      advice = "the key is given twice; keep one";
    } else if (!override.rate && !override.burst && !override.debt && !override.permits) {
      advice = slots ? "says nothing; give it permits, or take it out"
                     : "says nothing; give it a rate, burst or debt, or take it out";
    }
    if (!advice.empty()) return SpecProblem{"keys", override.key, std::move(advice), i};
    const KeyOverride of_key = {"", override.rate.value_or(spec.rate),
                                override.burst ? override.burst : spec.burst,
                                override.debt ? override.debt : spec.debt,
                                override.permits ? override.permits : spec.permits};
    algorithm::Parameters parameters;
    std::optional<SpecProblem> problem;
    if (override.permits && !slots) {
      problem = CheckField(spec, Kind::kConcurrency, "permits", absl::StrCat(*override.permits),
                           true, "");
    } else if (override.rate && slots) {
      problem = SpecProblem{"rate", FormatRate(*override.rate), kSlotsHaveNoRate};
    } else {
      problem = CheckParameters(spec, of_key, &parameters);
    }
    if (!problem) problem = CheckMaxOwed(spec, parameters);
    if (problem) {
      // Blame the override's own parameter if it has one, else the override as a whole.
      const bool own = (problem->field == "rate" && override.rate) ||
                       (problem->field == "burst" && override.burst) ||
                       (problem->field == "debt" && override.debt) ||
                       (problem->field == "permits" && override.permits);
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
    given->keys.push_back(parameters);
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

absl::Status ProblemStatus(std::string_view prefix, const LimitSpec& spec,
                           const SpecProblem& problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(prefix), ProblemText(problem.Path(spec), problem)));
}

std::optional<std::string> CheckName(std::string_view name) {
  if (name.size() > bounds::kMaxLimitNameBytes) {
    return absl::StrCat("the name has ", name.size(), " characters; at most ",
                        bounds::kMaxLimitNameBytes);
  }
  const auto is_good = [](unsigned char c) {
    return absl::ascii_isalnum(c) || std::string_view("-_.:/@").find(c) != std::string_view::npos;
  };
  if (!absl::c_all_of(name, is_good)) {
    return std::string("a name has only letters, digits and - _ . : / @");
  }
  if (name.empty()) return std::string("is empty; say a name of letters, digits and - _ . : / @");
  return std::nullopt;
}

std::optional<SpecProblem> CheckHasRate(const LimitSpec& spec, bool has_rate) {
  const bool slots = spec.algorithm == Kind::kConcurrency;
  if (has_rate != slots) return std::nullopt;
  if (slots) return SpecProblem{"rate", FormatRate(spec.rate), kSlotsHaveNoRate};
  return SpecProblem{"rate", "", "is missing; say e.g. rate: 100/s"};
}

std::optional<SpecProblem> CheckSpec(const LimitSpec& spec, SpecParameters* given) {
  if (auto advice = CheckName(spec.name)) return SpecProblem{"name", spec.name, *advice};
  if (auto problem = CheckHashTag(spec)) return problem;
  SpecParameters made;
  if (auto problem = CheckWindowFields(spec)) return problem;
  if (auto problem = CheckSlots(spec)) return problem;
  if (auto problem =
          CheckParameters(spec, {"", spec.rate, spec.burst, spec.debt, spec.permits}, &made.own)) {
    return problem;
  }
  if (auto problem = CheckMaxOwed(spec, made.own)) return problem;
  if (auto problem = CheckMaxWaitAndMinKeys(spec)) return problem;
  if (auto problem = CheckChargesField(spec)) return problem;
  if (auto problem = CheckKeys(spec, &made)) return problem;
  if (given != nullptr) *given = std::move(made);
  return std::nullopt;
}

}  // namespace sluice::limits
