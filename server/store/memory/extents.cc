#include "server/store/memory/extents.h"

#include <algorithm>

namespace sluice::store::memory {
namespace {

constexpr size_t kPage = 4096;

size_t RoundToPages(size_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

}  // namespace

ExtentAllocator::~ExtentAllocator() {
  common::MutexLock lock(&mu_);
  for (Chunk* chunk : chunks_) UnmapChunks(reinterpret_cast<char*>(chunk), kChunkBytes);
}

void* ExtentAllocator::Allocate(size_t bytes) {
  if (bytes > kMaxShared) {
    const size_t mapped = RoundToPages(bytes);
    mapped_bytes_.fetch_add(mapped, std::memory_order_relaxed);
    return MapChunks(mapped);
  }
  const size_t granules = Granules(bytes);
  common::MutexLock lock(&mu_);
  for (Chunk* chunk : chunks_) {
    if (chunk->longest_run < granules) continue;
    const size_t first = FindRun(*chunk, granules);
    if (first == kGranules) {
      chunk->longest_run = granules - 1;
      continue;
    }
    Mark(chunk, first, granules, true);
    return reinterpret_cast<char*>(chunk) + first * kGranuleBytes;
  }
  char* base = MapChunks(kChunkBytes);
  mapped_bytes_.fetch_add(kChunkBytes, std::memory_order_relaxed);
  auto* chunk = reinterpret_cast<Chunk*>(base);  // zero: nothing used
  chunk->free = kGranules;
  chunk->longest_run = kGranules;
  Mark(chunk, 0, kHeaderGranules + granules, true);
  chunks_.push_back(chunk);
  return base + kHeaderGranules * kGranuleBytes;
}

void ExtentAllocator::Free(void* object, size_t bytes) {
  if (bytes > kMaxShared) {
    const size_t mapped = RoundToPages(bytes);
    mapped_bytes_.fetch_sub(mapped, std::memory_order_relaxed);
    UnmapChunks(static_cast<char*>(object), mapped);
    return;
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(object);
  auto* chunk = reinterpret_cast<Chunk*>(address & ~(uintptr_t{kChunkBytes} - 1));
  {
    common::MutexLock lock(&mu_);
    Mark(chunk, (address % kChunkBytes) / kGranuleBytes, Granules(bytes), false);
    chunk->longest_run = chunk->free;
    if (!RemoveIfUnused(chunk)) return;
  }
  Unmap(chunk);
}

bool ExtentAllocator::RemoveIfUnused(Chunk* chunk) {
  if (chunk->free != kGranules - kHeaderGranules || chunk->pinned) return false;
  chunks_.erase(std::find(chunks_.begin(), chunks_.end(), chunk));
  return true;
}

void ExtentAllocator::Unmap(Chunk* chunk) {
  mapped_bytes_.fetch_sub(kChunkBytes, std::memory_order_relaxed);
  UnmapChunks(reinterpret_cast<char*>(chunk), kChunkBytes);
}

bool ExtentAllocator::Collapse() {
  Chunk* found = nullptr;
  {
    common::MutexLock lock(&mu_);
    if (chunks_.size() <= kHugeFromChunks) return false;
    found = NextToCollapse(chunks_, &collapse_next_, [](const Chunk& chunk) {
      return chunk.free <= kNearlyFull && !chunk.collapsed;
    });
    if (found == nullptr) return false;
    found->collapsed = found->pinned = true;
  }
  CollapseChunk(reinterpret_cast<char*>(found));
  {
    common::MutexLock lock(&mu_);
    found->pinned = false;
    // Its last table was freed meanwhile.
    if (!RemoveIfUnused(found)) return true;
  }
  Unmap(found);
  return true;
}

size_t ExtentAllocator::FindRun(const Chunk& chunk, size_t granules) {
  // Goes from one end of a run of equal bits to the next.
  const auto next = [&](size_t from, bool used) {
    for (size_t word = from / 64; word < kGranules / 64; ++word) {
      uint64_t bits = used ? chunk.used[word] : ~chunk.used[word];
      if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
      if (bits != 0) return word * 64 + static_cast<size_t>(__builtin_ctzll(bits));
    }
    return kGranules;
  };
  for (size_t begin = next(0, false); begin < kGranules;) {
    const size_t end = next(begin, true);
    if (end - begin >= granules) return begin;
    if (end == kGranules) break;
    begin = next(end, false);
  }
  return kGranules;
}

void ExtentAllocator::Mark(Chunk* chunk, size_t first, size_t granules, bool used) {
  for (size_t i = first; i < first + granules; ++i) {
    const uint64_t bit = uint64_t{1} << (i % 64);
    if (used) {
      chunk->used[i / 64] |= bit;
    } else {
      chunk->used[i / 64] &= ~bit;
    }
  }
  chunk->free = used ? chunk->free - granules : chunk->free + granules;
}

}  // namespace sluice::store::memory
