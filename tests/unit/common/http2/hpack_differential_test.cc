// Random and mutated header blocks into nghttp2's inflater and into ours: both accept and refuse
// alike, with the same fields and the same tables.
//
// They differ on purpose in two points. Ours refuses a third size update in one block (RFC 7541,
// 4.2). Ours does not copy a field that is larger than any header list, which
// HpackDecoderTest shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "common/http2/hpack_huffman.h"
#include "tests/support/hpack_oracle.h"

namespace sluice::http2 {
namespace {

using testing::HpackFields;
using testing::HpackPair;
using testing::OracleDeflater;

using Random = std::mt19937_64;

const HpackFields kUsual = {{":method", "POST"},
                            {":scheme", "http"},
                            {":path", "/sluice.v1.RateLimiter/Acquire"},
                            {":authority", "limits.example.com:7200"},
                            {"content-type", "application/grpc"},
                            {"te", "trailers"},
                            {"user-agent", "grpc-go/1.60.1"},
                            {"grpc-timeout", "4987654u"},
                            {"authorization", "Bearer 0123456789abcdef"},
                            {"grpc-accept-encoding", "identity, deflate, gzip"},
                            {"", ""}};

std::string RandomText(Random& random, size_t most) {
  std::string text(random() % (most + 1), '\0');
  const bool any = random() % 8 == 0;
  for (char& c : text) c = static_cast<char>(any ? random() % 256 : 32 + random() % 95);
  return text;
}

HpackFields RandomFields(Random& random) {
  HpackFields fields;
  for (uint64_t count = random() % 10; count > 0; --count) {
    fields.push_back(kUsual[random() % kUsual.size()]);
    if (random() % 3 == 0) fields.back().second = RandomText(random, 30);
    if (random() % 40 == 0) fields.back().second = RandomText(random, 4200);
    if (random() % 12 == 0) fields.back().first = RandomText(random, 20);
  }
  return fields;
}

void AppendInteger(Random& random, uint8_t bits, int prefix, uint64_t value, std::string* block) {
  const uint64_t full = (1u << prefix) - 1;
  if (value < full) {
    *block += static_cast<char>(bits | value);
    return;
  }
  *block += static_cast<char>(bits | full);
  for (value -= full; value >= 128; value >>= 7) *block += static_cast<char>(value | 0x80);
  if (random() % 50 == 0) {  // longer than it need be
    *block += static_cast<char>(value | 0x80);
    value = 0;
  }
  *block += static_cast<char>(value);
}

void AppendString(Random& random, const std::string& text, std::string* block) {
  if (random() % 2 == 0) {
    AppendInteger(random, 0, 7, text.size(), block);
    *block += text;
    return;
  }
  std::string code(HuffmanCodeSize(text), '\0');
  HuffmanEncode(text, reinterpret_cast<uint8_t*>(code.data()));
  if (random() % 100 == 0) code += '\xff';
  AppendInteger(random, 0x80, 7, code.size(), block);
  *block += code;
}

// Representations of all kinds; few are wrong.
std::string RandomRepresentations(Random& random) {
  std::string block;
  if (random() % 6 == 0) {
    for (uint64_t updates = random() % 3; updates > 0; --updates) {
      AppendInteger(random, 0x20, 5, random() % (random() % 20 == 0 ? 5000 : 4097), &block);
    }
  }
  const auto index = [&] { return random() % (random() % 30 == 0 ? 200 : 66); };
  for (uint64_t count = random() % 10; count > 0; --count) {
    const uint64_t kind = random() % 8;
    if (kind < 3) {
      AppendInteger(random, 0x80, 7, std::max<uint64_t>(index(), 1), &block);
      continue;
    }
    const uint64_t name = random() % 2 == 0 ? 0 : index();
    constexpr struct {
      uint8_t bits;
      int prefix;
    } kKinds[] = {{0x40, 6}, {0x40, 6}, {0x40, 6}, {0x00, 4}, {0x10, 4}};
    const auto [bits, prefix] = kKinds[kind - 3];
    AppendInteger(random, bits, prefix, name, &block);
    const size_t most = random() % 30 == 0 ? 4200 : 40;
    if (name == 0) AppendString(random, RandomText(random, most), &block);
    AppendString(random, RandomText(random, most), &block);
  }
  return block;
}

void Mutate(Random& random, std::string* block) {
  for (uint64_t count = 1 + random() % 3; count > 0 && !block->empty(); --count) {
    const size_t at = random() % block->size();
    switch (random() % 5) {
      case 0:
        (*block)[at] = static_cast<char>(random());
        break;
      case 1:
        (*block)[at] = static_cast<char>((*block)[at] ^ 1 << random() % 8);
        break;
      case 2:
        block->erase(at, 1 + random() % 4);
        break;
      case 3:
        block->insert(at, 1 + random() % 3, static_cast<char>(random()));
        break;
      default:
        block->resize(at);
    }
  }
}

size_t RandomMost(Random& random) { return random() % 4 == 0 ? random() % 4 + 1 : SIZE_MAX; }

TEST(HpackDifferentialTest, ReadsWhatNghttp2Writes) {
  Random random(1);
  for (int history = 0; history < 300; ++history) {
    OracleDeflater deflater;
    HpackPair pair;
    for (int i = 0; i < 60; ++i) {
      if (random() % 15 == 0) deflater.SetMaxTableBytes(random() % 4097);
      const HpackFields fields = RandomFields(random);
      std::vector<uint8_t> flags(fields.size());
      for (uint8_t& flag : flags) flag = random() % 6 == 0 ? NGHTTP2_NV_FLAG_NO_INDEX : 0;
      const std::string block = deflater.Encode(fields, flags);
      ASSERT_EQ(pair.Compare(block, RandomMost(random)), "") << history << " " << i;
      ASSERT_EQ(pair.error(), HpackError::kNone) << history << " " << i;
    }
  }
}

TEST(HpackDifferentialTest, AcceptsRandomRepresentationsAsNghttp2Does) {
  Random random(2);
  int blocks = 0;
  int errors = 0;
  for (int history = 0; history < 3000; ++history) {
    HpackPair pair;
    for (int i = 0; i < 40; ++i) {
      ++blocks;
      ASSERT_EQ(pair.Compare(RandomRepresentations(random), RandomMost(random)), "")
          << history << " " << i;
      if (pair.error() == HpackError::kNone) continue;
      ++errors;
      break;
    }
  }
  EXPECT_GT(errors, 500);
  EXPECT_GT(blocks, 4 * errors);
}

TEST(HpackDifferentialTest, RefusesMutatedBlocksAsNghttp2Does) {
  Random random(3);
  int errors[8] = {};
  for (int history = 0; history < 10'000; ++history) {
    HpackPair pair;
    OracleDeflater deflater;
    for (int i = 0; i < 10; ++i) {
      const HpackFields fields = RandomFields(random);
      std::string block = history % 2 == 0
                              ? RandomRepresentations(random)
                              : deflater.Encode(fields, std::vector<uint8_t>(fields.size()));
      if (random() % 2 == 0) Mutate(random, &block);
      ASSERT_EQ(pair.Compare(block, RandomMost(random)), "") << history << " " << i;
      ++errors[static_cast<size_t>(pair.error())];
      if (pair.error() != HpackError::kNone) break;
    }
  }
  // Each kind was met.
  for (int kind = 0; kind <= static_cast<int>(HpackError::kSizeUpdateLate); ++kind) {
    EXPECT_GT(errors[kind], 0) << kind;
  }
}

}  // namespace
}  // namespace sluice::http2
