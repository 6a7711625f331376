// LD_PRELOAD: the wall clock is wrong by the number of seconds in the file $WALL_OFFSET_FILE, which
// holds one 64-bit integer and is mapped, so that reading the clock stays cheap.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* offset;

__attribute__((constructor)) static void MapOffset(void) {
  const char* path = getenv("WALL_OFFSET_FILE");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (mapped != MAP_FAILED) offset = mapped;
  close(fd);
}

int clock_gettime(clockid_t id, struct timespec* ts) {
  const int result = (int)syscall(SYS_clock_gettime, id, ts);
  if (id == CLOCK_REALTIME && result == 0 && offset != NULL) ts->tv_sec += *offset;
  return result;
}
