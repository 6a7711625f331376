#include "common/http2/hpack_table.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>

namespace sluice::http2 {
namespace {

struct ModelEntry {
  std::string name;
  std::string value;
  uint64_t meaning;
  size_t bytes() const { return name.size() + value.size() + 32; }
};

// A deque that does the same.
class Model {
 public:
  void SetLimit(uint32_t limit) {
    limit_ = limit;
    EvictTo(limit);
  }
  bool Insert(ModelEntry entry) {
    if (entry.bytes() > limit_) {
      entries.clear();
      bytes = 0;
      return false;
    }
    EvictTo(limit_ - entry.bytes());
    bytes += entry.bytes();
    entries.push_front(std::move(entry));
    return true;
  }

  std::deque<ModelEntry> entries;
  size_t bytes = 0;

 private:
  void EvictTo(size_t most) {
    for (; bytes > most; entries.pop_back()) bytes -= entries.back().bytes();
  }

  size_t limit_ = kHpackTableBytes;
};

TEST(HpackTableTest, KeepsTheNewestEntriesThatFit) {
  std::mt19937_64 random(5);
  HpackTable table;
  Model model;
  for (uint64_t step = 0; step < 50'000; ++step) {
    if (random() % 100 == 0) {
      const auto limit = static_cast<uint32_t>(random() % 3 == 0 ? 4096 : random() % 4097);
      table.SetLimit(limit);
      model.SetLimit(limit);
    }
    const size_t most = random() % 50 == 0 ? 4500 : random() % 10 == 0 ? 500 : 30;
    ModelEntry entry = {std::string(random() % 30, static_cast<char>('a' + step % 26)),
                        std::string(random() % most, static_cast<char>('A' + step % 26)), step};
    std::string_view name = entry.name;
    if (table.count() > 0 && random() % 3 == 0) {
      name = table.Name(table.entry(random() % table.count()));
      entry.name = name;
    }
    ASSERT_EQ(table.Insert(name, entry.value, step), model.Insert(entry));
    ASSERT_EQ(table.count(), model.entries.size());
    ASSERT_EQ(table.bytes(), model.bytes);
    for (uint32_t i = 0; i < table.count(); ++i) {
      ASSERT_EQ(table.Name(table.entry(i)), model.entries[i].name) << step;
      ASSERT_EQ(table.Value(table.entry(i)), model.entries[i].value) << step;
      ASSERT_EQ(table.entry(i).meaning, model.entries[i].meaning) << step;
    }
  }
  EXPECT_LE(table.memory(), 2048u + 5120u);
}

}  // namespace
}  // namespace sluice::http2
