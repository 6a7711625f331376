// Budget: how many events of one kind a peer may cause. It refills with time.
//
// HTTP/2 leaves pings, empty frames, resets and others unlimited. They are cheap to send and not
// free to handle. Each kind has a budget per connection: honest peers stay within it, a flood
// spends it in milliseconds and loses its connection (ENHANCE_YOUR_CALM).
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

  // Takes `count`. Returns false if that was more than was left. `now_ns` must not run backwards.
  // The refill is computed only when the budget seems spent, so a peer that was quiet for long has
  // up to twice the burst.
  bool Spend(int32_t count, int64_t now_ns) {
    left_ -= count;
    if (left_ >= 0) return true;
    if (refilled_ns_ == 0) refilled_ns_ = started_ns_;
    const int64_t gained = (now_ns - refilled_ns_) / refill_ns_;
    if (gained > 0) {
      refilled_ns_ += gained * refill_ns_;
      left_ = static_cast<int32_t>(std::min<int64_t>(burst_, left_ + gained));
    }
    return left_ >= 0;
  }

  // Gives back `count`, for something useful that the peer did.
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
