#include "server/service/validation.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace sluice::service {
namespace {

TEST(IsUtf8Test, TakesWellFormedText) {
  for (const std::string text :
       {"", "a", "plain ascii that is longer than eight", "h\xc3\xa9", "\xe2\x82\xac",
        "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "12345678\xc3\xa9", "\xee\x80\x80"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
}

TEST(IsAsciiTest, SeesAHighByteAtEveryPlaceOfEveryLength) {
  for (size_t size = 0; size < 40; ++size) {
    std::string text(size, '\x7F');
    EXPECT_TRUE(IsAscii(text));
    for (size_t at = 0; at < size; ++at) {
      text[at] = '\x80';
      EXPECT_FALSE(IsAscii(text)) << at << " of " << size;
      text[at] = 'a';
    }
  }
}

TEST(IsUtf8Test, RefusesWhatIsCutOverlongOrNoCharacter) {
  for (const std::string text :
       {"\x80", "\xc3", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xe2\x82", "\xed\xa0\x80",
        "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "12345678\xff",
        "1234567\xc3", "\xc3\xc3", "\xf0\x9f\x98"}) {
    EXPECT_FALSE(IsUtf8(text));
  }
}

TEST(ToNanosecondsTest, SaturatesAndRefusesMixedSigns) {
  EXPECT_EQ(ToNanoseconds("f", {1, 5}).value(), 1'000'000'005);
  EXPECT_EQ(ToNanoseconds("f", {-1, -5}).value(), -1'000'000'005);
  EXPECT_EQ(ToNanoseconds("f", {std::numeric_limits<int64_t>::max(), 0}).value(),
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ToNanoseconds("f", {std::numeric_limits<int64_t>::min(), 0}).value(),
            std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(ToNanoseconds("f", {1, -1}).ok());
  EXPECT_FALSE(ToNanoseconds("f", {-1, 1}).ok());
  EXPECT_FALSE(ToNanoseconds("f", {0, std::numeric_limits<int32_t>::min()}).ok());
}

}  // namespace
}  // namespace sluice::service
