#include "server/transport/http2/memory_pool.h"

#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::transport {
namespace {

TEST(MemoryPoolTest, ReusesFreedBlocks) {
  MemoryPool pool;
  void* const first = pool.Allocate(105);
  pool.Free(first);
  EXPECT_EQ(pool.Allocate(120), first);  // of the same size class
  EXPECT_EQ(pool.mallocs(), 1u);
  pool.Free(first);
  EXPECT_EQ(pool.bytes_in_use(), 0u);
  EXPECT_GT(pool.bytes_kept(), 0u);
}

TEST(MemoryPoolTest, BlocksKeepTheirContents) {
  MemoryPool pool;
  std::mt19937 random(1);
  struct Block {
    uint8_t* bytes;
    size_t size;
    uint8_t fill;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 20'000; ++i) {
    if (!blocks.empty() && random() % 2 == 0) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      Block& block = blocks.back();
      for (size_t b = 0; b < block.size; ++b) ASSERT_EQ(block.bytes[b], block.fill);
      if (random() % 2 == 0) {
        const size_t size = random() % 5000;
        block.bytes = static_cast<uint8_t*>(pool.Reallocate(block.bytes, size));
        for (size_t b = 0; b < std::min(size, block.size); ++b) {
          ASSERT_EQ(block.bytes[b], block.fill);
        }
        std::memset(block.bytes, block.fill, size);
        block.size = size;
      } else {
        pool.Free(block.bytes);
        blocks.pop_back();
      }
    } else {
      const size_t size = random() % 3000;
      auto* bytes = static_cast<uint8_t*>(pool.Allocate(size));
      const auto fill = static_cast<uint8_t>(random());
      std::memset(bytes, fill, size);
      blocks.push_back({bytes, size, fill});
    }
  }
  for (const Block& block : blocks) pool.Free(block.bytes);
  EXPECT_EQ(pool.bytes_in_use(), 0u);
}

TEST(MemoryPoolTest, AllocateZeroedReturnsNullOnOverflow) {
  MemoryPool pool;
  EXPECT_EQ(pool.AllocateZeroed(SIZE_MAX / 2, 4), nullptr);
}

}  // namespace
}  // namespace sluice::transport
