#include "server/algorithm/carry_over.h"

#include <algorithm>

#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

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
  const uint64_t owed = lacking - stored;
  Uint128 lacks = to.burst_ticks;
  if (stored < from.burst_ticks) {
    lacks = Scaled(stored, to.burst_ticks, from.burst_ticks);
  }
  lacks += Scaled(owed, to.unit_ticks, from.unit_ticks);
  return static_cast<uint64_t>(std::min<Uint128>(now_ticks + lacks, kMaxTat));
}

}  // namespace sluice::algorithm
