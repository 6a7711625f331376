// Core: what a throttler's handles share: what waits, in the order of its moments, and how it gets
// to the executor.
#ifndef SLUICE_CLIENT_SRC_THROTTLER_CORE_H_
#define SLUICE_CLIENT_SRC_THROTTLER_CORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/src/throttler/gate.h"
#include "common/mutex.h"
#include "sluice/throttler.h"

namespace sluice::throttler_internal {

struct ChannelState {
  std::unique_ptr<Gate> gate;
  // Relaxed: a figure to look at.
  std::atomic<size_t> waiting{0};
  // Of the last moment given by a server. Guarded by Core::mu_.
  std::chrono::nanoseconds last_moment{0};
};

// Thread-safe. No function of the user's runs under a lock of ours.
//
// A task goes kBooking -> kWaiting -> kStarted, or to kOver from either of the first two. Who
// moves it, under mu_, is who answers for it: so it is answered once.
//
// Locks: booking_mu_ before mu_ before the clock's. Of several throttlers, Rebook alone takes
// booking_mu_ at once, in the order of their addresses.
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

  // Gives all that waits in these throttlers new moments, in the order in which they were asked
  // for: the limits have changed. `rebook` does it, as one step, by the limits as they are then;
  // nobody asks these throttlers for a moment meanwhile.
  static void Rebook(std::vector<std::shared_ptr<Core>> throttlers,
                     const std::function<void(std::vector<Rebooking>*)>& rebook)
      ABSL_NO_THREAD_SAFETY_ANALYSIS;

  void Shutdown(AtShutdown what_waits);
  ThrottlerStats stats() const;

 private:
  class Task;
  class StartedTask;
  using TaskPtr = std::shared_ptr<Task>;
  using Place = std::pair<std::chrono::nanoseconds, uint64_t>;  // moment, serial

  // Each a few microseconds; nobody else gets at the line meanwhile.
  static constexpr size_t kMovesPerStep = 512;
  static constexpr std::chrono::milliseconds kBetweenSteps{1};
  static constexpr Place kNobody{std::chrono::nanoseconds::max(), UINT64_MAX};

  static Status ShutDownError();
  static Status CheckOptions(const StartOptions& options);

  // Puts a new task in line.
  void Enter(const TaskPtr& task);
  void Book(const TaskPtr& task, std::chrono::nanoseconds max_wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(booking_mu_);
  void Booked(const TaskPtr& task, Booking booking);
  void Cancel(const TaskPtr& task);
  // Starts what is due, in order. One thread does at a time; others leave it to that one.
  void Dispatch();
  void Started(const TaskPtr& task, bool dropped);
  void OnTimer(uint64_t timer_serial);
  // Moves those up who stand behind a place that was given up, a step's worth of them.
  void MoveUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets the timer for the first task, or for more to move up.
  void Arm(std::chrono::nanoseconds move_after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DisArm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveLine(Task& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::unique_ptr<GateSource> source_;
  const std::shared_ptr<Clock> clock_;
  const bool in_process_;
  const size_t max_waiting_;
  const std::shared_ptr<Executor> executor_;

  // Acquire and release: who sees it set sees the throttler as it was shut down. Written under mu_.
  std::atomic<bool> stopping_{false};
  std::atomic<bool> dropping_{false};
  // Relaxed: a figure to look at, counted also where no lock is taken.
  std::atomic<uint64_t> denied_{0};

  // Held while moments are asked for, so that none slips in while others get new ones.
  common::Mutex booking_mu_;
  bool closed_ ABSL_GUARDED_BY(booking_mu_) = false;

  mutable common::Mutex mu_ ABSL_ACQUIRED_AFTER(booking_mu_);
  common::CondVar idle_;
  std::map<Place, TaskPtr> line_ ABSL_GUARDED_BY(mu_);
  uint64_t last_serial_ ABSL_GUARDED_BY(mu_) = 0;
  // The first who may move up.
  Place move_next_ ABSL_GUARDED_BY(mu_) = kNobody;
  bool dispatching_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t timer_ ABSL_GUARDED_BY(mu_) = 0;         // 0: none is set
  uint64_t timer_serial_ ABSL_GUARDED_BY(mu_) = 0;  // tells an old timer that comes late
  std::chrono::nanoseconds timer_moment_ ABSL_GUARDED_BY(mu_){0};
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;  // kBooking and kWaiting
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t finished_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t cancelled_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::throttler_internal

#endif  // SLUICE_CLIENT_SRC_THROTTLER_CORE_H_
