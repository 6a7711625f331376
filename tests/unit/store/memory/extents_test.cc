#include "server/store/memory/extents.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace sluice::store::memory {
namespace {

const size_t kSizes[] = {512, 1536, 2048, 3072, 12288, 65536, 262144, 524288, 786432, 4 << 20};

TEST(ExtentAllocatorTest, ObjectsDoNotOverlapAndAreAligned) {
  ExtentAllocator extents;
  std::map<char*, size_t> live;  // start -> bytes
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const size_t bytes = kSizes[random() % (i % 10 == 0 ? 10 : 6)];
    auto* object = static_cast<char*>(extents.Allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(object) % 512, 0u) << bytes;
    std::memset(object, static_cast<int>(bytes / 512 % 251), bytes);
    const auto after = live.lower_bound(object);
    ASSERT_TRUE(after == live.end() || object + bytes <= after->first);
    ASSERT_TRUE(after == live.begin() ||
                std::prev(after)->first + std::prev(after)->second <= object);
    live[object] = bytes;
    while (live.size() > 50) {
      auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      for (size_t b = 0; b < victim->second; ++b) {
        ASSERT_EQ(static_cast<unsigned char>(victim->first[b]), victim->second / 512 % 251);
      }
      extents.Free(victim->first, victim->second);
      live.erase(victim);
    }
  }
  for (const auto& [object, bytes] : live) extents.Free(object, bytes);
  EXPECT_EQ(extents.memory_bytes(), 0u);
}

TEST(ExtentAllocatorTest, LargeTablesReuseTheRoomOfSmallOnes) {
  ExtentAllocator extents;
  std::vector<void*> small;
  for (int i = 0; i < 4000; ++i) small.push_back(extents.Allocate(2048));
  const uint64_t full = extents.memory_bytes();
  EXPECT_LT(full, 4001u * 2048 + (2u << 20));
  // All but every tenth.
  for (size_t i = 0; i < small.size(); ++i) {
    if (i % 10 != 0) extents.Free(small[i], 2048);
  }
  std::vector<void*> greater;
  for (int i = 0; i < 2000; ++i) greater.push_back(extents.Allocate(3072));
  EXPECT_EQ(extents.memory_bytes(), full);
  for (size_t i = 0; i < small.size(); i += 10) extents.Free(small[i], 2048);
  for (void* object : greater) extents.Free(object, 3072);
  EXPECT_EQ(extents.memory_bytes(), 0u);
}

TEST(ExtentAllocatorTest, CollapseKeepsTablesAndMovesEachFullChunkOnce) {
  ExtentAllocator extents;
  constexpr size_t kTables = 6130;  // 6 chunks, the last of which is nearly full
  std::vector<char*> tables;
  for (size_t i = 0; i < kTables; ++i) {
    tables.push_back(static_cast<char*>(extents.Allocate(2048)));
    std::memset(tables.back(), static_cast<int>(i % 251), 2048);
  }
  int collapsed = 0;
  while (extents.Collapse()) ++collapsed;
  EXPECT_EQ(collapsed, 6);
  for (size_t i = 0; i < kTables; ++i) {
    for (size_t b = 0; b < 2048; ++b) {
      ASSERT_EQ(static_cast<unsigned char>(tables[i][b]), i % 251) << i;
    }
    extents.Free(tables[i], 2048);
  }
  EXPECT_EQ(extents.memory_bytes(), 0u);
  EXPECT_FALSE(extents.Collapse());
}

}  // namespace
}  // namespace sluice::store::memory
