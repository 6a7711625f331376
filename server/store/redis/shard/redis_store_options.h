// The options of a RedisStore.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_REDIS_STORE_OPTIONS_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_REDIS_STORE_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/bounds.h"
#include "common/clock.h"
#include "server/store/redis/connection/redis_url.h"
#include "server/store/redis/connection/script_size.h"
#include "server/store/redis/fencing/fence.h"

namespace sluice::store {

// A secret that all nodes of a name space agree on: the proposal of the first one. It is kept in
// Redis, and written there again if it is lost. Both functions are called by any thread.
struct SharedSecret {
  // What this node uses now.
  std::function<std::string()> proposal;
  // Gets the secret that all nodes use. Not OK: it cannot be used.
  std::function<absl::Status(std::string_view)> agreed;
};

struct RedisStoreOptions {
  redis::RedisUrl url;
  // Prefix of every key. Deployments with different limits on one Redis need different ones.
  std::string name_space = "sluice";
  // How long a reply may take before the circuit breaker opens and callers are answered without
  // Redis.
  int64_t budget_ns = 20'000'000;
  // Serve on a server that may evict keys, that is, fill buckets.
  bool allow_eviction = false;
  // When a server has lost its data but was not replaced: a restart without a file that has all,
  // FLUSHALL. kFull with allow_eviction. After a failover buckets start empty in any case.
  redis::AfterLoss after_data_loss = redis::AfterLoss::kEmpty;
  // Serve on a server with replicas and min-replicas-to-write 0, which may go on granting after one
  // of them has taken its place.
  bool allow_unguarded = false;
  // Its min-replicas-max-lag, where CONFIG GET is not allowed.
  int64_t assumed_lag_ns = int64_t{10} * 1'000'000'000;
  // Most callers that wait for Redis, and most commands that wait for room, of each event loop.
  // Further ones are answered as if Redis were unavailable.
  size_t max_waiting = common::bounds::kMaxWaitingForRedis;
  // Most commands in flight on one connection. Further connections are opened then, up to
  // max_connections for each loop. Fewer are sent when replies take long.
  size_t max_in_flight = common::bounds::kMaxInFlightToRedis;
  size_t max_connections = 4;
  // Most runs of callers of token buckets that one script decides; fewer where it would take long.
  // 1: each bucket has a script of its own.
  size_t max_script_runs = redis::ScriptSize::kMost;
  // Most callers of a bucket answered by one script.
  size_t max_gathered = 4096;
  // How long a node that is not heard of still counts, and how long a new one waits for its share
  // of limits with sharing: split or on_store_failure: split. Equal on all nodes.
  int64_t node_ttl_ns = 2'000'000'000;
  // For receipts. Agreed on before the first connection is reported, whenever Redis is available
  // again, and every few seconds. Empty: there is none.
  SharedSecret receipt_key;
  // For tests only: the scripts are passed this clock's NowNs() instead of using Redis' TIME.
  const common::Clock* test_time = nullptr;
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_REDIS_STORE_OPTIONS_H_
