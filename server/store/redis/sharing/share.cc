#include "server/store/redis/sharing/share.h"

#include "absl/status/statusor.h"
#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::store::redis {

using algorithm::Kind;
using algorithm::Parameters;
using algorithm::Rate;

std::optional<Parameters> ShareOf(const Parameters& whole, uint32_t divisor) {
  if (divisor == 1) return whole;
  const auto fewer = [divisor](Rate rate) {
    rate.permits /= divisor;
    return rate;
  };
  absl::StatusOr<Parameters> made;
  switch (whole.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& bucket = whole.token_bucket;
      Rate rate = bucket.rate;
      if (rate.period_ns <= common::bounds::kMaxPeriodNs / divisor) {
        rate.period_ns *= divisor;
      } else {
        rate = fewer(rate);
      }
      if (rate.permits == 0) return std::nullopt;
      made = algorithm::MakeTokenBucket(rate, bucket.burst / divisor, bucket.debt / divisor);
      break;
    }
    case Kind::kSlidingLog: {
      const Rate rate = fewer(whole.sliding_log.rate);
      if (rate.permits == 0) return std::nullopt;
      made = algorithm::MakeSlidingLog(rate);
      break;
    }
    case Kind::kSlidingWindow: {
      const Rate rate = fewer(whole.sliding_window.rate);
      if (rate.permits == 0) return std::nullopt;
      made = algorithm::MakeSlidingWindow(rate, whole.sliding_window.sub_windows);
      break;
    }
    case Kind::kFixedWindow: {
      const Rate rate = fewer(whole.fixed_window.rate);
      if (rate.permits == 0) return std::nullopt;
      made = algorithm::MakeFixedWindow(rate, whole.fixed_window.utc_offset_ns);
      break;
    }
  }
  // Burst and debt that are both less than the divisor.
  if (!made.ok()) return std::nullopt;
  return *std::move(made);
}

}  // namespace sluice::store::redis
