// RenewalTimer: the thread that tells all clients of the program when their permits are to be
// renewed. It starts with the first client that holds permits, and ends with the last.
#ifndef SLUICE_CLIENT_SRC_RENEWAL_TIMER_H_
#define SLUICE_CLIENT_SRC_RENEWAL_TIMER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "client/src/transport/fork_mark.h"
#include "common/mutex.h"
#include "sluice/connection.h"

namespace sluice::client_internal {

// Thread-safe.
class RenewalTimer {
 public:
  // The one function that a client waits for.
  class Alarm {
    friend class RenewalTimer;
    enum class State : uint8_t { kUnused, kOpen, kClosed };

    // Guarded by the timer's mutex.
    State state = State::kUnused;
    TimePoint at = TimePoint::max();  // by BootNow; max: none is set
    std::function<void()> due;
    std::thread::id running;  // runs the function
  };

  // Never destroyed: clients may be destroyed with the program. The child of a fork has another.
  static RenewalTimer& OfProgram();

  // Runs `fn` on the timer's thread after `delay`, in which a suspended machine counts, and drops
  // the function that was set before. Does nothing if that one is due earlier, or if the alarm is
  // closed. Returns false if there is no thread: the system starts no more, or the process was
  // forked since the timer was made.
  bool RunAfter(const std::shared_ptr<Alarm>& alarm, std::chrono::nanoseconds delay,
                std::function<void()> fn);
  // Drops the function; if it runs, waits until it returns, unless it calls this itself.
  void Close(const std::shared_ptr<Alarm>& alarm);

 private:
  using Alarms = std::set<std::pair<TimePoint, std::shared_ptr<Alarm>>>;

  explicit RenewalTimer(const RenewalTimer* before) : before_(before) {}

  // Of the thread that was started in that generation.
  void Run(uint64_t generation);

  const ForkMark fork_mark_;
  // That of the parent process, so that it is no leak.
  [[maybe_unused]] const RenewalTimer* const before_;
  common::Mutex mu_;
  common::CondVar changed_;
  common::CondVar ran_;
  Alarms alarms_ ABSL_GUARDED_BY(mu_);  // those that are set
  size_t open_ ABSL_GUARDED_BY(mu_) = 0;
  // Raised when the last alarm is closed: the thread ends, and another alarm starts another.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_RENEWAL_TIMER_H_
