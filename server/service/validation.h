// Checks that several use cases share.
#ifndef SLUICE_SERVER_SERVICE_VALIDATION_H_
#define SLUICE_SERVER_SERVICE_VALIDATION_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/algorithm/parameters.h"
#include "server/limits/limit_table.h"
#include "server/service/types.h"

namespace sluice::service {

// Whether the bytes are well-formed UTF-8 (no surrogates, nothing overlong, up to U+10FFFF).
bool IsUtf8(std::string_view bytes);

// Whether all bytes are below 0x80, which is most keys: inline, for who asks it of each of many.
inline bool IsAscii(std::string_view bytes) {
  const char* const p = bytes.data();
  const size_t n = bytes.size();
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

// What a name that is not there was probably meant to be; empty: nothing near. Looks at all
// limits' names unless there are more than a thousand.
std::string_view NearestLimit(const limits::LimitTable& table, std::string_view name);

// "burst + debt = 200", "burst = 100", "100 permits a period": what bounds a single request.
std::string MostAtOnce(const algorithm::Parameters& parameters);

// Nanoseconds; saturates. INVALID_ARGUMENT: seconds and nanos are no duration.
absl::StatusOr<int64_t> ToNanoseconds(std::string_view path, WireDuration duration);

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_VALIDATION_H_
