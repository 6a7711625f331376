#include "server/service/bucket_watch.h"

#include <algorithm>
#include <chrono>

#include "common/bounds.h"
#include "common/errors.h"

namespace sluice::service {
namespace {

constexpr int64_t kMaxRestNs = 1'000'000'000;

}  // namespace

size_t WatchOptions::memory() const {
  // A bucket's part of the query, and what the last update said of it.
  constexpr size_t kBucketBytes = sizeof(WatchedBucket) + 384;
  size_t bytes = 2048;
  for (const WatchedBucket& bucket : buckets) {
    bytes += kBucketBytes + bucket.limit.capacity() + bucket.key.capacity();
  }
  return bytes;
}

WatchHub::~WatchHub() {
  {
    common::MutexLock lock(&mu_);
    stop_ = true;
    wake_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void WatchHub::StartThread() {
  thread_ = std::thread([this] { Loop(); });
}

void WatchHub::Loop() {
  while (true) {
    const int64_t start_ns = limiter_.clock().NowNs();
    Tick();
    // Rests at least as long as it worked, so that it takes at most half a core: many watches at
    // short intervals are polled less often.
    const int64_t worked_ns = limiter_.clock().NowNs() - start_ns;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(worked_ns, kMaxRestNs)));
    common::MutexLock lock(&mu_);
    while (!stop_) {
      if (!drained_.ok() && !watches_.empty()) break;
      const int64_t now_ns = limiter_.clock().NowNs();
      const int64_t due_ns = due_.empty() ? now_ns + kMaxRestNs : due_.begin()->first;
      if (due_ns <= now_ns) break;
      wake_.WaitFor(&mu_, std::chrono::nanoseconds(std::min(due_ns - now_ns, kMaxRestNs)));
    }
    if (stop_) return;
  }
}

void WatchHub::FillQuery(Watch& watch, QueryCall::UnknownLimit unknown) {
  watch.query.Reset(unknown);
  watch.query.UseCaller(watch.caller);
  for (const WatchedBucket& bucket : watch.buckets) {
    watch.query.AddBucket(bucket.limit, bucket.key);
  }
}

absl::StatusOr<uint64_t> WatchHub::Start(WatchOptions options, std::shared_ptr<WatchSink> sink) {
  auto watch = std::make_shared<Watch>();
  watch->hub = this;
  watch->interval_ns = common::bounds::kDefaultWatchIntervalNs;
  if (options.min_interval) {
    const auto interval_ns = CheckMinInterval(*options.min_interval);
    if (!interval_ns.ok()) return interval_ns.status();
    watch->interval_ns = *interval_ns;
  }
  watch->buckets = std::move(options.buckets);
  watch->caller = std::move(options.caller);
  watch->sink = std::move(sink);
  FillQuery(*watch, QueryCall::UnknownLimit::kFailsCall);
  if (absl::Status status = limiter_.Validate(&watch->query); !status.ok()) return status;

  common::MutexLock lock(&mu_);
  if (!drained_.ok()) return drained_;
  if (watches_.size() >= common::bounds::kMaxWatches) return common::errors::TooManyWatches();
  watch->id = ++last_id_;
  due_.emplace(watch->due_ns, watch->id);
  watches_.emplace(watch->id, watch);
  wake_.SignalAll();
  return watch->id;
}

void WatchHub::Cancel(uint64_t id) {
  common::MutexLock lock(&mu_);
  const auto it = watches_.find(id);
  if (it == watches_.end()) return;
  it->second->cancelled.store(true, std::memory_order_release);
  due_.erase({it->second->due_ns, id});  // is not there while it is polled
  watches_.erase(it);
}

void WatchHub::Drain(const absl::Status& status) {
  common::MutexLock lock(&mu_);
  drained_ = status;
  wake_.SignalAll();
}

size_t WatchHub::watches() const {
  common::MutexLock lock(&mu_);
  return watches_.size();
}

int64_t WatchHub::Tick() {
  const int64_t now_ns = limiter_.clock().NowNs();
  std::vector<std::shared_ptr<Watch>> due;
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
      for (const auto& [id, watch] : watches_) due.push_back(watch);
      watches_.clear();
      due_.clear();
    }
  }
  for (const std::shared_ptr<Watch>& watch : due) {
    if (!drained.ok()) {
      if (!watch->cancelled.exchange(true, std::memory_order_acq_rel)) watch->sink->OnEnd(drained);
    } else {
      Poll(watch);
    }
  }
  common::MutexLock lock(&mu_);
  return due_.empty() ? store::kNoDeadline : due_.begin()->first;
}

void WatchHub::Poll(const std::shared_ptr<Watch>& watch) {
  if (watch->cancelled.load(std::memory_order_acquire)) return;
  if (!watch->sink->Ready()) {
    Reschedule(watch);
    return;
  }
  if (absl::Status refused = Refresh(*watch); !refused.ok()) return End(*watch, refused);
  FillQuery(*watch, QueryCall::UnknownLimit::kFailsBucket);
  watch->self = watch;
  limiter_.Query(
      &watch->query, store::kNoDeadline,
      [](void* context, QueryCall*) {
        auto* const of = static_cast<Watch*>(context);
        of->hub->OnQueried(of);
      },
      watch.get());
}

void WatchHub::OnQueried(Watch* polled) {
  const std::shared_ptr<Watch> watch = std::move(polled->self);
  if (const absl::Status& status = watch->query.status(); !status.ok()) {
    const bool refused = absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
    refused ? End(*watch, status) : Reschedule(watch);
    return;
  }
  const bool first = watch->sent.empty();
  watch->sent.resize(watch->buckets.size());
  std::vector<BucketStatus> changed;
  for (size_t i = 0; i < watch->buckets.size(); ++i) {
    const BucketStatus bucket = watch->query.bucket(i);
    Sent now;
    now.error = bucket.error.code();
    if (bucket.error.ok()) {
      now.remaining = bucket.level.remaining;
      now.capacity = bucket.level.capacity;
      now.exists = bucket.exists;
      now.source = bucket.source;
      now.waiting = bucket.waiting;
      now.refundable = bucket.refundable;
    }
    if (!first && now == watch->sent[i]) continue;
    watch->sent[i] = now;
    changed.push_back(bucket);
  }
  if (!changed.empty() && !watch->cancelled.load(std::memory_order_acquire)) {
    watch->sink->OnUpdate(changed, watch->query.wall_ns());
  }
  Reschedule(watch);
}

absl::Status WatchHub::Refresh(Watch& watch) {
  watch.caller = access::Clients::Current(std::move(watch.caller));
  return watch.caller == nullptr ? absl::OkStatus() : watch.caller->Check(access::Call::kWatch);
}

void WatchHub::End(Watch& watch, const absl::Status& status) {
  {
    common::MutexLock lock(&mu_);
    watches_.erase(watch.id);
  }
  if (!watch.cancelled.exchange(true, std::memory_order_acq_rel)) watch.sink->OnEnd(status);
}

void WatchHub::Reschedule(const std::shared_ptr<Watch>& watch) {
  const int64_t due_ns = limiter_.clock().NowNs() + watch->interval_ns;
  common::MutexLock lock(&mu_);
  if (!watches_.contains(watch->id)) return;
  watch->due_ns = due_ns;
  due_.emplace(due_ns, watch->id);
}

}  // namespace sluice::service
