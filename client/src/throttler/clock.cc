#include "sluice/clock.h"

#include <time.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "client/src/throttler/join_or_detach.h"
#include "common/mutex.h"

namespace sluice {

using common::MutexLock;
using std::chrono::nanoseconds;

namespace {

nanoseconds Read(clockid_t id) {
  timespec time;
  clock_gettime(id, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

// Ordered by time, then by the order in which they were set.
using TimerMap = std::map<std::pair<int64_t, uint64_t>, std::function<void()>>;

// Timers with the ids that cancel them. Not thread-safe.
class TimerSet {
 public:
  uint64_t Add(int64_t at_ns, std::function<void()> fn) {
    const uint64_t id = ++last_id_;
    timers_.emplace(std::make_pair(at_ns, id), std::move(fn));
    times_.emplace(id, at_ns);
    return id;
  }

  // Returns the timer's function, to be destroyed under no lock; empty: no such timer.
  std::function<void()> Remove(uint64_t id) {
    const auto it = times_.find(id);
    if (it == times_.end()) return nullptr;
    auto node = timers_.extract(std::make_pair(it->second, id));
    times_.erase(it);
    return std::move(node.mapped());
  }

  bool empty() const { return timers_.empty(); }
  size_t size() const { return timers_.size(); }
  int64_t first_ns() const { return timers_.begin()->first.first; }

  std::function<void()> TakeFirst() {
    auto node = timers_.extract(timers_.begin());
    times_.erase(node.key().second);
    return std::move(node.mapped());
  }

 private:
  TimerMap timers_;
  std::map<uint64_t, int64_t> times_;
  uint64_t last_id_ = 0;
};

}  // namespace

// Shared by the clock and its thread.
class SystemClock::Timers : public std::enable_shared_from_this<Timers> {
 public:
  uint64_t Add(int64_t at_ns, std::function<void()> fn) {
    MutexLock lock(&mu_);
    if (!thread_.joinable()) thread_ = std::thread([self = shared_from_this()] { self->Loop(); });
    const bool first = set_.empty() || at_ns < set_.first_ns();
    const uint64_t id = set_.Add(at_ns, std::move(fn));
    if (first) changed_.Signal();
    return id;
  }

  bool Remove(uint64_t id) {
    std::function<void()> fn;
    MutexLock lock(&mu_);
    fn = set_.Remove(id);
    return fn != nullptr;
  }

  void Stop() {
    std::thread thread;
    {
      MutexLock lock(&mu_);
      stopped_ = true;
      changed_.Signal();
      thread.swap(thread_);
    }
    JoinOrDetach(thread);
  }

 private:
  void Loop() {
    mu_.Lock();
    while (!stopped_) {
      if (set_.empty()) {
        changed_.Wait(&mu_);
        continue;
      }
      const int64_t ahead_ns = set_.first_ns() - Read(CLOCK_BOOTTIME).count();
      if (ahead_ns > 0) {
        // At most an hour: the condition variable's clock stops while the machine is suspended.
        changed_.WaitFor(&mu_, std::min(nanoseconds(ahead_ns), nanoseconds(std::chrono::hours(1))));
        continue;
      }
      std::function<void()> fn = set_.TakeFirst();
      mu_.Unlock();
      fn();
      fn = nullptr;
      mu_.Lock();
    }
    mu_.Unlock();
  }

  common::Mutex mu_;
  common::CondVar changed_;
  TimerSet set_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

SystemClock::SystemClock() : timers_(std::make_shared<Timers>()) {}
SystemClock::~SystemClock() { timers_->Stop(); }

nanoseconds SystemClock::Now() const { return Read(CLOCK_BOOTTIME); }
nanoseconds SystemClock::WallNow() const { return Read(CLOCK_REALTIME); }

uint64_t SystemClock::RunAt(nanoseconds time, std::function<void()> fn) {
  return timers_->Add(time.count(), std::move(fn));
}

bool SystemClock::Cancel(uint64_t timer) { return timers_->Remove(timer); }

struct VirtualClock::State {
  mutable common::Mutex mu;
  TimerSet set ABSL_GUARDED_BY(mu);
};

VirtualClock::VirtualClock(nanoseconds now, nanoseconds wall)
    : now_ns_(now.count()),
      wall_offset_ns_((wall - now).count()),
      state_(std::make_unique<State>()) {}

VirtualClock::~VirtualClock() = default;

nanoseconds VirtualClock::WallNow() const { return Now() + nanoseconds(wall_offset_ns_); }

uint64_t VirtualClock::RunAt(nanoseconds time, std::function<void()> fn) {
  MutexLock lock(&state_->mu);
  return state_->set.Add(time.count(), std::move(fn));
}

bool VirtualClock::Cancel(uint64_t timer) {
  std::function<void()> fn;
  MutexLock lock(&state_->mu);
  fn = state_->set.Remove(timer);
  return fn != nullptr;
}

void VirtualClock::Advance(nanoseconds by) { RunUntil((Now() + by).count()); }

bool VirtualClock::AdvanceToNext() {
  int64_t at_ns;
  {
    MutexLock lock(&state_->mu);
    if (state_->set.empty()) return false;
    at_ns = state_->set.first_ns();
  }
  RunUntil(std::max(at_ns, Now().count()));
  return true;
}

void VirtualClock::RunUntil(int64_t at_ns) {
  const auto move_to = [this](int64_t to_ns) {
    int64_t now_ns = now_ns_.load(std::memory_order_acquire);
    while (now_ns < to_ns &&
           !now_ns_.compare_exchange_weak(now_ns, to_ns, std::memory_order_acq_rel)) {
    }
  };
  for (;;) {
    std::function<void()> fn;
    {
      MutexLock lock(&state_->mu);
      if (state_->set.empty() || state_->set.first_ns() > at_ns) break;
      move_to(state_->set.first_ns());
      fn = state_->set.TakeFirst();
    }
    fn();
  }
  move_to(at_ns);
}

size_t VirtualClock::timers() const {
  MutexLock lock(&state_->mu);
  return state_->set.size();
}

}  // namespace sluice
