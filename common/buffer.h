// Buffer: a queue of bytes, appended at the end and consumed from the front. Keeps its memory when
// it is emptied, so that a reused one does not allocate.
//
// Not thread-safe. Pointers into it are valid until it next grows, is trimmed or is cleared.
#ifndef SLUICE_COMMON_BUFFER_H_
#define SLUICE_COMMON_BUFFER_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/types/span.h"

namespace sluice::common {

class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // The bytes that were written and not consumed.
  uint8_t* data() { return data_ + begin_; }
  const uint8_t* data() const { return data_ + begin_; }
  size_t size() const { return end_ - begin_; }
  bool empty() const { return end_ == begin_; }
  absl::Span<const uint8_t> view() const { return {data(), size()}; }
  size_t capacity() const { return capacity_; }

  // Returns room for at least `bytes` after the end. Follow with Commit of the bytes written.
  uint8_t* Reserve(size_t bytes) {
    if (capacity_ - end_ < bytes) Grow(bytes);
    return data_ + end_;
  }
  // REQUIRES: bytes <= those reserved.
  void Commit(size_t bytes) { end_ += bytes; }

  void Append(const void* bytes, size_t count) {
    if (count == 0) return;
    std::memcpy(Reserve(count), bytes, count);
    end_ += count;
  }
  void Append(absl::Span<const uint8_t> bytes) { Append(bytes.data(), bytes.size()); }
  void Append(std::string_view bytes) { Append(bytes.data(), bytes.size()); }

  // Drops `bytes` from the front. REQUIRES: bytes <= size().
  void Consume(size_t bytes) {
    begin_ += bytes;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  // Keeps only the first `bytes`. REQUIRES: bytes <= size().
  void Truncate(size_t bytes) { end_ = begin_ + bytes; }

  // Empties it; keeps at most `keep` bytes of memory.
  void Clear(size_t keep = SIZE_MAX) {
    begin_ = end_ = 0;
    Trim(keep);
  }
  // Gives most of its memory back if it has more than `keep` bytes and uses less than a quarter of
  // them; all if it is empty.
  void Trim(size_t keep) {
    if (capacity_ > keep && 4 * size() < capacity_) Shrink();
  }

  void Swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    std::swap(capacity_, other.capacity_);
  }

 private:
  // Apart from Reserve, which then costs its callers little.
  [[gnu::noinline]] void Grow(size_t bytes) {
    const size_t used = size();
    if (begin_ > 0 && capacity_ - used >= bytes && begin_ >= used) {
      std::memmove(data_, data_ + begin_, used);
    } else {
      if (begin_ > 0) std::memmove(data_, data_ + begin_, used);
      size_t capacity = capacity_ == 0 ? 256 : capacity_ * 2;
      while (capacity - used < bytes) capacity *= 2;
      // Moves the pages of a large buffer: copying megabytes takes a millisecond.
      auto* larger = static_cast<uint8_t*>(std::realloc(data_, capacity));
      if (larger == nullptr) std::abort();
      data_ = larger;
      capacity_ = capacity;
    }
    begin_ = 0;
    end_ = used;
  }
  [[gnu::noinline]] void Shrink() {
    Buffer smaller;
    smaller.Append(view());
    Swap(smaller);
  }

  uint8_t* data_ = nullptr;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t capacity_ = 0;
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_BUFFER_H_
