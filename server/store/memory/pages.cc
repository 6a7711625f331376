#include "server/store/memory/pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define SLUICE_LEAK_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLUICE_LEAK_SANITIZER 1
#endif
#endif
#ifdef SLUICE_LEAK_SANITIZER
#include <sanitizer/lsan_interface.h>
#endif

namespace sluice::store::memory {

char* MapChunks(size_t bytes) {
  const size_t padded = bytes + kChunkBytes;
  void* mapped = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  char* const start = static_cast<char*>(mapped);
  const uintptr_t past = reinterpret_cast<uintptr_t>(mapped) % kChunkBytes;
  char* const base = past == 0 ? start : start + (kChunkBytes - past);
  if (base != start) munmap(start, static_cast<size_t>(base - start));
  char* const end = start + padded;
  if (base + bytes != end) munmap(base + bytes, static_cast<size_t>(end - base) - bytes);
#ifdef SLUICE_LEAK_SANITIZER
  __lsan_register_root_region(base, bytes);
#endif
  return base;
}

void UnmapChunks(char* base, size_t bytes) {
#ifdef SLUICE_LEAK_SANITIZER
  __lsan_unregister_root_region(base, bytes);
#endif
  munmap(base, bytes);
}

void CollapseChunk(char* base) {
#ifdef MADV_COLLAPSE
  if (madvise(base, kChunkBytes, MADV_COLLAPSE) == 0) return;
#endif
  // Before Linux 6.1, or there is no huge page now: the kernel's own thread may do it later.
  madvise(base, kChunkBytes, MADV_HUGEPAGE);
}

}  // namespace sluice::store::memory
