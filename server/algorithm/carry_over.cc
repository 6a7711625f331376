#include "server/algorithm/carry_over.h"

#include <algorithm>

#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

bool NothingFalls(const TokenBucket& from, const TokenBucket& to) {
  return to.burst >= from.burst && static_cast<Uint128>(to.rate.permits) * from.rate.period_ns >=
                                       static_cast<Uint128>(from.rate.permits) * to.rate.period_ns;
}

// value * numerator / denominator; rounded as told. REQUIRES: the product fits.
Uint128 Scaled(uint64_t value, uint64_t numerator, uint64_t denominator, bool up) {
  const Uint128 product = static_cast<Uint128>(value) * numerator;
  return up ? CeilDiv(product, denominator) : product / denominator;
}

}  // namespace

uint64_t ConvertFullAt(const TokenBucket& from, const TokenBucket& to, uint64_t full_at,
                       int64_t now_ns) {
  const uint64_t lacking = ShortfallTicks(full_at, ToTicks(from, now_ns));
  const uint64_t now_ticks = ToTicks(to, now_ns);
  if (lacking == 0) return now_ticks;
  // Lacking more is being emptier: up is against the caller.
  const bool up = !NothingFalls(from, to);
  const uint64_t stored = std::min(lacking, from.burst_ticks);
  const uint64_t owed = lacking - stored;
  Uint128 lacks = to.burst_ticks;
  if (stored < from.burst_ticks) {
    lacks = Scaled(stored, to.burst_ticks, from.burst_ticks, up);
  }
  lacks += Scaled(owed, to.unit_ticks, from.unit_ticks, up);
  return static_cast<uint64_t>(std::min<Uint128>(now_ticks + lacks, kMaxTat));
}

}  // namespace sluice::algorithm
