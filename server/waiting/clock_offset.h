// ClockOffset: how far the local clock is ahead of a store's clock.
#ifndef SLUICE_SERVER_WAITING_CLOCK_OFFSET_H_
#define SLUICE_SERVER_WAITING_CLOCK_OFFSET_H_

#include <algorithm>
#include <cstdint>
#include <utility>

namespace sluice::waiting {

// An answer that the store dated S and that arrived at local time L bounds the offset: it is at
// most L - S. The estimate is the least bound of the last one to two seconds. It is too large by
// the delay of the fastest answer, so a grant time converted with it is never early. Not
// thread-safe.
class ClockOffset {
 public:
  void Observe(int64_t local_ns, int64_t store_ns) {
    const int64_t offset_ns = local_ns - store_ns;
    if (!known_ || local_ns - since_ns_ >= 2 * kWindowNs) {
      current_ns_ = previous_ns_ = offset_ns;
    } else if (local_ns - since_ns_ < kWindowNs) {
      current_ns_ = std::min(current_ns_, offset_ns);
      return;
    } else {
      previous_ns_ = std::exchange(current_ns_, offset_ns);
    }
    known_ = true;
    since_ns_ = local_ns;
  }

  // Zero before the first answer.
  int64_t ns() const { return std::min(current_ns_, previous_ns_); }

 private:
  // Long enough for one fast answer, short compared to the drift of corrected clocks.
  static constexpr int64_t kWindowNs = 1'000'000'000;
  bool known_ = false;
  int64_t since_ns_ = 0;     // start of the current window
  int64_t current_ns_ = 0;   // least offset of the current window
  int64_t previous_ns_ = 0;  // least offset of the window before
};

}  // namespace sluice::waiting

#endif  // SLUICE_SERVER_WAITING_CLOCK_OFFSET_H_
