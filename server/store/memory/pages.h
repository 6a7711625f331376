// Memory from the operating system, in chunks of 2 MiB that a huge page can back.
#ifndef SLUICE_SERVER_STORE_MEMORY_PAGES_H_
#define SLUICE_SERVER_STORE_MEMORY_PAGES_H_

#include <cstddef>

namespace sluice::store::memory {

inline constexpr size_t kChunkBytes = size_t{2} << 20;

// Returns zeroed memory, aligned to kChunkBytes. `huge` asks for huge pages, which the system may
// refuse: a store of millions of buckets is read at random, and with small pages every access
// misses the TLB too; a small store should not take 2 MiB if it needs 64 KiB. Ends the process, as
// operator new does, if there is no memory. `bytes` is a multiple of 4096. Leak detectors look for
// pointers in this memory.
char* MapChunks(size_t bytes, bool huge);
void UnmapChunks(char* base, size_t bytes);

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_PAGES_H_
