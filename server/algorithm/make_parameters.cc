#include "server/algorithm/make_parameters.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

namespace bounds = common::bounds;

constexpr int kMaxShift = 4;
// Up to this rate the ticks must leave at most 1 % off; above it they do the best they can.
constexpr uint64_t kExactUpToPermitsPerSecond = 100'000'000;
constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;

std::string DurationText(int64_t ns) {
  struct Unit {
    int64_t ns;
    const char* name;
  };
  for (const Unit& unit : {Unit{int64_t{3600} * 1'000'000'000, "h"}, Unit{60'000'000'000, "m"},
                           Unit{1'000'000'000, "s"}, Unit{1'000'000, "ms"}, Unit{1'000, "us"}}) {
    if (ns != 0 && ns % unit.ns == 0) return absl::StrCat(ns / unit.ns, unit.name);
  }
  return absl::StrCat(ns, "ns");
}

std::string RateText(Rate rate) {
  return absl::StrCat("rate ", rate.permits, "/", DurationText(rate.period_ns));
}

absl::Status CheckRate(Rate rate) {
  if (rate.permits == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(RateText(rate), ": must be at least one permit a period"));
  }
  if (rate.permits > bounds::kMaxPermits) {
    return absl::InvalidArgumentError(
        absl::StrCat(RateText(rate), ": at most ", bounds::kMaxPermits, " permits a period"));
  }
  if (rate.period_ns < bounds::kMinPeriodNs || rate.period_ns > bounds::kMaxPeriodNs) {
    return absl::InvalidArgumentError(absl::StrCat(RateText(rate), ": the period must be from ",
                                                   DurationText(bounds::kMinPeriodNs), " to ",
                                                   DurationText(bounds::kMaxPeriodNs)));
  }
  if (static_cast<Uint128>(rate.permits) * 1'000'000'000 >
      static_cast<Uint128>(rate.period_ns) * bounds::kMaxPermitsPerSecond) {
    return absl::InvalidArgumentError(absl::StrCat(
        RateText(rate), ": at most ", bounds::kMaxPermitsPerSecond, " permits a second"));
  }
  return absl::OkStatus();
}

uint64_t UnitTicks(Rate rate, int shift) {
  return static_cast<uint64_t>(
      CeilDiv(static_cast<Uint128>(rate.period_ns) << shift, rate.permits));
}

// Is the rate that `unit` makes at most 1/`part` below the configured one?
bool LowByAtMost(Rate rate, int shift, uint64_t unit, uint64_t part) {
  const Uint128 made = static_cast<Uint128>(unit) * rate.permits;  // >= the period in ticks
  const Uint128 period = static_cast<Uint128>(rate.period_ns) << shift;
  return (made - period) * part <= made;
}

bool Fits(uint64_t permits, uint64_t unit) {
  return static_cast<Uint128>(permits) * unit <= kMaxBurstTicks;
}

}  // namespace

absl::StatusOr<Parameters> MakeTokenBucket(Rate rate, uint64_t burst, uint64_t debt) {
  if (absl::Status status = CheckRate(rate); !status.ok()) return status;
  for (const auto& [name, value] : {std::pair{"burst", burst}, std::pair{"debt", debt}}) {
    if (value > bounds::kMaxPermits) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " ", value, ": at most ", bounds::kMaxPermits));
    }
  }
  if (burst == 0 && debt == 0) {
    return absl::InvalidArgumentError(
        "burst 0: grants nothing unless permits may be owed; write burst: 1 or more, or "
        "debt: 1 or more");
  }
  const uint64_t most = burst + debt;
  const bool must_be_near = static_cast<Uint128>(rate.permits) * 1'000'000'000 <=
                            static_cast<Uint128>(rate.period_ns) * kExactUpToPermitsPerSecond;
  int chosen = -1;
  uint64_t bound = 0;  // the most permits that some acceptable tick holds
  for (int shift = 0; shift <= kMaxShift; ++shift) {
    const uint64_t unit = UnitTicks(rate, shift);
    if (must_be_near && !LowByAtMost(rate, shift, unit, 100)) continue;
    bound = std::max(bound, kMaxBurstTicks / unit);
    if (!Fits(most, unit)) continue;
    chosen = shift;
    if (LowByAtMost(rate, shift, unit, 10'000)) break;
  }
  if (chosen < 0) {
    const bool burst_alone = burst > bound || burst >= debt;
    return absl::InvalidArgumentError(absl::StrCat(
        burst_alone ? "burst " : "debt ", burst_alone ? burst : debt, ": at ", RateText(rate),
        " burst and debt together can be at most ", bound, " permits"));
  }
  Parameters parameters;
  parameters.kind = Kind::kTokenBucket;
  TokenBucket& bucket = parameters.token_bucket;
  bucket.rate = rate;
  bucket.burst = burst;
  bucket.debt = debt;
  bucket.shift = static_cast<uint8_t>(chosen);
  bucket.unit_ticks = UnitTicks(rate, chosen);
  bucket.burst_ticks = burst * bucket.unit_ticks;
  bucket.debt_ticks = debt * bucket.unit_ticks;
  return parameters;
}

absl::StatusOr<Parameters> MakeSlidingLog(Rate rate) {
  if (absl::Status status = CheckRate(rate); !status.ok()) return status;
  Parameters parameters;
  parameters.kind = Kind::kSlidingLog;
  parameters.sliding_log.rate = rate;
  parameters.sliding_log.quantum_ns = (rate.period_ns + kQuantaPerPeriod - 1) / kQuantaPerPeriod;
  return parameters;
}

absl::StatusOr<Parameters> MakeSlidingWindow(Rate rate, uint32_t sub_windows) {
  if (absl::Status status = CheckRate(rate); !status.ok()) return status;
  if (sub_windows == 0 || sub_windows > bounds::kMaxSubWindows) {
    return absl::InvalidArgumentError(
        absl::StrCat("sub_windows ", sub_windows, ": must be from 1 to ", bounds::kMaxSubWindows));
  }
  Parameters parameters;
  parameters.kind = Kind::kSlidingWindow;
  parameters.sliding_window.rate = rate;
  parameters.sliding_window.sub_windows = sub_windows;
  return parameters;
}

absl::StatusOr<Parameters> MakeFixedWindow(Rate rate, int64_t utc_offset_ns) {
  if (absl::Status status = CheckRate(rate); !status.ok()) return status;
  if (utc_offset_ns > kDayNs || utc_offset_ns < -kDayNs) {
    return absl::InvalidArgumentError(
        absl::StrCat("utc_offset ", DurationText(utc_offset_ns), ": must be within a day of UTC"));
  }
  Parameters parameters;
  parameters.kind = Kind::kFixedWindow;
  parameters.fixed_window.rate = rate;
  parameters.fixed_window.utc_offset_ns = utc_offset_ns;
  return parameters;
}

}  // namespace sluice::algorithm
