// Budget: how much of something a peer may do, refilled with time.
//
// What HTTP/2 leaves unlimited (pings, empty frames, resets, ...) is cheap to send and not free to
// handle. Each such kind has a budget per connection: honest peers never notice it, a flood spends
// it in milliseconds and loses its connection (ENHANCE_YOUR_CALM).
//
// Not thread-safe; belongs to its connection.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP2_BUDGET_H_
#define SLUICE_SERVER_TRANSPORT_HTTP2_BUDGET_H_

#include <algorithm>
#include <cstdint>

namespace sluice::transport {

class Budget {
 public:
  // Holds at most `burst`, starts full, and gains one each `refill_ns`.
  constexpr Budget(int32_t burst, int64_t refill_ns)
      : left_(burst), burst_(burst), refill_ns_(refill_ns) {}

  // Takes `count`; false when that was more than was left. `now_ns` does not run backwards. What
  // time refilled is counted when the budget is spent, so that the common case reads no clock: a
  // peer that was quiet for long has up to twice the burst.
  bool Spend(int32_t count, int64_t now_ns) {
    left_ -= count;
    if (left_ >= 0) return true;
    // Time is looked at only when the budget seems spent.
    if (refilled_ns_ == 0) refilled_ns_ = started_ns_;
    const int64_t gained = (now_ns - refilled_ns_) / refill_ns_;
    if (gained > 0) {
      refilled_ns_ += gained * refill_ns_;
      left_ = static_cast<int32_t>(std::min<int64_t>(burst_, left_ + gained));
    }
    return left_ >= 0;
  }

  // Gives back `count`: what the peer earned by doing something useful.
  void Earn(int32_t count) { left_ = std::min(burst_, left_ + count); }
  void Fill() { left_ = burst_; }

  // When the connection began: the time from which refilling counts.
  void Start(int64_t now_ns) { started_ns_ = now_ns; }

 private:
  int32_t left_;
  int32_t burst_;
  int64_t refill_ns_;
  int64_t started_ns_ = 0;
  int64_t refilled_ns_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_HTTP2_BUDGET_H_
