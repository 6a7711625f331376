// Clock: where a Throttler reads the time and sets its timers, so that tests can turn time by hand.
#ifndef SLUICE_CLOCK_H_
#define SLUICE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace sluice {

// Thread-safe. No method blocks. Moments are counted from a zero that means nothing.
class Clock {
 public:
  virtual ~Clock() = default;

  // Never steps back, never negative.
  virtual std::chrono::nanoseconds Now() const = 0;

  // Since 1970-01-01 UTC; may jump both ways. Only limits with fixed_window look at it.
  virtual std::chrono::nanoseconds WallNow() const = 0;

  // Runs `fn` once: as soon as Now() is at or after `moment`, on a thread of the clock's or of who
  // turns it; never within this call, and under no lock of the clock's. Returns a number above 0
  // for Cancel. What has not run when the clock is destroyed does not run.
  virtual uint64_t RunAt(std::chrono::nanoseconds moment, std::function<void()> fn) = 0;

  // True: it will not run. False: it has run, or is running, or never was. Does not wait for it.
  virtual bool Cancel(uint64_t timer) = 0;
};

// CLOCK_BOOTTIME and CLOCK_REALTIME; timers run one after the other on a thread of its own, which
// starts with the first timer. Late by what the system's scheduler takes: about 0.1 ms when idle.
class SystemClock final : public Clock {
 public:
  SystemClock();
  // Waits for the timer that is running, unless it is called by that very timer.
  ~SystemClock() override;

  std::chrono::nanoseconds Now() const override;
  std::chrono::nanoseconds WallNow() const override;
  uint64_t RunAt(std::chrono::nanoseconds moment, std::function<void()> fn) override;
  bool Cancel(uint64_t timer) override;

 private:
  class Timers;
  const std::shared_ptr<Timers> timers_;
};

// A clock that stands still until it is turned. Timers run within Advance, in the order of their
// moments, those of one moment in the order in which they were set, with Now() at that moment.
class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(std::chrono::nanoseconds now = std::chrono::hours(1),
                        std::chrono::nanoseconds wall = std::chrono::seconds(1'700'000'000));
  ~VirtualClock() override;

  std::chrono::nanoseconds Now() const override {
    return std::chrono::nanoseconds(now_ns_.load(std::memory_order_acquire));
  }
  std::chrono::nanoseconds WallNow() const override;
  uint64_t RunAt(std::chrono::nanoseconds moment, std::function<void()> fn) override;
  bool Cancel(uint64_t timer) override;

  // Moves on by that much, and runs what falls due on the way, also what is set meanwhile. A timer
  // may turn the clock itself, as work does that takes time.
  void Advance(std::chrono::nanoseconds by);

  // Moves on to the next timer's moment and runs what is due then. False: there is no timer.
  bool AdvanceToNext();

  // Timers that are set.
  size_t timers() const;

 private:
  struct State;
  void RunUntil(int64_t grant_time_ns);

  // Moves forward only. Release and acquire: who sees a moment sees what was done before it came.
  std::atomic<int64_t> now_ns_;
  const int64_t wall_offset_ns_;
  const std::unique_ptr<State> state_;
};

}  // namespace sluice

#endif  // SLUICE_CLOCK_H_
