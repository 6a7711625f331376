// DeadlineTimer: calls a function when the earliest of the deadlines that it awaits has passed.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_DEADLINE_TIMER_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_DEADLINE_TIMER_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "common/clock.h"
#include "common/net/event_loop.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Belongs to its loop.
class DeadlineTimer {
 public:
  // `clock`: of the deadlines; the loop's own may differ. `on_passed` gets its time, answers what
  // is late, and awaits the deadlines that are left.
  DeadlineTimer(net::EventLoop& loop, const common::Clock& clock,
                absl::AnyInvocable<void(int64_t now_ns)> on_passed)
      : loop_(loop), clock_(clock), on_passed_(std::move(on_passed)) {}

  void Await(int64_t deadline_ns) {
    if (deadline_ns >= next_ns_) return;
    next_ns_ = deadline_ns;
    Arm();
  }

 private:
  void Arm() {
    if (next_ns_ == kNoDeadline) return;
    const int64_t left_ns = std::max<int64_t>(next_ns_ - clock_.NowNs(), 0);
    if (left_ns >= net::TimerWheel::kNever - loop_.now_ns()) return;
    const int64_t at_ns = loop_.now_ns() + left_ns;
    if (timer_.armed() && armed_for_ns_ <= at_ns) return;
    armed_for_ns_ = at_ns;
    loop_.Arm(timer_, at_ns);
  }
  void OnTimer() {
    const int64_t now_ns = clock_.NowNs();
    if (now_ns > next_ns_) {
      next_ns_ = kNoDeadline;
      on_passed_(now_ns);
    }
    Arm();
  }

  net::EventLoop& loop_;
  const common::Clock& clock_;
  absl::AnyInvocable<void(int64_t now_ns)> on_passed_;
  int64_t next_ns_ = kNoDeadline;
  int64_t armed_for_ns_ = 0;  // on the loop's clock
  net::Timer timer_{net::Timer::To<&DeadlineTimer::OnTimer>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_DEADLINE_TIMER_H_
