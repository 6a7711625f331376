// ExtentAllocator: allocates tables of more than a kilobyte.
//
// Tables have few sizes, and as a store grows all its shards go from one size to the next at about
// the same time. Slabs of one size would each be kept by the few shards that come last. Here tables
// of all sizes share chunks of 2 MiB, cut into granules of 512 bytes: the room of several small
// tables becomes room for a larger one. The first fit from the oldest chunk on is used, so that the
// newest chunks become empty; an empty chunk is returned to the operating system.
#ifndef SLUICE_SERVER_STORE_MEMORY_EXTENTS_H_
#define SLUICE_SERVER_STORE_MEMORY_EXTENTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/mutex.h"
#include "server/store/memory/pages.h"

namespace sluice::store::memory {

// Thread-safe; a mutex is held for a search of microseconds. Tables are made rarely.
// REQUIRES: what was allocated is not used after it is destroyed.
class ExtentAllocator {
 public:
  ExtentAllocator() = default;
  ~ExtentAllocator();
  ExtentAllocator(const ExtentAllocator&) = delete;
  ExtentAllocator& operator=(const ExtentAllocator&) = delete;

  // Uninitialized, aligned to 512. REQUIRES: bytes > 0.
  void* Allocate(size_t bytes);
  // `bytes` as it was allocated.
  void Free(void* object, size_t bytes);

  // Moves a chunk that is nearly full to a huge page. Returns false if it found none. Not for event
  // loops: see CollapseChunk.
  bool Collapse();

  // What is mapped.
  uint64_t memory_bytes() const { return mapped_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kGranuleBytes = 512;
  static constexpr size_t kGranules = kChunkBytes / kGranuleBytes;
  // Larger tables have a mapping of their own.
  static constexpr size_t kMaxShared = kChunkBytes / 4;
  // A small store should not take 2 MiB where it needs 64 KiB: with fewer chunks pages stay small.
  static constexpr size_t kHugeFromChunks = 4;
  // Of a chunk that is nearly full: granules that are free at most.
  static constexpr size_t kNearlyFull = kGranules / 8;

  // At the start of each chunk.
  struct Chunk {
    uint64_t used[kGranules / 64];
    size_t free;         // granules
    size_t longest_run;  // of free granules, at most
    bool collapsed;
    bool pinned;  // Collapse uses it: it must stay mapped
  };
  static constexpr size_t kHeaderGranules = (sizeof(Chunk) + kGranuleBytes - 1) / kGranuleBytes;

  // Index of the first of `granules` free ones, or kGranules.
  static size_t FindRun(const Chunk& chunk, size_t granules);
  // Takes the chunk out of the list if it is empty and not pinned. Returns whether it is to be
  // unmapped.
  bool RemoveIfUnused(Chunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unmap(Chunk* chunk);
  static void Mark(Chunk* chunk, size_t first, size_t granules, bool used);
  static size_t Granules(size_t bytes) { return (bytes + kGranuleBytes - 1) / kGranuleBytes; }

  std::atomic<uint64_t> mapped_bytes_{0};
  common::Mutex mu_;
  std::vector<Chunk*> chunks_ ABSL_GUARDED_BY(mu_);
  size_t collapse_next_ ABSL_GUARDED_BY(mu_) = 0;  // the next for Collapse to look at
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_EXTENTS_H_
