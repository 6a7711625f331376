// EventLoop: one thread that waits for file descriptors, timers and posted tasks (epoll).
//
// An iteration: wait; read the clock once; handle ready descriptors; run posted tasks; fire timers;
// give waiting workers their turns (work_queue.h); run the end-of-iteration hooks (each stream
// sends its writes at once); end some of the streams whose peers have left; before the loop would
// sleep, run the before-sleep hooks. Tasks, timers and ends beyond a bound wait for the next
// iteration. A loop with nothing to do sleeps until its next timer.
//
// Threads: the thread that calls Run becomes the loop's thread. Post, Stop, stopping and counters
// may be used from any thread, all other functions on the loop's thread only (or before Run).
#ifndef SLUICE_COMMON_NET_EVENT_LOOP_H_
#define SLUICE_COMMON_NET_EVENT_LOOP_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/histogram.h"
#include "common/metrics.h"
#include "common/net/buffer_pool.h"
#include "common/net/timer_wheel.h"
#include "common/net/work_queue.h"

namespace sluice::net {

class EventLoop;

// An object that lives on a loop and must release its resources when the loop stops.
class LoopResident {
 public:
  LoopResident() = default;
  LoopResident(const LoopResident&) = delete;
  LoopResident& operator=(const LoopResident&) = delete;
  virtual ~LoopResident();

  // The loop is about to end. On the loop's thread.
  virtual void OnLoopStop() = 0;

 private:
  friend class EventLoop;
  EventLoop* residence_ = nullptr;
  LoopResident* next_resident_ = nullptr;
  LoopResident* previous_resident_ = nullptr;
};

// Receives the events of a file descriptor.
class IoWatcher {
 public:
  virtual ~IoWatcher() = default;
  // `events` as of epoll_wait(2).
  virtual void OnIo(uint32_t events) = 0;
};

// Called once, at the end of the iteration in which it was scheduled or before the loop sleeps.
class IterationHook {
 public:
  IterationHook() = default;
  IterationHook(const IterationHook&) = delete;
  IterationHook& operator=(const IterationHook&) = delete;
  // REQUIRES: not scheduled.
  virtual ~IterationHook() = default;
  virtual void OnIterationEnd() = 0;
  bool scheduled() const { return scheduled_; }

 private:
  friend class EventLoop;
  IterationHook* next_hook_ = nullptr;
  bool scheduled_ = false;
};

// A stream that ends.
class EndingHook : public IterationHook {
 public:
  // Called once after EventLoop::EndInTurn.
  virtual void OnTurnToEnd() = 0;
};

// A task with its own memory: posting it allocates nothing. Must not be posted again before it has
// started to run.
class Task {
 public:
  virtual ~Task() = default;
  // On the loop's thread. May delete or post itself.
  virtual void Run() = 0;
  // Called instead of Run if the loop ends before the task ran.
  virtual void Drop() {}

 private:
  friend class EventLoop;
  Task* next_task_ = nullptr;
};

// The counters of one event loop. Its thread writes them, any thread reads them. On their own cache
// lines: they change with each iteration.
struct alignas(64) LoopCounters {
  common::OwnedCounter iterations;            // returns from epoll
  common::OwnedCounter busy_ns;               // time not spent waiting
  common::OwnedCounter tasks;                 // run for Post
  common::OwnedCounter timers;                // fired
  common::OwnedCounter streams;               // open now, accepted and outgoing
  common::OwnedCounter accepted;              // by a listener
  common::OwnedCounter refused;               // over a bound, and closed at once
  common::OwnedCounter accept_errors;         // accept(2) failed, e.g. out of file descriptors
  common::OwnedCounter connected;             // outgoing
  common::OwnedCounter connect_failures;      // outgoing: refused, timed out, name not found
  common::OwnedCounter closed;                // streams, for any reason
  common::OwnedCounter bytes_in;              // from the kernel, before decryption
  common::OwnedCounter bytes_out;             // to the kernel, after encryption
  common::OwnedCounter reads;                 // calls of recv(2)
  common::OwnedCounter writes;                // calls of send(2)
  common::OwnedCounter handshakes;            // of TLS, finished
  common::OwnedCounter handshake_failures;    // of TLS, with time-outs
  common::OwnedCounter handshakes_displaced;  // of TLS, by others
};

class EventLoop {
 public:
  struct Options {
    // Bytes read from a stream before other streams have their turn, at most.
    size_t read_buffer_bytes = size_t{64} << 10;
    // Ready descriptors handled in an iteration, at most.
    int max_events = 256;
    // Where the CPU time of each step is counted; null: nowhere. Outlives the loop.
    common::Metrics* metrics = nullptr;
  };

