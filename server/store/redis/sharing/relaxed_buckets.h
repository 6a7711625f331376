// RelaxedBuckets: what one event loop knows of the buckets of limits with sharing: relaxed, to
// grant before Redis is asked.
//
// Redis decides, as if the limit were exact, if the bucket is unknown, does not hold enough as far
// as is known, or has too many permits that are not debited yet; its answer is what is known then.
// Otherwise the loop grants, and debits the permits in Redis afterwards: one debit of a bucket is
// in flight at a time, with all that was granted before it was sent. Its reply corrects what is
// known.
//
// So at most `most` permits (MaxUndebited) on each loop of each node are granted and not yet
// debited, and no bucket is overdrawn by more than their sum (docs/adr/0094).
//
// Example: burst 1000, two nodes with one loop each: up to 50 permits of a bucket may be undebited
// on each node, so both together grant at most 1100 at once.
//
// A table is bounded in buckets and in bytes. When it is full it forgets, at most once a second,
// the buckets that were not used for ten seconds; what still has no room is decided by Redis.
//
// Belongs to its loop. Times on common::Clock::NowNs().
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_RELAXED_BUCKETS_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_RELAXED_BUCKETS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/store/redis/commands/operations.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// A tenth of the bucket's capacity, divided among all loops of all nodes; at least one permit.
uint64_t MaxUndebited(const algorithm::Parameters& parameters, size_t nodes, size_t loops);

class RelaxedBuckets {
 public:
  struct Key {
    std::shared_ptr<const RuleEntry> rule;
    std::string key;
    bool known = false;
    uint64_t tat = 0;       // token_bucket: ticks, with undebited permits
    int64_t remaining = 0;  // others: the same
    uint64_t undebited = 0;
    uint64_t debiting = 0;  // in the debit in flight
    int64_t used_ns = 0;
  };
  static constexpr size_t kMaxKeys = size_t{1} << 17;
  // Room for so many keys of 32 bytes.
  static constexpr size_t kMaxBytes = size_t{32} << 20;

  explicit RelaxedBuckets(size_t max_keys = kMaxKeys, size_t max_bytes = kMaxBytes)
      : max_keys_(max_keys), max_bytes_(max_bytes) {}

  // Grants, and sets *level, if it may; else changes nothing. Sets *debit to the key if a debit is
  // to be sent, else to null.
  bool TryTake(const Rule& rule, std::string_view key, uint64_t permits, uint64_t most,
               int64_t now_ns, BucketLevel* level, Key** debit);
  // Takes over the level that Redis answered.
  void Learn(const std::shared_ptr<const RuleEntry>& rule, std::string_view key,
             const BucketLevel& level, int64_t now_ns);
  // Returns the permits to debit. REQUIRES: TryTake or Debited returned the key.
  static uint64_t BeginDebit(Key& key);
  // A debit was answered. Returns the key if there is more to debit; else null.
  Key* Debited(uint32_t limit_id, std::string_view key, const DebitResult& result, int64_t now_ns);

 private:
  static void Know(Key& key, const BucketLevel& level, int64_t now_ns);
  static BucketLevel LevelOf(const Key& key, int64_t now_ns);
  void Prune(int64_t now_ns);

  const size_t max_keys_;
  const size_t max_bytes_;
  // By limit id and key.
  absl::flat_hash_map<std::pair<uint32_t, std::string>, std::unique_ptr<Key>> keys_;
  size_t bytes_ = 0;
  size_t prune_at_ = 1024;
  int64_t pruned_ns_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_RELAXED_BUCKETS_H_
