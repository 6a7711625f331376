#include "server/store/memory/slab.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/threads.h"

namespace sluice::store::memory {
namespace {

const size_t kSizes[] = {8, 16, 24, 32, 128, 192, 528, 768, 1000, 1024};

TEST(SlabAllocatorTest, ObjectsDoNotOverlapAndAreAligned) {
  SlabAllocator slabs;
  std::map<char*, size_t> live;  // start -> bytes
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const size_t bytes = kSizes[random() % 10];
    auto* object = static_cast<char*>(slabs.Allocate(random() % 100, bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(object) % (bytes % 64 == 0 ? 64 : 8), 0u) << bytes;
    std::memset(object, static_cast<int>(bytes % 251), bytes);
    const auto after = live.lower_bound(object);
    ASSERT_TRUE(after == live.end() || object + bytes <= after->first);
    ASSERT_TRUE(after == live.begin() ||
                std::prev(after)->first + std::prev(after)->second <= object);
    live[object] = bytes;
    if (random() % 3 == 0) {
      auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
      for (size_t b = 0; b < victim->second; ++b) {
        ASSERT_EQ(static_cast<unsigned char>(victim->first[b]), victim->second % 251);
      }
      slabs.Free(victim->first, victim->second);
      live.erase(victim);
    }
  }
  for (const auto& [object, bytes] : live) slabs.Free(object, bytes);
  slabs.Trim();
  EXPECT_EQ(slabs.memory_bytes(), 0u);
}

TEST(SlabAllocatorTest, FreesObjectsOfEverySize) {
  SlabAllocator slabs;
  for (size_t bytes : kSizes) {
    std::vector<void*> objects;
    for (int i = 0; i < 40; ++i) objects.push_back(slabs.Allocate(0, bytes));
    EXPECT_GE(slabs.memory_bytes(), 40 * bytes);
    for (void* object : objects) slabs.Free(object, bytes);
    slabs.Trim();
    EXPECT_EQ(slabs.memory_bytes(), 0u) << bytes;
  }
}

TEST(SlabAllocatorTest, ReusesFreedObjects) {
  SlabAllocator slabs;
  void* keep = slabs.Allocate(0, 32);
  void* first = slabs.Allocate(0, 32);
  slabs.Free(first, 32);
  EXPECT_EQ(slabs.Allocate(0, 32), first);
  slabs.Free(first, 32);
  slabs.Free(keep, 32);
}

TEST(SlabAllocatorTest, VacatesSlabsThatAreMostlyEmpty) {
  SlabAllocator slabs;
  std::vector<void*> objects;
  while (slabs.memory_bytes() <= 2 * (64 << 10)) objects.push_back(slabs.Allocate(0, 512));
  // The first two slabs are full. Of the second a half is freed, of the first all but one object.
  const size_t each = objects.size() / 2;
  EXPECT_FALSE(slabs.Vacates(objects[0]));
  for (size_t i = 1; i < each; ++i) slabs.Free(objects[i], 512);
  for (size_t i = each; i < each + each / 2; ++i) slabs.Free(objects[i], 512);
  EXPECT_TRUE(slabs.HasFree(0, 512));
  EXPECT_FALSE(slabs.Vacates(objects[each + each / 2]));
  EXPECT_TRUE(slabs.Vacates(objects[0]));
  const uint64_t touched = slabs.touched_bytes();
  void* const moved = slabs.Allocate(0, 512);
  EXPECT_EQ(slabs.touched_bytes(), touched) << "it has a place that was freed";
  slabs.Free(objects[0], 512);
  EXPECT_EQ(slabs.memory_bytes(), 2 * (64 << 10));
  EXPECT_EQ(slabs.touched_bytes(), touched - each * 512);
  slabs.Free(moved, 512);
  for (size_t i = each + each / 2; i < objects.size(); ++i) slabs.Free(objects[i], 512);
}

TEST(SlabAllocatorTest, VacatesOnlySlabsForWhoseObjectsThereIsRoom) {
  SlabAllocator slabs;
  constexpr size_t kSlabs = 10;
  std::vector<void*> objects;
  while (slabs.memory_bytes() <= kSlabs * (64 << 10)) objects.push_back(slabs.Allocate(0, 512));
  slabs.Free(objects.back(), 512);
  objects.pop_back();
  slabs.Trim();
  // Each slab is a little less than half full.
  const size_t each = objects.size() / kSlabs;
  const size_t used = each / 2 - 2;
  std::vector<std::vector<void*>> left(kSlabs);
  for (size_t i = 0; i < objects.size(); ++i) {
    if (i % each < used) {
      left[i / each].push_back(objects[i]);
    } else {
      slabs.Free(objects[i], 512);
    }
  }
  const uint64_t before = slabs.memory_bytes();
  size_t leaving = 0;
  for (std::vector<void*>& slab : left) leaving += slabs.Vacates(slab[0]) ? slab.size() : 0;
  EXPECT_GE(leaving, 2 * used);
  std::vector<void*> moved;
  for (size_t i = 0; i < leaving; ++i) moved.push_back(slabs.Allocate(0, 512));
  EXPECT_EQ(slabs.memory_bytes(), before);
  for (const std::vector<void*>& slab : left) {
    for (void* object : slab) slabs.Free(object, 512);
  }
  for (void* object : moved) slabs.Free(object, 512);
  slabs.Trim();
  EXPECT_EQ(slabs.memory_bytes(), 0u);
}

TEST(SlabAllocatorTest, SmallObjectsCostLittleMoreThanTheirSize) {
  SlabAllocator slabs;
  constexpr size_t kObjects = 1'000'000;
  std::vector<void*> objects;
  for (size_t i = 0; i < kObjects; ++i) objects.push_back(slabs.Allocate(i, 32));
  EXPECT_LT(slabs.memory_bytes(), kObjects * 33);
  for (void* object : objects) slabs.Free(object, 32);
}

TEST(SlabAllocatorTest, CollapseKeepsObjectsAndMovesEachFullChunkOnce) {
  SlabAllocator slabs;
  constexpr size_t kObjects = 25'000;  // 12 chunks and a part of one
  std::vector<char*> objects;
  for (size_t i = 0; i < kObjects; ++i) {
    objects.push_back(static_cast<char*>(slabs.Allocate(0, 1024)));
    std::memset(objects.back(), static_cast<int>(i % 251), 1024);
  }
  int collapsed = 0;
  while (slabs.Collapse()) ++collapsed;
  EXPECT_EQ(collapsed, 12);
  for (size_t i = 0; i < kObjects; ++i) {
    for (size_t b = 0; b < 1024; ++b) {
      ASSERT_EQ(static_cast<unsigned char>(objects[i][b]), i % 251) << i;
    }
  }
  for (char* object : objects) slabs.Free(object, 1024);
  slabs.Trim();
  EXPECT_EQ(slabs.memory_bytes(), 0u);
  EXPECT_FALSE(slabs.Collapse());
}

TEST(SlabAllocatorTest, SmallStoreStaysInSmallPages) {
  SlabAllocator slabs;
  std::vector<void*> objects;
  for (size_t i = 0; i < 10'000; ++i) objects.push_back(slabs.Allocate(0, 1024));
  EXPECT_FALSE(slabs.Collapse());
  for (void* object : objects) slabs.Free(object, 1024);
}

TEST(SlabAllocatorTest, ObjectsMayComeAndGoWhileChunksAreCollapsed) {
  SlabAllocator slabs;
  std::atomic<bool> stop{false};
  std::thread collapse([&] {
    while (!stop) slabs.Collapse();
  });
  for (int round = 0; round < 5; ++round) {
    std::vector<char*> objects;
    for (size_t i = 0; i < 25'000; ++i) {
      objects.push_back(static_cast<char*>(slabs.Allocate(i, 1024)));
      std::memset(objects.back(), static_cast<int>(i % 251), 1024);
    }
    for (size_t i = 0; i < objects.size(); ++i) {
      ASSERT_EQ(static_cast<unsigned char>(objects[i][i % 1024]), i % 251);
      slabs.Free(objects[i], 1024);
    }
  }
  stop = true;
  collapse.join();
  slabs.Trim();
  EXPECT_EQ(slabs.memory_bytes(), 0u);
}

TEST(SlabAllocatorTest, ThreadsMayFreeObjectsOfOtherThreads) {
  SlabAllocator slabs;
  constexpr int kThreads = 4;
  constexpr size_t kObjects = 5000;
  std::vector<std::vector<void*>> objects(kThreads);
  test_support::Barrier allocated(kThreads);
  test_support::RunThreads(kThreads, [&](int thread) {
    for (size_t i = 0; i < kObjects; ++i) {
      objects[static_cast<size_t>(thread)].push_back(slabs.Allocate(i, 24 + i % 3 * 8));
    }
    allocated.Wait();
    auto& others = objects[static_cast<size_t>((thread + 1) % kThreads)];
    for (size_t i = 0; i < kObjects; ++i) slabs.Free(others[i], 24 + i % 3 * 8);
  });
  slabs.Trim();
  EXPECT_EQ(slabs.memory_bytes(), 0u);
}

}  // namespace
}  // namespace sluice::store::memory