  // `clock` outlives the loop. Errors: RESOURCE_EXHAUSTED, when the system gives no descriptor.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const common::Clock& clock,
                                                           const Options& options);
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const common::Clock& clock) {
    return Create(clock, Options());
  }

  // Closes streams and drops tasks as Run does when it ends.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs until Stop. Before it returns, it closes all streams (CANCELLED, "the loop stops") and
  // drops posted tasks that have not run. Call once.
  void Run();
  // Call from any thread or signal handler, any number of times.
  void Stop();
  bool stopping() const { return stop_.load(std::memory_order_acquire); }

  // Runs one iteration that waits at most max_wait_ns (< 0: without limit). For tests, and for
  // programs with their own loop.
  void RunOnce(int64_t max_wait_ns);

  // Runs `task` on the loop. Tasks of one thread run in the order posted. Call from any thread;
  // never blocks: one atomic exchange, and a write to an eventfd if the loop may be asleep. The
  // number of posted tasks is not bounded: that is the caller's duty.
  void Post(absl::AnyInvocable<void()> task);
  void Post(Task& task);

  bool InLoopThread() const {
    return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  const common::Clock& clock() const { return clock_; }
  // The clock as read at the start of this iteration.
  int64_t now_ns() const { return now_ns_; }
  // The earliest time at which events of this iteration can have become ready: the previous wait,
  // if this one found events at once; now_ns, if the loop was idle. A request handled at time t has
  // waited up to t - ready_since_ns. Stream::ready_since_ns also knows bytes that waited longer.
  int64_t ready_since_ns() const { return ready_since_ns_; }

  // Timers fire on the loop, never early, late by at most a tick (66 us) and the iteration that
  // is running.
  void Arm(Timer& timer, int64_t at_ns) { wheel_.Arm(timer, at_ns); }
  void ArmIn(Timer& timer, int64_t in_ns) {
    wheel_.Arm(timer, in_ns > TimerWheel::kNever - now_ns_ ? TimerWheel::kNever : now_ns_ + in_ns);
  }

  // For work that may take long: divides the loop's time between workers.
  WorkQueue& work() { return work_; }

  // Calls hook.OnIterationEnd once; scheduling twice is the same as once. Hooks that hooks schedule
  // still run in this iteration, up to a few rounds, else in the next. An iteration that reads much
  // also runs the hooks after each kWarmBytes read, so that responses are sent while they are in
  // the cache (docs/adr/0033).
  void AtIterationEnd(IterationHook& hook);
  static constexpr size_t kWarmBytes = size_t{32} << 10;

  // Calls hook.OnIterationEnd once, when no event is ready or `kMostBusyNs` have passed since the
  // first such hook was scheduled. For work that is cheaper in large batches. No effect if the hook
  // is already scheduled, in either way.
  void BeforeSleep(IterationHook& hook);
  static constexpr int64_t kMostBusyNs = 100'000;

  // Calls hook.OnTurnToEnd once, first come, first served, when an iteration has time for it: to
  // free what a connection holds may take a millisecond, and thousands may end at once. No effect
  // if the hook is scheduled, in whatever way.
  void EndInTurn(EndingHook& hook);

  // Level-triggered. The watcher is called until Unwatch, after which it may be destroyed at once.
  // (Closing the descriptor is not enough: a duplicate of it, as of a forked child, keeps it open.)
  absl::Status Watch(int fd, uint32_t events, IoWatcher* watcher);
  void Rewatch(int fd, uint32_t events, IoWatcher* watcher);
  void Unwatch(int fd, IoWatcher* watcher);

  // Registers for OnLoopStop, until the resident is destroyed.
  void AddResident(LoopResident& resident);

  // Shared by all streams of the loop: each uses them within one call.
  absl::Span<uint8_t> read_buffer() { return {read_buffer_.get(), options_.read_buffer_bytes}; }
  absl::Span<uint8_t> plaintext_buffer();  // allocated at its first use
  BufferPool& buffers() { return buffers_; }

  // Streams call this for the bytes that they read.
  void CountRead(size_t bytes) {
    counters_.bytes_in.Add(bytes);
    read_since_hooks_ += bytes;
  }

  LoopCounters& counters() { return counters_; }
  const LoopCounters& counters() const { return counters_; }

 private:
  friend class LoopResident;

  EventLoop(const common::Clock& clock, const Options& options, int epoll_fd, int event_fd);

  void Iterate(int64_t max_wait_ns);
  // Hooks in the order scheduled.
  struct Hooks {
    IterationHook* first = nullptr;
    IterationHook** end = &first;
    void Add(IterationHook& hook);
    // REQUIRES: there is one.
    IterationHook& Pop();
    // Runs the hooks that are scheduled now, not those that they schedule.
    void Run(EventLoop& loop);
  };
  // After this time an iteration runs no more tasks, and no more timers; the next runs the others.
  static constexpr int64_t kMostNs = 500'000;
  // Tasks that an iteration runs, and tasks and hooks of one step, at most.
  static constexpr int kTasksPerIteration = 128;
  // Timers that fire, or move down the wheel, in one step. Most cost a microsecond, the check of a
  // connection that stalls up to 100.
  static constexpr size_t kTimersPerStep = 8;
  static constexpr size_t kTimerSteps = 8;
  static constexpr int kPerStep = 16;

  int Wait(int64_t wait_ns);
  // Moves the tasks that were posted to the end of queue_.
  void TakeTasks();
  void RunTasks();
  void RunTimers();
  // Counts the time since the last step as one of this kind.
  void EndStep(common::Step step) {
    if (metrics_ != nullptr) CountStep(step);
  }
  void CountStep(common::Step step);
  void RunHooks(int rounds);
  // Some of them; all, when the loop ends.
  void RunEndings();
  void Wake();
  void EndResidents();
  void DropTasks();

  const common::Clock& clock_;
  const Options options_;
  const int epoll_fd_;
  const int event_fd_;

  // Release by Stop, acquire by the loop: the loop sees all writes before Stop.
  std::atomic<bool> stop_{false};
  // Written once, by Run or RunOnce. Relaxed: a thread compares it with its own id only.
  std::atomic<std::thread::id> thread_{};
  // A stack, last posted first; pushed with release, taken whole with acquire. On its own cache
  // line: other threads write it.
  alignas(64) std::atomic<Task*> tasks_{nullptr};

  // The rest belongs to the loop's thread.
  alignas(64) int64_t now_ns_;
  int64_t ready_since_ns_;
  int64_t idle_from_ns_;  // when the last iteration ended
  TimerWheel wheel_;
  WorkQueue work_;
  // Tasks taken from tasks_, first posted first.
  Task* queue_ = nullptr;
  Task** queue_end_ = &queue_;
  // Step times. cpu_ns_: of the thread, as read at cpu_read_ns_.
  common::Metrics::Shard* metrics_ = nullptr;
  int64_t step_from_ns_ = 0;
  int64_t cpu_ns_ = 0;
  int64_t cpu_read_ns_ = 0;
  Hooks end_hooks_;
  Hooks sleep_hooks_;
  int64_t sleep_hooks_since_ns_ = 0;  // when the first of them was scheduled
  Hooks endings_;                     // EndingHooks
  size_t read_since_hooks_ = 0;       // bytes read since the end hooks ran
  LoopResident* residents_ = nullptr;
  std::vector<epoll_event> events_;
  int event_count_ = 0;  // of the current iteration
  bool no_pwait2_ = false;
  bool ended_ = false;
  std::unique_ptr<uint8_t[]> read_buffer_;
  std::unique_ptr<uint8_t[]> plaintext_buffer_;
  BufferPool buffers_;
  LoopCounters counters_;
};

// Runs a function on an event loop; at once if the caller is on its thread. A memory store decides
// on the loop's own thread, where this must cost nothing. A shared store may decide on another.
template <typename Fn>
void OnLoop(EventLoop& loop, Fn&& fn) {
  if (loop.InLoopThread()) {
    fn();
  } else {
    loop.Post(std::forward<Fn>(fn));
  }
}

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_EVENT_LOOP_H_
