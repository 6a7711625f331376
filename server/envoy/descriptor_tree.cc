#include "server/envoy/descriptor_tree.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"

namespace sluice::envoy {
namespace {

struct UnitFacts {
  Unit unit;
  std::string_view name;
  int64_t seconds;
};

constexpr int64_t kDaySeconds = 86400;
constexpr std::array<UnitFacts, 8> kUnits = {{
    {Unit::kUnknown, "unknown", 0},
    {Unit::kSecond, "second", 1},
    {Unit::kMinute, "minute", 60},
    {Unit::kHour, "hour", 3600},
    {Unit::kDay, "day", kDaySeconds},
    {Unit::kMonth, "month", 30 * kDaySeconds},
    {Unit::kYear, "year", 365 * kDaySeconds},
    {Unit::kWeek, "week", 7 * kDaySeconds},
}};

}  // namespace

int64_t UnitNs(Unit unit) { return kUnits[static_cast<size_t>(unit)].seconds * 1'000'000'000; }

std::pair<Unit, uint32_t> UnitOf(int64_t period_ns) {
  const UnitFacts* longest = &kUnits[0];
  for (const UnitFacts& one : kUnits) {
    if (one.seconds > longest->seconds && period_ns % UnitNs(one.unit) == 0) longest = &one;
  }
  if (longest->seconds == 0) return {Unit::kUnknown, 1};
  return {longest->unit, static_cast<uint32_t>(period_ns / UnitNs(longest->unit))};
}

std::string_view UnitName(Unit unit) { return kUnits[static_cast<size_t>(unit)].name; }

std::optional<Unit> ParseUnit(std::string_view text) {
  const auto found = std::find_if(kUnits.begin(), kUnits.end(), [&](const UnitFacts& one) {
    return absl::EqualsIgnoreCase(common::ToAbsl(text), common::ToAbsl(one.name));
  });
  if (found == kUnits.end()) return std::nullopt;
  return found->unit;
}

std::string PlaceText(const DescriptorTree& tree, const SourcePlace& place) {
  const std::string& source = tree.sources[place.source];
  if (place.line == 0) return source;
  return absl::StrCat(source, ":", place.line, ":", place.column);
}

}  // namespace sluice::envoy
