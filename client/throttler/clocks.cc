#include "client/throttler/clocks.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

namespace sluice {

SystemThrottleClock::~SystemThrottleClock() {
  {
    common::MutexLock lock(&mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void SystemThrottleClock::WakeAt(const void*, int64_t at_ns, std::function<void()> wake) {
  common::MutexLock lock(&mu_);
  at_ns_ = wake == nullptr ? std::numeric_limits<int64_t>::max() : at_ns;
  const bool ends = wake == nullptr;
  wake_ = std::move(wake);
  changed_.SignalAll();
  while (ends && running_ && std::this_thread::get_id() != thread_.get_id()) changed_.Wait(&mu_);
}

void SystemThrottleClock::Loop() {
  for (;;) {
    std::function<void()> wake;
    {
      common::MutexLock lock(&mu_);
      for (;;) {
        if (stop_) return;
        if (at_ns_ == std::numeric_limits<int64_t>::max()) {
          changed_.Wait(&mu_);
          continue;
        }
        const int64_t left_ns = at_ns_ - clock_.NowNs();
        if (left_ns <= 0) break;
        changed_.WaitFor(&mu_, std::chrono::nanoseconds(left_ns));
      }
      at_ns_ = std::numeric_limits<int64_t>::max();
      wake = wake_;
      running_ = true;
    }
    wake();
    common::MutexLock lock(&mu_);
    running_ = false;
    changed_.SignalAll();
  }
}

struct VirtualThrottleClock::State {
  struct Alarm {
    int64_t at_ns;
    std::function<void()> wake;
  };
  mutable common::Mutex mu;
  common::CondVar done;
  int64_t now_ns ABSL_GUARDED_BY(mu) = 1'000'000'000;
  const void* running ABSL_GUARDED_BY(mu) = nullptr;
  std::thread::id runner ABSL_GUARDED_BY(mu);
  std::map<const void*, Alarm> alarms ABSL_GUARDED_BY(mu);
};

VirtualThrottleClock::VirtualThrottleClock() : state_(std::make_unique<State>()) {}
VirtualThrottleClock::~VirtualThrottleClock() = default;

int64_t VirtualThrottleClock::NowNs() const {
  common::MutexLock lock(&state_->mu);
  return state_->now_ns;
}

void VirtualThrottleClock::WakeAt(const void* owner, int64_t at_ns, std::function<void()> wake) {
  common::MutexLock lock(&state_->mu);
  if (wake != nullptr) {
    state_->alarms[owner] = {at_ns, std::move(wake)};
    return;
  }
  state_->alarms.erase(owner);
  while (state_->running == owner && state_->runner != std::this_thread::get_id()) {
    state_->done.Wait(&state_->mu);
  }
}

void VirtualThrottleClock::Advance(std::chrono::nanoseconds by) {
  int64_t until_ns;
  {
    common::MutexLock lock(&state_->mu);
    until_ns = state_->now_ns + by.count();
  }
  for (;;) {
    std::function<void()> wake;
    {
      common::MutexLock lock(&state_->mu);
      const void* owner = nullptr;
      int64_t first_ns = until_ns;
      for (const auto& [who, alarm] : state_->alarms) {
        if (alarm.at_ns <= first_ns) {
          owner = who;
          first_ns = alarm.at_ns;
        }
      }
      if (owner == nullptr) {
        state_->now_ns = std::max(state_->now_ns, until_ns);
        return;
      }
      state_->now_ns = std::max(state_->now_ns, first_ns);
      wake = std::move(state_->alarms[owner].wake);
      state_->alarms.erase(owner);
      state_->running = owner;
      state_->runner = std::this_thread::get_id();
    }
    wake();
    common::MutexLock lock(&state_->mu);
    state_->running = nullptr;
    state_->done.SignalAll();
  }
}

}  // namespace sluice
