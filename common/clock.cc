#include "common/clock.h"

#include <time.h>

namespace sluice::common {
namespace {

int64_t Read(clockid_t id) {
  timespec ts;
  clock_gettime(id, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace

int64_t WallAtNs(const Clock& clock, int64_t now_ns) {
  // Callers take a difference of a millisecond for a clock that was set.
  constexpr int64_t kTogetherNs = 100'000;
  for (int tries = 8;; --tries) {
    const int64_t before_ns = clock.NowNs();
    const int64_t wall_ns = clock.WallNs();
    const int64_t took_ns = clock.NowNs() - before_ns;
    if (tries == 0 || took_ns < kTogetherNs) return wall_ns + now_ns - (before_ns + took_ns / 2);
  }
}

int64_t SystemClock::NowNs() const { return Read(CLOCK_BOOTTIME); }
int64_t SystemClock::WallNs() const { return Read(CLOCK_REALTIME); }

}  // namespace sluice::common
