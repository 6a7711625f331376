// Token bucket, as the generic cell rate algorithm (GCRA; ITU-T I.371, "virtual scheduling").
//
// The picture is a bucket that holds `burst` tokens and gets `rate` of them every period; a
// request for n permits takes n tokens or is denied. Counting tokens needs a count and the moment
// at which it was right. GCRA turns the picture round and keeps one number: the moment at which
// the bucket will be full again if nobody takes any more, `tat` (GCRA's theoretical arrival
// time, TAT). A bucket that is full was full at some moment past, so tat <= now; each permit
// taken moves tat one permit's worth of time to the right; and what the bucket lacks now is
// tat - now. No refill has to happen: time itself refills.
//
//   cost     = n * unit                            what n permits move tat by
//   from     = max(tat, now)                   a bucket does not grow beyond full
//   granted iff from + cost <= now + burst * unit  the bucket must hold n
//
// With `debt`, a request may take more than is stored, as long as nothing is owed before it and
// at most `debt` permits are owed after it; those who come later wait until it is paid:
//
//   granted iff from <= now + burst*unit  and  from + cost <= now + (burst + debt) * unit
//
// The second form with debt 0 is the first one, so there is only one.
//
// Example: 1 permit a second, burst 2, in seconds. Times at which tat stands, then decisions:
//   t=10    tat <= 10 (never used)     take 1: 11 <= 12, granted, tat = 11
//   t=10    tat = 11, holds 1          take 2: 13 <= 12? denied. Earliest: 13 - 2 = 11
//   t=10.5  tat = 11, holds 1.5        take 1: 12 <= 12.5, granted, tat = 12
//   t=11    tat = 12, holds 1          take 1: 13 <= 13, granted, tat = 13
//   t=11    tat = 13, holds 0          take 1: 14 <= 13? denied. Earliest: 14 - 2 = 12
// Note the half permit of 10.5: it is not lost, since nothing is ever rounded to whole permits.
//
// Invariant: in any window of length w, granted <= burst + debt + rate * w. Proof: take grants
// i..j of a history. After grant i, tat >= t_i + cost_i; each later one adds its cost; and
// grant j left tat <= t_j + (burst + debt) * unit. So the costs of i..j together are at most
// (t_j - t_i) + (burst + debt) * unit. The clock's order was not used: it holds, all the more
// strictly, when now steps back, since a smaller now only makes the right-hand sides smaller.
//
// Units. Ticks are 2^-shift ns (0 <= shift <= 4), so that ticks(now) = now_ns << shift is exact
// and linear. A permit costs unit_ticks = ceil(period / permits) ticks, so that the sustained rate
// is never above the configured one; n permits cost n * unit_ticks exactly, so that n single
// permits and one request of n cost the same. The shift is the least that leaves the rate at most
// 0.01 % low, else the greatest at which burst and debt fit (docs/adr/0010, 0011).
//
// All functions here are pure and thread-safe; none allocates. Overflow saturates towards denial:
// tat never passes kMaxTat.
#ifndef SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_
#define SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_

#include <algorithm>
#include <cstdint>

#include "absl/base/optimization.h"
#include "server/algorithm/level.h"
#include "server/algorithm/rate.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

// Made by MakeTokenBucket. Invariant: (burst + debt) * unit_ticks <= 2^61.
struct TokenBucket {
  Rate rate;
  uint64_t burst = 1;  // permits
  uint64_t debt = 0;   // permits
  uint64_t unit_ticks = 0;
  uint64_t burst_ticks = 0;  // burst * unit_ticks
  uint64_t debt_ticks = 0;   // debt * unit_ticks
  uint8_t shift = 0;

  friend bool operator==(const TokenBucket&, const TokenBucket&) = default;
};

// The whole state is one number, the tick at which the bucket is full again. It always fits 62
// bits: the store keeps two flags beside it. 0 is a bucket that was never used.
inline constexpr int kTatBits = 62;
inline constexpr uint64_t kMaxTat = (uint64_t{1} << kTatBits) - 1;

// The most that burst and debt may last together.
inline constexpr uint64_t kMaxBurstTicks = uint64_t{1} << 61;

