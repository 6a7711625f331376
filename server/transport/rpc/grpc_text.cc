#include "server/transport/rpc/grpc_text.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "common/strings.h"

namespace sluice::transport {
namespace {

constexpr char kHex[] = "0123456789ABCDEF";

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::optional<int64_t> ParseTimeout(std::string_view text) {
  if (text.size() < 2 || text.size() > 9) return std::nullopt;
  int64_t value = 0;
  for (const char c : text.substr(0, text.size() - 1)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  int64_t unit_ns = 0;
  switch (text.back()) {
    case 'H':
      unit_ns = int64_t{3600} * 1'000'000'000;
      break;
    case 'M':
      unit_ns = int64_t{60} * 1'000'000'000;
      break;
    case 'S':
      unit_ns = 1'000'000'000;
      break;
    case 'm':
      unit_ns = 1'000'000;
      break;
    case 'u':
      unit_ns = 1'000;
      break;
    case 'n':
      unit_ns = 1;
      break;
    default:
      return std::nullopt;
  }
  int64_t timeout_ns = 0;
  if (__builtin_mul_overflow(value, unit_ns, &timeout_ns)) {
    return std::numeric_limits<int64_t>::max();
  }
  return timeout_ns;
}

std::string PercentEncode(std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    size_t cut = max_bytes;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    text = text.substr(0, cut);
  }
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte <= 0x7E && byte != '%') {
      out.push_back(c);
    } else {
      out.push_back('%');
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    }
  }
  return out;
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high >= 0 && low >= 0) {
        out.push_back(static_cast<char>(high << 4 | low));
        i += 2;
        continue;
      }
    }
    out.push_back(text[i]);
  }
  return out;
}

std::string EncodeBinary(std::string_view bytes) {
  std::string out;
  absl::Base64Escape(common::ToAbsl(bytes), &out);
  while (!out.empty() && out.back() == '=') out.pop_back();
  return out;
}

std::optional<std::string> DecodeBinary(std::string_view text) {
  std::string out;
  // Abseil accepts white space in base64; gRPC does not.
  if (text.find_first_of(" \t\r\n") != std::string_view::npos) return std::nullopt;
  if (!absl::Base64Unescape(common::ToAbsl(text), &out)) return std::nullopt;
  return out;
}

}  // namespace sluice::transport
