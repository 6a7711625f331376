// WatchHub: pushes the changes of buckets to dashboards (RPC Watch).
//
// A watch polls: every min_interval the hub's one thread queries its buckets and sends those that
// differ from the last update. The first update has all buckets. Refilling counts as a change when
// a whole permit came back; reset_after alone does not, since it always changes.
#ifndef SLUICE_SERVER_SERVICE_BUCKET_WATCH_H_
#define SLUICE_SERVER_SERVICE_BUCKET_WATCH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "server/access/caller.h"
#include "server/service/query_call.h"
#include "server/service/rate_limiter.h"
#include "server/service/validation.h"

namespace sluice::service {

// Receives the updates of one watch. Called on the hub's thread, one call at a time, never under a
// lock; must not block. The hub shares ownership until the watch ended.
class WatchSink {
 public:
  virtual ~WatchSink() = default;

  // Whether it can take an update now. While it cannot (the peer does not read), changes gather.
  virtual bool Ready() = 0;

  // The buckets that changed, in the order of the request; valid until return.
  virtual void OnUpdate(absl::Span<const BucketStatus> changed, int64_t wall_ns) = 0;

  // The hub ended the watch (UNAVAILABLE: the server drains; PERMISSION_DENIED, UNAUTHENTICATED:
  // the caller may no longer watch). Not called after Cancel returned, except by a call that was
  // under way.
  virtual void OnEnd(const absl::Status& status) = 0;
};

struct WatchedBucket {
  std::string limit;
  std::string key;
};

struct WatchOptions {
  std::vector<WatchedBucket> buckets;
  // Absent: 1 s. 10 ms to 1 h, else INVALID_ARGUMENT.
  std::optional<WireDuration> min_interval;
  // The caller that watches. Null: it may watch everything.
  access::CallerPtr caller = {};

  // Bytes that the hub holds for the watch until it destroys the sink.
  size_t memory() const;
};

// Thread-safe. The limiter outlives it; its store answers queries until the hub is destroyed.
class WatchHub {
 public:
  explicit WatchHub(RateLimiter& limiter) : limiter_(limiter) {}
  // Stops the thread. Sinks of open watches get no call.
  ~WatchHub();

  // Starts the thread. REQUIRES: at most once; without it, the owner calls Tick.
  void StartThread();

  // Starts a watch; returns the id for Cancel. INVALID_ARGUMENT and NOT_FOUND as in Query;
  // RESOURCE_EXHAUSTED: bounds::kMaxWatches are open.
  absl::StatusOr<uint64_t> Start(WatchOptions options, std::shared_ptr<WatchSink> sink);

  // Ends a watch from the sink's side. Unknown ids are ignored. The sink is destroyed now, or when
  // the query that is under way was answered.
  void Cancel(uint64_t id);

  // Ends all watches with `status`, and refuses new ones with it.
  void Drain(const absl::Status& status);

  // Updates the watches that are due, and ends drained ones. Returns when the next watch is due, on
  // the time line of Clock::NowNs; store::kNoDeadline: there is none.
  int64_t Tick();

  // Open watches.
  size_t watches() const;

 private:
  // The fields of a bucket in which a difference is a change, as the last update sent them.
  struct Sent {
    int64_t remaining = 0;
    uint64_t capacity = 0;
    bool exists = false;
    store::Source source = store::Source::kStore;
    uint64_t waiting = 0;
    algorithm::Refundable refundable;
    absl::StatusCode error = absl::StatusCode::kOk;
    friend bool operator==(const Sent&, const Sent&) = default;
  };
  struct Watch {
    uint64_t id = 0;
    WatchHub* hub = nullptr;
    std::vector<WatchedBucket> buckets;
    access::CallerPtr caller;
    int64_t interval_ns = 0;
    std::shared_ptr<WatchSink> sink;
    // Set by Cancel: the sink gets no call after that. Acquire and release, so that the thread
    // which then skips the sink sees all writes before Cancel.
    std::atomic<bool> cancelled{false};
    int64_t due_ns = 0;  // its place in due_; guarded by mu_ of the hub
    // Below: belongs to the thread that polls the watch. The watch is in due_ or being polled,
    // never both.
    QueryCall query;
    std::vector<Sent> sent;
    std::shared_ptr<Watch> self;  // while a query is under way
  };

  static void FillQuery(Watch& watch, QueryCall::UnknownLimit unknown);
  void Poll(const std::shared_ptr<Watch>& watch);
  void OnQueried(Watch* watch);
  // Whether the caller may still make the call; its limits are checked by each query.
  static absl::Status Refresh(Watch& watch);
  // Ends the watch from the hub's side.
  void End(Watch& watch, const absl::Status& status);
  // Puts it back into due_, one interval from now.
  void Reschedule(const std::shared_ptr<Watch>& watch);
  void Loop();

  RateLimiter& limiter_;
  std::thread thread_;

  mutable common::Mutex mu_;
  common::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status drained_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Watch>> watches_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<int64_t, uint64_t>> due_ ABSL_GUARDED_BY(mu_);  // (due_ns, id)
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_BUCKET_WATCH_H_
