#include "client/src/renewal_timer.h"

#include <algorithm>
#include <atomic>

#include "client/src/transport/boot_clock.h"
#include "client/src/transport/own_thread.h"
#include "client/src/transport/time_after.h"

namespace sluice::client_internal {

using common::MutexLock;
using std::chrono::nanoseconds;

// A wait ends later by the time for which the machine was suspended, so none is longer than this.
constexpr nanoseconds kLongestWait = std::chrono::seconds(2);

RenewalTimer& RenewalTimer::OfProgram() {
  static std::atomic<RenewalTimer*> of_program{nullptr};
  RenewalTimer* timer = of_program.load(std::memory_order_acquire);
  while (timer == nullptr || timer->fork_mark_.forked()) {
    auto made = std::unique_ptr<RenewalTimer>(new RenewalTimer(timer));
    if (of_program.compare_exchange_strong(timer, made.get(), std::memory_order_acq_rel)) {
      return *made.release();
    }
  }
  return *timer;
}

bool RenewalTimer::RunAfter(const std::shared_ptr<Alarm>& alarm, nanoseconds delay,
                            std::function<void()> fn) {
  if (fork_mark_.forked()) return false;
  const TimePoint at = After(BootNow(), delay);
  MutexLock lock(&mu_);
  if (alarm->state == Alarm::State::kClosed || at >= alarm->at) return true;
  if (!thread_.joinable() && !StartOwnThread([this, generation = generation_] { Run(generation); },
                                             "sluice-renew", &thread_)) {
    return false;
  }
  if (alarm->state == Alarm::State::kUnused) {
    alarm->state = Alarm::State::kOpen;
    ++open_;
  }
  alarms_.erase({alarm->at, alarm});
  alarm->at = at;
  // The function that was set before is destroyed after the lock.
  alarm->due.swap(fn);
  alarms_.emplace(at, alarm);
  if (alarms_.begin()->second == alarm) changed_.SignalAll();
  return true;
}

void RenewalTimer::Close(const std::shared_ptr<Alarm>& alarm) {
  // The child has no such thread, and the mutex may have been locked at the fork.
  if (fork_mark_.forked()) return;
  std::function<void()> dropped;
  std::thread last;
  {
    MutexLock lock(&mu_);
    const bool open = alarm->state == Alarm::State::kOpen;
    alarm->state = Alarm::State::kClosed;
    alarms_.erase({alarm->at, alarm});
    alarm->at = TimePoint::max();
    dropped.swap(alarm->due);
    while (alarm->running != std::thread::id() && alarm->running != std::this_thread::get_id()) {
      ran_.Wait(&mu_);
    }
    if (open && --open_ == 0) {
      ++generation_;
      last = std::move(thread_);
      changed_.SignalAll();
    }
  }
  if (!last.joinable()) return;
  if (last.get_id() == std::this_thread::get_id()) {
    last.detach();
  } else {
    last.join();
  }
}

void RenewalTimer::Run(uint64_t generation) {
  mu_.Lock();
  while (generation == generation_) {
    if (alarms_.empty()) {
      changed_.Wait(&mu_);
      continue;
    }
    const nanoseconds ahead = alarms_.begin()->first - BootNow();
    if (ahead.count() > 0) {
      changed_.WaitFor(&mu_, std::min(ahead, kLongestWait));
      continue;
    }
    const std::shared_ptr<Alarm> alarm = alarms_.begin()->second;
    alarms_.erase(alarms_.begin());
    alarm->at = TimePoint::max();
    std::function<void()> due;
    due.swap(alarm->due);
    alarm->running = std::this_thread::get_id();
    mu_.Unlock();
    due();
    due = nullptr;
    mu_.Lock();
    alarm->running = std::thread::id();
    ran_.SignalAll();
  }
  mu_.Unlock();
}

}  // namespace sluice::client_internal
