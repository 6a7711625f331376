#include "server/limits/notation.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/strings.h"
#include "server/limits/nearest_name.h"

namespace sluice::limits {
namespace {

using common::ToAbsl;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kMinuteNs = 60 * kSecondNs;
constexpr int64_t kHourNs = 60 * kMinuteNs;
constexpr int64_t kDayNs = 24 * kHourNs;

struct Unit {
  std::string_view name;
  int64_t ns;
};

constexpr Unit kUnits[] = {
    {"ns", 1},           {"us", 1'000},          {"ms", 1'000'000},
    {"s", kSecondNs},    {"sec", kSecondNs},     {"second", kSecondNs},
    {"m", kMinuteNs},    {"min", kMinuteNs},     {"minute", kMinuteNs},
    {"h", kHourNs},      {"hour", kHourNs},      {"d", kDayNs},
    {"day", kDayNs},     {"w", 7 * kDayNs},      {"week", 7 * kDayNs},
    {"y", 365 * kDayNs}, {"year", 365 * kDayNs},
};

// By the values of the enums.
constexpr std::string_view kModeNames[] = {"enforce", "shadow"};
constexpr std::string_view kOnStoreFailureNames[] = {"deny", "allow", "split"};
constexpr std::string_view kSharingNames[] = {"exact", "split", "relaxed"};
static_assert(std::size(kModeNames) == static_cast<size_t>(Mode::kShadow) + 1);
static_assert(std::size(kOnStoreFailureNames) == static_cast<size_t>(OnStoreFailure::kSplit) + 1);
static_assert(std::size(kSharingNames) == static_cast<size_t>(store::Sharing::kRelaxed) + 1);

constexpr char kRateForm[] = "say permits per period, e.g. 5/s, 500/250ms or 10000/24h";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

absl::Status Bad(absl::string_view advice) { return absl::InvalidArgumentError(advice); }

absl::StatusOr<int64_t> UnitNs(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) return unit.ns;
  }
  if (name == "month" || name == "mon" || name == "M") {
    return Bad("a month has no fixed length; say 30d");
  }
  return Bad(absl::StrCat("no unit is named \"", absl::CHexEscape(ToAbsl(name.substr(0, 32))),
                          "\"; the units are ns, us, ms, s, m, h, d, w and y"));
}

// The value whose name is `text`; `names` are by the values of the enum. `near`: an error suggests
// the nearest name.
template <typename Enum>
absl::StatusOr<Enum> ParseName(std::string_view text, absl::Span<const std::string_view> names,
                               bool near = false) {
  const auto it = absl::c_find(names, text);
  if (it != names.end()) return static_cast<Enum>(it - names.begin());
  const std::string_view meant = near ? NearestName(text, names) : std::string_view();
  const std::string advice =
      meant.empty() ? "" : absl::StrCat("did you mean ", ToAbsl(meant), "? ");
  return Bad(absl::StrCat(advice, "say ", Listed(names, " or ")));
}

// Returns false unless the text is exactly two digits.
bool TwoDigits(std::string_view text, int* value) {
  if (text.size() != 2 || !IsDigit(text[0]) || !IsDigit(text[1])) return false;
  *value = (text[0] - '0') * 10 + (text[1] - '0');
  return true;
}

}  // namespace

absl::StatusOr<uint64_t> ParseWhole(std::string_view text) {
  uint64_t value = 0;
  bool digit_before = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '_' && digit_before && i + 1 < text.size() && IsDigit(text[i + 1])) {
      digit_before = false;
      continue;
    }
    if (!IsDigit(c)) return Bad("say a whole number, e.g. 100 or 10_000");
    const uint64_t digit = static_cast<uint64_t>(c - '0');
    if (value > (std::numeric_limits<uint64_t>::max() - digit) / 10) {
      return Bad("does not fit; at most 9223372036854775807");
    }
    value = value * 10 + digit;
    digit_before = true;
  }
  if (text.empty()) return Bad("say a whole number, e.g. 100 or 10_000");
  return value;
}

absl::StatusOr<int64_t> ParseDuration(std::string_view text) {
  constexpr char kForm[] = "say a number and a unit, e.g. 250ms, 24h or 1h30m";
  if (text.empty() || !IsDigit(text[0])) return Bad(kForm);
  int64_t sum_ns = 0;
  while (!text.empty()) {
    size_t number = 0;
    while (number < text.size() && (IsDigit(text[number]) || text[number] == '_')) ++number;
    size_t end = number;
    while (end < text.size() && !IsDigit(text[end])) ++end;
    if (number == 0 || end == number) return Bad(kForm);
    const auto count = ParseWhole(text.substr(0, number));
    if (!count.ok()) return count.status();
    const std::string_view name = text.substr(number, end - number);
    if (name[0] == '.' || name[0] == ',') {
      return Bad("say whole numbers; for a fraction take a smaller unit, e.g. 1500ms");
    }
    const auto unit_ns = UnitNs(name);
    if (!unit_ns.ok()) return unit_ns.status();
    const auto total = static_cast<__int128>(*count) * *unit_ns + sum_ns;
    if (total > std::numeric_limits<int64_t>::max()) {
      return Bad("is longer than 292 years, which does not fit; at most 366d");
    }
    sum_ns = static_cast<int64_t>(total);
    text.remove_prefix(end);
  }
  return sum_ns;
}

