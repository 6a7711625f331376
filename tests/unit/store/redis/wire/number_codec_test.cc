#include "server/store/redis/wire/number_codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>

#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kMost = int64_t{1} << 53;

TEST(PackedNumbersTest, AreUnpackedAsTheyWerePacked) {
  const std::initializer_list<int64_t> numbers = {
      0, 1, -1, 255, 1'800'000'000'000'001, kMost - 1, kMost, -kMost};
  std::string packed;
  PackNumbers(numbers, &packed);
  ASSERT_EQ(packed.size(), numbers.size() * kPackedNumberBytes);
  size_t at = 0;
  for (const int64_t number : numbers) EXPECT_EQ(UnpackNumber(packed, at++), number);
  EXPECT_EQ(UnpackNumber(packed, at), std::nullopt);
}

TEST(PackedNumbersTest, AreDoublesLeastByteFirst) {
  std::string packed;
  PackNumbers({1, -2}, &packed);
  EXPECT_EQ(packed, std::string("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\xc0", 16));
}

// A number that is none of ours is refused, not rounded.
TEST(PackedNumbersTest, RejectFractionsAndLargeNumbers) {
  for (const double number :
       {0.5, -1.25, 9007199254740994.0, -9007199254740994.0,
        std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    std::string packed(kPackedNumberBytes, '\0');
    std::memcpy(packed.data(), &number, sizeof(number));
    EXPECT_EQ(UnpackNumber(packed, 0), std::nullopt) << number;
  }
}

TEST(PackedNumbersTest, AreReadFromAReplyToItsEnd) {
  Reply reply;
  reply.type = Reply::Type::kString;
  PackNumbers({1'000'001, 250, 7}, &reply.text);
  ReplyNumbers numbers(reply);
  EXPECT_EQ(numbers.NextTime(), 1'000'001'250);
  EXPECT_FALSE(numbers.Good());
  EXPECT_EQ(numbers.Next(), 7);
  EXPECT_TRUE(numbers.Good());
  EXPECT_EQ(numbers.Next(), 0);
  EXPECT_FALSE(numbers.Good());
}

TEST(PackedNumbersTest, AreRejectedIfAReplyEndsWithinANumber) {
  Reply reply;
  reply.type = Reply::Type::kString;
  PackNumbers({1}, &reply.text);
  reply.text += "x";
  ReplyNumbers numbers(reply);
  EXPECT_EQ(numbers.Next(), 1);
  EXPECT_FALSE(numbers.Good());
}

}  // namespace
}  // namespace sluice::store::redis
