// OutputBuffer: the unsent bytes of a stream. BufferPool: its memory.
//
// A stream without unsent bytes holds no memory. Most output fits a block that returns to the
// loop's pool within the iteration; larger output moves to the heap, and so does a small rest that
// the kernel does not take.
#ifndef SLUICE_COMMON_NET_BUFFER_POOL_H_
#define SLUICE_COMMON_NET_BUFFER_POOL_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sluice::net {

// Blocks of one size, recycled last in first out (warm in the cache). Not thread-safe.
class BufferPool {
 public:
  static constexpr size_t kBlockBytes = size_t{32} << 10;
  // Blocks kept for reuse, at most.
  static constexpr size_t kMaxKeptBlocks = 64;

  BufferPool() = default;
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  uint8_t* Get();
  void Put(uint8_t* block);

 private:
  struct Free {
    Free* next;
  };
  Free* free_ = nullptr;
  size_t kept_ = 0;
};

// A queue of bytes. Not thread-safe. The pool outlives it.
class OutputBuffer {
 public:
  explicit OutputBuffer(BufferPool& pool) : pool_(pool) {}
  ~OutputBuffer() { Release(); }
  OutputBuffer(const OutputBuffer&) = delete;
  OutputBuffer& operator=(const OutputBuffer&) = delete;

  void Append(absl::Span<const uint8_t> data);
  // All bytes, in one piece. Valid until the next call of another method.
  absl::Span<const uint8_t> front() const { return {data_ + begin_, end_ - begin_}; }
  // REQUIRES: n <= size().
  void Consume(size_t n);
  void Clear() { Release(); }

  size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  size_t capacity() const { return capacity_; }
  // Bytes of memory for an account. A block counts with its bytes, since it returns to the pool.
  size_t memory() const { return capacity_ == BufferPool::kBlockBytes ? size() : capacity_; }

 private:
  void Release();
  void Grow(size_t needed);
  void MoveTo(size_t capacity);

  BufferPool& pool_;
  uint8_t* data_ = nullptr;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t capacity_ = 0;  // kBlockBytes: from the pool
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_BUFFER_POOL_H_
