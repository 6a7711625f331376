// ServerFamilies: the metrics of a server, its process and its store; all but those of each limit.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_SERVER_FAMILIES_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_SERVER_FAMILIES_H_

#include <cstdint>
#include <vector>

#include "common/memory_account.h"
#include "prometheus/metric_family.h"
#include "server/access/caller.h"
#include "server/envoy/hit_counters.h"
#include "server/service/bucket_watch.h"
#include "server/service/limit_admin.h"
#include "server/waiting/held_callers.h"

namespace sluice::metrics {

// What the metrics are read from; all are thread-safe.
struct Sources {
  const service::LimitAdmin& admin;
  const waiting::HeldCallers& held_callers;
  const service::WatchHub& watches;
  const common::MemoryBudget& memory;
  const envoy::HitCounters* envoy = nullptr;  // null: Envoy's rate-limit service is not configured
  const access::Clients* clients = nullptr;   // null: all callers are served
};

// Numbers of `sources` that have to be gathered in steps.
struct Gathered {
  uint64_t open_files = 0;
  // Decided by on_store_failure, summed over the limits.
  uint64_t allowed_while_unavailable = 0;
  uint64_t denied_while_unavailable = 0;
};

// Takes a fraction of a millisecond.
std::vector<prometheus::MetricFamily> ServerFamilies(const Sources& sources,
                                                     const Gathered& gathered);

}  // namespace sluice::metrics

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_SERVER_FAMILIES_H_
