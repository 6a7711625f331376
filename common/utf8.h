// UTF-8 checks: well-formed text has no overlong forms, no surrogates and nothing above U+10FFFF.
// Pure; thread-safe.
#ifndef SLUICE_COMMON_UTF8_H_
#define SLUICE_COMMON_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace sluice::common {

// Bytes of the character that `text` begins with; 0 if it is malformed. REQUIRES: not empty.
size_t Utf8Length(std::string_view text);

bool IsUtf8(std::string_view text);

// Whether all bytes are below 0x80. Most keys are ASCII, so this is inline and looks at up to eight
// bytes at a time.
inline bool IsAscii(std::string_view text) {
  const char* const p = text.data();
  const size_t n = text.size();
  const auto high = [p](size_t at, auto word) {
    std::memcpy(&word, p + at, sizeof(word));
    return (word & static_cast<decltype(word)>(0x8080808080808080u)) != 0;
  };
  if (n >= 8) {
    for (size_t i = 0; i + 8 < n; i += 8) {
      if (high(i, uint64_t{})) return false;
    }
    return !high(n - 8, uint64_t{});
  }
  if (n >= 4) return !high(0, uint32_t{}) && !high(n - 4, uint32_t{});
  for (size_t i = 0; i < n; ++i) {
    if (high(i, uint8_t{})) return false;
  }
  return true;
}

}  // namespace sluice::common

#endif  // SLUICE_COMMON_UTF8_H_
