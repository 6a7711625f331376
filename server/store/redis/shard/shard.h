// Shard: what a RedisStore does on one event loop. Starts operations as commands to the servers
// that the router names, or decides them without Redis.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_SHARD_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/connection/counters.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/shard/batch_queue.h"
#include "server/store/redis/shard/batch_turns.h"
#include "server/store/redis/shard/query_queue.h"
#include "server/store/redis/shard/receipt_closer.h"
#include "server/store/redis/shard/store_state.h"
#include "server/store/redis/sharing/local_decisions.h"
#include "server/store/redis/topology/router.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Operations that other threads start on a shard's loop.
class Inbox final : private net::Task {
 public:
  // Starts an operation, on the loop. Two pointers of captures need no allocation.
  using Start = absl::AnyInvocable<void()>;

  // `on_drop` is called on the loop at its end, before the starts that are left then.
  Inbox(net::EventLoop& loop, absl::AnyInvocable<void()> on_drop)
      : loop_(loop), on_drop_(std::move(on_drop)) {}

  // Thread-safe.
  void Put(Start start) {
    bool post = false;
    {
      common::MutexLock lock(&mu_);
      post = starts_.empty();
      starts_.push_back(std::move(start));
    }
    if (post) loop_.Post(static_cast<net::Task&>(*this));
  }

 private:
  void Run() override {
    std::vector<Start> starts;
    {
      common::MutexLock lock(&mu_);
      starts.swap(starts_);
    }
    for (Start& start : starts) start();
  }
  void Drop() override {
    on_drop_();
    Run();
  }

  net::EventLoop& loop_;
  absl::AnyInvocable<void()> on_drop_;
  common::Mutex mu_;
  std::vector<Start> starts_ ABSL_GUARDED_BY(mu_);
};

// Belongs to its loop, except Connect, Start and counters.
class Shard final : public CommandContext,
                    public LocalDecisions::Remote,
                    private Router::Host,
                    private net::LoopResident {
 public:
  // All outlive it. `on_connected` is called on the loop: there is a server that serves, or an
  // attempt to reach one failed.
  Shard(StoreState& state, net::EventLoop& loop, net::Resolver& resolver,
        const EndpointOptions& options, absl::AnyInvocable<void(const absl::Status&)> on_connected);
  // REQUIRES: the loop has ended.
  ~Shard() override;

  // Begins to connect.
  void Connect();

  // Calls start(*this) on the loop, from any thread; on the loop itself at once.
  template <typename Start>
  void Run(Start start) {
    if (loop_.InLoopThread()) return start(*this);
    inbox_.Put([this, start = std::move(start)]() mutable { start(*this); });
  }

  const ShardCounters& counters() const { return counters_; }

  // ---- On the loop ----

  void Begin(AcquireOperation* operation);
  // `receipt_id`: of all its acquisitions that want a receipt; 0: each gets one of its own.
  void Begin(AcquireOperation* operation, uint64_t receipt_id) override;
  void Begin(QueryOperation* operation) { queries_.Begin(operation); }
  void Begin(RefundOperation* operation) override;
  void Begin(SettleOperation* operation);
  void Reset(const Rule& rule, std::string_view key, absl::AnyInvocable<void(ResetOutcome)> done);

  ReceiptCloser& closer() { return closer_; }

  // CommandContext.
  const CommandSettings& settings() const override { return settings_; }
  const common::Clock& clock() const override { return state_.clock; }
  net::EventLoop& loop() override { return loop_; }
  Router& router() override { return *router_; }
  ShardCounters& counters() override { return counters_; }
  SendState& sends() override { return sends_; }
  PendingAcquires& acquires() override { return acquires_; }
  OpenCache& open_buckets() override { return open_buckets_; }
  IdSource& ids() override { return state_.ids; }
  UsedReceipts& used_receipts() override { return state_.used_receipts; }
  std::shared_ptr<const RuleEntry> EntryOf(const Rule& rule) override;
  std::shared_ptr<const RuleEntry> NewerThan(const RuleEntry& entry,
                                             std::string_view writer) override {
    return state_.rules.NewerThan(entry, writer);
  }
  void OnConverted(const Bucket& bucket, std::string_view writer,
                   const algorithm::Parameters& from) override;
  bool MayWait(size_t waiting) override;
  void LogError(std::string_view event, std::string_view what) override;

 private:
  void OnLoopStop() override;
  void OnUnavailable(Endpoint& endpoint) override { queues_.OnUnavailable(endpoint); }
  void OnConnected(const absl::Status& status) override { on_connected_(status); }

  // Returns false if the operation has ended already.
  bool Admit(AcquireOperation* operation);
  void BeginOne(const Caller& caller);
  // See QueryQueue::Ask.
  void AskFor(QueryItem& item, int64_t deadline_ns, absl::AnyInvocable<void()> answered);

  StoreState& state_;
  net::EventLoop& loop_;
  const EndpointOptions endpoint_options_;
  const CommandSettings settings_;
  absl::AnyInvocable<void(const absl::Status&)> on_connected_;
  ShardCounters counters_;
  const std::unique_ptr<Router> router_;

  bool ended_ = false;  // the loop is at its end
  SendState sends_;
  OpenCache open_buckets_;
  absl::flat_hash_map<uint32_t, std::weak_ptr<const RuleEntry>> entries_;
  size_t prune_entries_at_ = 1024;
  int64_t log_busy_from_ns_ = 0;
  LocalDecisions local_;
  PendingAcquires acquires_;
  BatchQueues queues_;
  BatchTurns turns_;
  QueryQueue queries_;
  ReceiptCloser closer_;
  Inbox inbox_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_SHARD_H_
