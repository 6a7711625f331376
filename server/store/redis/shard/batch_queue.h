// Line: those who ask for one set of buckets, first come, first served.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_QUEUE_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class AcquireCommand;
class Shard;

// An acquire operation under way, and how many of its acquisitions are.
struct Job {
  AcquireOperation* operation;
  size_t open;
  int64_t deadline_ns;
  // Of all its acquisitions' receipts; 0: each has one of its own.
  uint64_t receipt_id = 0;
};

// One acquisition that waits. `job` null: it was answered already.
struct Caller {
  Job* job = nullptr;
  Acquisition* acquisition = nullptr;
};

struct Line final : Endpoint::RoomWaiter {
  explicit Line(Shard& its_shard) : shard(its_shard) {}
  void OnRoom(Endpoint& endpoint) override;

  // What the router looks at.
  const std::string& routing_key() const { return buckets[0].keys[0]; }

  Shard& shard;
  std::string name;
  std::vector<Bucket> buckets;
  // The name of the set of buckets in calendars: the same on every node, whatever their order.
  uint64_t set = 0;
  std::deque<Caller> gathered;
  AcquireCommand* in_flight = nullptr;  // at most one
  bool queued = false;  // to be sent at the end of the iteration, or when there is room
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_BATCH_QUEUE_H_
