// RedisStore: buckets in one Redis server, or in one Redis Cluster, shared by any number of nodes.
// Exact, where a rule does not say otherwise: every decision is one script in Redis, at Redis'
// time.
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
//  - Reservations. What is booked ahead is decided by the node, with the code of server/algorithm:
//    buckets are read, decided by, and replaced if they still are what was read (script_command.h).
//    All nodes obey one order.
//
//  - Sharing. Rules that say so are decided by the node itself: by its share (membership.h,
//    local_buckets.h), or by what it knows (relaxed_buckets.h); see local_decisions.cc.
#ifndef SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_
#define SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/store/memory/used_receipts.h"
#include "server/store/redis/connection/circuit_breaker.h"
#include "server/store/redis/connection/redis_url.h"
#include "server/store/redis/fencing/fence_check.h"
#include "server/store/redis/sharing/config_mismatch.h"
#include "server/store/redis/sharing/local_buckets.h"
#include "server/store/store.h"

namespace sluice::store {

namespace redis {
class Nodes;
class Shard;
struct Reply;
struct RuleEntry;
}  // namespace redis

// A secret that all nodes of a name space agree on: the first one's proposal, which is kept in
// Redis, and put back there if it was lost. Both are called by any thread.
struct SharedSecret {
  // What this node uses now.
  std::function<std::string()> proposal;
  // What all use. Not OK: it is none.
  std::function<absl::Status(std::string_view)> agreed;
};

struct RedisStoreOptions {
  redis::RedisUrl url;
  // Before every key: deployments with different limits on one Redis have different ones.
  std::string name_space = "sluice";
  // How long an answer may take before the breaker opens and callers are answered without it.
  int64_t budget_ns = 20'000'000;
  // Serve on a server that may evict keys, that is, fill buckets.
  bool allow_eviction = false;
  // When a server's data is gone though nobody took its place: a restart without a file that has
  // all, FLUSHALL. kFull with allow_eviction. After a failover buckets start empty in any case.
  redis::AfterLoss after_data_loss = redis::AfterLoss::kEmpty;
  // Serve on a server that has replicas and min-replicas-to-write 0: it may go on granting when one
  // of them has taken its place.
  bool allow_unguarded = false;
  // Its min-replicas-max-lag, where CONFIG GET is not allowed.
  int64_t assumed_lag_ns = int64_t{10} * 1'000'000'000;
  // Callers that wait for Redis, of each loop, and commands that wait for room; one more is
  // answered at once as if it were away.
  size_t max_waiting = size_t{1} << 17;
  // Commands without an answer on one connection at most. When there are as many, further
  // connections are opened, up to so many a loop. Fewer go when answers take long.
  size_t max_in_flight = 1024;
  size_t max_connections = 4;
  // Callers answered by one script at most.
  size_t max_gathered = 4096;
  // How long a node that was not heard of counts as there, and one that is new waits for its share
  // of limits with sharing: split or on_store_failure: split. Equal on all nodes.
  int64_t node_ttl_ns = 2'000'000'000;
  // For receipts. Agreed on before the first connection is told of, and again whenever Redis is
  // back and every few seconds. Empty: there is none.
  SharedSecret receipt_key;
  // For tests alone: the scripts are told this clock's NowNs() instead of using Redis' TIME.
  const common::Clock* test_time = nullptr;
};

// Thread-safe. Never blocks. An operation is completed on the loop that it was started on; one
// that is started on another thread, on a loop chosen by its first bucket.
//
// Outcomes beside those of any store: kUnavailable (away, and a limit says deny; or an answer that
// did not come), kGranted with Source::kStoreUnavailable (away, and all limits say allow).
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

  // Blocks until a connection of each loop is ready, or one has failed. UNAVAILABLE,
  // DEADLINE_EXCEEDED: Redis cannot be reached now. Other errors: this server will not do
  // (UNAUTHENTICATED, PERMISSION_DENIED, FAILED_PRECONDITION: too old, a replica, evicts). The
  // store goes on trying in any case.
  absl::Status AwaitFirstConnections();