// Saturates at kMaxTat (9 years after boot at the finest tick): from then on all is denied.
inline uint64_t ToTicks(const TokenBucket& parameters, int64_t now_ns) {
  if (now_ns <= 0) return 0;
  const auto now = static_cast<uint64_t>(now_ns);
  return now > (kMaxTat >> parameters.shift) ? kMaxTat : now << parameters.shift;
}

// The first nanosecond whose tick is at least `ticks`.
inline int64_t ToNsRoundedUp(const TokenBucket& parameters, uint64_t ticks) {
  const uint64_t below = (uint64_t{1} << parameters.shift) - 1;
  return static_cast<int64_t>((ticks >> parameters.shift) + ((ticks & below) != 0 ? 1 : 0));
}

// What the bucket lacks of being full, in ticks.
inline uint64_t ShortfallTicks(uint64_t tat, uint64_t now_ticks) {
  return tat > now_ticks ? tat - now_ticks : 0;
}

// A full bucket is the same as none: it may be dropped.
inline bool IsFull(uint64_t tat, uint64_t now_ticks) { return tat <= now_ticks; }

// The decision. Granted: moves *tat. Denied: leaves it.
// REQUIRES: *tat <= kMaxTat, now_ticks from ToTicks. Any permits; 0 takes nothing.
inline bool TryTake(const TokenBucket& parameters, uint64_t permits, uint64_t now_ticks,
                    uint64_t* tat) {
  if (ABSL_PREDICT_FALSE(permits > parameters.burst + parameters.debt)) return false;
  const uint64_t from = std::max(*tat, now_ticks);
  // Neither sum passes 2^63: each is at most kMaxTat + kMaxBurstTicks.
  const uint64_t until = from + permits * parameters.unit_ticks;
  const uint64_t holds_until = now_ticks + parameters.burst_ticks;
  if (from > holds_until || until > holds_until + parameters.debt_ticks || until > kMaxTat) {
    return false;
  }
  *tat = until;
  return true;
}

// The first nanosecond, not before now_ns, at which TryTake of the same would grant if nobody else
// takes; kNeverNs if it never would.
inline int64_t EarliestNs(const TokenBucket& parameters, uint64_t permits, uint64_t tat,
                          int64_t now_ns) {
  if (permits > parameters.burst + parameters.debt) return kNeverNs;
  const uint64_t from = std::max(tat, ToTicks(parameters, now_ns));
  const uint64_t until = from + permits * parameters.unit_ticks;
  if (until > kMaxTat) return kNeverNs;
  const uint64_t stored = parameters.burst_ticks;
  const uint64_t nothing_owed = from > stored ? from - stored : 0;
  const uint64_t within_debt =
      until > stored + parameters.debt_ticks ? until - stored - parameters.debt_ticks : 0;
  return std::max(std::max<int64_t>(now_ns, 0),
                  ToNsRoundedUp(parameters, std::max(nothing_owed, within_debt)));
}

// Permits that the bucket holds; negative: owed. Rounded down. At most one division.
inline int64_t Remaining(const TokenBucket& parameters, uint64_t tat, uint64_t now_ticks) {
  const uint64_t lacking = ShortfallTicks(tat, now_ticks);
  if (lacking == 0) return static_cast<int64_t>(parameters.burst);
  if (lacking <= parameters.burst_ticks) {
    return static_cast<int64_t>((parameters.burst_ticks - lacking) / parameters.unit_ticks);
  }
  const uint64_t owed = lacking - parameters.burst_ticks;
  return -static_cast<int64_t>((owed + parameters.unit_ticks - 1) / parameters.unit_ticks);
}

inline Level LevelAt(const TokenBucket& parameters, uint64_t tat, int64_t now_ns) {
  const uint64_t now_ticks = ToTicks(parameters, now_ns);
  Level level;
  level.remaining = Remaining(parameters, tat, now_ticks);
  level.capacity = parameters.burst;
  level.reset_after_ns = ToNsRoundedUp(parameters, ShortfallTicks(tat, now_ticks));
  if (level.remaining < 1) {
    const int64_t earliest_ns = EarliestNs(parameters, 1, tat, now_ns);
    level.next_permit_after_ns =
        earliest_ns == kNeverNs ? kNeverNs : earliest_ns - std::max<int64_t>(now_ns, 0);
  }
  return level;
}

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_
