#include "common/http2/stream_table.h"

#include <cstdint>
#include <map>
#include <random>

#include "gtest/gtest.h"

namespace sluice::http2 {
namespace {

// The table only keeps the pointers.
Stream& FakeStream(int32_t id) { return *reinterpret_cast<Stream*>(uintptr_t{8} * id); }

TEST(StreamTableTest, FindsWhatAMapFinds) {
  std::mt19937 random(7);
  StreamTable table;
  std::map<int32_t, Stream*> reference;
  int32_t next = 1;
  for (int step = 0; step < 50'000; ++step) {
    if (reference.size() < 3 || (reference.size() < 600 && random() % 2 == 0)) {
      // Mostly the next id; at times a gap.
      next += random() % 50 == 0 ? 2 * static_cast<int32_t>(1 + random() % 5000) : 2;
      table.Insert(next, FakeStream(next));
      reference[next] = &FakeStream(next);
    } else {
      auto it = reference.begin();
      std::advance(it, random() % reference.size());
      table.Remove(it->first);
      reference.erase(it);
    }
    ASSERT_EQ(table.size(), reference.size());
    const int32_t probe = 1 + 2 * static_cast<int32_t>(random() % static_cast<uint32_t>(next));
    const auto found = reference.find(probe);
    ASSERT_EQ(table.Find(probe), found == reference.end() ? nullptr : found->second);
    if (step % 1000 == 0) {
      for (const auto& [id, stream] : reference) ASSERT_EQ(table.Find(id), stream);
      size_t visited = 0;
      table.ForEach([&](Stream&) { ++visited; });
      ASSERT_EQ(visited, reference.size());
    }
  }
}

TEST(StreamTableTest, EmptyTableHoldsNoMemory) {
  StreamTable table;
  EXPECT_EQ(table.Find(1), nullptr);
  EXPECT_EQ(table.memory(), 0u);
}

}  // namespace
}  // namespace sluice::http2
