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

int64_t SystemClock::NowNs() const { return Read(CLOCK_BOOTTIME); }
int64_t SystemClock::WallNs() const { return Read(CLOCK_REALTIME); }

}  // namespace sluice::common
