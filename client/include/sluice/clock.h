// Clock: tells a Throttler the time and runs its timers. Tests replace it by a VirtualClock.
#ifndef SLUICE_CLOCK_H_
#define SLUICE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace sluice {

// Thread-safe. No method blocks. Times count from an arbitrary origin.
class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic, never negative.
  virtual std::chrono::nanoseconds Now() const = 0;

  // Since 1970-01-01 UTC; may jump forward and back. Only limits with fixed_window use it.
  virtual std::chrono::nanoseconds WallNow() const = 0;

  // Runs `fn` once, as soon as Now() >= time: on a thread of the clock, or on the thread that
  // advances it, but never within this call, and under no lock of the clock. Returns an id above 0
  // for Cancel. A timer that has not run when the clock is destroyed never runs.
  virtual uint64_t RunAt(std::chrono::nanoseconds time, std::function<void()> fn) = 0;

  // Returns true if the timer will not run; false if it has run, is running, or does not exist.
  // Does not wait for a timer that is running.
  virtual bool Cancel(uint64_t timer) = 0;
};

// CLOCK_BOOTTIME and CLOCK_REALTIME. Timers run one after the other on a thread of the clock, which
// starts with the first timer. They are late by the delay of the scheduler: about 0.1 ms on an idle
// machine.
class SystemClock final : public Clock {
 public:
  SystemClock();
  // Waits for the timer that is running, unless that timer calls it.
  ~SystemClock() override;

  std::chrono::nanoseconds Now() const override;
  std::chrono::nanoseconds WallNow() const override;
  uint64_t RunAt(std::chrono::nanoseconds time, std::function<void()> fn) override;
  bool Cancel(uint64_t timer) override;

 private:
  class Timers;
  const std::shared_ptr<Timers> timers_;
};

// A clock that moves only by Advance. Timers run within Advance, ordered by time and then by the
// order in which they were set. While a timer runs, Now() is the timer's time.
class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(std::chrono::nanoseconds now = std::chrono::hours(1),
                        std::chrono::nanoseconds wall = std::chrono::seconds(1'700'000'000));
  ~VirtualClock() override;

  std::chrono::nanoseconds Now() const override {
    return std::chrono::nanoseconds(now_ns_.load(std::memory_order_acquire));
  }
  std::chrono::nanoseconds WallNow() const override;
  uint64_t RunAt(std::chrono::nanoseconds time, std::function<void()> fn) override;
  bool Cancel(uint64_t timer) override;

  // Moves forward, and runs the timers that become due, including timers set meanwhile. A timer may
  // call Advance, to simulate work that takes time.
  void Advance(std::chrono::nanoseconds by);

  // Moves to the time of the next timer and runs the timers that are due then. Returns false if no
  // timer is set.
  bool AdvanceToNext();

  // The number of timers set.
  size_t timers() const;

 private:
  struct State;
  void RunUntil(int64_t time_ns);

  // Only grows. Release and acquire: a thread that reads a time sees what happened before it.
  std::atomic<int64_t> now_ns_;
  const int64_t wall_offset_ns_;
  const std::unique_ptr<State> state_;
};

}  // namespace sluice

#endif  // SLUICE_CLOCK_H_
