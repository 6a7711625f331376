// Clock: the source of time, so that tests can control it.
#ifndef SLUICE_COMMON_CLOCK_H_
#define SLUICE_COMMON_CLOCK_H_

#include <atomic>
#include <cstdint>

namespace sluice::common {

// Thread-safe. Never blocks.
class Clock {
 public:
  virtual ~Clock() = default;

  // Nanoseconds of a clock that never steps back and keeps running while the machine sleeps. Its
  // zero is arbitrary. Never negative.
  virtual int64_t NowNs() const = 0;

  // Nanoseconds since 1970-01-01 UTC. May jump both ways. Only for fixed_window, which is aligned
  // to it, and for times that people read.
  virtual int64_t WallNs() const = 0;
};

// The wall clock at now_ns of NowNs(), which may have been read some time ago. A thread that loses
// the processor between the readings of the two clocks reads them again.
int64_t WallAtNs(const Clock& clock, int64_t now_ns);

// CLOCK_BOOTTIME and CLOCK_REALTIME. A reading costs about 30 ns: read once per batch.
class SystemClock final : public Clock {
 public:
  int64_t NowNs() const override;
  int64_t WallNs() const override;
};

// A clock that only Advance and the setters move. For tests, and for throttlers on virtual time.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t now_ns = 1'000'000'000, int64_t wall_ns = 1'700'000'000'000'000'000)
      : now_ns_(now_ns), wall_ns_(wall_ns) {}

  int64_t NowNs() const override { return now_ns_.load(std::memory_order_acquire); }
  int64_t WallNs() const override { return wall_ns_.load(std::memory_order_acquire); }

  // Moves both clocks. REQUIRES: by_ns >= 0.
  void Advance(int64_t by_ns) {
    now_ns_.fetch_add(by_ns, std::memory_order_acq_rel);
    wall_ns_.fetch_add(by_ns, std::memory_order_acq_rel);
  }
  // Set one clock, forward or back.
  void SetNow(int64_t now_ns) { now_ns_.store(now_ns, std::memory_order_release); }
  void SetWall(int64_t wall_ns) { wall_ns_.store(wall_ns, std::memory_order_release); }

 private:
  std::atomic<int64_t> now_ns_;
  std::atomic<int64_t> wall_ns_;
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_CLOCK_H_
