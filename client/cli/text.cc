#include "client/cli/text.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <sstream>

#include "client/cli/command_line.h"
#include "sluice/v1/rate_limiter.pb.h"

namespace sluice::cli {
namespace {

std::string Quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

std::string Scaled(double value, const char* unit) {
  char text[32];
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  std::string out = text;
  if (out.find('.') != std::string::npos) {
    while (out.back() == '0') out.pop_back();
    if (out.back() == '.') out.pop_back();
  }
  return out + unit;
}

struct Unit {
  std::string_view name;
  int64_t ns;
};
constexpr Unit kUnits[] = {{"ns", 1},
                           {"us", 1'000},
                           {"ms", 1'000'000},
                           {"s", 1'000'000'000},
                           {"m", int64_t{60} * 1'000'000'000},
                           {"h", int64_t{3600} * 1'000'000'000},
                           {"d", int64_t{86400} * 1'000'000'000}};

// The server refuses what is cut.
std::chrono::nanoseconds ToNanoseconds(const google::protobuf::Duration& time) {
  constexpr int64_t kMostSeconds = 9'000'000'000;
  return std::chrono::seconds(std::clamp(time.seconds(), -kMostSeconds, kMostSeconds)) +
         std::chrono::nanoseconds(time.nanos());
}

}  // namespace

std::string FormatDuration(std::chrono::nanoseconds time) {
  const int64_t ns = time.count();
  if (ns < 0) return "-" + FormatDuration(std::chrono::nanoseconds(-std::max(ns, -INT64_MAX)));
  if (ns == 0) return "0s";
  const auto value = static_cast<double>(ns);
  if (ns < 1'000) return std::to_string(ns) + "ns";
  if (ns < 999'500) return Scaled(value / 1e3, "us");
  if (ns < 999'500'000) return Scaled(value / 1e6, "ms");
  if (ns < 59'950'000'000) return Scaled(value / 1e9, "s");
  const int64_t seconds = ns / 1'000'000'000;
  char text[48];
  if (seconds < 3600) {
    std::snprintf(text, sizeof(text), "%ldm%02lds", seconds / 60, seconds % 60);
  } else if (seconds < 86400) {
    std::snprintf(text, sizeof(text), "%ldh%02ldm", seconds / 3600, seconds / 60 % 60);
  } else {
    std::snprintf(text, sizeof(text), "%ldd%02ldh", seconds / 86400, seconds / 3600 % 24);
  }
  return text;
}

Result<std::chrono::nanoseconds> ParseDuration(std::string_view text) {
  const Status bad = BadUsage(
      Quoted(text) + " is not a duration: write a number and ns, us, ms, s, m, h or d, as 250ms");
  double total = 0;
  std::string_view rest = text;
  if (rest.empty()) return bad;
  if (rest == "0") return std::chrono::nanoseconds(0);
  while (!rest.empty()) {
    double value = 0;
    const auto parsed =
        std::from_chars(rest.data(), rest.data() + rest.size(), value, std::chars_format::fixed);
    if (parsed.ec != std::errc() || !(value >= 0)) return bad;
    rest.remove_prefix(static_cast<size_t>(parsed.ptr - rest.data()));
    const size_t letters = static_cast<size_t>(
        std::find_if(rest.begin(), rest.end(), [](char c) { return c < 'a' || c > 'z'; }) -
        rest.begin());
    const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits), [&](const Unit& one) {
      return one.name == rest.substr(0, letters);
    });
    if (unit == std::end(kUnits)) return bad;
    total += value * static_cast<double>(unit->ns);
    rest.remove_prefix(letters);
  }
  if (total > 9.2e18) return BadUsage(Quoted(text) + " is longer than 292 years");
  return std::chrono::nanoseconds(std::llround(total));
}

std::string FormatRate(const LimitRate& rate) {
  // Exact, in the largest unit that divides the period.
  const int64_t ns = rate.period.count();
  for (auto unit = std::rbegin(kUnits); unit != std::rend(kUnits); ++unit) {
    if (ns % unit->ns != 0) continue;
    const int64_t count = ns / unit->ns;
    return std::to_string(rate.permits) + "/" + (count == 1 ? "" : std::to_string(count)) +
           std::string(unit->name);
  }
  return std::to_string(rate.permits);
}

Result<LimitRate> ParseRate(std::string_view text) {
  const size_t slash = text.find('/');
  const Status bad =
      BadUsage(Quoted(text) + " is not a rate: write permits/period, as 100/s or 500/250ms");
  if (slash == std::string_view::npos || slash + 1 == text.size()) return bad;
  LimitRate rate;
  const Result<uint64_t> permits = ParseNumber(text.substr(0, slash));
  if (!permits.ok()) return bad;
  rate.permits = *permits;
  std::string period(text.substr(slash + 1));
  if (period[0] >= 'a' && period[0] <= 'z') period.insert(0, "1");
  const Result<std::chrono::nanoseconds> parsed = ParseDuration(period);
  if (!parsed.ok()) return bad;
  rate.period = *parsed;
  return rate;
}

Result<uint64_t> ParseNumber(std::string_view text) {
  uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || parsed.ptr != text.data() + text.size() ||
      parsed.ec == std::errc::invalid_argument) {
    return BadUsage(Quoted(text) + " is not a whole number");
  }
  if (parsed.ec == std::errc::result_out_of_range) {
    return BadUsage(Quoted(text) + " is greater than 18446744073709551615");
  }
  return number;
}

std::string FormatCount(uint64_t count) {
  std::string digits = std::to_string(count);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %s", value, units[unit]);
  return text;
}

std::string FormatTime(std::chrono::system_clock::time_point at) {
  if (at.time_since_epoch().count() == 0) return "never";
  const std::time_t seconds = std::chrono::system_clock::to_time_t(at);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

int64_t UnixSeconds(std::chrono::system_clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count();
}

namespace {
constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
}  // namespace

std::string ToBase64Url(std::string_view bytes) {
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    count += 8;
    while (count >= 6) {
      count -= 6;
      text += kBase64[bits >> count & 63];
    }
  }
  if (count > 0) text += kBase64[bits << (6 - count) & 63];
  return text;
}

Result<std::string> FromBase64Url(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const char* found = std::find(kBase64, kBase64 + 64, c);
    if (found == kBase64 + 64) {
      return BadUsage("the receipt is not base64url: \"" + std::string(1, c) +
                      "\" cannot be in it");
    }
    bits = bits << 6 | static_cast<uint32_t>(found - kBase64);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count & 255);
    }
  }
  if (count >= 6 || (bits & ((1u << count) - 1)) != 0) {
    return BadUsage("the receipt is not base64url: its end is missing");
  }
  return bytes;
}

Result<Acquisition> ParseAcquisition(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return BadUsage("an empty line");
  line.remove_prefix(first);
  if (line.front() == '{') {
    v1::AcquireRequest request;
    v1::Charge charge;
    const std::string json(line);
    const auto one = google::protobuf::util::JsonStringToMessage(json, &charge);
    if (one.ok()) {
      *request.add_charges() = charge;
    } else if (const auto several = google::protobuf::util::JsonStringToMessage(json, &request);
               !several.ok()) {
      const bool has_charges = json.find("\"charges\"") != std::string::npos;
      const auto& why = has_charges ? several : one;
      return BadUsage("not an acquisition: " +
                      std::string(why.message().data(), why.message().size()));
    }
    Acquisition acquisition;
    acquisition.want_receipt = request.want_receipt();
    acquisition.force = request.force();
    acquisition.request_id = request.request_id();
    if (request.hold()) return BadUsage("hold: not allowed in a batch");
    acquisition.max_wait = ToNanoseconds(request.max_wait());
    acquisition.settle_within = ToNanoseconds(request.settle_within());
    for (const v1::Charge& wire : request.charges()) {
      acquisition.charges.push_back(
          {wire.limit(), wire.key(), wire.has_permits() ? wire.permits() : 1});
    }
    return acquisition;
  }
  std::istringstream in{std::string(line)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  if (words.size() > 3) {
    return BadUsage(Quoted(line) + ": write LIMIT [KEY [PERMITS]], or JSON for a key with spaces");
  }
  Charge charge;
  charge.limit = words[0];
  if (words.size() > 1 && words[1] != "\"\"") charge.key = words[1];
  if (words.size() > 2) {
    const Result<uint64_t> permits = ParseNumber(words[2]);
    if (!permits.ok()) return permits.status();
    charge.permits = *permits;
  }
  return Acquisition(std::vector<Charge>{charge});
}

std::string FormatTable(std::vector<std::vector<std::string>> rows) {
  if (rows.empty()) return "";
  std::vector<bool> right;
  std::vector<size_t> width;
  for (std::string& heading : rows[0]) {
    right.push_back(!heading.empty() && heading[0] == '>');
    if (right.back()) heading.erase(0, 1);
    width.push_back(0);
  }
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string out;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string fill(width[i] - row[i].size(), ' ');
      if (i > 0) out += "  ";
      out += right[i] ? fill + row[i] : row[i] + fill;
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    text += out + "\n";
  }
  return text;
}

std::string ShowKey(std::string_view key) {
  if (key.empty()) return "(shared)";
  std::string text;
  for (const char c : key) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned char>(c));
      text += escaped;
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace sluice::cli
