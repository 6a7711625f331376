// AlarmThread: a thread that calls HeldCallers::Advance when it is due, and sleeps in between.
#ifndef SLUICE_SERVER_WAITING_ALARM_THREAD_H_
#define SLUICE_SERVER_WAITING_ALARM_THREAD_H_

#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/waiting/held_callers.h"

namespace sluice::waiting {

// Thread-safe. The clock outlives it.
class AlarmThread final : public Alarm {
 public:
  explicit AlarmThread(const common::Clock& clock) : clock_(clock) {}
  ~AlarmThread() override { Stop(); }

  // Runs until Stop. `callers` outlives that.
  void Start(HeldCallers& callers) {
    thread_ = std::thread([this, &callers] { Loop(callers); });
  }

  void Stop() {
    {
      common::MutexLock lock(&mu_);
      stop_ = true;
      wake_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  void SetAt(int64_t at_ns) override {
    common::MutexLock lock(&mu_);
    if (at_ns >= at_ns_) return;
    at_ns_ = at_ns;
    wake_.Signal();
  }

 private:
  void Loop(HeldCallers& callers) {
    while (WaitUntilDue()) {
      const int64_t next_ns = callers.Advance();
      if (next_ns != HeldCallers::kNever) SetAt(next_ns);
    }
  }

  // Returns false after Stop.
  bool WaitUntilDue() {
    common::MutexLock lock(&mu_);
    while (!stop_) {
      if (at_ns_ == HeldCallers::kNever) {
        wake_.Wait(&mu_);
        continue;
      }
      const int64_t left_ns = at_ns_ - clock_.NowNs();
      if (left_ns <= 0) {
        at_ns_ = HeldCallers::kNever;
        return true;
      }
      wake_.WaitFor(&mu_, std::chrono::nanoseconds(left_ns));
    }
    return false;
  }

  const common::Clock& clock_;
  common::Mutex mu_;
  common::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  int64_t at_ns_ ABSL_GUARDED_BY(mu_) = HeldCallers::kNever;
  std::thread thread_;
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_ALARM_THREAD_H_
