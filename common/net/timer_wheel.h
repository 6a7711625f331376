// TimerWheel: any number of timers, armed and cancelled in constant time without allocating.
//
// Time is divided into ticks of 65.536 us. There are 8 levels of 64 slots. A timer is at the level
// of the highest base-64 digit in which its tick differs from the wheel's, in the slot of its own
// digit there. So each timer of a level fires before each timer of a higher one, the next timer is
// in the first occupied slot of the lowest occupied level (two bit scans), and nothing wraps
// around. When the wheel reaches a slot of level 1 or more, the slot's timers move down; a timer
// moves at most 7 times. Thousands of timers may be in one slot, so they move in several steps, and
// none fires meanwhile. The wheel keeps the earliest tick of each slot, so an idle loop wakes for
// its next timer only, not to move timers. Only a cancelled timer can cause a needless wake-up.
//
// Timers are never early: a deadline is rounded up to a tick, now is rounded down. They are late by
// less than a tick, plus the caller's own delay.
#ifndef SLUICE_COMMON_NET_TIMER_WHEEL_H_
#define SLUICE_COMMON_NET_TIMER_WHEEL_H_

#include <cstddef>
#include <cstdint>
#include <limits>

namespace sluice::net {

class TimerWheel;

// One timer, part of its owner. Fires once per arming. Cancelled by its destructor.
class Timer {
 public:
  using Callback = void (*)(void* context);

  Timer(Callback callback, void* context) : callback_(callback), context_(context) {}
  ~Timer() { Cancel(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // A callback that calls a method: Timer timer{Timer::To<&Owner::OnTimeout>, this}.
  template <auto kMethod>
  static void To(void* context) {
    Invoke(context, kMethod);
  }

  bool armed() const { return wheel_ != nullptr; }
  // No effect unless armed. May be called from any timer's callback.
  inline void Cancel();

 private:
  friend class TimerWheel;

  template <typename T>
  static void Invoke(void* context, void (T::*method)()) {
    (static_cast<T*>(context)->*method)();
  }

  const Callback callback_;
  void* const context_;
  TimerWheel* wheel_ = nullptr;  // where it is armed
  Timer* next_ = nullptr;
  Timer** previous_ = nullptr;  // the pointer that points here
  int64_t tick_ = 0;
  uint32_t slot_ = 0;  // level * kSlots + digit
};

// Not thread-safe. Outlives the timers armed on it, or is destroyed after they are cancelled.
class TimerWheel {
 public:
  static constexpr int kTickBits = 16;
  static constexpr int64_t kTickNs = int64_t{1} << kTickBits;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  explicit TimerWheel(int64_t now_ns) : now_tick_(now_ns >> kTickBits) {}
  ~TimerWheel();
  TimerWheel(const TimerWheel&) = delete;
  TimerWheel& operator=(const TimerWheel&) = delete;

  // Arms `timer` for at_ns; re-arms it if it is armed. A timer for the past fires with the next
  // tick. A timer armed by a callback never fires in the same Advance.
  void Arm(Timer& timer, int64_t at_ns);
  void Cancel(Timer& timer);

  // Fires the timers due at now_ns, at most `most`, in the order of their ticks, and moves at most
  // `most` to other slots. Returns how many fired; if some are left to fire or to move, NextNs is
  // before now_ns. If time steps back, nothing happens. REQUIRES: not called from a callback;
  // `most` is not 0.
  size_t Advance(int64_t now_ns, size_t most = std::numeric_limits<size_t>::max());

  // The time from which Advance has a timer to fire; kNever if none is armed. After the earliest
  // timer was cancelled it may be too early, once per slot.
  int64_t NextNs() const;

  size_t size() const { return size_; }

 private:
  static constexpr int kLevels = 8;  // 48 bits of ticks: all of 63 bits of nanoseconds
  static constexpr int kSlotBits = 6;
  static constexpr uint32_t kSlots = 1 << kSlotBits;

  void Insert(Timer& timer);
  void Unlink(Timer& timer);
  // Continues to move the timers of a slot down, at most *most, and lowers that. Returns whether
  // all were moved.
  bool MoveDown(size_t* most);

  int64_t now_tick_;
  // While Advance runs: its target. Else now_tick_ counts.
  int64_t target_tick_ = 0;
  bool advancing_ = false;
  size_t size_ = 0;
  uint64_t occupied_[kLevels] = {};  // a bit per slot
  Timer* slots_[kLevels * kSlots] = {};
  int64_t earliest_tick_[kLevels * kSlots] = {};  // meaningful where occupied
  Timer* firing_ = nullptr;
  Timer* moving_ = nullptr;  // of a slot that the wheel has reached
};

inline void Timer::Cancel() {
  if (wheel_ != nullptr) wheel_->Cancel(*this);
}

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_TIMER_WHEEL_H_
