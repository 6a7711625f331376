// What a shard knows of a bucket: its limit's rule and its names in Redis.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_RULE_ENTRY_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_RULE_ENTRY_H_

#include <array>
#include <memory>
#include <string>

#include "server/store/rule.h"

namespace sluice::store::redis {

// A registered rule, with what the scripts are told of it.
struct RuleEntry {
  std::shared_ptr<const Rule> rule;
  std::string encoded_parameters;
  std::string writer;  // INSTANCE.RULE_ID
};

// A bucket as a script is to see it; outlives the callers. All its keys are in one slot.
struct Bucket {
  std::shared_ptr<const RuleEntry> rule;
  std::array<std::string, 3> keys;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_RULE_ENTRY_H_
