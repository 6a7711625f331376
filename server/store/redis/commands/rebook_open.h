// Books many reservations of open buckets anew, in one step: what the memory store's Rebook does
// with its own buckets.
//
// Nothing is in force until the buckets were replaced in Redis: see open_decisions.h.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_OPEN_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_OPEN_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// One of them. `asked` is read but for its results, which are written if it is denied.
struct RebookItem {
  Rebooking* asked = nullptr;
  // Names its set of buckets.
  uint64_t set = 0;
  // Of each charge, the place of its bucket.
  std::vector<uint32_t> buckets;

  // As it was decided.
  Rebooking::Outcome outcome = Rebooking::Outcome::kPending;
  int64_t grant_time_ns = 0;
  int64_t retry_after_ns = 0;
};

// Takes all of them out, and books them again in their order. REQUIRES: the buckets are of the
// charges' parameters, and now_ns is what BeginAt returned.
void Rebook(absl::Span<RebookItem> items, absl::Span<OpenBucket> buckets, int64_t now_ns);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_REBOOK_OPEN_H_
