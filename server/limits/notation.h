// Reads and writes parameters as people write them: "100/s", "250ms", "sliding_log". The notation
// is the same in the limits file, on the command line and in messages.
//
// Whole numbers: digits, with _ between digits where that reads better: 10_000.
// Durations: a number and a unit, or several: 250ms, 24h, 1h30m. The units:
//   ns  us  ms  s|sec|second  m|min|minute  h|hour  d|day  w|week  y|year (365 days)
// Rates: PERMITS/DURATION, where the duration's number may be left out if it is 1: 5/s, 500/250ms,
// 10000/24h.
// Offsets from UTC: +02:00, -05:30, or a duration with a sign: -5h30m; 0 and Z too.
//
// Pure; thread-safe. Errors are INVALID_ARGUMENT; the message says what to write, and not the
// value, which the caller shows before it.
#ifndef SLUICE_SERVER_LIMITS_NOTATION_H_
#define SLUICE_SERVER_LIMITS_NOTATION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/algorithm/parameters.h"
#include "server/algorithm/rate.h"
#include "server/limits/limit_spec.h"

namespace sluice::limits {

absl::StatusOr<uint64_t> ParseWhole(std::string_view text);

// In nanoseconds; not negative. Accepts zero: the caller decides whether that makes sense.
absl::StatusOr<int64_t> ParseDuration(std::string_view text);

// Accepts zero permits and a zero period.
absl::StatusOr<algorithm::Rate> ParseRate(std::string_view text);

// In nanoseconds.
absl::StatusOr<int64_t> ParseUtcOffset(std::string_view text);

absl::StatusOr<algorithm::Kind> ParseAlgorithm(std::string_view text);
absl::StatusOr<bool> ParseBool(std::string_view text);
absl::StatusOr<Mode> ParseMode(std::string_view text);
absl::StatusOr<OnStoreFailure> ParseOnStoreFailure(std::string_view text);
absl::StatusOr<store::Sharing> ParseSharing(std::string_view text);

// The Parse functions read these back as the same value.
std::string FormatDuration(int64_t ns);
std::string FormatRate(algorithm::Rate rate);
std::string FormatUtcOffset(int64_t ns);
std::string_view SharingName(store::Sharing sharing);

// "a, b or c", with " or " before the last name.
std::string Listed(absl::Span<const std::string_view> names, std::string_view before_last);

// The bound of a single request, for messages: "burst + debt = 200", "burst = 100", "100 permits a
// period", "permits = 100".
std::string FormatMaxGrant(const algorithm::Parameters& parameters);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_NOTATION_H_
