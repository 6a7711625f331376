// The memory that this process may use, as the kernel limits it, and that it takes.
#ifndef SLUICE_COMMON_MEMORY_LIMIT_H_
#define SLUICE_COMMON_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace sluice::common {

// Bytes: the least of the machine's memory and the limits of the process's cgroup (v1 or v2) and of
// those around it. Reads /proc and /sys below `root` (blocking); tests have a folder of their own.
int64_t MachineMemory(const std::string& root = "");

// Bytes of this process that are in memory (blocking: reads /proc); 0: not known.
int64_t ResidentBytes();

}  // namespace sluice::common

#endif  // SLUICE_COMMON_MEMORY_LIMIT_H_
