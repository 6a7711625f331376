// NodeRegistry: sends the heartbeats of this process, and publishes what follows from the replies
// (membership.h): the nodes, and this node's share. One for all event loops; runs on the first.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
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
  // `split_buckets`: of split limits.
  NodeRegistry(CommandContext& context, std::string id, int64_t ttl_ns, LocalBuckets& local_buckets,
               LocalBuckets& split_buckets, common::Log* log);
  // REQUIRES: the loop has ended.
  ~NodeRegistry() override;

  // Starts the heartbeats, if they are not started. Any thread.
  void Start();
  bool started() const { return started_.load(std::memory_order_relaxed); }
  // Redis is available again: sends a heartbeat at once. Any thread.
  void OnAvailable();
  // Blocks until this node may decide or Redis is known to be unavailable, for most_ns at most.
  void AwaitFirst(int64_t most_ns);
  // A limit is no longer split: debits in Redis what this node granted of it, soon after its table
  // of limits is in use. `rule`: the first that is not split. Any thread.
  void DebitSplit(std::shared_ptr<const Rule> rule);
  // Ends what is granted while Redis is unavailable, debits what is not debited yet, for most_ns at
  // most, and logs what could not be. Then gives the share back, so that the others need not wait
  // until it has lapsed: blocks until Redis has answered, or for 200 ms.
  void Leave(int64_t most_ns);

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
  // Closes the local buckets, and takes up to `most` of them; and a part of those of limits that
  // are no longer split, or all when this node leaves.
  void TakeGranted(size_t most);
  // Calls Follow once more, behind what the loop has to do.
  void FollowSoon();
  // Takes what was granted, and starts debits of it.
  void SendDebits();
  void StartDebits();
  // If nothing is left to debit: logs what was, and wakes Leave.
  void CheckAllDebited();
  bool HasUndebited() const {
    return !undebited_.empty() || debits_in_flight_ > 0 || local_buckets_.size() > 0 ||
           !no_longer_split_.empty() || ended_from_ != LocalBuckets::kEnd;
  }
  void Publish();

  CommandContext& context_;
  const std::string id_;
  LocalBuckets& local_buckets_;
  LocalBuckets& split_buckets_;
  common::Log* const log_;
  std::atomic<bool> started_{false};
  std::atomic<size_t> count_{1};

  // On the loop.
  Membership membership_;
  bool resident_ = false;
  bool in_flight_ = false;  // a heartbeat
  bool leaving_ = false;
  bool left_ = false;
  bool answered_ = false;
  bool refusal_logged_ = false;
  ClockLead redis_lead_;
  ShareHistory local_;
  // The first rules of limits that are no longer split, until their tables are in use; and since
  // when.
  std::vector<std::pair<std::shared_ptr<const Rule>, int64_t>> no_longer_split_;
  // How far the buckets of such limits are taken (LocalBuckets::TakeEnded).
  size_t ended_from_ = LocalBuckets::kEnd;
  bool follows_soon_ = false;
  std::deque<LocalBuckets::Granted> undebited_;
  size_t debits_in_flight_ = 0;
  uint64_t debiting_ = 0;  // their permits
  uint64_t debited_ = 0;   // permits, since all was debited
  net::Timer timer_{net::Timer::To<&NodeRegistry::OnTimer>, this};

  mutable common::Mutex mu_;
  common::CondVar changed_;
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mu_);
  bool settled_once_ ABSL_GUARDED_BY(mu_) = false;  // what AwaitFirst waits for
  bool all_debited_ ABSL_GUARDED_BY(mu_) = false;   // what Leave waits for, then the next
  bool left_confirmed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_
