// Checks that several use cases share.
#ifndef SLUICE_SERVER_SERVICE_VALIDATION_H_
#define SLUICE_SERVER_SERVICE_VALIDATION_H_

#include <cstdint>
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

// What a name that is not there was probably meant to be; empty: nothing near. Looks at all
// limits' names unless there are more than a thousand.
std::string_view NearestLimit(const limits::LimitTable& table, std::string_view name);

// "burst + debt = 200", "burst = 100", "100 permits a period": what bounds a single request.
std::string MostAtOnce(const algorithm::Parameters& parameters);

// Nanoseconds; saturates. INVALID_ARGUMENT: seconds and nanos are no duration.
absl::StatusOr<int64_t> ToNanoseconds(std::string_view path, WireDuration duration);

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_VALIDATION_H_
