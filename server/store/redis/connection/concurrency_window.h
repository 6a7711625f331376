// ConcurrencyWindow: how many commands one loop may have in flight at one server.
//
// A server answers in order. Commands beyond what keeps it busy only wait there, in front of other
// clients' commands; when that wait reaches the breaker's budget, an overloaded server would be
// taken for an unavailable one. So the window is narrowed when replies are late: when they take
// longer than the base round trip plus three fifths of the rest of the budget. It is widened while
// callers wait for room: by a quarter for each round trip at first, later by one, as TCP does it
// (slow start and congestion avoidance: Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988;
// delay as the signal: Brakmo and Peterson, "TCP Vegas", 1995). Loops and nodes that share a server
// converge to a fair share (additive increase, multiplicative decrease: Chiu and Jain, 1989).
//
// The base round trip is at first the kernel's estimate of the connection's round trip, not the
// fastest reply: a client that starts while the server is overloaded never sees a fast one, and
// would take more than its share. When replies are late although the window is at its minimum, the
// window is not the cause (Redis syncs its file before it answers, or runs slow commands of
// others), and their time becomes the base.
//
// Worked example: budget 20 ms, round trip 1 ms. A reply is late after 1 + (20 - 1) * 3/5 = 12.4
// ms.
//
// Not thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_CONCURRENCY_WINDOW_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_CONCURRENCY_WINDOW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace sluice::store::redis {

class ConcurrencyWindow {
 public:
  // At most `most` in flight, however fast the server is; one or more.
  ConcurrencyWindow(int64_t budget_ns, size_t most)
      : budget_ns_(budget_ns), most_(static_cast<double>(std::max<size_t>(most, 1))) {
    Reset(0);
  }

  // Commands; from 1 to `most`.
  size_t size() const { return static_cast<size_t>(size_); }

  // There is a new connection, perhaps to another server, with this round trip.
  void Reset(int64_t round_trip_ns) {
    // Many loops may start at once, and slow start needs only a few round trips.
    size_ = 1;
    slow_start_until_ = most_;
    base_ns_ = std::min(round_trip_ns, MaxBaseNs());
    narrowed_ns_ = std::numeric_limits<int64_t>::min();
  }

  // A command that was sent at sent_ns was answered took_ns later. `wanted`: callers wait for room.
  void OnAnswer(int64_t sent_ns, int64_t took_ns, bool wanted) {
    // Slowly, so that one fast reply does not lower it.
    if (took_ns < base_ns_) base_ns_ -= (base_ns_ - took_ns) / 16;
    if (took_ns > LateNs()) {
      // It was sent before the window was narrowed, which has taken its cause into account.
      if (sent_ns < narrowed_ns_) return;
      narrowed_ns_ = sent_ns + took_ns;
      if (size_ <= 1) {
        base_ns_ = std::min(took_ns, MaxBaseNs());
        slow_start_until_ = most_;
      } else {
        size_ = std::max(size_ * kNarrowed, 1.0);
        slow_start_until_ = size_;
      }
    } else if (wanted) {
      size_ = std::min(size_ + (size_ < slow_start_until_ ? kSlowStart : 1 / size_), most_);
    }
  }

 private:
  static constexpr double kNarrowed = 0.7;
  // For each reply, that is, a quarter more for each round trip: when a reply is late less than
  // half of the budget is left.
  static constexpr double kSlowStart = 0.25;
  // A reply that takes longer is late.
  int64_t LateNs() const { return base_ns_ + (budget_ns_ - base_ns_) * 3 / 5; }
  // Leaves room between the base and the budget.
  int64_t MaxBaseNs() const { return budget_ns_ / 4 * 3; }

  const int64_t budget_ns_;
  const double most_;
  double size_ = 0;
  double slow_start_until_ = 0;
  int64_t base_ns_ = 0;
  int64_t narrowed_ns_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CONCURRENCY_WINDOW_H_
