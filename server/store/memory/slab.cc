#include "server/store/memory/slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace sluice::store::memory {
namespace {

// Aligned to its size. A refusal ends the process, as an allocation that fails anywhere else does:
// the store is bounded by max_buckets, not by what the system gives.
char* MapAligned(size_t bytes, size_t alignment) {
  const size_t padded = bytes + alignment;
  void* mapped = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (start + alignment - 1) & ~(uintptr_t{alignment} - 1);
  if (aligned != start) munmap(mapped, aligned - start);
  const uintptr_t end = start + padded;
  if (aligned + bytes != end)
    munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
  return reinterpret_cast<char*>(aligned);
}

constexpr size_t kPage = 4096;

size_t RoundToPages(size_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

}  // namespace

SlabAllocator::SlabAllocator() : arenas_(new Arena[kArenas]) {}

SlabAllocator::~SlabAllocator() {
  Trim();
  // Slabs with objects that nobody frees any more.
  for (size_t a = 0; a < kArenas; ++a) {
    common::MutexLock lock(&arenas_[a].mu);
    for (Class& c : arenas_[a].classes) {
      while (c.partial != nullptr) {
        Slab* slab = c.partial;
        c.partial = slab->next;
        ReleaseSlab(slab);
      }
    }
  }
  common::MutexLock lock(&chunks_mu_);
  for (Chunk* chunk : chunks_) {
    munmap(chunk->base, kChunkBytes);
    delete chunk;
  }
}

size_t SlabAllocator::ClassOf(size_t bytes) {
  if (bytes <= kMaxExactBytes) return (bytes + 7) / 8;
  const int log2 = 63 - __builtin_clzll(bytes);
  const size_t half = (bytes & (bytes - 1)) != 0 ? 1 : 0;
  return kExactClasses + 2 * static_cast<size_t>(log2 - 10) + half;
}

void* SlabAllocator::Allocate(size_t arena_index, size_t bytes) {
  if (bytes > kMaxLargeObject) {
    const size_t mapped = RoundToPages(bytes);
    char* base = MapAligned(mapped, mapped >= kChunkBytes ? kChunkBytes : kPage);
    if (mapped >= kChunkBytes) madvise(base, mapped, MADV_HUGEPAGE);
    mapped_bytes_.fetch_add(mapped, std::memory_order_relaxed);
    return base;
  }
  const size_t object_class = ClassOf(bytes);
  // Great objects are rare; in one arena they leave fewer great slabs half empty.
  arena_index = bytes > kMaxSmallObject ? 0 : arena_index % kArenas;
  Arena& arena = arenas_[arena_index];
  common::MutexLock lock(&arena.mu);
  Class& c = arena.classes[object_class];
  if (c.partial == nullptr) {
    if (c.spare != nullptr) {
      c.partial = c.spare;
      c.spare = nullptr;
    } else {
      const size_t rounded = bytes <= kMaxExactBytes ? object_class * 8 : bytes;
      c.partial = NewSlab(arena_index, object_class, rounded);
    }
  }
  Slab* slab = c.partial;
  char* objects = reinterpret_cast<char*>(slab) + sizeof(Slab);
  char* object;
  if (slab->free_head != 0) {
    object = objects + size_t{slab->free_head - 1} * slab->object_bytes;
    slab->free_head = *reinterpret_cast<uint32_t*>(object);
  } else {
    object = objects + size_t{slab->touched++} * slab->object_bytes;
  }
  if (++slab->used == slab->capacity) {
    c.partial = slab->next;
    if (c.partial != nullptr) c.partial->prev = nullptr;
    slab->next = nullptr;
  }
  return object;
}

void SlabAllocator::Free(void* object, size_t bytes) {
  if (bytes > kMaxLargeObject) {
    const size_t mapped = RoundToPages(bytes);
    munmap(object, mapped);
    mapped_bytes_.fetch_sub(mapped, std::memory_order_relaxed);
    return;
  }
  const uintptr_t mask = ~(uintptr_t{SlabBytes(bytes)} - 1);
  Slab* slab = reinterpret_cast<Slab*>(reinterpret_cast<uintptr_t>(object) & mask);
  Arena& arena = arenas_[slab->arena];
  Slab* release = nullptr;
  {
    common::MutexLock lock(&arena.mu);
    Class& c = arena.classes[slab->object_class];
    const size_t offset =
        static_cast<size_t>(static_cast<char*>(object) - reinterpret_cast<char*>(slab)) -
        sizeof(Slab);
    *static_cast<uint32_t*>(object) = slab->free_head;
    slab->free_head = static_cast<uint32_t>(offset / slab->object_bytes) + 1;
    if (slab->used-- == slab->capacity) {
      slab->prev = nullptr;
      slab->next = c.partial;
      if (c.partial != nullptr) c.partial->prev = slab;
      c.partial = slab;
    }
    if (slab->used == 0) {
      if (slab->prev != nullptr) slab->prev->next = slab->next;
      if (slab->next != nullptr) slab->next->prev = slab->prev;
      if (c.partial == slab) c.partial = slab->next;
      slab->prev = slab->next = nullptr;
      if (c.spare == nullptr) {
        c.spare = slab;
      } else {
        release = slab;
      }
    }
  }
  // The system call outside the lock: nobody else can find the slab any more.
  if (release != nullptr) ReleaseSlab(release);
}

void SlabAllocator::Trim() {
  for (size_t a = 0; a < kArenas; ++a) {
    for (size_t i = 0; i < kClasses; ++i) {
      Slab* spare;
      {
        common::MutexLock lock(&arenas_[a].mu);
        spare = arenas_[a].classes[i].spare;
        arenas_[a].classes[i].spare = nullptr;
      }
      if (spare != nullptr) ReleaseSlab(spare);
    }
  }
}

SlabAllocator::Slab* SlabAllocator::NewSlab(size_t arena, size_t object_class, size_t bytes) {
  const size_t slab_bytes = SlabBytes(bytes);
  Slab* slab;
  if (slab_bytes == kChunkBytes) {
    slab = reinterpret_cast<Slab*>(MapChunk());
    slab->chunk = nullptr;
  } else {
    common::MutexLock lock(&chunks_mu_);
    if (with_free_.empty()) {
      Chunk* chunk = new Chunk{MapChunk(), ~uint32_t{0}, chunks_.size()};
      static_assert(kSlabsPerChunk == 32);
      chunks_.push_back(chunk);
      with_free_.push_back(chunk);
    }
    Chunk* chunk = with_free_.back();
    const int index = __builtin_ctz(chunk->free_mask);
    chunk->free_mask &= chunk->free_mask - 1;
    if (chunk->free_mask == 0) with_free_.pop_back();
    slab = reinterpret_cast<Slab*>(chunk->base + static_cast<size_t>(index) * kSmallSlabBytes);
    slab->chunk = chunk;
  }
  mapped_bytes_.fetch_add(slab_bytes, std::memory_order_relaxed);
  slab->prev = slab->next = nullptr;
  slab->arena = static_cast<uint32_t>(arena);
  slab->object_class = static_cast<uint32_t>(object_class);
  slab->object_bytes = static_cast<uint32_t>(bytes);
  slab->capacity = static_cast<uint32_t>((slab_bytes - sizeof(Slab)) / bytes);
  slab->used = slab->touched = slab->free_head = 0;
  return slab;
}

void SlabAllocator::ReleaseSlab(Slab* slab) {
  Chunk* chunk = slab->chunk;
  if (chunk == nullptr) {
    mapped_bytes_.fetch_sub(kChunkBytes, std::memory_order_relaxed);
    UnmapChunk(reinterpret_cast<char*>(slab));
    return;
  }
  mapped_bytes_.fetch_sub(kSmallSlabBytes, std::memory_order_relaxed);
  madvise(slab, kSmallSlabBytes, MADV_DONTNEED);
  char* unmap = nullptr;
  {
    common::MutexLock lock(&chunks_mu_);
    const size_t index =
        static_cast<size_t>(reinterpret_cast<char*>(slab) - chunk->base) / kSmallSlabBytes;
    if (chunk->free_mask == 0) with_free_.push_back(chunk);
    chunk->free_mask |= uint32_t{1} << index;
    if (chunk->free_mask == ~uint32_t{0}) {
      with_free_.erase(std::find(with_free_.begin(), with_free_.end(), chunk));
      chunks_.back()->index = chunk->index;
      std::swap(chunks_[chunk->index], chunks_.back());
      chunks_.pop_back();
      unmap = chunk->base;
      delete chunk;
    }
  }
  if (unmap != nullptr) UnmapChunk(unmap);
}

char* SlabAllocator::MapChunk() {
  char* base = MapAligned(kChunkBytes, kChunkBytes);
  if (mapped_chunks_.fetch_add(1, std::memory_order_relaxed) >= kHugeFromChunks) {
    // Advice only: without it, or where the system refuses, pages are small.
    madvise(base, kChunkBytes, MADV_HUGEPAGE);
  }
  return base;
}

void SlabAllocator::UnmapChunk(char* base) {
  munmap(base, kChunkBytes);
  mapped_chunks_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace sluice::store::memory
