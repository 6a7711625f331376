// ConcurrencyWindow: how many commands one loop may have in flight at one server.
//
// A server answers in order. What is sent beyond what keeps it busy only waits there, in front of
// what others send, and when that wait grows to the breaker's budget a server that is merely asked
// for too much would be taken for one that is away. So the window is narrowed when answers take
// longer than they do anyway and three fifths of what the budget has beyond that, and widened while
// somebody waits for room: by a quarter for each round trip at first, later by one, as TCP does it
// (slow start and congestion avoidance: Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988;
// the delay as the signal: Brakmo and Peterson, "TCP Vegas", 1995). Loops and nodes that share a
// server come to a share each (additive increase, multiplicative decrease: Chiu and Jain, 1989).
//
// How long answers take anyway is at first the way there and back that the kernel knows of, not the
// fastest answer: who came while the server was asked for too much never saw a fast one, and would
// take more than his share. When they are late though the window is at its least, that is not of
// its making (Redis syncs its file before it answers, or has others' slow commands between), and
// they count as taking so long.
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
  // `most` in flight, however fast the server is; one or more.
  ConcurrencyWindow(int64_t budget_ns, size_t most)
      : budget_ns_(budget_ns), most_(static_cast<double>(std::max<size_t>(most, 1))) {
    Reset(0);
  }

  // Commands; from 1 to `most`.
  size_t size() const { return static_cast<size_t>(size_); }

  // Another connection, perhaps to another server, to which the way there and back takes
  // round_trip_ns.
  void Reset(int64_t round_trip_ns) {
    // Many loops may begin at once, and a few round trips are soon over.
    size_ = 1;
    slow_start_until_ = most_;
    anyway_ns_ = std::min(round_trip_ns, MostAnyway());
    narrowed_ns_ = std::numeric_limits<int64_t>::min();
  }

  // A command that was sent at sent_ns was answered took_ns later. `wanted`: somebody waits for
  // room.
  void OnAnswer(int64_t sent_ns, int64_t took_ns, bool wanted) {
    // Not by one that happened to be fast.
    if (took_ns < anyway_ns_) anyway_ns_ -= (anyway_ns_ - took_ns) / 16;
    if (took_ns > LateNs()) {
      // Those that were sent before it was narrowed are late for the reason that is known already.
      if (sent_ns < narrowed_ns_) return;
      narrowed_ns_ = sent_ns + took_ns;
      if (size_ <= 1) {
        anyway_ns_ = std::min(took_ns, MostAnyway());
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
  // For each answer: a quarter more for each round trip, since when answers are late there is less
  // than half of the budget left.
  static constexpr double kSlowStart = 0.25;
  // From then on an answer is late.
  int64_t LateNs() const { return anyway_ns_ + (budget_ns_ - anyway_ns_) * 3 / 5; }
  // So that what is called late is still within the budget.
  int64_t MostAnyway() const { return budget_ns_ / 4 * 3; }

  const int64_t budget_ns_;
  const double most_;
  double size_ = 0;
  double slow_start_until_ = 0;
  int64_t anyway_ns_ = 0;
  int64_t narrowed_ns_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CONCURRENCY_WINDOW_H_
