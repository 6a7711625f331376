#include "server/transport/http2/request_rules.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/strings.h"

namespace sluice::transport {
namespace {

using CharacterSet = std::array<bool, 256>;

constexpr CharacterSet SetOf(std::string_view others, bool upper) {
  CharacterSet set{};
  for (int c = '0'; c <= '9'; ++c) set[c] = true;
  for (int c = 'a'; c <= 'z'; ++c) set[c] = true;
  for (int c = 'A'; c <= 'Z'; ++c) set[c] = upper;
  for (const char c : others) set[static_cast<uint8_t>(c)] = true;
  return set;
}

// RFC 9110, 5.6.2: characters of a token. Names have no capitals.
constexpr CharacterSet kNameCharacters = SetOf("!#$%&'*+-.^_`|~", false);
constexpr CharacterSet kMethodCharacters = SetOf("!#$%&'*+-.^_`|~", true);
// RFC 3986, 3.1 and 3.2.
constexpr CharacterSet kSchemeCharacters = SetOf("+-.", true);
constexpr CharacterSet kAuthorityCharacters = SetOf("-._~%!$&'()*+,;=:@[]", true);

bool AllOf(std::string_view text, const CharacterSet& set) {
  for (const char c : text) {
    if (!set[static_cast<uint8_t>(c)]) return false;
  }
  return true;
}

constexpr uint64_t kOnes = ~uint64_t{0} / 255;

// Whether any of the eight bytes is below `bound`, or DEL. REQUIRES: bound <= 128.
constexpr bool AnyBelowOrDel(uint64_t bytes, uint64_t bound) {
  const uint64_t below = (bytes - kOnes * bound) & ~bytes;
  const uint64_t del = bytes ^ kOnes * 0x7f;
  return ((below | ((del - kOnes) & ~del)) & kOnes * 0x80) != 0;
}

// Whether no byte is below `least` or DEL.
bool NoneBelowOrDel(std::string_view text, uint8_t least) {
  const auto eight_from = [&](size_t at) {
    uint64_t bytes;
    std::memcpy(&bytes, text.data() + at, sizeof(bytes));
    return bytes;
  };
  if (text.size() >= 8) {
    for (size_t at = 0; at + 8 <= text.size(); at += 8) {
      if (AnyBelowOrDel(eight_from(at), least)) return false;
    }
    return !AnyBelowOrDel(eight_from(text.size() - 8), least);
  }
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < least || byte == 0x7f) return false;
  }
  return true;
}

// RFC 9110, 5.5: a value has no control characters except tabs, and no space at its ends.
bool IsValue(std::string_view value) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  if (!value.empty() && (is_space(value.front()) || is_space(value.back()))) return false;
  if (NoneBelowOrDel(value, ' ')) return true;
  for (const char c : value) {
    const auto byte = static_cast<uint8_t>(c);
    if ((byte < ' ' && c != '\t') || byte == 0x7f) return false;
  }
  return true;
}

bool EqualsIgnoringCase(std::string_view one, std::string_view other) {
  return absl::EqualsIgnoreCase(common::ToAbsl(one), common::ToAbsl(other));
}

}  // namespace

bool RequestRules::Judge(std::string_view name, std::string_view value) {
  if (name.empty()) return false;
  if (name[0] == ':') return JudgePseudo(name, value);
  seen_ |= kRegular;
  return JudgeRegular(name, value);
}

inline bool RequestRules::Once(uint16_t which, bool fine) {
  if (!fine || (seen_ & which) != 0) return false;
  seen_ |= which;
  return true;
}

bool RequestRules::JudgePseudo(std::string_view name, std::string_view value) {
  if ((seen_ & kRegular) != 0 || value.empty()) return false;
  if (name == ":path") {
    seen_ |= value[0] == '/' ? kSlashPath : value == "*" ? kStarPath : 0;
    return Once(kPath, NoneBelowOrDel(value, '!'));
  }
  if (name == ":method") {
    if (value == "POST") return Once(kMethod, true);
    seen_ |= value == "CONNECT" ? kConnect : value == "OPTIONS" ? kOptions : 0;
    return Once(kMethod, AllOf(value, kMethodCharacters));
  }
  if (name == ":scheme") {
    if (value == "http" || value == "https" || EqualsIgnoringCase(value, "http") ||
        EqualsIgnoringCase(value, "https")) {
      seen_ |= kHttp;
      return Once(kScheme, true);
    }
    return Once(kScheme, absl::ascii_isalpha(static_cast<unsigned char>(value[0])) &&
                             AllOf(value, kSchemeCharacters));
  }
  if (name == ":authority") return Once(kAuthority, AllOf(value, kAuthorityCharacters));
  return false;
}

bool RequestRules::TakeContentLength(std::string_view value) {
  constexpr size_t kMostDigits = 18;
  // Trailers must not have it (RFC 9110, 6.5.1).
  if (value.empty() || value.size() > kMostDigits || content_length_ != kNotAnnounced ||
      (seen_ & kTrailers) != 0) {
    return false;
  }
  int64_t bytes = 0;
  for (const char c : value) {
    if (c < '0' || c > '9') return false;
    bytes = bytes * 10 + (c - '0');
  }
  content_length_ = bytes;
  return true;
}

bool RequestRules::JudgeRegular(std::string_view name, std::string_view value) {
  bool known = false;  // the name needs no check of its characters
  switch (name.size()) {
    case 2:
      if (name == "te") {
        return value == "trailers" || EqualsIgnoringCase(value, "trailers");
      }
      break;
    case 4:
      if (name == "host") {
        return Once(kHost, !value.empty() && AllOf(value, kAuthorityCharacters));
      }
      break;
    case 7:
      if (name == "upgrade") return false;
      break;
    case 10:
      if (name == "connection" || name == "keep-alive") return false;
      known = name == "user-agent";
      break;
    case 12:
      if (name == "content-type" && value == "application/grpc") return true;
      known = name == "content-type" || name == "grpc-timeout";
      break;
    case 14:
      if (name == "content-length") {
        return TakeContentLength(value);
      }
      break;
    case 16:
      if (name == "proxy-connection") return false;
      break;
    case 17:
      if (name == "transfer-encoding") return false;
      break;
    case 20:
      known = name == "grpc-accept-encoding";
      break;
    default:
      break;
  }
  return (known || AllOf(name, kNameCharacters)) && IsValue(value);
}

bool RequestRules::Complete(bool end) const {
  if ((seen_ & kTrailers) != 0) return end;
  if ((seen_ & kConnect) != 0) return (seen_ & (kScheme | kPath | kAuthority)) == kAuthority;
  constexpr uint16_t kAll = kMethod | kScheme | kPath;
  if ((seen_ & kAll) != kAll || (seen_ & (kAuthority | kHost)) == 0) return false;
  if ((seen_ & kHttp) == 0 || (seen_ & kSlashPath) != 0) return true;
  return (seen_ & (kOptions | kStarPath)) == (kOptions | kStarPath);
}

}  // namespace sluice::transport