absl::StatusOr<algorithm::Rate> ParseRate(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return Bad(kRateForm);
  const std::string_view permits_text = text.substr(0, slash);
  const std::string_view period = text.substr(slash + 1);
  if (permits_text.empty() || period.empty()) return Bad(kRateForm);
  if (permits_text[0] == '-') return Bad("permits cannot be negative; say e.g. 5/s");
  if (permits_text.find_first_of(".,") != std::string_view::npos) {
    return Bad(
        "permits are whole; for a fraction take a longer period, e.g. 15/10s for 1.5 a second");
  }
  const auto permits = ParseWhole(permits_text);
  if (!permits.ok()) {
    if (IsDigit(permits_text.back())) return permits.status();
    return Bad(kRateForm);
  }
  algorithm::Rate rate;
  rate.permits = *permits;
  if (period[0] == '-') return Bad("the period cannot be negative; say e.g. 500/250ms");
  const auto period_ns = IsDigit(period[0]) ? ParseDuration(period) : UnitNs(period);
  if (!period_ns.ok()) {
    // "5/10" has no unit: explain the form of the whole rate.
    if (period.find_first_not_of("0123456789_") == std::string_view::npos) return Bad(kRateForm);
    return period_ns.status();
  }
  rate.period_ns = *period_ns;
  return rate;
}

absl::StatusOr<int64_t> ParseUtcOffset(std::string_view text) {
  constexpr char kForm[] = "say an offset from UTC, e.g. +02:00, -5h30m or 0";
  if (text == "0" || text == "Z") return 0;
  if (text.empty()) return Bad(kForm);
  int64_t sign = 1;
  std::string_view rest = text;
  if (rest[0] == '+' || rest[0] == '-') {
    sign = rest[0] == '-' ? -1 : 1;
    rest.remove_prefix(1);
  }
  const size_t colon = rest.find(':');
  if (colon == std::string_view::npos) {
    const auto ns = ParseDuration(rest);
    if (!ns.ok()) return Bad(kForm);
    return sign * *ns;
  }
  int hours = 0, minutes = 0;
  // Without a sign, 02:00 could be a time of day.
  if (rest.size() == text.size() || !TwoDigits(rest.substr(0, colon), &hours) ||
      !TwoDigits(rest.substr(colon + 1), &minutes) || minutes > 59) {
    return Bad(kForm);
  }
  return sign * (hours * kHourNs + minutes * kMinuteNs);
}

absl::StatusOr<algorithm::Kind> ParseAlgorithm(std::string_view text) {
  return ParseName<algorithm::Kind>(text, algorithm::kKindNames, /*near=*/true);
}

absl::StatusOr<bool> ParseBool(std::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  return Bad("say true or false");
}

absl::StatusOr<Mode> ParseMode(std::string_view text) { return ParseName<Mode>(text, kModeNames); }

absl::StatusOr<OnStoreFailure> ParseOnStoreFailure(std::string_view text) {
  return ParseName<OnStoreFailure>(text, kOnStoreFailureNames);
}

absl::StatusOr<store::Sharing> ParseSharing(std::string_view text) {
  if (text == "leased") return Bad("is not supported yet; say exact, split or relaxed");
  return ParseName<store::Sharing>(text, kSharingNames);
}

std::string FormatDuration(int64_t ns) {
  static constexpr Unit kShown[] = {{"d", kDayNs},    {"h", kHourNs},    {"m", kMinuteNs},
                                    {"s", kSecondNs}, {"ms", 1'000'000}, {"us", 1'000}};
  if (ns == 0) return "0s";
  for (const Unit& unit : kShown) {
    if (ns % unit.ns == 0) return absl::StrCat(ns / unit.ns, ToAbsl(unit.name));
  }
  return absl::StrCat(ns, "ns");
}

std::string FormatRate(algorithm::Rate rate) {
  const std::string period = FormatDuration(rate.period_ns);
  const bool one = period.size() > 1 && period[0] == '1' && !IsDigit(period[1]);
  return absl::StrCat(rate.permits, "/", one ? period.substr(1) : period);
}

std::string FormatUtcOffset(int64_t ns) {
  const char sign = ns < 0 ? '-' : '+';
  const uint64_t size_ns = ns < 0 ? uint64_t{0} - static_cast<uint64_t>(ns) : ns;
  if (size_ns % kMinuteNs == 0 && size_ns < 100 * uint64_t{kHourNs}) {
    return absl::StrFormat("%c%02d:%02d", sign, size_ns / kHourNs, size_ns / kMinuteNs % 60);
  }
  // INT64_MIN alone does not fit; one nanosecond less says the same.
  const auto shown =
      static_cast<int64_t>(std::min<uint64_t>(size_ns, std::numeric_limits<int64_t>::max()));
  return absl::StrCat(std::string(1, sign), FormatDuration(shown));
}

std::string_view SharingName(store::Sharing sharing) {
  return kSharingNames[static_cast<size_t>(sharing)];
}

std::string Listed(absl::Span<const std::string_view> names, std::string_view before_last) {
  std::string listed;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string_view before = i == 0 ? "" : i + 1 == names.size() ? before_last : ", ";
    absl::StrAppend(&listed, ToAbsl(before), ToAbsl(names[i]));
  }
  return listed;
}

std::string FormatMaxGrant(const algorithm::Parameters& parameters) {
  const uint64_t most = algorithm::MaxGrant(parameters);
  if (algorithm::IsConcurrency(parameters)) return absl::StrCat("permits = ", most);
  if (parameters.kind != algorithm::Kind::kTokenBucket) {
    return absl::StrCat(most, " permits a period");
  }
  return absl::StrCat(parameters.token_bucket.debt > 0 ? "burst + debt = " : "burst = ", most);
}

}  // namespace sluice::limits
