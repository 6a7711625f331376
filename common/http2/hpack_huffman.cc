#include "common/http2/hpack_huffman.h"

#include <array>
#include <bit>
#include <cstring>

namespace sluice::http2 {
namespace {

constexpr int kSymbols = 257;
constexpr int kEos = 256;
constexpr int kMaxLength = 30;

// Bits of each symbol's code. The code is canonical: codes of a length follow each other in the
// order of their symbols, behind all shorter ones. So the lengths are the whole code.
constexpr uint8_t kLengths[kSymbols] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,  //
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,  //
    6,  10, 10, 12, 13, 6,  8,  11, 10, 10, 8,  11, 8,  6,  6,  6,   //
    5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8,  15, 6,  12, 10,  //
    13, 6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,   //
    7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8,  13, 19, 13, 14, 6,   //
    15, 5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,   //
    6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7,  15, 11, 14, 13, 28,  //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,  //
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,  //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,  //
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,  //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,  //
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,  //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,  //
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,  //
    30,
};

struct Code {
  // Codes, right-aligned, by symbol.
  std::array<uint32_t, kSymbols> codes{};
  // By length: the end of the length's codes, left-aligned in 32 bits, and what leads from a code
  // of that length, right-aligned, to its place in `symbols`.
  std::array<uint64_t, kMaxLength + 1> ends{};
  std::array<uint32_t, kMaxLength + 1> offsets{};
  std::array<uint16_t, kSymbols> symbols{};  // in the order of their codes
};

constexpr Code MakeCode() {
  Code made;
  uint32_t code = 0;
  uint32_t place = 0;
  for (int length = 1; length <= kMaxLength; ++length) {
    code <<= 1;
    made.offsets[length] = place - code;
    for (int symbol = 0; symbol < kSymbols; ++symbol) {
      if (kLengths[symbol] != length) continue;
      made.codes[symbol] = code++;
      made.symbols[place++] = static_cast<uint16_t>(symbol);
    }
    made.ends[length] = uint64_t{code} << (32 - length);
  }
  return made;
}

constexpr Code kCode = MakeCode();
static_assert(kCode.ends[kMaxLength] == uint64_t{1} << 32, "the code is complete");
static_assert(kCode.codes['0'] == 0x0 && kCode.codes['a'] == 0x3 && kCode.codes['?'] == 0x3fc);
static_assert(kCode.codes[0xff] == 0x3ffffee && kCode.codes[kEos] == 0x3fffffff);

// What the next bits begin with, if the code is short enough: most text has codes of at most 8
// bits.
constexpr int kPeekBits = 8;
struct Short {
  uint8_t symbol;
  uint8_t length;  // 0: the code is longer
};

constexpr std::array<Short, 1 << kPeekBits> MakeShorts() {
  std::array<Short, 1 << kPeekBits> shorts{};
  for (int symbol = 0; symbol < kEos; ++symbol) {
    const int spare = kPeekBits - kLengths[symbol];
    if (spare < 0) continue;
    for (uint32_t rest = 0; rest < uint32_t{1} << spare; ++rest) {
      shorts[kCode.codes[symbol] << spare | rest] = {static_cast<uint8_t>(symbol),
                                                     kLengths[symbol]};
    }
  }
  return shorts;
}
constexpr std::array<Short, 1 << kPeekBits> kShorts = MakeShorts();

// The symbol that `window`, left-aligned, begins with, and its length. REQUIRES: it has more than
// kPeekBits.
uint32_t LongSymbol(uint64_t window, int* length) {
  const auto top = static_cast<uint32_t>(window >> 32);
  int bits = kPeekBits + 1;
  while (top >= kCode.ends[bits]) ++bits;
  *length = bits;
  return kCode.symbols[kCode.offsets[bits] + (top >> (32 - bits))];
}

uint64_t LoadBigEndian64(const uint8_t* at) {
  uint64_t bytes;
  std::memcpy(&bytes, at, sizeof(bytes));
  return std::endian::native == std::endian::little ? __builtin_bswap64(bytes) : bytes;
}

// The symbol that `window`, left-aligned, begins with, and its length, which is at most kMaxLength.
inline uint32_t FirstSymbol(uint64_t window, int* length) {
  const Short found = kShorts[window >> (64 - kPeekBits)];
  *length = found.length;
  return found.length != 0 ? found.symbol : LongSymbol(window, length);
}

// The output of HuffmanDecode.
struct Output {
  bool Put(uint32_t symbol) {
    if (at == limit) return false;
    *at++ = static_cast<char>(symbol);
    return true;
  }

  char* at;
  char* const limit;
};

// Decodes the last `bits` of a code; ones follow them in `window`, as if the padding went on.
HuffmanResult DecodeEnd(uint64_t window, int bits, Output& out) {
  while (bits > 0) {
    if (window == ~uint64_t{0}) return bits < 8 ? HuffmanResult::kDone : HuffmanResult::kBad;
    int length;
    const uint32_t symbol = FirstSymbol(window, &length);
    if (length > bits || symbol == kEos) return HuffmanResult::kBad;
    if (!out.Put(symbol)) return HuffmanResult::kTooLarge;
    window = ~(~window << length);
    bits -= length;
  }
  return HuffmanResult::kDone;
}

HuffmanResult Decode(absl::Span<const uint8_t> code, Output& out) {
  const uint8_t* at = code.data();
  const uint8_t* const end = at + code.size();
  // The next bits of the code, left-aligned; at least `bits` of them.
  uint64_t window = 0;
  int bits = 0;
  for (;;) {
    if (end - at >= 8) {
      window |= LoadBigEndian64(at) >> bits;
      at += (63 - bits) >> 3;
      bits |= 56;
    } else {
      for (; at != end && bits <= 56; bits += 8) window |= uint64_t{*at++} << (56 - bits);
      if (at == end) break;
    }
    while (bits >= kPeekBits) {
      const Short found = kShorts[window >> (64 - kPeekBits)];
      int length = found.length;
      uint32_t symbol = found.symbol;
      if (length == 0) {
        if (bits < kMaxLength) break;
        symbol = LongSymbol(window, &length);
        if (symbol == kEos) return HuffmanResult::kBad;
      }
      if (!out.Put(symbol)) return HuffmanResult::kTooLarge;
      window <<= length;
      bits -= length;
    }
  }
  return DecodeEnd(bits == 64 ? window : window | ~uint64_t{0} >> bits, bits, out);
}

}  // namespace

HuffmanResult HuffmanDecode(absl::Span<const uint8_t> code, char* out, size_t room, size_t* size) {
  Output output{out, out + room};
  const HuffmanResult result = Decode(code, output);
  *size = output.at - out;
  return result;
}

size_t HuffmanCodeSize(std::string_view text) {
  size_t bits = 0;
  for (const char c : text) bits += kLengths[static_cast<uint8_t>(c)];
  return (bits + 7) / 8;
}

uint8_t* HuffmanEncode(std::string_view text, uint8_t* out) {
  uint64_t window = 0;  // the last `bits` of the code, right-aligned, are not written yet
  int bits = 0;
  for (const char c : text) {
    const auto symbol = static_cast<uint8_t>(c);
    window = window << kLengths[symbol] | kCode.codes[symbol];
    for (bits += kLengths[symbol]; bits >= 8; bits -= 8) {
      *out++ = static_cast<uint8_t>(window >> (bits - 8));
    }
  }
  if (bits > 0) *out++ = static_cast<uint8_t>(window << (8 - bits) | 0xff >> bits);
  return out;
}

}  // namespace sluice::http2
