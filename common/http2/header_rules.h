// What both roles check in the headers of a message (RFC 9113, 8.1 to 8.3): names and values.
#ifndef SLUICE_COMMON_HTTP2_HEADER_RULES_H_
#define SLUICE_COMMON_HTTP2_HEADER_RULES_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/http2/header_names.h"

namespace sluice::http2 {

// ---- HpackField::meaning, from below: HeaderName (8 bits), kMalformed, unused, the bits that the
// rules of a role collect (16, from kSeenShift on), ValueOf (32).

// The field alone makes its message malformed.
inline constexpr uint64_t kMalformed = 1 << 8;
inline constexpr int kSeenShift = 16;

inline constexpr int64_t kNoContentLength = -1;

HeaderName RecognizeHeader(std::string_view name);
// The name of a field. `like` is the meaning of another field of that name; 0: not known.
inline HeaderName RecognizeHeader(std::string_view name, uint64_t like) {
  return like != 0 ? static_cast<HeaderName>(like & 0xFF) : RecognizeHeader(name);
}

// RFC 9110, 5.5: a value has no control characters except tabs, and no space at its ends.
bool IsHeaderValue(std::string_view value);
bool IsMethod(std::string_view value);
bool IsPath(std::string_view value);
bool IsScheme(std::string_view value);
bool IsAuthority(std::string_view value);
bool IsTe(std::string_view value);
bool IsHttpScheme(std::string_view value);

// nullopt: not a number, or too large for any body.
std::optional<int64_t> ParseContentLength(std::string_view value);

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HEADER_RULES_H_
