// RedisStore: buckets in one Redis server, shared by any number of nodes. Exact: every decision is
// one script in Redis, at Redis' time.
//
// Each event loop has a connection and a shard of its own, which shares nothing with the others:
//
//  - Coalescing. While an operation on a bucket (or on a set of buckets, for several charges) is
//    in flight, those who ask for the same gather, and go as the next one. The script gets them in
//    the order in which they came and answers each. So a hot key costs Redis a few thousand
//    operations a second, whatever the load. Operations on different buckets are pipelined.
//  - Order. First come, first served holds among callers of one loop who ask for the same set of
//    buckets. A caller with several charges may overtake, or be overtaken by, one who gathers for
//    a part of them.
//  - Away. A breaker opens when an answer takes longer than the budget (20 ms by default), or the
//    connection breaks. While it is open nobody waits: each acquisition is decided by its limits'
//    policy, and counted. A PING every 50 ms tries the server; its answer closes the breaker.
//  - Unknown. What was sent and not answered may have been executed. It is never sent again: its
//    permits count as spent.
//
// Reservations: max_wait_ns > 0 is answered Outcome::kUnsupported; this version does not book.
#ifndef SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_
#define SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/common/clock.h"
#include "server/common/log.h"
#include "server/common/mutex.h"
#include "server/net/event_loop.h"
#include "server/net/resolver.h"
#include "server/store/memory/used_receipts.h"
#include "server/store/redis/redis_url.h"
#include "server/store/store.h"

namespace sluice::store {

namespace redis {
class Shard;
struct RuleEntry;
}  // namespace redis

struct RedisStoreOptions {
  redis::RedisUrl url;
  // Before every key: deployments with different limits on one Redis have different ones.
  std::string name_space = "sluice";
  // How long an answer may take before the breaker opens and callers are answered without it.
  int64_t budget_ns = 20'000'000;
  // Serve on a server that may evict keys, that is, fill buckets.
  bool allow_eviction = false;
  // Callers that wait for Redis, of each loop; one more is answered at once as if it were away.
  size_t max_waiting = size_t{1} << 17;
  // Callers answered by one script at most.
  size_t max_gathered = 4096;
  // For tests alone: the scripts are told this clock's NowNs() instead of using Redis' TIME.
  const common::Clock* test_time = nullptr;
};

// Thread-safe. Never blocks. An operation is completed on the loop that it was started on; one
// that is started on another thread, on a loop chosen by its first bucket.
//
// Outcomes beside those of any store: kUnavailable (away, and a limit says deny; or an answer that
// did not come), kGranted with Source::kStoreAway (away, and all limits say allow).
class RedisStore final : public Store {
 public:
  // `clock` is that of the operations' deadlines. All outlive it; `log` may be null. The loops run
  // until they are stopped before it is destroyed.
  static absl::StatusOr<std::unique_ptr<RedisStore>> Create(const common::Clock& clock,
                                                            absl::Span<net::EventLoop* const> loops,
                                                            net::Resolver& resolver,
                                                            RedisStoreOptions options,
                                                            common::Log* log);
  ~RedisStore() override;

  // Blocks until a connection is ready or has failed. UNAVAILABLE, DEADLINE_EXCEEDED: Redis cannot
  // be reached now. Other errors: this server will not do (UNAUTHENTICATED, PERMISSION_DENIED,
  // FAILED_PRECONDITION: too old, a replica, evicts). The store goes on trying in any case.
  absl::Status AwaitFirstConnection();

  std::string_view Kind() const override { return "redis"; }
  void Register(std::shared_ptr<const Rule> rule) override;
  void Acquire(AcquireOperation* operation) override;
  void Query(QueryOperation* operation) override;
  void Refund(RefundOperation* operation) override;
  void Reset(const Rule& rule, std::string_view key, void (*done)(void*, bool existed),
             void* context) override;
  StoreStats Stats() const override;
  bool Maintain() override;

 private:
  friend class redis::Shard;

  RedisStore(const common::Clock& clock, RedisStoreOptions options, common::Log* log);

  redis::Shard& ShardFor(std::string_view limit, std::string_view key);
  // Null: not registered, or nobody uses it any longer.
  std::shared_ptr<const redis::RuleEntry> Find(uint32_t rule_id) const;
  void FirstConnection(const absl::Status& status);

  const common::Clock& clock_;
  const RedisStoreOptions options_;
  common::Log* const log_;
  const std::string instance_;  // random: tells what this process wrote
  std::shared_ptr<const net::TlsContext> tls_;
  std::vector<std::unique_ptr<redis::Shard>> shards_;
  std::atomic<uint64_t> next_receipt_;
  memory::UsedReceipts used_receipts_;

  mutable common::Mutex mu_;
  absl::flat_hash_map<uint32_t, std::shared_ptr<const redis::RuleEntry>> rules_
      ABSL_GUARDED_BY(mu_);
  common::CondVar connected_;
  bool first_connection_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status first_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_
