#include "server/store/memory/number_index.h"

#include <cstdint>
#include <optional>
#include <random>
#include <unordered_map>

#include "gtest/gtest.h"

namespace sluice::store::memory {
namespace {

TEST(NumberIndexTest, IsFullWithoutRoom) {
  NumberIndex index;
  EXPECT_TRUE(index.Full());
  EXPECT_EQ(index.memory_bytes(), 0u);
  EXPECT_EQ(index.Find(7, [](uint32_t) { return true; }), std::nullopt);
  index.Erase(7, 1);
  index.Clear(1);
  EXPECT_FALSE(index.Full());
}

// Few hashes, so that groups are full and entries pass several of them, around the end of the
// table.
TEST(NumberIndexTest, FindsWhatAMapFindsThoughHashesCollide) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    NumberIndex index;
    index.Clear(1 + random() % 500);
    const uint64_t hashes = 1 + random() % 40;
    std::unordered_map<uint32_t, uint64_t> expected;
    uint32_t number = static_cast<uint32_t>(random());
    for (int step = 0; step < 2'000; ++step) {
      if (random() % 2 == 0 && !index.Full()) {
        const uint64_t hash = (random() % hashes) * 0x9e3779b97f4a7c15;
        index.Insert(hash, ++number);
        expected[number & NumberIndex::kNumberMask] = hash;
      } else if (!expected.empty()) {
        const auto erased = expected.begin();
        index.Erase(erased->second + (uint64_t{1} << 40), erased->first);  // another tag: not there
        index.Erase(erased->second, erased->first);
        expected.erase(erased);
      }
      ASSERT_EQ(index.size(), expected.size());
    }
    for (const auto& [sought, hash] : expected) {
      EXPECT_EQ(index.Find(hash, [&](uint32_t n) { return n == sought; }), sought);
    }
    for (uint64_t i = 0; i < hashes; ++i) {
      uint64_t found = 0;
      const uint64_t hash = i * 0x9e3779b97f4a7c15;
      index.Find(hash, [&](uint32_t n) {
        found += expected.contains(n) && expected[n] == hash;
        return false;
      });
      uint64_t due = 0;
      for (const auto& [unused, of] : expected) due += of == hash;
      EXPECT_EQ(found, due);
    }
  }
}

TEST(NumberIndexTest, PlacesAreFreeAtOnce) {
  NumberIndex index;
  index.Clear(1000);
  const size_t bytes = index.memory_bytes();
  std::mt19937_64 random(2);
  std::unordered_map<uint32_t, uint64_t> hashes;
  for (uint32_t number = 0; number < 1'000'000; ++number) {
    index.Insert(hashes[number] = random(), number);
    if (number < 900) continue;
    index.Erase(hashes[number - 900], number - 900);
    hashes.erase(number - 900);
    ASSERT_EQ(index.size(), 900u);
  }
  EXPECT_EQ(index.memory_bytes(), bytes);
}

}  // namespace
}  // namespace sluice::store::memory
