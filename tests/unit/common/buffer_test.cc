#include "common/buffer.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice::common {
namespace {

std::string Text(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.size()};
}

TEST(BufferTest, AppendsAtTheEndAndConsumesFromTheFront) {
  Buffer buffer;
  std::string expected;
  for (int i = 0; i < 2000; ++i) {
    const std::string piece(static_cast<size_t>(i % 37), static_cast<char>('a' + i % 26));
    buffer.Append(std::string_view(piece));
    expected += piece;
    const size_t taken = std::min<size_t>(expected.size(), static_cast<size_t>(i % 31));
    buffer.Consume(taken);
    expected.erase(0, taken);
    ASSERT_EQ(Text(buffer), expected);
  }
}

TEST(BufferTest, KeepsItsMemoryWhenCleared) {
  Buffer buffer;
  buffer.Append(std::string_view(std::string(1000, 'x')));
  const size_t capacity = buffer.capacity();
  buffer.Clear();
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.capacity(), capacity);
  buffer.Clear(100);
  EXPECT_EQ(buffer.capacity(), 0u);
}

TEST(BufferTest, TrimGivesMemoryBackThatIsMostlyUnused) {
  Buffer buffer;
  buffer.Append(std::string_view(std::string(100'000, 'x') + "end"));
  const size_t capacity = buffer.capacity();
  buffer.Consume(60'000);
  buffer.Trim(256);
  EXPECT_EQ(buffer.capacity(), capacity);
  buffer.Consume(40'000);
  buffer.Trim(capacity);
  EXPECT_EQ(buffer.capacity(), capacity);
  buffer.Trim(256);
  EXPECT_LE(buffer.capacity(), 256u);
  EXPECT_EQ(Text(buffer), "end");
  buffer.Append(std::string_view(" and more"));
  EXPECT_EQ(Text(buffer), "end and more");
}

TEST(BufferTest, SwapKeepsBytesInPlace) {
  Buffer from;
  from.Append(std::string_view("bytes"));
  const uint8_t* const at = from.data();
  Buffer to;
  to.Swap(from);
  EXPECT_EQ(to.data(), at);
  EXPECT_TRUE(from.empty());
}

TEST(BufferTest, StaysSmallWhenUsedAsAQueue) {
  Buffer buffer;
  buffer.Append(std::string_view("12345"));
  for (int i = 0; i < 100'000; ++i) {
    buffer.Append(std::string_view("0123456789"));
    buffer.Consume(10);
  }
  EXPECT_LE(buffer.capacity(), 512u);
  EXPECT_EQ(buffer.size(), 5u);
}

}  // namespace
}  // namespace sluice::common
