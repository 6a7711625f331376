#include "common/strings.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice::common {
namespace {

TEST(SameBytesTest, FindsADifferenceAtEveryPositionOfEveryLength) {
  for (size_t size = 0; size < 40; ++size) {
    const std::string text(size, 'a');
    std::string other = text;
    EXPECT_TRUE(SameBytes(text, other));
    EXPECT_FALSE(SameBytes(text, other + "a"));
    for (size_t at = 0; at < size; ++at) {
      other[at] = 'b';
      EXPECT_FALSE(SameBytes(text, other)) << at << " of " << size;
      other[at] = 'a';
    }
  }
}

}  // namespace
}  // namespace sluice::common
