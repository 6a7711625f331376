#include "common/net/timer_wheel.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sluice::net {

TimerWheel::~TimerWheel() {
  const auto forget = [](Timer* timer) {
    while (timer != nullptr) {
      Timer* const next = timer->next_;
      timer->wheel_ = nullptr;
      timer = next;
    }
  };
  for (Timer* timer : slots_) forget(timer);
  forget(moving_);
}

void TimerWheel::Arm(Timer& timer, int64_t at_ns) {
  timer.Cancel();
  // Rounded up. Within Advance: after the tick to which it advances, so that a timer that re-arms
  // itself does not keep Advance running.
  const int64_t tick = (at_ns >> kTickBits) + ((at_ns & (kTickNs - 1)) != 0 ? 1 : 0);
  timer.tick_ = std::max(tick, (advancing_ ? target_tick_ : now_tick_) + 1);
  timer.wheel_ = this;
  ++size_;
  Insert(timer);
}

void TimerWheel::Cancel(Timer& timer) {
  if (timer.wheel_ != this) return;
  Unlink(timer);
  timer.wheel_ = nullptr;
  --size_;
}

void TimerWheel::Insert(Timer& timer) {
  const uint64_t differs = static_cast<uint64_t>(timer.tick_ ^ now_tick_);
  const int level = differs == 0 ? 0 : (63 - std::countl_zero(differs)) / kSlotBits;
  const uint32_t digit = (timer.tick_ >> (level * kSlotBits)) & (kSlots - 1);
  timer.slot_ = level * kSlots + digit;
  Timer*& head = slots_[timer.slot_];
  int64_t& earliest = earliest_tick_[timer.slot_];
  if (head == nullptr) {
    occupied_[level] |= uint64_t{1} << digit;
    earliest = timer.tick_;
  } else {
    head->previous_ = &timer.next_;
    earliest = std::min(earliest, timer.tick_);
  }
  timer.next_ = head;
  timer.previous_ = &head;
  head = &timer;
}

void TimerWheel::Unlink(Timer& timer) {
  *timer.previous_ = timer.next_;
  if (timer.next_ != nullptr) timer.next_->previous_ = timer.previous_;
  // A timer of the list that is being fired or moved has left its slot; then this has no effect, as
  // the bit of an empty slot is already clear.
  if (slots_[timer.slot_] == nullptr) {
    occupied_[timer.slot_ / kSlots] &= ~(uint64_t{1} << (timer.slot_ % kSlots));
  }
}

size_t TimerWheel::Advance(int64_t now_ns, size_t most) {
  const int64_t target = now_ns >> kTickBits;
  if (target < now_tick_) return 0;
  advancing_ = true;
  target_tick_ = target;
  size_t fired = 0;
  size_t left_to_move = most;
  for (;;) {
    if (!MoveDown(&left_to_move)) {
      advancing_ = false;
      return fired;
    }
    int level = 0;
    while (level < kLevels && occupied_[level] == 0) ++level;
    if (level == kLevels) break;
    const int shift = level * kSlotBits;
    const int digit = std::countr_zero(occupied_[level]);
    const int64_t above = now_tick_ >> (shift + kSlotBits) << (shift + kSlotBits);
    const int64_t start = above | (int64_t{digit} << shift);
    if (start > target) break;
    now_tick_ = start;
    Timer*& head = slots_[level * kSlots + digit];
    Timer* timer = head;
    head = nullptr;
    occupied_[level] &= ~(uint64_t{1} << digit);
    if (level > 0) {
      moving_ = timer;
      timer->previous_ = &moving_;
      continue;
    }
    firing_ = timer;
    timer->previous_ = &firing_;
    while (firing_ != nullptr && fired < most) {
      Timer& due = *firing_;
      Unlink(due);
      due.wheel_ = nullptr;
      --size_;
      ++fired;
      due.callback_(due.context_);  // may destroy `due`, arm and cancel others
    }
    if (firing_ != nullptr) {
      // The slot is empty: timers that were armed meanwhile are due after `target`.
      head = std::exchange(firing_, nullptr);
      head->previous_ = &head;
      occupied_[0] |= uint64_t{1} << digit;
      advancing_ = false;
      return fired;
    }
  }
  now_tick_ = target;
  advancing_ = false;
  return fired;
}

bool TimerWheel::MoveDown(size_t* most) {
  for (; moving_ != nullptr && *most > 0; --*most) {
    Timer& timer = *moving_;
    moving_ = timer.next_;
    Insert(timer);
  }
  if (moving_ != nullptr) moving_->previous_ = &moving_;
  return moving_ == nullptr;
}

int64_t TimerWheel::NextNs() const {
  if (moving_ != nullptr) return now_tick_ << kTickBits;
  for (int level = 0; level < kLevels; ++level) {
    if (occupied_[level] == 0) continue;
    const int64_t tick = earliest_tick_[level * kSlots + std::countr_zero(occupied_[level])];
    return tick > (kNever >> kTickBits) ? kNever : tick << kTickBits;
  }
  return kNever;
}

}  // namespace sluice::net
