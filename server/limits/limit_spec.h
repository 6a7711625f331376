// LimitSpec: a limit as written, in a file or by PutLimit, without defaults. CONTRIBUTING.md says
// where a new field goes.
#ifndef SLUICE_SERVER_LIMITS_LIMIT_SPEC_H_
#define SLUICE_SERVER_LIMITS_LIMIT_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/algorithm/parameters.h"
#include "server/algorithm/rate.h"
#include "server/store/rule.h"

namespace sluice::limits {

enum class Mode : uint8_t { kEnforce = 0, kShadow };

// The answer to acquisitions while the shared store is unavailable.
enum class OnStoreFailure : uint8_t { kDeny = 0, kAllow, kSplit };

// kEnvoy: a descriptor of Envoy's rate-limit configuration (server/envoy).
enum class Origin : uint8_t { kFile = 0, kAdmin, kAdminOverFile, kEnvoy };

// Parameters of one key; the limit's apply where absent.
struct KeyOverride {
  std::string key;
  std::optional<algorithm::Rate> rate;
  std::optional<uint64_t> burst;
  std::optional<uint64_t> debt;
  std::optional<uint64_t> permits = {};  // concurrency

  friend bool operator==(const KeyOverride&, const KeyOverride&) = default;
};

struct LimitSpec {
  std::string name;
  algorithm::Kind algorithm = algorithm::Kind::kTokenBucket;
  algorithm::Rate rate;                  // not of concurrency
  std::optional<uint64_t> burst;         // token_bucket
  std::optional<uint64_t> debt;          // token_bucket
  std::optional<uint64_t> max_owed;      // absent: no forced debits
  std::optional<uint32_t> sub_windows;   // sliding_window
  std::optional<int64_t> utc_offset_ns;  // fixed_window
  std::optional<uint64_t> permits;       // concurrency
  std::optional<int64_t> hold_for_ns;    // concurrency; absent: bounds::kDefaultHoldForNs
  Mode mode = Mode::kEnforce;
  OnStoreFailure on_store_failure = OnStoreFailure::kDeny;
  store::Sharing sharing = store::Sharing::kExact;
  std::vector<std::string> charges;
  std::vector<KeyOverride> keys;
  std::optional<std::string> hash_tag;
  // How far ahead a booking may lie; absent: bounds::kDefaultMaxWaitNs.
  std::optional<int64_t> max_wait_ns;
  // The number of keys for which room is reserved; absent: an equal part of what is left.
  std::optional<uint64_t> min_keys;
  // False: only the `charges` of other limits may reach it.
  bool direct = true;

  // Of PutLimit: why it was put, and when the change is undone, on Clock::NowNs; absent: never.
  std::string reason;
  std::optional<int64_t> ends_at_ns;

  Origin origin = Origin::kFile;
  std::string defined_at;  // "FILE:LINE"; kEnvoy: "FILE:LINE:COLUMN"; empty for PutLimit

  friend bool operator==(const LimitSpec&, const LimitSpec&) = default;
};

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_LIMIT_SPEC_H_
