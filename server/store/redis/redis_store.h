// RedisStore: buckets in one Redis server or one Redis Cluster, shared by any number of nodes.
// Unless a rule says otherwise every decision is exact: one atomic step in Redis, at Redis' time.
//
// Each event loop has connections and a shard of its own, which work without the others:
//
//  - Batches. While a command for a bucket (or a set of buckets) is in flight, further callers
//    gather (batch_queue.h) and go with the next one. The script answers them in the order in which
//    they came. So a hot key costs Redis a few thousand commands a second, whatever the load.
//    Commands for different buckets are pipelined.
//  - Order. First come, first served holds among callers of one loop with the same set of buckets.
//    A caller with several charges may overtake callers with some of them, and the other way round.
//  - Circuit breaker. It opens when a reply takes longer than the budget (20 ms by default) or the
//    connection breaks. While it is open no caller waits: each acquisition is decided by its
//    limits' on_store_failure, and counted. A PING every 50 ms probes the server and closes the
//    breaker.
//  - Unknown outcome. What was sent and not answered may have been executed. It is never sent
//    again: its permits count as spent.
//  - Reservations. This node decides them, with the code of server/algorithm, in an optimistic
//    update (optimistic_command.h). All nodes obey one order.
//  - Sharing. Limits with sharing: split or relaxed are decided by this node (local_decisions.h).
#ifndef SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_
#define SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
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
#include "server/store/redis/shard/redis_store_options.h"
#include "server/store/store.h"

namespace sluice::store {

namespace redis {
class CircuitBreaker;
class SecretAgreement;
class Shard;
struct Reply;
struct StoreState;
}  // namespace redis

// Thread-safe. Never blocks, except where noted. An operation is completed on the loop that it was
// started on, or, if started on another thread, on a loop chosen by its first bucket.
//
// Outcomes beside those of any store: kUnavailable (Redis is unavailable and a limit says deny, or
// the reply is missing), kGranted with Source::kStoreUnavailable (Redis is unavailable, and all
// limits say allow).
class RedisStore final : public Store {
 public:
  // `clock`: of the operations' deadlines. All outlive it; `log` may be null. The loops are stopped
  // before it is destroyed.
  static absl::StatusOr<std::unique_ptr<RedisStore>> Create(const common::Clock& clock,
                                                            absl::Span<net::EventLoop* const> loops,
                                                            net::Resolver& resolver,
                                                            RedisStoreOptions options,
                                                            common::Log* log);
  ~RedisStore() override;

  // Blocks until a connection of each loop is ready, or one has failed. UNAVAILABLE,
  // DEADLINE_EXCEEDED: Redis cannot be reached now. Other errors: this server cannot be used
  // (UNAUTHENTICATED, PERMISSION_DENIED, FAILED_PRECONDITION: too old, a replica, evicts). The
  // store goes on trying in any case.
  absl::Status AwaitFirstConnections();

  // If a limit depends on the other nodes, blocks until this node may decide what it shares with
  // them, or Redis is known to be unavailable; for two times to live at most.
  void AwaitNodes();
  // The most bytes of the buckets that this node decides by itself: of limits with sharing: split,
  // and of those with on_store_failure: split.
  void SetMaxLocalBytes(size_t bytes);
  // Debits what this node granted without Redis, and tells the other nodes that it no longer grants
  // by its share. Blocks for at most most_ns and 200 ms. REQUIRES: no more calls come.
  void Leave(int64_t most_ns);

  std::string_view Kind() const override { return "redis"; }
  bool UsesLocalClock() const override { return false; }
  bool Shared() const override { return true; }
  void Register(std::shared_ptr<const Rule> rule) override;
  void Acquire(AcquireOperation* operation) override;
  void Query(QueryOperation* operation) override;
  void Refund(RefundOperation* operation) override;
  void Settle(SettleOperation* operation) override;
  void Renew(RenewOperation* operation) override;
  void Holds(HoldsOperation* operation) override;
  void Move(MoveOperation* operation) override;
  // kUnsupported for reservations that share more than 512 buckets.
  void Rebook(RebookOperation* operation) override;
  void Reset(const Rule& rule, std::string_view key, ResetDone done, void* context) override;
  // Sends any command once, to the server of `key` (in a Cluster, all keys in `words` are in its
  // slot). `done` runs once, on one of the loops: with the reply, which may be an error; with null
  // when it was not sent or not answered (then it may have been executed), or when the loop ends.
  void Call(std::string_view key, std::vector<std::string> words,
            absl::AnyInvocable<void(const redis::Reply*)> done);
  void LiftFloor(std::string_view limit, FloorDone done) override;
  StoreStats Stats() const override;
  StoreHealth Health() const override;
  uint64_t OvershootPermits(uint32_t limit_id) const override;
  bool Maintain() override;

 private:
  RedisStore(const common::Clock& clock, RedisStoreOptions options, common::Log* log);

  redis::Shard& ShardFor(std::string_view limit, std::string_view key);
  redis::Shard& ShardFor(const Charge& charge) {
    return ShardFor(charge.rule->limit_name, charge.key);
  }
  void OnConnected(const redis::Shard& shard, const absl::Status& status);
  // Completes AwaitFirstConnections when all shards have connected, or one has failed.
  void OnFirstConnection(const absl::Status& status);

  const std::unique_ptr<redis::StoreState> state_;
  const std::unique_ptr<redis::CircuitBreaker> breaker_;
  const std::unique_ptr<redis::SecretAgreement> receipt_key_;
  std::vector<std::unique_ptr<redis::Shard>> shards_;

  mutable common::Mutex mu_;
  common::CondVar connected_;
  absl::flat_hash_set<const redis::Shard*> unconnected_ ABSL_GUARDED_BY(mu_);  // never yet
  bool first_known_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status first_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_REDIS_REDIS_STORE_H_
