// Buckets on a chosen server of a Redis Cluster.
#ifndef SLUICE_TESTS_FAULTS_CLUSTER_KEYS_H_
#define SLUICE_TESTS_FAULTS_CLUSTER_KEYS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/shared_load.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {

inline std::shared_ptr<const store::Rule> Hourly(uint32_t limit_id, uint64_t burst = 10) {
  return MakeRule(limit_id, algorithm::MakeTokenBucket({1, 3'600'000'000'000}, burst, 0).value());
}

inline uint16_t SlotOfBucket(const store::Rule& rule, std::string_view key) {
  return store::redis::SlotOf(store::redis::KeysOf("sluice", rule.limit_name, key)[0]);
}

// The key number `number` of those whose bucket under this limit is on that server.
inline std::string KeyAt(RedisCluster& cluster, const store::Rule& rule, size_t server,
                         int number = 0) {
  for (int i = 0;; ++i) {
    std::string key = "at" + std::to_string(i);
    // Server 1 is up in all these tests.
    if (cluster.OwnerOf(SlotOfBucket(rule, key), 1) == server && number-- == 0) return key;
  }
}

// Retries until the store decides.
inline Acquired AcquireWhenBack(RedisNode& node, const store::Rule& rule, std::string_view key) {
  for (int i = 0;; ++i) {
    const Acquired acquired = Acquire(node.store(), rule, key);
    if (acquired.outcome != store::Outcome::kUnavailable || i == 4000) return acquired;
    PassTime(std::chrono::milliseconds(5));
  }
}

// One limit of each algorithm that refills within a second, on the first server.
inline std::vector<LoadedLimit> LimitsOnFirstServer(RedisCluster& cluster) {
  std::vector<LoadedLimit> limits = LimitsOfAllKinds();
  for (LoadedLimit& limit : limits) {
    if (limit.keys > 1) continue;
    const std::string name = limit.name;
    for (int i = 0;; ++i) {
      limit.name = name + std::to_string(i);
      const auto slot = store::redis::SlotOf(store::redis::KeysOf("sluice", limit.name, "k0")[0]);
      if (cluster.OwnerOf(slot) == 0) break;
    }
  }
  return limits;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_FAULTS_CLUSTER_KEYS_H_
