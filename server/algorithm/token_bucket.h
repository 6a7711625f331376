// Token bucket, as the generic cell rate algorithm (GCRA; ITU-T I.371, "virtual scheduling").
//
// A bucket holds `burst` tokens and gets `rate` new ones every period. A request for n permits
// takes n tokens or is denied. Counting tokens would need a count and the time at which it was
// right. GCRA keeps one number instead: the TAT.
//
// The TAT (theoretical arrival time, in the GCRA literature) is the time at which the bucket is
// full again if no more permits are taken. A full bucket has a TAT in the past: TAT <= now. Each
// permit taken moves the TAT later by the time in which one token comes in. What the bucket lacks
// now is TAT - now. Nothing has to be refilled: time passes.
//
//   cost     = n * unit                            how far n permits move the TAT
//   from     = max(TAT, now)                       a bucket holds no more than burst
//   granted iff from + cost <= now + burst * unit  the bucket holds n
//
// With `debt`, a request may take more than the bucket holds, if nothing is owed before it and at
// most `debt` permits are owed after it. Later requests wait until the debt is paid:
//
//   granted iff from <= now + burst*unit  and  from + cost <= now + (burst + debt) * unit
//
// With debt 0 this is the first form, so the code has only this one.
//
// Example: 1 permit a second, burst 2; times in seconds:
//   t=10    TAT <= 10 (never used)     take 1: 11 <= 12, granted, TAT = 11
//   t=10    TAT = 11, holds 1          take 2: 13 <= 12? denied. Earliest: 13 - 2 = 11
//   t=10.5  TAT = 11, holds 1.5        take 1: 12 <= 12.5, granted, TAT = 12
//   t=11    TAT = 12, holds 1          take 1: 13 <= 13, granted, TAT = 13
//   t=11    TAT = 13, holds 0          take 1: 14 <= 13? denied. Earliest: 14 - 2 = 12
// Note the half permit at 10.5: it is not lost, since nothing is rounded to whole permits.
//
// A forced debit (Force) always grants. It moves the TAT as far as `max_owed` permits may be owed,
// and forgives the rest. Later requests wait until nothing is owed:
//
//   TAT = max(TAT, min(from + cost, now + (burst + max_owed) * unit))
//
// Invariant: in any window of length w, granted <= burst + debt + rate * w. Proof: take grants
// i..j of a history. After grant i, TAT >= t_i + cost_i; each later grant adds its cost; and after
// grant j, TAT <= t_j + (burst + debt) * unit. So the costs of i..j together are at most
// (t_j - t_i) + (burst + debt) * unit. The proof does not use the order of the clock: if `now`
// steps back, the right-hand sides only become smaller.
//
// Units. Ticks are 2^-shift ns (0 <= shift <= 4), so that ticks(now) = now_ns << shift is exact
// and linear. A permit costs unit_ticks = ceil(period / permits) ticks, so that the sustained rate
// is never above the configured one; n permits cost n * unit_ticks exactly, so that n single
// permits and one request of n cost the same. The shift is the least that leaves the rate at most
// 0.01 % low, else the greatest at which burst and debt fit (docs/adr/0010).
//
// All functions here are pure and thread-safe; none allocates. Overflow saturates towards denial:
// a TAT never passes kMaxTat.
#ifndef SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_
#define SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "absl/base/optimization.h"
#include "absl/status/statusor.h"
#include "server/algorithm/bucket_image.h"
#include "server/algorithm/level.h"
#include "server/algorithm/rate.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {

struct Parameters;

// Made by MakeTokenBucket. Invariant: (burst + debt) * unit_ticks <= 2^61.
struct TokenBucket {
  Rate rate;
  uint64_t burst = 1;  // permits
  uint64_t debt = 0;   // permits
  uint64_t unit_ticks = 0;
  uint64_t burst_ticks = 0;  // burst * unit_ticks
  uint64_t debt_ticks = 0;   // debt * unit_ticks
  uint8_t shift = 0;

  // What the Make function takes, in its order; stores write them down.
  template <typename Self>
  static auto Given(Self& self) {
    return std::tie(self.rate.permits, self.rate.period_ns, self.burst, self.debt);
  }
  // Differs if the numbers of a state mean something else, although the given ones are the same.
  uint64_t Unit() const { return unit_ticks << 3 | shift; }
  // What a decision takes beside those of any bucket, in steps as SearchBudget counts them.
  static size_t DecisionSteps() { return 0; }

  friend bool operator==(const TokenBucket&, const TokenBucket&) = default;
};

// INVALID_ARGUMENT: rate out of bounds, burst and debt together
// longer than the ticks can hold, or burst 0 without debt.
absl::StatusOr<Parameters> MakeTokenBucket(Rate rate, uint64_t burst, uint64_t debt);
// The same parameters with another rate.
absl::StatusOr<Parameters> WithRate(const TokenBucket& parameters, Rate rate);

// The whole state is the TAT, in ticks. It always fits 62 bits: the memory store keeps two flags
// beside it. 0 is a bucket that was never used.
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

// How much the bucket lacks of being full, in ticks.
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

// A forced debit: moves *tat by the cost of the permits, but not past now + burst + max_owed, nor
// past `most`. It never moves *tat back, so a clock that steps back creates no permits. Returns by
// how much it moved. REQUIRES: as TryTake; most <= kMaxTat.
inline uint64_t Force(const TokenBucket& parameters, uint64_t permits, uint64_t max_owed,
                      uint64_t now_ticks, uint64_t most, uint64_t* tat) {
  const auto cost_of = [&](uint64_t count) {
    return static_cast<Uint128>(count) * parameters.unit_ticks;
  };
  const uint64_t from = std::max(*tat, now_ticks);
  const Uint128 owed_until = now_ticks + parameters.burst_ticks + cost_of(max_owed);
  const Uint128 until = std::min({from + cost_of(permits), owed_until, Uint128{most}});
  if (until <= from) return 0;
  *tat = static_cast<uint64_t>(until);
  return *tat - from;
}

// The first nanosecond, not before now_ns, at which TryTake would grant if no other permits are
// taken; kNeverNs if it never would.
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

// Carry-over (bucket_state.h): the TAT of the same bucket under new parameters.
uint64_t ConvertTat(const TokenBucket& from, const TokenBucket& to, uint64_t tat, int64_t now_ns);

// The state of one key, with the functions of the other algorithms' states.
struct TokenBucketState {
  uint64_t tat = 0;

  bool CanTake(const TokenBucket& parameters, uint64_t permits, int64_t now_ns) const {
    uint64_t after = tat;
    return TryTake(parameters, permits, ToTicks(parameters, now_ns), &after);
  }
  int64_t EarliestNs(const TokenBucket& parameters, uint64_t permits, int64_t now_ns) const {
    return algorithm::EarliestNs(parameters, permits, tat, now_ns);
  }
  Level LevelAt(const TokenBucket& parameters, int64_t now_ns) const {
    return algorithm::LevelAt(parameters, tat, now_ns);
  }
  bool IsFull(const TokenBucket& parameters, int64_t now_ns) const {
    return algorithm::IsFull(tat, ToTicks(parameters, now_ns));
  }
  void ToImage(BucketImage* image) const { image->tat = tat; }
  static TokenBucketState FromImage(const TokenBucket&, const BucketImage& image) {
    return {image.tat};
  }
  static size_t MemoryBytes() { return 0; }
  static size_t MaxMemoryBytes(const TokenBucket&) { return 0; }
};

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_TOKEN_BUCKET_H_
