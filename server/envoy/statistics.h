// Statistics: the counters of envoyproxy/ratelimit under its names, for /stats and statsd.
#ifndef SLUICE_SERVER_ENVOY_STATISTICS_H_
#define SLUICE_SERVER_ENVOY_STATISTICS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/envoy/hit_counters.h"
#include "server/limits/limit_registry.h"

namespace sluice::envoy {

// Thread-safe. All arguments outlive it.
class Statistics {
 public:
  // "ratelimit.service.rate_limit.eg.path_/login.total_hits" and its value since the start.
  using Values = std::vector<std::pair<std::string, uint64_t>>;

  // `file_status`: of Envoy's configuration.
  Statistics(const HitCounters& counters, const limits::LimitRegistry& registry,
             std::function<limits::FileStatus()> file_status)
      : counters_(counters), registry_(registry), file_status_(std::move(file_status)) {}

  // Takes milliseconds for thousands of limits: not for an event loop that serves requests.
  Values Read() const;

  const limits::LimitRegistry& registry() const { return registry_; }

 private:
  const HitCounters& counters_;
  const limits::LimitRegistry& registry_;
  const std::function<limits::FileStatus()> file_status_;
};

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_STATISTICS_H_
