// HealthRoutes: GET /healthz (the process runs) and GET /readyz (it takes calls), for probes; and
// /healthcheck, which is /readyz as envoyproxy/ratelimit has it.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_HEALTH_ROUTES_H_
#define SLUICE_SERVER_TRANSPORT_WEB_HEALTH_ROUTES_H_

#include <atomic>

#include "server/transport/http1/route.h"

namespace sluice::web {

// Thread-safe.
class HealthRoutes final : public http1::Handler {
 public:
  // Ports without authentication may serve them: they tell nothing else.
  void Register(http1::RouteTable* routes);
  // /healthcheck alone.
  void RegisterHealthcheck(http1::RouteTable* routes);

  // Not ready at the start.
  void SetReady(bool ready) { ready_.store(ready, std::memory_order_relaxed); }

  void OnRequest(http1::Exchange& exchange) override;

 private:
  // Relaxed: a probe that comes at the same time may see either.
  std::atomic<bool> ready_{false};
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_HEALTH_ROUTES_H_