  // If a limit has to know of other nodes, blocks until it is known whether this one may decide by
  // itself what it shares with them, for a time to live of theirs at most.
  void AwaitNodes();
  // Tells the other nodes that this one grants nothing of its own any more. Blocks for a moment.
  void Leave();

  std::string_view Kind() const override { return "redis"; }
  bool UsesLocalClock() const override { return false; }
  bool Shared() const override { return true; }
  void Register(std::shared_ptr<const Rule> rule) override;
  void Acquire(AcquireOperation* operation) override;
  void Query(QueryOperation* operation) override;
  void Refund(RefundOperation* operation) override;
  void Move(MoveOperation* operation) override;
  // kUnsupported for callers who share more than 512 buckets.
  void Rebook(RebookOperation* operation) override;
  void Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) override;
  // Any command, for what stands beside the buckets: sent once to whoever decides for `key` (as the
  // words name it; in a Cluster all their keys are in its slot). `done` runs once, on the loop that
  // ShardFor says: with the answer, which may be an error; with null when it was not sent or not
  // answered (then it may have been executed), also when the loop ends. Thread-safe, never blocks.
  void Call(std::string_view key, std::vector<std::string> words,
            absl::AnyInvocable<void(const redis::Reply*)> done);
  StoreStats Stats() const override;
  StoreHealth Health() const override;
  uint64_t OvershootPermits(uint32_t limit_id) const override;
  bool Maintain() override;

 private:
  friend class redis::Shard;

  RedisStore(const common::Clock& clock, RedisStoreOptions options, common::Log* log);

  redis::Shard& ShardFor(std::string_view limit, std::string_view key);
  // Null: not registered, or nobody uses it any longer.
  std::shared_ptr<const redis::RuleEntry> Find(uint32_t rule_id) const;
  // Redis serves `shard`'s loop, or cannot be reached from there.
  void Connected(const redis::Shard& shard, const absl::Status& status);
  // The first attempts to connect may have come to something.
  void TellFirstConnections(const absl::Status& status);
  void AgreeOnReceiptKey();
  // See Shard.
  uint64_t NewBooking(int64_t now_ns, uint64_t after);
  void AddOvershoot(uint32_t limit_id, uint64_t permits);

  const common::Clock& clock_;
  const RedisStoreOptions options_;
  common::Log* const log_;
  const std::string instance_;  // random: tells what this process wrote
  std::shared_ptr<const net::TlsContext> tls_;
  redis::CircuitBreaker availability_;
  redis::ConfigMismatch config_mismatch_;
  const redis::FenceCheckOptions identification_;
  redis::KnownFences known_fences_;
  // Of limits with sharing: split; and of those with on_store_failure: split, while Redis is away.
  redis::LocalBuckets split_;
  redis::LocalBuckets away_;
  std::vector<std::unique_ptr<redis::Shard>> shards_;
  std::unique_ptr<redis::Nodes> nodes_;
  std::atomic<uint64_t> next_receipt_;
  std::atomic<bool> receipt_key_agreed_{false};
  std::atomic<bool> agreeing_{false};
  std::atomic<int64_t> agreed_at_ns_{0};
  const uint64_t booking_tag_;  // random: of two nodes at one microsecond, it tells the ids apart
  std::atomic<uint64_t> last_booking_ = 0;
  memory::UsedReceipts used_receipts_;

  mutable common::Mutex mu_;
  absl::flat_hash_map<uint32_t, std::shared_ptr<const redis::RuleEntry>> rules_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, uint64_t> overshoot_ ABSL_GUARDED_BY(mu_);  // permits, of limits
  common::CondVar connected_;
  absl::flat_hash_set<const redis::Shard*> unconnected_ ABSL_GUARDED_BY(mu_);  // never were yet
  bool first_told_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status first_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_
