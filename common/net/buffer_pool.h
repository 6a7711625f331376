// OutputBuffer: the bytes that a stream has yet to send, and the pool that its memory comes from.
//
// A stream with nothing to send holds no memory. Most answers fit a small block that goes back to
// the loop's pool within the iteration; a buffer that outgrows it moves to the heap.
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
  // Kept for reuse; what is beyond goes back to the heap.
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
  // What is to be sent next, in one piece. Valid until the next call of another method.
  absl::Span<const uint8_t> front() const { return {data_ + begin_, end_ - begin_}; }
  // REQUIRES: n <= size().
  void Consume(size_t n);
  void Clear() { Release(); }

  size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  size_t capacity() const { return capacity_; }

 private:
  void Release();
  void Grow(size_t needed);

  BufferPool& pool_;
  uint8_t* data_ = nullptr;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t capacity_ = 0;  // kBlockBytes: from the pool
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_BUFFER_POOL_H_
