// Hashes that identify a bucket, and a set of buckets. A collision is harmless: it only makes held
// callers of one bucket wait for, or be moved with, those of another.
#ifndef SLUICE_SERVER_WAITING_BUCKET_ID_H_
#define SLUICE_SERVER_WAITING_BUCKET_ID_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/types/span.h"
#include "server/store/store.h"

namespace sluice::waiting {

inline uint64_t BucketId(const store::Charge& charge) {
  return std::hash<std::string_view>()(charge.key) * 31 + charge.rule->limit_id;
}

// Independent of the order of the charges.
inline uint64_t BucketSetId(absl::Span<const store::Charge> charges) {
  uint64_t set = 0;
  for (const store::Charge& charge : charges) set += BucketId(charge);
  return set;
}

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_BUCKET_ID_H_
