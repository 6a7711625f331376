// How parameters are written by people: "100/s", "250ms", "sliding_log". The same in the limits
// file, on the command line and in messages.
//
// Whole numbers: digits, with _ between digits where that reads better: 10_000.
// Durations: a number and a unit, or several: 250ms, 24h, 1h30m. The units:
//   ns  us  ms  s|sec|second  m|min|minute  h|hour  d|day  w|week  y|year (365 days)
// Rates: PERMITS/DURATION, where the duration's number may be left out if it is 1: 5/s, 500/250ms,
// 10000/24h.
// Offsets from UTC: +02:00, -05:30, or a duration with a sign: -5h30m; 0 and Z too.
//
// Pure; thread-safe. Errors are INVALID_ARGUMENT; their message says what would be right, and not
// the value, which the caller shows before it.
#ifndef SLUICE_SERVER_LIMITS_NOTATION_H_
#define SLUICE_SERVER_LIMITS_NOTATION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/algorithm/parameters.h"
#include "server/algorithm/rate.h"
#include "server/limits/limit_spec.h"

namespace sluice::limits {

absl::StatusOr<uint64_t> ParseWhole(std::string_view text);

// Not negative, in nanoseconds. Zero is taken: whether that makes sense is the caller's to say.
absl::StatusOr<int64_t> ParseDuration(std::string_view text);

// Zero permits and a zero period are taken.
absl::StatusOr<algorithm::Rate> ParseRate(std::string_view text);

// In nanoseconds.
absl::StatusOr<int64_t> ParseUtcOffset(std::string_view text);

absl::StatusOr<algorithm::Kind> ParseAlgorithm(std::string_view text);
absl::StatusOr<Mode> ParseMode(std::string_view text);
absl::StatusOr<OnStoreFailure> ParseOnStoreFailure(std::string_view text);
absl::StatusOr<store::Sharing> ParseSharing(std::string_view text);

// What the Parse functions read back as the same.
std::string FormatDuration(int64_t ns);
std::string FormatRate(algorithm::Rate rate);
std::string FormatUtcOffset(int64_t ns);
std::string_view AlgorithmName(algorithm::Kind kind);
std::string_view ModeName(Mode mode);

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_NOTATION_H_
