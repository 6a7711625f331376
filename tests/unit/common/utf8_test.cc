#include "common/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice::common {
namespace {

TEST(IsUtf8Test, AcceptsWellFormedText) {
  for (const std::string text :
       {"", "a", "plain ascii that is longer than eight", "h\xc3\xa9", "\xe2\x82\xac",
        "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "12345678\xc3\xa9", "\xee\x80\x80"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
}

TEST(IsUtf8Test, RejectsTruncatedOverlongAndInvalidSequences) {
  for (const std::string text :
       {"\x80", "\xc3", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xe2\x82", "\xed\xa0\x80",
        "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "12345678\xff",
        "1234567\xc3", "\xc3\xc3", "\xf0\x9f\x98"}) {
    EXPECT_FALSE(IsUtf8(text));
  }
}

TEST(IsAsciiTest, FindsAHighByteAtEveryPositionOfEveryLength) {
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

}  // namespace
}  // namespace sluice::common
