#include "common/net/buffer_pool.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace sluice::net {

BufferPool::~BufferPool() {
  while (free_ != nullptr) ::operator delete(std::exchange(free_, free_->next));
}

uint8_t* BufferPool::Get() {
  if (free_ == nullptr) return static_cast<uint8_t*>(::operator new(kBlockBytes));
  Free* const block = free_;
  free_ = block->next;
  --kept_;
  return reinterpret_cast<uint8_t*>(block);
}

void BufferPool::Put(uint8_t* block) {
  if (kept_ == kMaxKeptBlocks) {
    ::operator delete(block);
    return;
  }
  free_ = new (block) Free{free_};
  ++kept_;
}

void OutputBuffer::Append(absl::Span<const uint8_t> data) {
  if (data.empty()) return;
  if (capacity_ - end_ < data.size()) {
    // Move to the front only if at least half was sent: then each byte moves at most once.
    if (begin_ >= size() && capacity_ - size() >= data.size()) {
      std::memmove(data_, data_ + begin_, size());
      end_ -= begin_;
      begin_ = 0;
    } else {
      Grow(size() + data.size());
    }
  }
  std::memcpy(data_ + end_, data.data(), data.size());
  end_ += data.size();
}

void OutputBuffer::Consume(size_t n) {
  begin_ += n;
  if (empty()) {
    Release();
  } else if (size() < capacity_ / 4) {
    MoveTo(size());
  }
}

void OutputBuffer::Grow(size_t needed) {
  const bool fits_block = needed <= BufferPool::kBlockBytes && capacity_ < BufferPool::kBlockBytes;
  MoveTo(fits_block ? BufferPool::kBlockBytes
                    : std::max({needed, 2 * capacity_, 2 * BufferPool::kBlockBytes}));
}

void OutputBuffer::MoveTo(size_t capacity) {
  uint8_t* const data = capacity == BufferPool::kBlockBytes
                            ? pool_.Get()
                            : static_cast<uint8_t*>(::operator new(capacity));
  const size_t size = end_ - begin_;
  if (size > 0) std::memcpy(data, data_ + begin_, size);
  Release();
  data_ = data;
  capacity_ = capacity;
  end_ = size;
}

void OutputBuffer::Release() {
  if (capacity_ == BufferPool::kBlockBytes) {
    pool_.Put(data_);
  } else if (data_ != nullptr) {
    ::operator delete(data_);
  }
  data_ = nullptr;
  begin_ = end_ = capacity_ = 0;
}

}  // namespace sluice::net
