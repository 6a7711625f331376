#include "server/store/memory/slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace sluice::store::memory {

SlabAllocator::SlabAllocator() : arenas_(new Arena[kArenas]) {}

SlabAllocator::~SlabAllocator() {
  Trim();
  // Slabs whose objects were not freed.
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
    UnmapChunks(chunk->base, kChunkBytes);
    delete chunk;
  }
}

void* SlabAllocator::Allocate(size_t arena_index, size_t bytes) {
  const size_t object_class = (bytes + 7) / 8;
  arena_index %= kArenas;
  Arena& arena = arenas_[arena_index];
  common::MutexLock lock(&arena.mu);
  Class& c = arena.classes[object_class];
  if (c.partial == nullptr) {
    c.partial =
        c.spare != nullptr ? std::exchange(c.spare, nullptr) : NewSlab(arena_index, object_class);
    c.room += c.partial->capacity;
  }
  Slab* slab = c.partial;
  char* objects = reinterpret_cast<char*>(slab) + sizeof(Slab);
  char* object;
  if (slab->free_head != 0) {
    object = objects + size_t{slab->free_head - 1} * slab->object_bytes;
    slab->free_head = *reinterpret_cast<uint32_t*>(object);
  } else {
    object = objects + size_t{slab->touched++} * slab->object_bytes;
    arena.touched_bytes.fetch_add(slab->object_bytes, std::memory_order_relaxed);
  }
  --c.room;
  if (++slab->used == slab->capacity) Unlink(&c, slab);
  return object;
}

void SlabAllocator::Unlink(Class* of, Slab* slab) {
  if (slab->prev != nullptr) slab->prev->next = slab->next;
  if (slab->next != nullptr) slab->next->prev = slab->prev;
  if (of->partial == slab) of->partial = slab->next;
  slab->prev = slab->next = nullptr;
}

void SlabAllocator::Free(void* object, size_t bytes) {
  Slab* slab = SlabOf(object);
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
      slab->next = c.partial;
      if (c.partial != nullptr) c.partial->prev = slab;
      c.partial = slab;
    }
    if (slab->vacated) {
      --c.leaving;
      if (slab->used == 0) release = slab;
    } else {
      ++c.room;
      if (slab->used == 0) {
        Unlink(&c, slab);
        c.room -= slab->capacity;
        (c.spare == nullptr ? c.spare : release) = slab;
      }
    }
  }
  // The system call is outside the lock: no other thread can find the slab any more.
  if (release != nullptr) ReleaseSlab(release);
}

bool SlabAllocator::Vacates(const void* object) {
  constexpr uint32_t kMostlyEmpty = 2;
  Slab* const slab = SlabOf(object);
  Arena& arena = arenas_[slab->arena];
  common::MutexLock lock(&arena.mu);
  Class& c = arena.classes[slab->object_class];
  if (slab->vacated) return true;
  const size_t room = slab->capacity - slab->used;
  if (slab->used >= slab->capacity / kMostlyEmpty || c.room - room < slab->used + c.leaving) {
    return false;
  }
  Unlink(&c, slab);
  c.room -= room;
  c.leaving += slab->used;
  return slab->vacated = true;
}

bool SlabAllocator::HasFree(size_t arena_index, size_t bytes) {
  Arena& arena = arenas_[arena_index % kArenas];
  common::MutexLock lock(&arena.mu);
  const Class& c = arena.classes[(bytes + 7) / 8];
  const Slab* const next = c.partial != nullptr ? c.partial : c.spare;
  return next != nullptr && next->free_head != 0;
}

uint64_t SlabAllocator::touched_bytes() const {
  uint64_t bytes = 0;
  for (size_t a = 0; a < kArenas; ++a) {
    bytes += arenas_[a].touched_bytes.load(std::memory_order_relaxed);
  }
  return bytes;
}

