#include "server/transport/http2/memory_pool.h"

#include <cstdlib>
#include <cstring>

namespace sluice::transport {

// Precedes each block; 16 bytes, so that the block keeps malloc's alignment.
struct alignas(16) MemoryPool::Header {
  size_t bytes;       // usable
  size_t size_class;  // 0: larger than any class
};

struct MemoryPool::FreeBlock {
  FreeBlock* next;
};

MemoryPool::~MemoryPool() {
  for (FreeBlock* block : free_) {
    while (block != nullptr) {
      FreeBlock* next = block->next;
      std::free(reinterpret_cast<Header*>(block) - 1);
      block = next;
    }
  }
}

void* MemoryPool::Allocate(size_t bytes) {
  size_t size_class = bytes <= ClassBytes(1) ? 1 : (bytes - 8 + kGrain - 1) / kGrain;
  if (size_class <= kClasses) {
    bytes = ClassBytes(size_class);
    if (FreeBlock* block = free_[size_class]; block != nullptr) {
      free_[size_class] = block->next;
      bytes_kept_ -= bytes;
      bytes_in_use_ += bytes;
      return block;
    }
  } else {
    size_class = 0;
    if (bytes > SIZE_MAX - sizeof(Header)) return nullptr;
  }
  ++mallocs_;
  auto* header = static_cast<Header*>(std::malloc(sizeof(Header) + bytes));
  if (header == nullptr) return nullptr;
  header->bytes = bytes;
  header->size_class = size_class;
  bytes_in_use_ += bytes;
  return header + 1;
}

void* MemoryPool::AllocateZeroed(size_t count, size_t bytes) {
  if (__builtin_mul_overflow(count, bytes, &bytes)) return nullptr;
  void* block = Allocate(bytes);
  if (block != nullptr) std::memset(block, 0, bytes);
  return block;
}

void MemoryPool::Free(void* block) {
  if (block == nullptr) return;
  Header* header = static_cast<Header*>(block) - 1;
  bytes_in_use_ -= header->bytes;
  if (header->size_class == 0 || bytes_kept_ + header->bytes > kMaxKept) {
    std::free(header);
    return;
  }
  auto* free_block = static_cast<FreeBlock*>(block);
  free_block->next = free_[header->size_class];
  free_[header->size_class] = free_block;
  bytes_kept_ += header->bytes;
}

void* MemoryPool::Reallocate(void* block, size_t bytes) {
  if (block == nullptr) return Allocate(bytes);
  const size_t had = (static_cast<Header*>(block) - 1)->bytes;
  if (bytes <= had) return block;
  void* larger = Allocate(bytes);
  if (larger == nullptr) return nullptr;
  std::memcpy(larger, block, had);
  Free(block);
  return larger;
}

size_t MemoryPool::Taken(void* block) {
  return block == nullptr ? 0 : sizeof(Header) + (static_cast<Header*>(block) - 1)->bytes;
}

nghttp2_mem MemoryPool::ForNghttp2(Account& account) {
  return {.mem_user_data = &account,
          .malloc =
              [](size_t size, void* of) {
                auto& account = *static_cast<MemoryPool::Account*>(of);
                void* const block = account.pool.Allocate(size);
                account.bytes += Taken(block);
                return block;
              },
          .free =
              [](void* block, void* of) {
                auto& account = *static_cast<MemoryPool::Account*>(of);
                account.bytes -= Taken(block);
                account.pool.Free(block);
              },
          .calloc =
              [](size_t count, size_t size, void* of) {
                auto& account = *static_cast<MemoryPool::Account*>(of);
                void* const block = account.pool.AllocateZeroed(count, size);
                account.bytes += Taken(block);
                return block;
              },
          .realloc =
              [](void* block, size_t size, void* of) {
                auto& account = *static_cast<MemoryPool::Account*>(of);
                const size_t before = Taken(block);
                void* const larger = account.pool.Reallocate(block, size);
                if (larger != nullptr) account.bytes += Taken(larger) - before;
                return larger;
              }};
}

}  // namespace sluice::transport
