// What becomes of a bucket when its limit's figures change.
//
// A token bucket keeps its fill in proportion: half full of 10 becomes half full of 30. What it
// owes it goes on owing, permit for permit. A full bucket stays full, which also must be so: a
// full bucket is the same as none, and a bucket that is not there becomes full of whatever the new
// burst is. Example: 1/s burst 10 holding 4 -> 1/s burst 5 holds 2; owing 3 -> owes 3.
//
// Logs and windows keep their counts: 70 of 100 used -> 70 of 80 used.
//
// Between algorithms the used fraction is kept, rounded up, and counted as used now.
//
// Never generous: rounded down. But when neither rate nor burst falls (and the period stays), who
// would have been granted must not be denied, so then a token bucket is rounded up, by less than
// a tick.
//
// Open receipts are converted along: those of a token bucket are worth the same share of a bucket
// or the same number of permits, whichever is less, since the part that they gave back might have
// been stored or owed; those of another algorithm are closed.
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_ALGORITHM_CARRY_OVER_H_
#define SLUICE_SERVER_ALGORITHM_CARRY_OVER_H_

#include <cstdint>

#include "server/algorithm/parameters.h"
#include "server/algorithm/token_bucket.h"

namespace sluice::algorithm {

// The same bucket's full_at under new figures.
uint64_t ConvertFullAt(const TokenBucket& from, const TokenBucket& to, uint64_t full_at,
                       int64_t now_ns);

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_CARRY_OVER_H_
