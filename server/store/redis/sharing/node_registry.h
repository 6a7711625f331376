// NodeRegistry: sends the heartbeats of this process, and publishes what follows from the replies
// (membership.h): the nodes, and this node's share. One for all event loops; runs on the first.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/net/event_loop.h"
#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/connection/clock_lead.h"
#include "server/store/redis/sharing/local_buckets.h"
#include "server/store/redis/sharing/membership.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class NodeRegistry final : private net::LoopResident {
 public:
  // A snapshot. Immutable.
  struct View {
    bool answered = false;  // the last heartbeat
    Membership membership;
    // Limits that Redis decides while it is available are decided by Redis before
    // membership.exact_until_ns(), and by this share while it is not empty.
    ShareHistory local;
    std::vector<StoreNode> nodes;  // this one first
  };

  // All outlive it. `local_buckets`: of limits that are decided locally while Redis is unavailable.
  NodeRegistry(CommandContext& context, std::string id, int64_t ttl_ns, LocalBuckets& local_buckets,
               common::Log* log);
  // REQUIRES: the loop has ended.
  ~NodeRegistry() override;

  // Starts the heartbeats, if they are not started. Any thread.
  void Start();
  bool started() const { return started_.load(std::memory_order_relaxed); }
  // Redis is available again: sends a heartbeat at once. Any thread.
  void OnAvailable();
  // Blocks until this node may decide or Redis is known to be unavailable, for most_ns at most.
  void AwaitFirst(int64_t most_ns);
  // Gives the share back, so that the others need not wait until it has lapsed. Blocks until Redis
  // has answered, or for 200 ms.
  void Leave();

  std::shared_ptr<const View> view() const;
  // Nodes that may be granting, this one included, as far as is known.
  size_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  void OnLoopStop() override;
  // Blocks until *done, for most_ns at most.
  void Await(const bool& done, int64_t most_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnTimer();
  void SendHeartbeat();
  void OnReply(int64_t sent_ns, bool clear, const Reply* reply);
  void ArmNext();
  // Starts or stops deciding locally, and sends debits.
  void Follow(int64_t now_ns);
  void SendDebits();
  bool HasUndebited() const {
    return !undebited_.empty() || debits_in_flight_ > 0 || local_buckets_.size() > 0;
  }
  void Publish();

  CommandContext& context_;
  const std::string id_;
  LocalBuckets& local_buckets_;
  common::Log* const log_;
  std::atomic<bool> started_{false};
  std::atomic<size_t> count_{1};

  // On the loop.
  Membership membership_;
  bool resident_ = false;
  bool in_flight_ = false;  // a heartbeat
  bool left_ = false;
  bool answered_ = false;
  bool refusal_logged_ = false;
  ClockLead redis_lead_;
  ShareHistory local_;
  std::vector<LocalBuckets::Granted> undebited_;
  size_t debits_in_flight_ = 0;
  uint64_t debited_ = 0;  // permits, since Redis is available again
  net::Timer timer_{net::Timer::To<&NodeRegistry::OnTimer>, this};

  mutable common::Mutex mu_;
  common::CondVar changed_;
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mu_);
  bool settled_once_ ABSL_GUARDED_BY(mu_) = false;  // what AwaitFirst waits for
  bool left_confirmed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_
