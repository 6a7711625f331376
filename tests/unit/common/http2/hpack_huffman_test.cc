#include "common/http2/hpack_huffman.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/support/hpack_oracle.h"

namespace sluice::http2 {
namespace {

std::string Encode(std::string_view text) {
  std::string code(HuffmanCodeSize(text), '\0');
  auto* const begin = reinterpret_cast<uint8_t*>(code.data());
  EXPECT_EQ(HuffmanEncode(text, begin), begin + code.size());
  return code;
}

HuffmanResult Decode(std::string_view code, size_t room, std::string* text) {
  text->resize(room);
  size_t size = 0;
  const HuffmanResult result = HuffmanDecode(testing::BytesOf(code), text->data(), room, &size);
  text->resize(size);
  return result;
}

// nghttp2 reads the same text from our code.
TEST(HuffmanTest, CodesEachCharacterAsNghttp2Does) {
  testing::OracleInflater oracle;
  for (int c = 0; c < 256; ++c) {
    for (int count = 1; count <= 9; ++count) {
      const std::string text(count, static_cast<char>(c));
      const std::string code = Encode(text);
      ASSERT_LT(code.size(), 127u);
      const std::string block =
          std::string({'\0', '\0', static_cast<char>(0x80 | code.size())}) + code;
      EXPECT_EQ(oracle.Decode(block), (testing::HpackFields{{"", text}})) << c;
      std::string decoded;
      ASSERT_EQ(Decode(code, text.size(), &decoded), HuffmanResult::kDone) << c << " " << count;
      EXPECT_EQ(decoded, text) << c;
    }
  }
}

TEST(HuffmanTest, DecodesWhatItEncodes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; ++round) {
    // Mostly text, some bytes with long codes.
    const int strange = static_cast<int>(random() % 3) * 10;
    std::string text(random() % 60, '\0');
    for (char& c : text) {
      const bool any = static_cast<int>(random() % 100) < strange;
      c = static_cast<char>(any ? random() % 256 : 32 + random() % 95);
    }
    std::string decoded;
    ASSERT_EQ(Decode(Encode(text), text.size(), &decoded), HuffmanResult::kDone);
    EXPECT_EQ(decoded, text);
    if (text.empty()) continue;
    EXPECT_EQ(Decode(Encode(text), text.size() - 1, &decoded), HuffmanResult::kTooLarge);
    EXPECT_EQ(decoded, text.substr(0, text.size() - 1));
  }
}

}  // namespace
}  // namespace sluice::http2
