#include "server/store/redis/sharing/share.h"

#include "common/bounds.h"
#include "server/algorithm/parameters.h"

namespace sluice::store::redis {

std::optional<algorithm::Parameters> ShareOf(const algorithm::Parameters& whole, uint32_t divisor) {
  if (divisor == 1) return whole;
  algorithm::Rate rate = RateOf(whole);
  if (whole.kind == algorithm::Kind::kTokenBucket &&
      rate.period_ns <= common::bounds::kMaxPeriodNs / divisor) {
    rate.period_ns *= divisor;
  } else {
    rate.permits /= divisor;
  }
  if (rate.permits == 0) return std::nullopt;
  algorithm::Parameters part = whole;
  part.token_bucket.burst /= divisor;
  part.token_bucket.debt /= divisor;
  const auto made =
      VisitMember(part.kind, [&](auto member) { return algorithm::WithRate(part.*member, rate); });
  // Burst and debt that are both less than the divisor.
  if (!made.ok()) return std::nullopt;
  return *made;
}

}  // namespace sluice::store::redis
