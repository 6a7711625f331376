// LD_PRELOAD: the wall clock is wrong by the number of seconds in the file $WALL_OFFSET_FILE, which
// holds one 64-bit integer. Overrides what redis-server reads the time by.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace {

const volatile int64_t* offset_s = nullptr;

__attribute__((constructor)) void MapOffset() {
  const char* const path = std::getenv("WALL_OFFSET_FILE");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* const mapped = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) offset_s = static_cast<const volatile int64_t*>(mapped);
  close(fd);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t id, struct timespec* ts) {
  const long result = syscall(SYS_clock_gettime, id, ts);
  if (id == CLOCK_REALTIME && result == 0 && offset_s != nullptr) ts->tv_sec += *offset_s;
  return static_cast<int>(result);
}

int gettimeofday(struct timeval* tv, void*) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  *tv = {ts.tv_sec, ts.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* out) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  if (out != nullptr) *out = ts.tv_sec;
  return ts.tv_sec;
}

}  // extern "C"
