#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/net/buffer_pool.h"
#include "tests/unit/common/net/net_testing.h"

namespace sluice::net {
namespace {

TEST(OutputBufferTest, HoldsNoMemoryWhenEmpty) {
  BufferPool pool;
  OutputBuffer buffer(pool);
  EXPECT_EQ(buffer.capacity(), 0u);
  buffer.Append(Bytes("hello"));
  EXPECT_EQ(buffer.capacity(), BufferPool::kBlockBytes);
  buffer.Consume(5);
  EXPECT_EQ(buffer.capacity(), 0u);
  buffer.Append(Bytes(std::string(1 << 20, 'x')));
  EXPECT_GE(buffer.capacity(), size_t{1} << 20);
  buffer.Clear();
  EXPECT_EQ(buffer.capacity(), 0u);
}

TEST(OutputBufferTest, GivesMemoryBackAsBytesAreSent) {
  BufferPool pool;
  OutputBuffer buffer(pool);
  const std::string data = std::string(500'000, 'x') + "the end";
  buffer.Append(Bytes(data));
  EXPECT_EQ(buffer.memory(), buffer.capacity());
  buffer.Consume(300'000);
  EXPECT_GE(buffer.capacity(), data.size());
  buffer.Consume(190'000);
  EXPECT_EQ(buffer.capacity(), 10'007u);
  buffer.Consume(10'000);
  EXPECT_EQ(buffer.memory(), 7u);
  EXPECT_EQ(std::string(buffer.front().begin(), buffer.front().end()), "the end");
  buffer.Append(Bytes("."));
  EXPECT_EQ(buffer.capacity(), BufferPool::kBlockBytes);
  EXPECT_EQ(buffer.memory(), 8u);
}

TEST(OutputBufferTest, KeepsBytesInOrderForAllSizes) {
  BufferPool pool;
  OutputBuffer buffer(pool);
  std::mt19937 random(7);
  std::string expected;
  char next = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string piece(random() % (i % 100 == 0 ? 50'000 : 900), '\0');
    for (char& c : piece) c = next++;
    buffer.Append(Bytes(piece));
    expected += piece;
    const size_t take = random() % (buffer.size() + 1);
    ASSERT_EQ(std::string(reinterpret_cast<const char*>(buffer.front().data()), take),
              expected.substr(0, take));
    buffer.Consume(take);
    expected.erase(0, take);
    ASSERT_EQ(buffer.size(), expected.size());
  }
}

}  // namespace
}  // namespace sluice::net
