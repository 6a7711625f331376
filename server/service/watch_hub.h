// PollingWatchHub: the WatchHub, on one thread of its own (or driven by Tick in tests).
#ifndef SLUICE_SERVER_SERVICE_WATCH_HUB_H_
#define SLUICE_SERVER_SERVICE_WATCH_HUB_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/service/query_call.h"
#include "server/service/rate_limiter.h"
#include "server/service/watch.h"

namespace sluice::service {

// Thread-safe. The limiter outlives it; its store answers queries to the end.
class PollingWatchHub final : public WatchHub {
 public:
  explicit PollingWatchHub(RateLimiter& limiter) : limiter_(limiter) {}
  // Stops the thread. Watches that are left are not told.
  ~PollingWatchHub() override;

  // Starts the thread. REQUIRES: at most once; nobody else calls Tick.
  void StartThread();

  absl::StatusOr<uint64_t> Start(WatchOptions options, std::shared_ptr<WatchSink> sink) override;
  void Cancel(uint64_t id) override;
  void Drain(const absl::Status& status) override;

  // Looks at what is due, and ends what has to end. Returns when something is due next, on the
  // Clock's NowNs line; store::kNoDeadline: nothing is.
  int64_t Tick();

  size_t watches() const;

 private:
  // What was told last about a bucket: the fields in which a difference is a change.
  struct Told {
    int64_t remaining = 0;
    uint64_t capacity = 0;
    bool exists = false;
    store::Source source = store::Source::kStore;
    uint64_t waiting = 0;
    absl::StatusCode error = absl::StatusCode::kOk;
    friend bool operator==(const Told&, const Told&) = default;
  };
  struct Entry {
    uint64_t id = 0;
    PollingWatchHub* hub = nullptr;
    std::vector<WatchedBucket> buckets;
    int64_t interval_ns = 0;
    std::shared_ptr<WatchSink> sink;
    // Cancel sets it: nothing is told after that. Acquire and release, so that what the canceller
    // did before is seen by whom it stops.
    std::atomic<bool> cancelled{false};
    // Below: of whoever looks at the entry. It is in due_ or being looked at, never both.
    QueryCall query;
    std::vector<Told> told;
    std::shared_ptr<Entry> self;  // while a query is under way
  };

  void Look(const std::shared_ptr<Entry>& entry);
  void Queried(Entry* entry);
  // Puts it back into due_, one interval from now.
  void Later(const std::shared_ptr<Entry>& entry);
  void Loop();

  RateLimiter& limiter_;
  std::thread thread_;

  mutable common::Mutex mu_;
  common::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status drained_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Entry>> watches_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<std::pair<int64_t, uint64_t>> due_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_WATCH_HUB_H_
