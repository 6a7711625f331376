#include "server/service/watch_hub.h"

#include <algorithm>
#include <chrono>

#include "common/bounds.h"
#include "common/errors.h"
#include "server/service/validation.h"

namespace sluice::service {
namespace {

constexpr int64_t kDefaultIntervalNs = 1'000'000'000;
constexpr int64_t kMostRestNs = 1'000'000'000;

}  // namespace

PollingWatchHub::~PollingWatchHub() {
  {
    common::MutexLock lock(&mu_);
    stop_ = true;
    wake_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void PollingWatchHub::StartThread() {
  thread_ = std::thread([this] { Loop(); });
}

void PollingWatchHub::Loop() {
  while (true) {
    const int64_t start_ns = limiter_.clock().NowNs();
    Tick();
    // Rests at least as long as it worked: many watches at short intervals get fewer looks, and
    // never more than half a core.
    const int64_t worked_ns = limiter_.clock().NowNs() - start_ns;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(worked_ns, kMostRestNs)));
    common::MutexLock lock(&mu_);
    while (!stop_) {
      if (!drained_.ok() && !watches_.empty()) break;
      const int64_t now_ns = limiter_.clock().NowNs();
      const int64_t due_ns = due_.empty() ? now_ns + kMostRestNs : due_.begin()->first;
      if (due_ns <= now_ns) break;
      wake_.WaitFor(&mu_, std::chrono::nanoseconds(std::min(due_ns - now_ns, kMostRestNs)));
    }
    if (stop_) return;
  }
}

absl::StatusOr<uint64_t> PollingWatchHub::Start(WatchOptions options,
                                                std::shared_ptr<WatchSink> sink) {
  auto entry = std::make_shared<Entry>();
  entry->hub = this;
  entry->interval_ns = kDefaultIntervalNs;
  if (options.has_min_interval) {
    const auto interval = ToNanoseconds("min_interval", options.min_interval);
    if (!interval.ok()) return interval.status();
    if (*interval < common::bounds::kMinWatchIntervalNs ||
        *interval > common::bounds::kMaxWatchIntervalNs) {
      return common::errors::BadMinInterval();
    }
    entry->interval_ns = *interval;
  }
  entry->buckets = std::move(options.buckets);
  entry->sink = std::move(sink);
  entry->query.Reset(QueryCall::UnknownLimit::kFailsCall);
  for (const WatchedBucket& bucket : entry->buckets)
    entry->query.AddBucket(bucket.limit, bucket.key);
  absl::Status status = limiter_.Validate(&entry->query);
  if (!status.ok()) return status;

  common::MutexLock lock(&mu_);
  if (!drained_.ok()) return drained_;
  if (watches_.size() >= common::bounds::kMaxWatches) return common::errors::TooManyWatches();
  entry->id = ++last_id_;
  due_.emplace(0, entry->id);
  watches_.emplace(entry->id, entry);
  wake_.SignalAll();
  return entry->id;
}

void PollingWatchHub::Cancel(uint64_t id) {
  common::MutexLock lock(&mu_);
  const auto it = watches_.find(id);
  if (it == watches_.end()) return;
  it->second->cancelled.store(true, std::memory_order_release);
  watches_.erase(it);  // due_ forgets it when its time comes
}

void PollingWatchHub::Drain(const absl::Status& status) {
  common::MutexLock lock(&mu_);
  drained_ = status;
  wake_.SignalAll();
}

size_t PollingWatchHub::watches() const {
  common::MutexLock lock(&mu_);
  return watches_.size();
}

int64_t PollingWatchHub::Tick() {
  const int64_t now_ns = limiter_.clock().NowNs();
  std::vector<std::shared_ptr<Entry>> due;
  absl::Status drained;
  {
    common::MutexLock lock(&mu_);
    drained = drained_;
    if (drained.ok()) {
      while (!due_.empty() && due_.begin()->first <= now_ns) {
        const auto it = watches_.find(due_.begin()->second);
        if (it != watches_.end()) due.push_back(it->second);
        due_.erase(due_.begin());
      }
    } else {
      for (const auto& [id, entry] : watches_) due.push_back(entry);
      watches_.clear();
      due_.clear();
    }
  }
  for (const std::shared_ptr<Entry>& entry : due) {
    if (!drained.ok()) {
      if (!entry->cancelled.exchange(true, std::memory_order_acq_rel)) entry->sink->OnEnd(drained);
    } else {
      Look(entry);
    }
  }
  common::MutexLock lock(&mu_);
  return due_.empty() ? store::kNoDeadline : due_.begin()->first;
}

void PollingWatchHub::Look(const std::shared_ptr<Entry>& entry) {
  if (entry->cancelled.load(std::memory_order_acquire)) return;
  if (!entry->sink->Ready()) {
    Later(entry);
    return;
  }
  entry->query.Reset(QueryCall::UnknownLimit::kFailsBucket);
  for (const WatchedBucket& bucket : entry->buckets)
    entry->query.AddBucket(bucket.limit, bucket.key);
  entry->self = entry;
  limiter_.Query(
      &entry->query, store::kNoDeadline,
      [](void* context, QueryCall*) {
        auto* const of = static_cast<Entry*>(context);
        of->hub->Queried(of);
      },
      entry.get());
}

void PollingWatchHub::Queried(Entry* of) {
  const std::shared_ptr<Entry> entry = std::move(of->self);
  if (!entry->query.status().ok()) {
    Later(entry);
    return;
  }
  const bool first = entry->told.empty();
  entry->told.resize(entry->buckets.size());
  std::vector<BucketStatus> changed;
  for (size_t i = 0; i < entry->buckets.size(); ++i) {
    const BucketStatus bucket = entry->query.bucket(i);
    Told now;
    now.error = bucket.error.code();
    if (bucket.error.ok()) {
      now.remaining = bucket.level.remaining;
      now.capacity = bucket.level.capacity;
      now.exists = bucket.exists;
      now.source = bucket.source;
      now.waiting = bucket.waiting;
    }
    if (!first && now == entry->told[i]) continue;
    entry->told[i] = now;
    changed.push_back(bucket);
  }
  if (!changed.empty() && !entry->cancelled.load(std::memory_order_acquire)) {
    entry->sink->OnUpdate(changed, entry->query.wall_ns());
  }
  Later(entry);
}

void PollingWatchHub::Later(const std::shared_ptr<Entry>& entry) {
  const int64_t due_ns = limiter_.clock().NowNs() + entry->interval_ns;
  common::MutexLock lock(&mu_);
  if (watches_.contains(entry->id)) due_.emplace(due_ns, entry->id);
}

}  // namespace sluice::service
