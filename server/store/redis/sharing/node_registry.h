// Nodes: the heartbeats of one process, and what follows from their answers (membership.h) for
// those who decide. One for all event loops; it speaks to Redis on the first one's.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/net/event_loop.h"
#include "server/store/redis/connection/clock_lead.h"
#include "server/store/redis/sharing/local_buckets.h"
#include "server/store/redis/sharing/membership.h"
#include "server/store/redis/wire/resp.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class Shard;

class Nodes final : private net::LoopResident {
 public:
  // As of one moment. Immutable.
  struct View {
    bool answered = false;  // heartbeats are, at present
    ShareHistory strict;
    ShareHistory lenient;
    int64_t strict_until_ns = 0;
    int64_t lenient_until_ns = 0;
    int64_t joins_at_ns = kNever;
    // Of limits that Redis decides while it is there: exact before the one; while `local` is not
    // empty by that share.
    int64_t exact_until_ns = 0;
    ShareHistory local;
    std::vector<StoreNode> nodes;  // this one first
  };

  // All outlive it. `away`: the buckets of limits that are decided locally while Redis is away.
  Nodes(const common::Clock& clock, Shard& shard, net::EventLoop& loop, std::string name_space,
        std::string id, int64_t ttl_ns, LocalBuckets& away, common::Log* log);
  // REQUIRES: the loop has ended.
  ~Nodes() override;

  // Begins to beat, if it did not yet. Any thread.
  void Start();
  bool started() const { return started_.load(std::memory_order_relaxed); }
  // Redis is there again: beats at once. Any thread.
  void Back();
  // Waits until Redis is known to be there and nobody else has anything to report, or is not; at
  // most so long.
  void AwaitFirst(int64_t most_ns);
  // Gives the share back: says good-bye, so that the others need not wait until it has lapsed.
  // Waits until Redis has heard of it, or a moment.
  void Leave();

  std::shared_ptr<const View> view() const;
  // Nodes that may be granting, this one too, as far as is known.
  size_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  void OnLoopStop() override;
  void OnTimer();
  void Beat();
  void OnReply(int64_t sent_ns, bool clear, const Reply* reply);
  void ArmNext();
  // Begins or ends to decide locally, and sends reports.
  void Follow(int64_t now_ns);
  void SendReports();
  bool Unreported() const { return !unreported_.empty() || in_flight_ > 0 || away_.size() > 0; }
  void Publish();

  const common::Clock& clock_;
  Shard& shard_;
  net::EventLoop& loop_;
  const std::string name_space_;
  const std::string id_;
  LocalBuckets& away_;
  common::Log* const log_;
  std::atomic<bool> started_{false};
  std::atomic<size_t> count_{1};

  // On the loop.
  Membership membership_;
  bool resident_ = false;
  bool beating_ = false;  // one is in flight
  bool left_ = false;
  bool answered_ = false;
  bool refused_ = false;  // and said so
  ClockLead redis_lead_;
  ShareHistory local_;
  std::vector<LocalBuckets::Granted> unreported_;
  size_t in_flight_ = 0;
  uint64_t reported_ = 0;  // permits, of this time
  net::Timer timer_{net::Timer::To<&Nodes::OnTimer>, this};

  mutable common::Mutex mu_;
  common::CondVar changed_;
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mu_);
  bool first_ ABSL_GUARDED_BY(mu_) = false;  // what AwaitFirst waits for
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_NODE_REGISTRY_H_
