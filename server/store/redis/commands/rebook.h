// Store::Rebook over Redis. What shares no bucket is independent, and goes in parts, each of which
// is one step: its buckets are read, decided by (store/rebook.h), and replaced if they still are
// what was read.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_H_

#include "server/store/store.h"

namespace sluice::store::redis {

class Shard;

// Completes the operation. kUnsupported, and nothing is changed, where one part has more than
// kMaxRebookedBuckets. Of a part that Redis does not answer the items stay kPending; one that finds
// a bucket of a newer rule of this process leaves its items where they are (kGone), since they are
// to be booked by that.
void StartRebook(Shard& shard, RebookOperation* operation);

// All of a part's are in one script, while which Redis does nothing else: some 2 ms.
inline constexpr size_t kMaxRebookedBuckets = 512;

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_H_
