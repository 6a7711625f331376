// Counts what the whole program allocates, by functions that replace malloc's. Included by one
// source of a program of its own: sanitizers replace malloc too. For one thread.
#ifndef SLUICE_TESTS_SUPPORT_COUNTED_ALLOCATIONS_H_
#define SLUICE_TESTS_SUPPORT_COUNTED_ALLOCATIONS_H_

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {
uint64_t allocations = 0;
[[maybe_unused]] int64_t allocated_bytes = 0;    // and not freed
[[maybe_unused]] size_t largest_allocation = 0;  // in bytes

void* Counted(void* block) {
  ++allocations;
  const size_t bytes = block == nullptr ? 0 : malloc_usable_size(block);
  allocated_bytes += static_cast<int64_t>(bytes);
  if (bytes > largest_allocation) largest_allocation = bytes;
  return block;
}
void CountFreed(void* block) {
  if (block != nullptr) allocated_bytes -= static_cast<int64_t>(malloc_usable_size(block));
}
}  // namespace

// glibc's names for its own functions.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void __libc_free(void*);
void* malloc(size_t size) { return Counted(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return Counted(__libc_calloc(count, size)); }
void* realloc(void* block, size_t size) {
  CountFreed(block);
  return Counted(__libc_realloc(block, size));
}
void free(void* block) {
  CountFreed(block);
  __libc_free(block);
}
}

#endif  // SLUICE_TESTS_SUPPORT_COUNTED_ALLOCATIONS_H_
