// LowerPriority: lets a thread of long background work give way to the event loops.
#ifndef SLUICE_COMMON_THREAD_PRIORITY_H_
#define SLUICE_COMMON_THREAD_PRIORITY_H_

#include <sys/resource.h>

namespace sluice::common {

// Gives the calling thread the lowest priority (nice 19), for good. On the core of an event loop,
// it then runs while the loop sleeps, and a loop that wakes does not wait for the end of its time
// slice, which takes milliseconds. It still gets about 1 % of a busy core.
inline void LowerPriority() {
  constexpr int kLowest = 19;
  // On Linux, 0 is the calling thread. Lowering needs no privilege; without it all works too.
  (void)setpriority(PRIO_PROCESS, 0, kLowest);
}

}  // namespace sluice::common

#endif  // SLUICE_COMMON_THREAD_PRIORITY_H_
