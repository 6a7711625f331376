// SlabAllocator: allocates a store's records and small tables, by size.
//
// Objects of one size share slabs of 64 KiB. A slab is aligned to its size, so an object finds its
// slab by masking its address, and has no header of its own. Slabs that become empty are returned
// to the operating system (one of each size is kept until Trim), so that a store does not stay as
// big as it once was. Objects whose owner can move them leave slabs that are mostly empty
// (Vacates).
#ifndef SLUICE_SERVER_STORE_MEMORY_SLAB_H_
#define SLUICE_SERVER_STORE_MEMORY_SLAB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "server/store/memory/pages.h"

namespace sluice::store::memory {

// Thread-safe. Blocks only for a mutex that is held for a few instructions, or a system call once
// per slab. REQUIRES: all objects are freed before it is destroyed, or never used again.
class SlabAllocator {
 public:
  // Threads that allocate from different arenas do not wait for each other.
  static constexpr size_t kArenas = 8;

  SlabAllocator();
  ~SlabAllocator();
  SlabAllocator(const SlabAllocator&) = delete;
  SlabAllocator& operator=(const SlabAllocator&) = delete;

  static constexpr size_t kMaxBytes = 1024;

  // Uninitialized memory, aligned to 8, or to 64 where `bytes` is a multiple of 64.
  // REQUIRES: 0 < bytes <= kMaxBytes.
  void* Allocate(size_t arena, size_t bytes);
  // `bytes` as it was allocated.
  void Free(void* object, size_t bytes);

  // Whether the object should be moved: most objects of its slab were freed, and there is room for
  // the others in slabs of their size. Nothing is put into the slab any more.
  bool Vacates(const void* object);
  // Whether Allocate needs no memory that was not used before, unless another thread is faster.
  bool HasFree(size_t arena, size_t bytes);

  // Gives back the slabs that were kept although they are empty.
  void Trim();

  // Moves a chunk without a free slab to a huge page. Returns false if it found none. Not for event
  // loops: see CollapseChunk.
  bool Collapse();

  // What is mapped for slabs in use.
  uint64_t memory_bytes() const { return mapped_bytes_.load(std::memory_order_relaxed); }
  // What of these was ever used, so that the system has given memory for it.
  uint64_t touched_bytes() const;

 private:
  static constexpr size_t kSlabBytes = size_t{64} << 10;
  static constexpr size_t kSlabsPerChunk = kChunkBytes / kSlabBytes;
  static constexpr size_t kClasses = kMaxBytes / 8 + 1;
  // A small store should not take 2 MiB where it needs 64 KiB: with fewer chunks pages stay small.
  static constexpr size_t kHugeFromChunks = 8;

  struct Chunk;

  // At the start of each slab.
  struct alignas(64) Slab {
    Slab* prev;
    Slab* next;
    Chunk* chunk;  // null: a slab of 2 MiB
    uint32_t arena;
    uint32_t object_class;
    uint32_t object_bytes;
    uint32_t capacity;  // objects
    uint32_t used;
    uint32_t touched;    // objects ever handed out; the memory after them was never written
    uint32_t free_head;  // index + 1 of the first free object among the touched ones; 0: none
    bool vacated;        // it is in no list
  };
  static_assert(sizeof(Slab) == 64);

  // 2 MiB that are cut into small slabs.
  struct Chunk {
    char* base;
    uint32_t free_mask;
    size_t index;            // in chunks_
    bool collapsed = false;  // and no slab was given back since
    bool pinned = false;     // Collapse uses it: it must stay mapped
  };

  struct Class {
    Slab* partial = nullptr;  // slabs with room, most recently freed into first
    Slab* spare = nullptr;    // one empty slab, kept
    size_t room = 0;          // objects for which the partial slabs have room
    size_t leaving = 0;       // objects in vacated slabs, which need room in others
  };

  struct alignas(64) Arena {
    common::Mutex mu;
    Class classes[kClasses] ABSL_GUARDED_BY(mu);
    std::atomic<uint64_t> touched_bytes{0};
  };

  static Slab* SlabOf(const void* object) {
    return reinterpret_cast<Slab*>(reinterpret_cast<uintptr_t>(object) &
                                   ~(uintptr_t{kSlabBytes} - 1));
  }
  // Takes the slab out of the list of those with room.
  static void Unlink(Class* of, Slab* slab);
  Slab* NewSlab(size_t arena, size_t object_class);
  void ReleaseSlab(Slab* slab);
  // Takes an empty chunk out of the lists. Returns what is to be unmapped.
  char* RemoveChunk(Chunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(chunks_mu_);

  std::unique_ptr<Arena[]> arenas_;
  std::atomic<uint64_t> mapped_bytes_{0};
  common::Mutex chunks_mu_;                                    // after an arena's
  std::vector<Chunk*> chunks_ ABSL_GUARDED_BY(chunks_mu_);     // all
  std::vector<Chunk*> with_free_ ABSL_GUARDED_BY(chunks_mu_);  // with a free slab
  size_t collapse_next_ ABSL_GUARDED_BY(chunks_mu_) = 0;       // the next for Collapse to look at
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_SLAB_H_
