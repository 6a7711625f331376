// Core: the state that the handles of one throttler share. It queues tasks by grant time and hands
// each one to the executor when its time comes.
#ifndef SLUICE_CLIENT_SRC_THROTTLER_CORE_H_
#define SLUICE_CLIENT_SRC_THROTTLER_CORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/src/throttler/gate.h"
#include "common/mutex.h"
#include "common/wait_queue.h"
#include "sluice/throttler.h"

namespace sluice::throttler_internal {

struct ChannelState {
  std::unique_ptr<Gate> gate;
  // Relaxed: a statistic.
  std::atomic<size_t> waiting{0};
  // The latest grant time that a server gave. Guarded by Core::mu_.
  std::chrono::nanoseconds last_grant_time{0};
};

// Thread-safe. No function of the user runs under a lock of this class.
//
// A task goes kBooking -> kWaiting -> kStarted, or from either of the first two to kOver. The
// thread that moves it to kStarted or kOver, under mu_, answers it: so each task is answered once.
//
// Lock order: booking_mu_, mu_, the clock's lock. Only Rebook locks booking_mu_ of several
// throttlers, in the order of their addresses.
class Core final : public std::enable_shared_from_this<Core> {
 public:
  // Checks the options and makes the throttler.
  static Result<Throttler> MakeThrottler(std::unique_ptr<GateSource> source,
                                         ThrottlerOptions options);

  Core(std::unique_ptr<GateSource> source, ThrottlerOptions options);
  ~Core();

  Result<std::shared_ptr<ChannelState>> Open(std::string limit, std::string key);

  Status Start(const std::shared_ptr<ChannelState>& channel, const StartOptions& options);
  Result<std::chrono::nanoseconds> TryStart(ChannelState& channel, uint64_t permits);
  void Submit(const std::shared_ptr<ChannelState>& channel, std::unique_ptr<Work> work,
              const StartOptions& options);

  // Limits have changed: books every waiting task of these throttlers again, in the order in which
  // they were booked. `rebook` does it in one atomic step under the current limits. These
  // throttlers book nothing else meanwhile.
  static void Rebook(std::vector<std::shared_ptr<Core>> throttlers,
                     const std::function<void(std::vector<Rebooking>*)>& rebook)
      ABSL_NO_THREAD_SAFETY_ANALYSIS;

  void Shutdown(AtShutdown what_waits);
  ThrottlerStats stats() const;

 private:
  class Task;
  class StartedTask;
  using TaskPtr = std::shared_ptr<Task>;
  // Ordered by grant time, then by the order of submission.
  using Queue = common::WaitQueue<TaskPtr>;

  // A move takes a few microseconds; other threads get the lock between two steps.
  static constexpr size_t kMovesPerStep = 512;
  static constexpr std::chrono::milliseconds kStepInterval{1};

  static Status ShutDownError();
  static Status CheckOptions(const StartOptions& options);

  // Books a new task and queues it, or fails it.
  void Enter(const TaskPtr& task);
  Status Admit(Task& task) ABSL_LOCKS_EXCLUDED(mu_);
  void Book(const TaskPtr& task, std::chrono::nanoseconds max_wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(booking_mu_);
  void Booked(const TaskPtr& task, Booking booking);
  void Cancel(const TaskPtr& task);
  // Starts the tasks that are due, in order. Only one thread does so at a time; that thread looks
  // again for the others before it returns.
  void Dispatch();
  void Run(const TaskPtr& task, bool dropped);
  void OnTimer(uint64_t timer_serial);
  // One step of moving up the tasks behind a gap.
  void MoveUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets the timer for the first task, or for the next step of moving up.
  void SetTimer(std::chrono::nanoseconds move_after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndWait(Task& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseSource();

  const std::unique_ptr<GateSource> source_;
  const std::shared_ptr<Clock> clock_;
  const bool in_process_;
  const size_t max_waiting_;
  const std::shared_ptr<Executor> executor_;

  // Written under mu_. Release and acquire: a thread that reads true sees all that preceded it.
  std::atomic<bool> stopping_{false};
  std::atomic<bool> dropping_{false};
  // Relaxed: a statistic, also counted where no lock is taken.
  std::atomic<uint64_t> denied_{0};

  // Held during a booking, so that none slips in while Rebook runs.
  common::Mutex booking_mu_;
  bool closed_ ABSL_GUARDED_BY(booking_mu_) = false;

  mutable common::Mutex mu_ ABSL_ACQUIRED_AFTER(booking_mu_);
  common::CondVar idle_;
  Queue queue_ ABSL_GUARDED_BY(mu_);
  uint64_t last_serial_ ABSL_GUARDED_BY(mu_) = 0;
  bool dispatching_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t timer_ ABSL_GUARDED_BY(mu_) = 0;         // 0: none is set
  uint64_t timer_serial_ ABSL_GUARDED_BY(mu_) = 0;  // identifies a replaced timer that still runs
  std::chrono::nanoseconds timer_time_ ABSL_GUARDED_BY(mu_){0};
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;  // tasks in kBooking and kWaiting
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t finished_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t cancelled_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::throttler_internal

#endif  // SLUICE_CLIENT_SRC_THROTTLER_CORE_H_
