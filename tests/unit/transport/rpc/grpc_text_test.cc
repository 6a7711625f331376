#include "server/transport/rpc/grpc_text.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace sluice::transport {
namespace {

TEST(GrpcTimeoutTest, ParsesEachUnit) {
  EXPECT_EQ(ParseTimeout("2H"), int64_t{7200} * 1'000'000'000);
  EXPECT_EQ(ParseTimeout("2M"), int64_t{120} * 1'000'000'000);
  EXPECT_EQ(ParseTimeout("2S"), 2'000'000'000);
  EXPECT_EQ(ParseTimeout("2m"), 2'000'000);
  EXPECT_EQ(ParseTimeout("2u"), 2'000);
  EXPECT_EQ(ParseTimeout("2n"), 2);
  EXPECT_EQ(ParseTimeout("0n"), 0);
  EXPECT_EQ(ParseTimeout("00000001S"), 1'000'000'000);
}

TEST(GrpcTimeoutTest, SaturatesInsteadOfOverflowing) {
  EXPECT_EQ(ParseTimeout("99999999H"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ParseTimeout("99999999S"), int64_t{99999999} * 1'000'000'000);
}

TEST(GrpcTimeoutTest, RefusesInvalidTimeouts) {
  for (const char* text : {"", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S", " 1S", "1S ",
                           "1 S", "0x1S", "1\xC2\xB5"}) {
    EXPECT_FALSE(ParseTimeout(text).has_value()) << text;
  }
}

TEST(GrpcMessageTest, EncodesBytesThatHeadersCannotCarry) {
  EXPECT_EQ(PercentEncode("plain ~ text", 100), "plain ~ text");
  EXPECT_EQ(PercentEncode("100%\n\xE2\x98\xBA", 100), "100%25%0A%E2%98%BA");
}

TEST(GrpcMessageTest, TruncatesBetweenCharacters) {
  EXPECT_EQ(PercentEncode("ab\xE2\x98\xBA", 4), "ab");
  EXPECT_EQ(PercentEncode("ab\xE2\x98\xBA", 5), "ab%E2%98%BA");
}

}  // namespace
}  // namespace sluice::transport
