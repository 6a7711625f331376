#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_COUNTERS_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_COUNTERS_H_

#include "common/net/counters.h"

namespace sluice::store::redis {

// Written on the shard's loop, read on any thread.
struct ShardCounters {
  net::Counter commands;
  net::Counter decisions;  // by Redis
  // Decided by on_store_failure.
  net::Counter allowed_unavailable;
  net::Counter denied_unavailable;
  net::Counter breaker_opened;
  net::Counter lost;  // sent, but not answered in time or ever
  net::Counter conversions;
  net::Counter conflicts;  // optimistic updates refused, since another node was first
  net::Counter errors;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_COUNTERS_H_