void SlabAllocator::Trim() {
  for (size_t a = 0; a < kArenas; ++a) {
    for (size_t i = 0; i < kClasses; ++i) {
      Slab* spare;
      {
        common::MutexLock lock(&arenas_[a].mu);
        spare = std::exchange(arenas_[a].classes[i].spare, nullptr);
      }
      if (spare != nullptr) ReleaseSlab(spare);
    }
  }
}

SlabAllocator::Slab* SlabAllocator::NewSlab(size_t arena, size_t object_class) {
  Slab* slab;
  {
    common::MutexLock lock(&chunks_mu_);
    if (with_free_.empty()) {
      static_assert(kSlabsPerChunk == 32);
      chunks_.push_back(new Chunk{MapChunks(kChunkBytes), ~uint32_t{0}, chunks_.size()});
      with_free_.push_back(chunks_.back());
    }
    Chunk* chunk = with_free_.back();
    const int index = __builtin_ctz(chunk->free_mask);
    chunk->free_mask &= chunk->free_mask - 1;
    if (chunk->free_mask == 0) with_free_.pop_back();
    slab = reinterpret_cast<Slab*>(chunk->base + static_cast<size_t>(index) * kSlabBytes);
    slab->chunk = chunk;
  }
  mapped_bytes_.fetch_add(kSlabBytes, std::memory_order_relaxed);
  slab->prev = slab->next = nullptr;
  slab->arena = static_cast<uint32_t>(arena);
  slab->object_class = static_cast<uint32_t>(object_class);
  slab->object_bytes = static_cast<uint32_t>(object_class * 8);
  slab->capacity = static_cast<uint32_t>((kSlabBytes - sizeof(Slab)) / slab->object_bytes);
  slab->used = slab->touched = slab->free_head = 0;
  slab->vacated = false;
  return slab;
}

void SlabAllocator::ReleaseSlab(Slab* slab) {
  Chunk* chunk = slab->chunk;
  mapped_bytes_.fetch_sub(kSlabBytes, std::memory_order_relaxed);
  arenas_[slab->arena].touched_bytes.fetch_sub(uint64_t{slab->touched} * slab->object_bytes,
                                               std::memory_order_relaxed);
  madvise(slab, kSlabBytes, MADV_DONTNEED);
  char* unmap = nullptr;
  {
    common::MutexLock lock(&chunks_mu_);
    const size_t index =
        static_cast<size_t>(reinterpret_cast<char*>(slab) - chunk->base) / kSlabBytes;
    if (chunk->free_mask == 0) with_free_.push_back(chunk);
    chunk->free_mask |= uint32_t{1} << index;
    chunk->collapsed = false;
    if (chunk->free_mask == ~uint32_t{0} && !chunk->pinned) unmap = RemoveChunk(chunk);
  }
  if (unmap != nullptr) UnmapChunks(unmap, kChunkBytes);
}

char* SlabAllocator::RemoveChunk(Chunk* chunk) {
  with_free_.erase(std::find(with_free_.begin(), with_free_.end(), chunk));
  chunks_.back()->index = chunk->index;
  std::swap(chunks_[chunk->index], chunks_.back());
  chunks_.pop_back();
  char* const base = chunk->base;
  delete chunk;
  return base;
}

bool SlabAllocator::Collapse() {
  Chunk* found = nullptr;
  {
    common::MutexLock lock(&chunks_mu_);
    if (chunks_.size() <= kHugeFromChunks) return false;
    found = NextToCollapse(chunks_, &collapse_next_, [](const Chunk& chunk) {
      return chunk.free_mask == 0 && !chunk.collapsed && !chunk.pinned;
    });
    if (found == nullptr) return false;
    found->collapsed = found->pinned = true;
  }
  CollapseChunk(found->base);
  char* unmap = nullptr;
  {
    common::MutexLock lock(&chunks_mu_);
    found->pinned = false;
    // Its last slab was given back meanwhile.
    if (found->free_mask == ~uint32_t{0}) unmap = RemoveChunk(found);
  }
  if (unmap != nullptr) UnmapChunks(unmap, kChunkBytes);
  return true;
}

}  // namespace sluice::store::memory
