// EnvoyFamilies: the metrics of Envoy's rate-limit service under the names that
// envoyproxy/ratelimit has in Prometheus, so that its dashboards work.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_ENVOY_FAMILIES_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_ENVOY_FAMILIES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/metrics.h"
#include "prometheus/metric_family.h"
#include "server/envoy/hit_counters.h"
#include "server/transport/web/metrics/family_list.h"

namespace sluice::metrics {

// `methods`: of all ports.
std::vector<prometheus::MetricFamily> EnvoyCallFamilies(
    const envoy::CallTotals& calls, const std::vector<common::MethodTotals>& methods);

// The hits of all names: ratelimit_service_rate_limit_total_hits and so on, by domain, key1,
// key2, ... Not thread-safe.
class EnvoyHitFamilies {
 public:
  // Names over `max_shown` are summed, with the domain "other".
  EnvoyHitFamilies(envoy::HitsByName hits, size_t max_shown);

  EnvoyHitFamilies(const EnvoyHitFamilies&) = delete;
  EnvoyHitFamilies& operator=(const EnvoyHitFamilies&) = delete;

  // The families follow each other, each in pieces: `*continued` says that the piece belongs to the
  // same family as the one before. A piece may have no samples. Returns false if no piece is left.
  bool NextPiece(prometheus::MetricFamily* family, bool* continued);

 private:
  const envoy::HitsByName hits_;
  const size_t max_shown_;
  size_t family_ = 0;
  envoy::HitsByName::const_iterator next_;
  size_t row_ = 0;       // of next_
  uint64_t others_ = 0;  // the names over max_shown
  bool begun_ = false;   // a piece of the family was made
};

}  // namespace sluice::metrics

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_ENVOY_FAMILIES_H_
