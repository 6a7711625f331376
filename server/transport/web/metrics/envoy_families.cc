#include "server/transport/web/metrics/envoy_families.h"

#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice::metrics {
namespace {

// Rows of a piece, as LimitFamilies::kPiece.
constexpr size_t kPiece = 256;

struct Family {
  const char* name;
  const char* help;
  uint64_t envoy::HitTotals::* count;
  bool always;  // also where it is 0
};

constexpr Family kFamilies[] = {
    {"ratelimit_service_rate_limit_total_hits", "Hits on the limit.", &envoy::HitTotals::total_hits,
     true},
    {"ratelimit_service_rate_limit_over_limit", "Hits over the limit.",
     &envoy::HitTotals::over_limit, true},
    {"ratelimit_service_rate_limit_near_limit", "Hits above the near ratio of the limit.",
     &envoy::HitTotals::near_limit, true},
    {"ratelimit_service_rate_limit_within_limit", "Hits of requests within the limit.",
     &envoy::HitTotals::within_limit, true},
    {"ratelimit_service_rate_limit_shadow_mode", "Hits over the limit that shadow mode let pass.",
     &envoy::HitTotals::shadow_mode, false},
};

// DOMAIN.KEY[_VALUE][.KEY[_VALUE]].
Labels LabelsOf(std::string_view name) {
  Labels labels;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(name.data(), name.size()), '.')) {
    labels.push_back(
        {labels.empty() ? "domain" : absl::StrCat("key", labels.size()), std::string(part)});
  }
  return labels;
}

}  // namespace

std::vector<prometheus::MetricFamily> EnvoyCallFamilies(
    const envoy::CallTotals& calls, const std::vector<common::MethodTotals>& methods) {
  FamilyList list;
  list.Counter("ratelimit_service_should_rate_limit_error", "Calls that failed, by kind.")
      .Value(static_cast<double>(calls.redis_error), {{"err_type", "redis_error"}})
      .Value(static_cast<double>(calls.service_error), {{"err_type", "service_error"}});
  list.Counter("ratelimit_service_domain_not_found", "Calls with a domain that is not configured.")
      .Value(static_cast<double>(calls.domain_not_found));
  list.Counter("sluice_kuadrant_reservations_total", "Calls of Reserve and Commit, by outcome.")
      .Value(static_cast<double>(calls.reserved), {{"outcome", "reserved"}})
      .Value(static_cast<double>(calls.not_reserved), {{"outcome", "over_limit"}})
      .Value(static_cast<double>(calls.committed), {{"outcome", "committed"}})
      .Value(static_cast<double>(calls.reported), {{"outcome", "reported"}});
  for (const common::MethodTotals& one : methods) {
    if (one.method != "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit") continue;
    const uint64_t ended = std::accumulate(one.codes.begin(), one.codes.end(), uint64_t{0});
    list.Counter("ratelimit_service_total_requests", "Calls that ended.")
        .Value(static_cast<double>(ended), {{"grpc_method", "ShouldRateLimit"}});
    list.Histogram("ratelimit_service_response_time_seconds", "From a call's headers to its end.")
        .Samples(one.latency, {{"grpc_method", "ShouldRateLimit"}});
  }
  return list.Take();
}

EnvoyHitFamilies::EnvoyHitFamilies(envoy::HitsByName hits, size_t max_shown)
    : hits_(std::move(hits)), max_shown_(max_shown), next_(hits_.begin()) {}

bool EnvoyHitFamilies::NextPiece(prometheus::MetricFamily* family, bool* continued) {
  if (hits_.empty() || family_ == std::size(kFamilies)) return false;
  const Family& of = kFamilies[family_];
  *family = {of.name, of.help, prometheus::MetricType::Counter, {}};
  const auto add = [&](uint64_t count, Labels labels) {
    prometheus::ClientMetric& metric = family->metric.emplace_back();
    metric.label = std::move(labels);
    metric.counter.value = static_cast<double>(count);
  };
  for (size_t i = 0; i < kPiece && next_ != hits_.end(); ++i, ++next_, ++row_) {
    const uint64_t count = next_->second.*of.count;
    if (row_ >= max_shown_) {
      others_ += count;
    } else if (count != 0 || of.always) {
      add(count, LabelsOf(next_->first));
    }
  }
  const bool last = next_ == hits_.end();
  if (last && row_ > max_shown_ && (others_ != 0 || of.always)) add(others_, {{"domain", "other"}});
  *continued = begun_;
  begun_ |= !family->metric.empty();
  if (!last) return true;
  ++family_;
  next_ = hits_.begin();
  row_ = 0;
  others_ = 0;
  begun_ = false;
  return true;
}

}  // namespace sluice::metrics
