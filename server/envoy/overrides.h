// Overrides: how to count the limits of Envoy's configuration: --ratelimit_mode for all of them,
// and --ratelimit_overrides for some domains and limits.
#ifndef SLUICE_SERVER_ENVOY_OVERRIDES_H_
#define SLUICE_SERVER_ENVOY_OVERRIDES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/limits/limit_spec.h"

namespace sluice::envoy {

enum class CountMode : uint8_t {
  // As envoyproxy/ratelimit: windows aligned to the epoch, each descriptor by itself, requests that
  // are denied are counted.
  kCompatible = 0,
  // Sluice's algorithms with the same numbers; requests that are denied are not counted.
  kExact,
};

// Of kExact.
enum class ExactAlgorithm : uint8_t { kTokenBucket = 0, kSlidingWindow };

struct Counting {
  CountMode mode = CountMode::kCompatible;
  ExactAlgorithm algorithm = ExactAlgorithm::kTokenBucket;
  // kExact: the descriptors of a request that say so are taken all or none.
  bool all_or_none = false;
  // kDeny: an error, as envoyproxy/ratelimit answers; Envoy's failure_mode_deny decides.
  limits::OnStoreFailure on_store_failure = limits::OnStoreFailure::kDeny;

  friend bool operator==(const Counting&, const Counting&) = default;
};

struct Overrides {
  Counting all;
  absl::flat_hash_map<std::string, Counting> domains;
  // By rate_limit.name, or by the limit's name in Sluice. They take precedence over domains.
  absl::flat_hash_map<std::string, Counting> limits;

  // `name`: rate_limit.name, may be empty; `limit_name`: in Sluice.
  const Counting& Of(std::string_view domain, std::string_view name,
                     std::string_view limit_name) const;
};

// Reads the YAML of --ratelimit_overrides over `all`. INVALID_ARGUMENT: "FILE:LINE:COLUMN: ...".
absl::StatusOr<Overrides> ParseOverrides(std::string_view text, std::string_view filename,
                                         const Counting& all);

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_OVERRIDES_H_
