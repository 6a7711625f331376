// MemoryPool: the allocator that nghttp2 is given. Blocks that it frees are kept by size and given
// out again, so that requests in steady state reach malloc no more.
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
  MemoryPool();
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // For nghttp2_session_*_new3; valid as long as the pool.
  nghttp2_mem* nghttp2() { return &mem_; }

  void* Allocate(size_t bytes);
  void* Reallocate(void* block, size_t bytes);
  void Free(void* block);

  // Bytes handed out and not freed, and bytes kept for reuse.
  size_t bytes_in_use() const { return bytes_in_use_; }
  size_t bytes_kept() const { return bytes_kept_; }
  // Times that malloc was asked.
  uint64_t mallocs() const { return mallocs_; }

 private:
  struct Header;
  struct FreeBlock;

  // Size classes: 24, 40, 56 ... bytes up to 2 KiB, which with our header and malloc's leave
  // nothing unused. Larger blocks (hash tables, frame buffers) belong to a connection, not to a
  // request, and go to malloc.
  static constexpr size_t kGrain = 16;
  static constexpr size_t kClasses = 127;
  static constexpr size_t ClassBytes(size_t size_class) { return size_class * kGrain + 8; }
  // What is kept at most; a burst of connections does not hold its memory for ever.
  static constexpr size_t kMaxKept = size_t{8} << 20;

  std::array<FreeBlock*, kClasses + 1> free_{};
  size_t bytes_in_use_ = 0;
  size_t bytes_kept_ = 0;
  uint64_t mallocs_ = 0;
  nghttp2_mem mem_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_HTTP2_MEMORY_POOL_H_
