#include "common/http2/header_rules.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace sluice::http2 {
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

constexpr char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool EqualsLower(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (Lower(text[i]) != lower[i]) return false;
  }
  return true;
}

struct Known {
  std::string_view text;
  HeaderName name;
};
constexpr Known kKnown[] = {
    {":method", HeaderName::kMethod},
    {":scheme", HeaderName::kScheme},
    {":path", HeaderName::kPath},
    {":authority", HeaderName::kAuthority},
    {":status", HeaderName::kStatus},
    {"host", HeaderName::kHost},
    {"te", HeaderName::kTe},
    {"content-type", HeaderName::kContentType},
    {"content-length", HeaderName::kContentLength},
    {"user-agent", HeaderName::kUserAgent},
    {"grpc-timeout", HeaderName::kGrpcTimeout},
    {"grpc-encoding", HeaderName::kGrpcEncoding},
    {"grpc-accept-encoding", HeaderName::kGrpcAcceptEncoding},
    {"grpc-status", HeaderName::kGrpcStatus},
    {"grpc-message", HeaderName::kGrpcMessage},
    // RFC 9113, 8.2.2.
    {"connection", HeaderName::kForbidden},
    {"keep-alive", HeaderName::kForbidden},
    {"proxy-connection", HeaderName::kForbidden},
    {"transfer-encoding", HeaderName::kForbidden},
    {"upgrade", HeaderName::kForbidden},
};

}  // namespace

HeaderName RecognizeHeader(std::string_view name) {
  if (name.empty()) return HeaderName::kForbidden;
  for (const Known& known : kKnown) {
    if (known.text == name) return known.name;
  }
  // The colon of an unknown pseudo-header is no character of a name.
  return AllOf(name, kNameCharacters) ? HeaderName::kOther : HeaderName::kForbidden;
}

bool IsHeaderValue(std::string_view value) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  if (!value.empty() && (is_space(value.front()) || is_space(value.back()))) return false;
  if (NoneBelowOrDel(value, ' ')) return true;
  for (const char c : value) {
    const auto byte = static_cast<uint8_t>(c);
    if ((byte < ' ' && c != '\t') || byte == 0x7f) return false;
  }
  return true;
}

bool IsMethod(std::string_view value) { return !value.empty() && AllOf(value, kMethodCharacters); }

bool IsPath(std::string_view value) { return !value.empty() && NoneBelowOrDel(value, '!'); }

bool IsScheme(std::string_view value) {
  if (value.empty()) return false;
  const char first = Lower(value[0]);
  return first >= 'a' && first <= 'z' && AllOf(value, kSchemeCharacters);
}

bool IsAuthority(std::string_view value) {
  return !value.empty() && AllOf(value, kAuthorityCharacters);
}

bool IsTe(std::string_view value) { return EqualsLower(value, "trailers"); }

bool IsHttpScheme(std::string_view value) {
  return EqualsLower(value, "http") || EqualsLower(value, "https");
}

std::optional<int64_t> ParseContentLength(std::string_view value) {
  constexpr size_t kMostDigits = 18;
  if (value.empty() || value.size() > kMostDigits) return std::nullopt;
  int64_t bytes = 0;
  for (const char c : value) {
    if (c < '0' || c > '9') return std::nullopt;
    bytes = bytes * 10 + (c - '0');
  }
  return bytes;
}

}  // namespace sluice::http2
