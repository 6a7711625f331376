#include "server/transport/rpc/grpc_text.h"

#include <limits>
#include <utility>

namespace sluice::transport {
namespace {

constexpr char kHex[] = "0123456789ABCDEF";

}  // namespace

std::optional<int64_t> ParseTimeout(std::string_view text) {
  if (text.size() < 2 || text.size() > 9) return std::nullopt;
  int64_t value = 0;
  for (const char c : text.substr(0, text.size() - 1)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  constexpr int64_t kSecond = 1'000'000'000;
  constexpr std::pair<char, int64_t> kUnits[] = {{'H', 3600 * kSecond}, {'M', 60 * kSecond},
                                                 {'S', kSecond},        {'m', 1'000'000},
                                                 {'u', 1'000},          {'n', 1}};
  for (const auto& [unit, unit_ns] : kUnits) {
    if (text.back() != unit) continue;
    int64_t timeout_ns = 0;
    const bool fits = !__builtin_mul_overflow(value, unit_ns, &timeout_ns);
    return fits ? timeout_ns : std::numeric_limits<int64_t>::max();
  }
  return std::nullopt;
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

}  // namespace sluice::transport
