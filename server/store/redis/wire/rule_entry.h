// A bucket as commands name it: its limit's rule and its keys in Redis.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_RULE_ENTRY_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_RULE_ENTRY_H_

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "server/store/bucket_hash.h"
#include "server/store/rule.h"

namespace sluice::store::redis {

// A registered rule, with its texts for scripts.
struct RuleEntry {
  std::shared_ptr<const Rule> rule;
  std::string encoded_parameters;
  std::string writer;  // INSTANCE.RULE_ID
  // When the limit became `sharing: split`, on common::Clock::NowNs(). Before that others decided
  // it, so a share of it begins then at the earliest. The least value: it has always been, or is
  // not.
  int64_t split_since_ns = std::numeric_limits<int64_t>::min();
};

// Outlives the callers. All its keys are in one slot.
struct Bucket {
  std::shared_ptr<const RuleEntry> rule;
  std::array<std::string, 3> keys;
};

// The sum over a set of buckets names the set in bookings: the same on every node, whatever the
// order of the buckets.
inline uint64_t SetIdOf(const Bucket& bucket) {
  return BucketHash(/*seed=*/0)(/*limit_id=*/0, bucket.keys[0]);
}

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_RULE_ENTRY_H_
