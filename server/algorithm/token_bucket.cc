#include "server/algorithm/token_bucket.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

namespace bounds = common::bounds;

constexpr int kMaxShift = 4;
// Up to this rate the ticks must leave at most 1 % off; above it they do the best they can.
constexpr uint64_t kExactUpToPermitsPerSecond = 100'000'000;

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

// Rounded up: lacking more is being emptier. Neither factor passes 2^62, so the product fits.
Uint128 Scaled(uint64_t value, uint64_t numerator, uint64_t denominator) {
  return CeilDiv(static_cast<Uint128>(value) * numerator, denominator);
}

}  // namespace

uint64_t ConvertTat(const TokenBucket& from, const TokenBucket& to, uint64_t tat, int64_t now_ns) {
  const uint64_t lacking = ShortfallTicks(tat, ToTicks(from, now_ns));
  const uint64_t now_ticks = ToTicks(to, now_ns);
  if (lacking == 0) return now_ticks;
  const uint64_t stored = std::min(lacking, from.burst_ticks);
  const Uint128 owed = Scaled(lacking - stored, to.unit_ticks, from.unit_ticks);
  Uint128 lacks = to.burst_ticks + owed;
  if (to.burst_ticks == 0 && stored > 0) {
    // A bucket that stores nothing can only owe. Not the sum: it would grow with each conversion
    // there and back.
    lacks = std::max(owed, Scaled(stored, to.debt_ticks, from.burst_ticks));
  } else if (stored < from.burst_ticks) {
    lacks = Scaled(stored, to.burst_ticks, from.burst_ticks) + owed;
  }
  return static_cast<uint64_t>(std::min<Uint128>(now_ticks + lacks, kMaxTat));
}

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

absl::StatusOr<Parameters> WithRate(const TokenBucket& parameters, Rate rate) {
  return MakeTokenBucket(rate, parameters.burst, parameters.debt);
}

}  // namespace sluice::algorithm
