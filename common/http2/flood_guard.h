// FloodGuard: the budgets of a connection for what is cheap to send and not free to handle.
//
// HTTP/2 leaves pings, empty frames, resets and others unlimited. Each kind has a budget: honest
// peers stay within it, a flood spends it in milliseconds and loses its connection
// (ENHANCE_YOUR_CALM).
#ifndef SLUICE_COMMON_HTTP2_FLOOD_GUARD_H_
#define SLUICE_COMMON_HTTP2_FLOOD_GUARD_H_

#include <algorithm>
#include <cstdint>

namespace sluice::http2 {

// How many events of one kind a peer may cause. It refills with time. Not thread-safe.
class Budget {
 public:
  // Holds at most `burst`, is full at `now_ns`, and gains one each `refill_ns`.
  Budget(int32_t burst, int64_t refill_ns, int64_t now_ns)
      : left_(burst), burst_(burst), refill_ns_(refill_ns), refilled_ns_(now_ns) {}

  // Takes `count`. Returns false if that was more than was left. `now_ns` must not run backwards.
  // The refill is computed only when the budget seems spent, so a peer that was quiet for long has
  // up to twice the burst.
  bool Spend(int32_t count, int64_t now_ns) {
    left_ -= count;
    if (left_ >= 0) return true;
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

 private:
  int32_t left_;
  int32_t burst_;
  int64_t refill_ns_;
  int64_t refilled_ns_;
};

// Each budget is far above the needs of honest peers. Not thread-safe; one per connection.
class FloodGuard {
 public:
  explicit FloodGuard(int64_t now_ns)
      : pings(10, 5 * kSecond, now_ns),
        settings(32, kSecond, now_ns),
        priorities(256, 100 * kMs, now_ns),
        resets(2000, 2 * kMs, now_ns),
        window_updates(512, 10 * kMs, now_ns),
        empty_data(128, 100 * kMs, now_ns),
        unknown(128, 100 * kMs, now_ns) {}

  // We sent HEADERS or DATA, which peers may answer with pings and window updates.
  void SentUseful() {
    pings.Fill();
    window_updates.Earn(kWindowUpdatesPerFrame);
  }
  // The peer opened a stream. Clients then enlarge its window: if calls are held for long,
  // thousands of these updates arrive before the first response.
  void StreamOpened() { window_updates.Earn(kWindowUpdatesPerFrame); }
  // A stream ended without a reset.
  void CallFinished() { resets.Earn(1); }

  // gRPC peers send one per bandwidth estimate, which follows our DATA (and fills the budget), and
  // keepalives, which are seconds apart.
  Budget pings;
  Budget settings;    // one, seldom a few more
  Budget priorities;  // browsers send a handful at the start; gRPC clients none
  // Few at once, compared with finished calls. Streams that the peer makes us reset count too,
  // and HEADERS that no stream takes.
  Budget resets;
  Budget window_updates;  // a few per DATA frame of ours
  // None, except that some peers send unknown frames on purpose (RFC 8701, GREASE).
  Budget empty_data;
  Budget unknown;

 private:
  static constexpr int64_t kMs = 1'000'000;
  static constexpr int64_t kSecond = 1'000 * kMs;
  static constexpr int32_t kWindowUpdatesPerFrame = 8;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_FLOOD_GUARD_H_
