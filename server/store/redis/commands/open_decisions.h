// Decisions by buckets that a node has open (open_bucket.h): the same ones that the memory store
// makes by its own.
//
// Nothing here is in force until the buckets were replaced in Redis; if they are not what they
// were any more, they are read and all is decided anew.
//
// Pure but for its arguments. REQUIRES everywhere: as many buckets as charges, converted to the
// charges' parameters, and now_ns is what BeginAt returned.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_DECISIONS_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_DECISIONS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// The moment of all decisions on these buckets, read at `now_ns` of the server's clock, which may
// have been set back. What is booked up to then is taken.
int64_t BeginAt(absl::Span<OpenBucket> buckets, int64_t now_ns);

// `set` names the set of buckets, whoever charges it. Writes the acquisition's results, all but
// its outcome, and returns that.
Outcome Decide(Acquisition* acquisition, absl::Span<OpenBucket> buckets, int64_t now_ns,
               uint64_t set, absl::FunctionRef<uint64_t()> new_receipt);

// Writes what is given back. Returns whether the receipt was open in any of the buckets.
bool Refund(const RefundOperation& operation, absl::Span<OpenBucket> buckets, int64_t now_ns);

// The greatest id of what is booked; 0: nothing is.
uint64_t LastBooking(absl::Span<const OpenBucket> buckets);

// Moves a booking up from *booked_ns, if it can be; writes where it stands then.
MoveOutcome Move(uint64_t receipt_id, absl::Span<const Charge> charges,
                 absl::Span<OpenBucket> buckets, int64_t now_ns, int64_t* booked_ns);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_OPEN_DECISIONS_H_
