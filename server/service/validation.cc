#include "server/service/validation.h"

#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/limits/nearest_name.h"

namespace sluice::service {

bool IsUtf8(std::string_view bytes) {
  const auto* p = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto* const end = p + bytes.size();
  while (p < end) {
    if (end - p >= 8) {
      uint64_t word;
      std::memcpy(&word, p, 8);
      if ((word & 0x8080808080808080u) == 0) {
        p += 8;
        continue;
      }
    }
    const uint8_t lead = *p++;
    if (lead < 0x80) continue;
    if (lead < 0xC2 || lead > 0xF4) return false;
    const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    if (end - p < more) return false;
    // Overlong forms, surrogates, and what lies above U+10FFFF show in the second byte.
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (p[0] < low || p[0] > high) return false;
    for (int i = 1; i < more; ++i) {
      if ((p[i] & 0xC0) != 0x80) return false;
    }
    p += more;
  }
  return true;
}

std::string_view NearestLimit(const limits::LimitTable& table, std::string_view name) {
  constexpr size_t kMostLimits = 1000;
  if (table.limits().size() > kMostLimits || name.size() > common::bounds::kMaxLimitNameBytes) {
    return {};
  }
  std::vector<std::string_view> names;
  names.reserve(table.limits().size());
  for (const limits::Limit* limit : table.limits()) names.push_back(limit->name());
  return limits::NearestName(name, names);
}

std::string MostAtOnce(const algorithm::Parameters& parameters) {
  const uint64_t most = algorithm::MaxGrant(parameters);
  if (parameters.kind != algorithm::Kind::kTokenBucket) {
    return absl::StrCat(most, " permits a period");
  }
  return absl::StrCat(parameters.token_bucket.debt > 0 ? "burst + debt = " : "burst = ", most);
}

absl::StatusOr<int64_t> ToNanoseconds(std::string_view path, WireDuration duration) {
  constexpr int32_t kSecond = 1'000'000'000;
  const auto [seconds, nanos] = duration;
  if (nanos <= -kSecond || nanos >= kSecond || (seconds > 0 && nanos < 0) ||
      (seconds < 0 && nanos > 0)) {
    return common::errors::BadDuration(path, seconds, nanos);
  }
  int64_t ns;
  if (__builtin_mul_overflow(seconds, int64_t{kSecond}, &ns) ||
      __builtin_add_overflow(ns, int64_t{nanos}, &ns)) {
    return seconds < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
  }
  return ns;
}

}  // namespace sluice::service
