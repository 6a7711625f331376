// Packed numbers: how a script takes and gives many numbers as one word, by Lua's
// struct.unpack('<d') and struct.pack('<d'). A number in a word of its own costs Redis a quarter
// of an empty script (docs/adr/0108).
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_PACKED_NUMBERS_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_PACKED_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::store::redis {

inline constexpr size_t kPackedNumberBytes = 8;

// REQUIRES: each is between -2^53 and 2^53.
inline void PackNumbers(std::initializer_list<int64_t> numbers, std::string* out) {
  for (const int64_t number : numbers) {
    const auto exact = static_cast<double>(number);
    uint64_t bits;
    std::memcpy(&bits, &exact, sizeof(bits));
    char bytes[kPackedNumberBytes];
    for (size_t i = 0; i < kPackedNumberBytes; ++i) {
      bytes[i] = static_cast<char>(bits >> (8 * i) & 0xff);
    }
    out->append(bytes, kPackedNumberBytes);
  }
}

// The number at `at`, counted in numbers. None: there is none, or not a whole one between -2^53
// and 2^53.
inline std::optional<int64_t> UnpackNumber(std::string_view packed, size_t at) {
  if (packed.size() / kPackedNumberBytes <= at) return std::nullopt;
  uint64_t bits = 0;
  for (size_t i = 0; i < kPackedNumberBytes; ++i) {
    bits |= uint64_t{static_cast<unsigned char>(packed[at * kPackedNumberBytes + i])} << (8 * i);
  }
  double number;
  std::memcpy(&number, &bits, sizeof(number));
  constexpr double kMost = 9007199254740992;
  if (!(number >= -kMost && number <= kMost)) return std::nullopt;
  const auto whole = static_cast<int64_t>(number);
  if (static_cast<double>(whole) != number) return std::nullopt;
  return whole;
}

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_PACKED_NUMBERS_H_
