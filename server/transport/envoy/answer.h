// RateLimitAnswer: what Envoy's rate-limit service answers, assembled from the levels of the
// buckets. Pure functions.
#ifndef SLUICE_SERVER_TRANSPORT_ENVOY_ANSWER_H_
#define SLUICE_SERVER_TRANSPORT_ENVOY_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "server/envoy/matcher.h"
#include "server/store/store.h"

namespace sluice::transport {

// As on the wire.
enum class Code : uint8_t { kUnknown = 0, kOk = 1, kOverLimit = 2 };

// What the answer says of one descriptor. Views belong to the configuration.
struct DescriptorStatus {
  enum class Limit : uint8_t {
    kNone,       // no limit applies: OK, and no other field
    kUnlimited,  // OK, with the greatest remaining
    kCounted,
  };

  Limit limit = Limit::kNone;
  // More than the limit, whether or not shadow mode lets it pass.
  bool over = false;
  bool shadow_mode = false;
  bool quota_mode = false;
  uint32_t requests_per_unit = 0;
  uint32_t unit_multiplier = 1;
  envoy::Unit unit = envoy::Unit::kUnknown;
  uint32_t remaining = 0;
  uint32_t reset_s = 0;  // never 0 if it is counted
  std::string_view name;
  const envoy::MetadataValue::Fields* metadata = nullptr;  // null: none

  Code code() const { return over && !shadow_mode ? Code::kOverLimit : Code::kOk; }
};

// How to answer, for all requests.
struct AnswerOptions {
  // SHADOW_MODE: the overall code is OK; the statuses stay as they are.
  bool shadow_all = false;
  // QUOTA_MODE: all descriptors are in quota mode, also those without a limit.
  bool quota_all = false;
  // RESPONSE_DYNAMIC_METADATA: the request, and the metadata of limits that it is within.
  bool metadata = false;
  // LIMIT_RESPONSE_HEADERS_ENABLED, and the headers' names.
  bool headers = false;
  std::string limit_header = "RateLimit-Limit";
  std::string remaining_header = "RateLimit-Remaining";
  std::string reset_header = "RateLimit-Reset";
};

// The hits that a bucket has counted, from its level after a decision. `forgiven`: what the
// decision did not count (ChargeResult).
uint64_t CountedHits(const store::BucketLevel& level, uint64_t forgiven);

// Whole seconds, at least 1. A window that nothing has opened (level.reset_after_ns is 0) ends by
// the wall clock: `window_ns` is its length.
uint32_t ResetSeconds(int64_t reset_after_ns, int64_t window_ns, int64_t wall_ns);

// OVER_LIMIT iff a descriptor that is not in quota mode is over its limit, or all that are in it.
Code OverallCode(absl::Span<const DescriptorStatus> statuses);

// The descriptor that the headers are about: the last one over its limit and not in quota mode,
// else the first of those with the least remaining. Null: none has a limit.
const DescriptorStatus* StatusOfHeaders(absl::Span<const DescriptorStatus> statuses);

// How hits fall on a limit, for the counters: `after` is the count with them.
struct HitShares {
  uint64_t over_limit = 0;
  uint64_t near_limit = 0;
  uint64_t within_limit = 0;

  friend bool operator==(const HitShares&, const HitShares&) = default;
};
HitShares ShareHits(uint64_t hits, uint64_t after, uint32_t requests_per_unit, float near_ratio);

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_ENVOY_ANSWER_H_
