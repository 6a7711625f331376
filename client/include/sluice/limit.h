// LimitInfo: a limit as configured. AdminClient reads and writes it, and Embedded is created from
// it.
#ifndef SLUICE_LIMIT_H_
#define SLUICE_LIMIT_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

// permits / period.
struct LimitRate {
  uint64_t permits = 0;
  std::chrono::nanoseconds period = std::chrono::seconds(1);
};

// Other parameters for one key; absent ones are the limit's.
struct LimitKeyOverride {
  std::string key = {};
  std::optional<LimitRate> rate = {};
  std::optional<uint64_t> burst = {};
  std::optional<uint64_t> debt = {};
  std::optional<uint64_t> permits = {};  // concurrency
};

// docs/limits.md explains each parameter. Absent and empty ones have their defaults.
struct LimitInfo {
  std::string name = {};
  std::string algorithm = {};  // as in a limits file: "token_bucket", "sliding_log" and so on
  LimitRate rate = {};         // 0 permits, and ignored, with concurrency
  std::optional<uint64_t> burst = {};
  std::optional<uint64_t> debt = {};
  std::optional<uint64_t> max_owed = {};  // absent: no forced debits
  // concurrency: permits in use at the same time, and how long a grant holds them; absent: 30 s.
  std::optional<uint64_t> permits = {};
  std::optional<std::chrono::nanoseconds> hold_for = {};
  std::string mode = {};              // "enforce", "shadow"
  std::string on_store_failure = {};  // "deny", "allow", "split"
  std::string sharing = {};           // "exact", "split", "relaxed"
  std::vector<std::string> charges = {};
  std::vector<LimitKeyOverride> keys = {};
  std::optional<uint32_t> sub_windows = {};
  std::optional<std::string> hash_tag = {};
  std::optional<std::chrono::nanoseconds> utc_offset = {};
  // At most 24 h. Absent: 1 h at a server, 24 h in an embedded throttler.
  std::optional<std::chrono::nanoseconds> max_wait = {};
  std::optional<uint64_t> min_keys = {};
  bool direct = true;  // false: only the `charges` of other limits reach it
  // Output only: where the limit comes from.
  std::string origin = {};      // "file", "admin", "admin_over_file", "envoy"
  std::string defined_at = {};  // "FILE:LINE"
  // Output only: why it was put, and the time until the change is undone; absent: it has no end.
  std::string reason = {};
  std::optional<std::chrono::nanoseconds> expires_in = {};
};

}  // namespace sluice

#endif  // SLUICE_LIMIT_H_
