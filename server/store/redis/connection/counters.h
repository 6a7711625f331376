#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_COUNTERS_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_COUNTERS_H_

#include "common/histogram.h"

namespace sluice::store::redis {

// Written on the shard's loop, read on any thread.
struct ShardCounters {
  common::OwnedCounter commands;
  common::OwnedCounter decisions;  // by Redis
  // Decided by on_store_failure.
  common::OwnedCounter allowed_unavailable;
  common::OwnedCounter denied_unavailable;
  common::OwnedCounter breaker_opened;
  common::OwnedCounter lost;  // sent, but not answered in time or ever
  common::OwnedCounter conversions;
  common::OwnedCounter conflicts;  // optimistic updates refused, since another node was first
  common::OwnedCounter errors;
  common::OwnedCounter clock_jumps;  // of a server's clock, that this loop was the first to detect
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_COUNTERS_H_
