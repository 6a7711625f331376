// Memory from the operating system, in chunks of 2 MiB that a huge page can back.
#ifndef SLUICE_SERVER_STORE_MEMORY_PAGES_H_
#define SLUICE_SERVER_STORE_MEMORY_PAGES_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sluice::store::memory {

inline constexpr size_t kChunkBytes = size_t{2} << 20;

// Returns zeroed memory, aligned to kChunkBytes, in small pages: the first touch of a huge page
// clears 2 MiB, and the system may move other pages to make room, which takes milliseconds. Ends
// the process, as operator new does, if there is no memory. `bytes` is a multiple of 4096. Leak
// detectors look for pointers in this memory.
char* MapChunks(size_t bytes);
void UnmapChunks(char* base, size_t bytes);

// Moves a chunk that is in use to a huge page, if the system has one: a store of millions of
// buckets is read at random, and with small pages every access misses the TLB too. Takes about a
// millisecond, in which other threads that touch the chunk may wait. Not for event loops.
void CollapseChunk(char* base);

// The next chunk that may be moved, of those that a call looks at: a few of `chunks` from *next on,
// which it moves on. Null: none may.
template <typename Chunk, typename May>
Chunk* NextToCollapse(const std::vector<Chunk*>& chunks, size_t* next, May may) {
  constexpr size_t kLooks = 64;
  for (size_t i = std::min(kLooks, chunks.size()); i > 0; --i) {
    if (*next >= chunks.size()) *next = 0;
    Chunk* const chunk = chunks[(*next)++];
    if (may(*chunk)) return chunk;
  }
  return nullptr;
}

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_PAGES_H_
