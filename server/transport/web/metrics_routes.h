// MetricsRoutes: GET /metrics, for Prometheus.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_ROUTES_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_ROUTES_H_

#include "server/transport/http1/route.h"
#include "server/transport/web/metrics/scraper.h"

namespace sluice::web {

// Thread-safe. The scraper outlives it.
class MetricsRoutes final : public http1::Handler {
 public:
  explicit MetricsRoutes(metrics::Scraper& scraper) : scraper_(scraper) {}

  // `gate` null: every client that reaches the port may read.
  void Register(const http1::Gate* gate, http1::RouteTable* routes);

  void OnRequest(http1::Exchange& exchange) override;
  void OnCancelled(http1::Exchange& exchange) override;

 private:
  metrics::Scraper& scraper_;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_ROUTES_H_
