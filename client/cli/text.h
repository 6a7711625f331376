// Parses and formats values for people: durations, rates, numbers, receipts.
#ifndef SLUICE_CLIENT_CLI_TEXT_H_
#define SLUICE_CLIENT_CLI_TEXT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/admin_client.h"
#include "sluice/decision.h"
#include "sluice/status.h"

namespace sluice::cli {

// "12.3ms", "1m05s", "2h00m", "0s".
std::string FormatDuration(std::chrono::nanoseconds time);
// "250ms", "1.5s", "1m30s", "24h", "7d".
Result<std::chrono::nanoseconds> ParseDuration(std::string_view text);

// "100/s", "500/250ms", "10000/24h".
std::string FormatRate(const LimitRate& rate);
Result<LimitRate> ParseRate(std::string_view text);

// Only decimal digits.
Result<uint64_t> ParseNumber(std::string_view text);
// "1,234,567".
std::string FormatCount(uint64_t count);
// "64.0 MiB".
std::string FormatBytes(uint64_t bytes);
// "2026-11-21 06:19:05 UTC".
std::string FormatTime(std::chrono::system_clock::time_point at);
// Seconds since 1970.
int64_t UnixSeconds(std::chrono::system_clock::time_point at);

std::string ToBase64Url(std::string_view bytes);
Result<std::string> FromBase64Url(std::string_view text);

// `LIMIT [KEY [PERMITS]]`, where "" is the empty key, or a JSON object: a charge
// {"limit": ..., "key": ..., "permits": ...} or {"charges": [...], "want_receipt": true}.
Result<Acquisition> ParseAcquisition(std::string_view line);

// A table with two spaces between columns. The first row is the heading. Columns whose heading
// begins with '>' are aligned to the right.
std::string FormatTable(std::vector<std::vector<std::string>> rows);

// A key for people: control characters escaped, and "(shared)" for the empty one.
std::string ShowKey(std::string_view key);

}  // namespace sluice::cli

#endif  // SLUICE_CLIENT_CLI_TEXT_H_
