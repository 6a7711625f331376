// StoreState: what all shards of a store share. Each member synchronizes itself.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_STORE_STATE_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_STORE_STATE_H_

#include <string>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "server/store/redis/commands/id_source.h"
#include "server/store/redis/fencing/fence_check.h"
#include "server/store/redis/shard/redis_store_options.h"
#include "server/store/redis/shard/rule_table.h"
#include "server/store/redis/sharing/config_mismatch.h"
#include "server/store/redis/sharing/sharing_state.h"
#include "server/store/used_receipts.h"

namespace sluice::store::redis {

struct StoreState {
  StoreState(const common::Clock& its_clock, RedisStoreOptions its_options, common::Log* its_log,
             std::string instance);

  const common::Clock& clock;
  const RedisStoreOptions options;
  common::Log* const log;  // may be null
  const FenceCheckOptions fence_options;
  RuleTable rules;
  IdSource ids;
  UsedReceipts used_receipts;
  ConfigMismatchDetector mismatches;
  KnownFences fences;
  SharingState sharing;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_STORE_STATE_H_
