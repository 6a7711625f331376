// RelaxedBuckets: what one event loop knows of the buckets of limits with sharing: relaxed, and
// grants by it before Redis has heard of it.
//
// Of a bucket that is not known, or does not hold enough as far as is known, or of which as much is
// undebited as may be, Redis decides, as if the limit were exact; its answer is what is known
// then. Else it is granted here and reported: one report of a bucket is under way at a time, with
// all that was granted before it was sent. The answer corrects what is known.
//
// So what is granted and not yet in Redis is at most `most` (see MostUndebited) on each loop of
// each node, and no bucket is ever overdrawn by more than all of these together (docs/adr/0095).
//
// Belongs to its loop. Times on common::Clock::NowNs().
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_RELAXED_BUCKETS_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_RELAXED_BUCKETS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "server/store/redis/commands/debit.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// A tenth of what the bucket can hold, divided among all loops of all nodes; one permit at least.
uint64_t MostUndebited(const algorithm::Parameters& parameters, size_t nodes, size_t loops);

class RelaxedBuckets {
 public:
  struct Key {
    std::shared_ptr<const RuleEntry> rule;
    std::string key;
    bool known = false;
    uint64_t tat = 0;       // token_bucket: ticks, without what is not reported
    int64_t remaining = 0;  // windows, the same
    uint64_t undebited = 0;
    uint64_t debiting = 0;  // in the debit in flight
    int64_t used_ns = 0;
  };

  // Grants it, and fills in `level`, if that may be; else changes nothing. `*debit`: the
  // bucket to be debited in Redis, or null.
  bool TryTake(const Rule& rule, std::string_view key, uint64_t permits, uint64_t most,
               int64_t now_ns, BucketLevel* level, Key** debit);
  // What Redis answered.
  void Learn(const std::shared_ptr<const RuleEntry>& rule, std::string_view key,
             const BucketLevel& level, int64_t now_ns);
  // Returns how much is to be reported; REQUIRES: TryTake or Reported said so.
  static uint64_t BeginDebit(Key& key);
  // The key, if more is to be reported; else null.
  Key* Debited(uint32_t limit_id, std::string_view key, const DebitResult& result, int64_t now_ns);

  bool empty() const { return keys_.empty(); }

 private:
  static std::string NameOf(uint32_t limit_id, std::string_view key);
  static void Know(Key& key, const BucketLevel& level, int64_t now_ns);
  static BucketLevel LevelOf(const Key& key, int64_t now_ns);
  void Prune(int64_t now_ns);

  absl::flat_hash_map<std::string, std::unique_ptr<Key>> keys_;
  size_t prune_at_ = 1024;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_RELAXED_BUCKETS_H_
