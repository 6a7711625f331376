#include "server/transport/envoy/answer.h"

#include <algorithm>
#include <limits>

namespace sluice::transport {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

}  // namespace

uint64_t CountedHits(const store::BucketLevel& level, uint64_t forgiven) {
  // Modulo 2^64, which is right for a negative remaining too: the difference is never negative.
  const uint64_t counted = level.capacity - static_cast<uint64_t>(level.remaining);
  const uint64_t all = counted + forgiven;
  return all < counted ? UINT64_MAX : all;
}

uint32_t ResetSeconds(int64_t reset_after_ns, int64_t window_ns, int64_t wall_ns) {
  if (reset_after_ns <= 0 && window_ns > 0) {
    const int64_t into_window_ns = (wall_ns % window_ns + window_ns) % window_ns;
    reset_after_ns = window_ns - into_window_ns;
  }
  const int64_t seconds = (reset_after_ns - 1) / kSecondNs + 1;
  return static_cast<uint32_t>(std::clamp<int64_t>(seconds, 1, UINT32_MAX));
}

Code OverallCode(absl::Span<const DescriptorStatus> statuses) {
  bool any_quota = false;
  bool all_quotas_over = true;
  bool over = false;
  for (const DescriptorStatus& status : statuses) {
    const bool is_over = status.code() == Code::kOverLimit;
    if (!status.quota_mode) {
      over |= is_over;
    } else {
      any_quota = true;
      all_quotas_over &= is_over;
    }
  }
  over |= any_quota && all_quotas_over;
  return over ? Code::kOverLimit : Code::kOk;
}

const DescriptorStatus* StatusOfHeaders(absl::Span<const DescriptorStatus> statuses) {
  const DescriptorStatus* least = nullptr;
  const DescriptorStatus* last_over = nullptr;
  uint32_t least_remaining = UINT32_MAX;
  for (const DescriptorStatus& status : statuses) {
    if (status.limit != DescriptorStatus::Limit::kCounted) continue;
    if (status.code() == Code::kOverLimit && !status.quota_mode) last_over = &status;
    if (status.remaining >= least_remaining) continue;
    least = &status;
    least_remaining = status.remaining;
  }
  return last_over != nullptr ? last_over : least;
}

HitShares ShareHits(uint64_t hits, uint64_t after, uint32_t requests_per_unit, float near_ratio) {
  const uint64_t limit = requests_per_unit;
  const uint64_t before = after - std::min(hits, after);
  const auto near = static_cast<uint64_t>(static_cast<float>(limit) * near_ratio);
  HitShares shares;
  if (after <= limit) {
    shares.within_limit = hits;
    if (after > near) shares.near_limit = std::min(hits, after - near);
  } else if (before >= limit) {
    shares.over_limit = hits;
  } else {
    shares.over_limit = after - limit;
    shares.near_limit = limit - std::max(near, before);
  }
  return shares;
}

}  // namespace sluice::transport
