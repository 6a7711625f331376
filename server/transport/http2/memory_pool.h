// MemoryPool: the allocator of nghttp2. It keeps freed blocks by size and hands them out again, so
// that requests in steady state do not call malloc.
//
// Not thread-safe: one per event loop; sessions of that loop share it and are destroyed before it.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP2_MEMORY_POOL_H_
#define SLUICE_SERVER_TRANSPORT_HTTP2_MEMORY_POOL_H_

#include <nghttp2/nghttp2.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::transport {

class MemoryPool {
 public:
  MemoryPool() = default;
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // As malloc, calloc, realloc and free.
  void* Allocate(size_t bytes);
  void* AllocateZeroed(size_t count, size_t bytes);
  void* Reallocate(void* block, size_t bytes);
  void Free(void* block);

  // What one session has allocated. The pool outlives it.
  struct Account {
    MemoryPool& pool;
    size_t bytes = 0;  // with the headers of the blocks
  };
  // The functions above for nghttp2, which copies the struct into the session. The account outlives
  // the session.
  static nghttp2_mem ForNghttp2(Account& account);

  // Bytes allocated and not freed, and bytes kept for reuse.
  size_t bytes_in_use() const { return bytes_in_use_; }
  size_t bytes_kept() const { return bytes_kept_; }
  // Calls of malloc.
  uint64_t mallocs() const { return mallocs_; }

 private:
  struct Header;
  struct FreeBlock;

  // Bytes that a block takes.
  static size_t Taken(void* block);

  // Size classes: 24, 40, 56 ... bytes up to 2 KiB; with our header and malloc's they waste no
  // bytes. Larger blocks (hash tables, frame buffers) belong to a connection, not to a request, and
  // come from malloc.
  static constexpr size_t kGrain = 16;
  static constexpr size_t kClasses = 127;
  static constexpr size_t ClassBytes(size_t size_class) { return size_class * kGrain + 8; }
  // Bytes kept for reuse, at most: memory of a burst of connections is given back.
  static constexpr size_t kMaxKept = size_t{1} << 20;

  std::array<FreeBlock*, kClasses + 1> free_{};
  size_t bytes_in_use_ = 0;
  size_t bytes_kept_ = 0;
  uint64_t mallocs_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_HTTP2_MEMORY_POOL_H_
