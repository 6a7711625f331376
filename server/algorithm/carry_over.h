// Carry-over: converts a bucket when its limit's parameters change.
//
// A token bucket keeps its fill in proportion: half full of 10 becomes half full of 30. It keeps
// its debt permit for permit. A full bucket stays full, and it must: a full bucket is the same as
// none, and a bucket that does not exist is full under any burst. Example: 1/s burst 10 holding 4
// -> 1/s burst 5 holds 2; owing 3 -> owes 3.
//
// Logs and windows keep their counts: 70 of 100 used -> 70 of 80 used.
//
// Between algorithms the used fraction is kept, rounded up, and counted as used now.
//
// Rounding is always against the caller. Yet if neither rate nor burst nor debt falls and the
// period stays, each request that would have been granted is still granted. For a token bucket that
// needs a proof. In units of time let a permit cost U before and V <= U after, the burst be B
// before and C >= B after, S what the bucket lacks, and t the (whole) nanoseconds until some
// request for n permits that would have been granted: S + n*U <= t + B*U. What it lacks afterwards
// is at most S*V/U + (C-B)*V before rounding, and
//     S*V/U + (C-B)*V + n*V  <=  (t + B*U - n*U)*V/U + (C-B)*V + n*V  =  t*V/U + C*V  <=  t + C*V.
// t, C*V and n*V are whole ticks, so rounding what is lacking up to a whole tick does not pass
// them.
//
// Open receipts are converted too. A token bucket's receipt is worth the same share of a bucket or
// the same number of permits, whichever is less, since the permits that it would give back may have
// been stored or owed. If the algorithm changes, receipts are closed.
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_ALGORITHM_CARRY_OVER_H_
#define SLUICE_SERVER_ALGORITHM_CARRY_OVER_H_

#include <cstdint>

#include "server/algorithm/parameters.h"
#include "server/algorithm/token_bucket.h"

namespace sluice::algorithm {

// The TAT of the same bucket under new parameters.
uint64_t ConvertTat(const TokenBucket& from, const TokenBucket& to, uint64_t tat, int64_t now_ns);

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CARRY_OVER_H_
