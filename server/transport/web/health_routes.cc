#include "server/transport/web/health_routes.h"

#include <string>
#include <utility>

#include "server/transport/http1/exchange.h"

namespace sluice::web {
namespace {

constexpr char kReadiness[] = "/readyz";
constexpr char kHealthcheck[] = "/healthcheck";

}  // namespace

void HealthRoutes::Register(http1::RouteTable* routes) {
  for (const char* path : {"/healthz", kReadiness}) {
    routes->Add(path, *this, {.exempt_from_shedding = true, .metric = "/healthz"});
  }
}

void HealthRoutes::RegisterHealthcheck(http1::RouteTable* routes) {
  routes->Add(kHealthcheck, *this, {.exempt_from_shedding = true, .metric = "/healthz"});
}

void HealthRoutes::OnRequest(http1::Exchange& exchange) {
  const std::string& path = exchange.route().path;
  const bool asks_readiness = path == kReadiness || path == kHealthcheck;
  const bool draining = asks_readiness && !ready_.load(std::memory_order_relaxed);
  http1::Answer answer;
  if (draining) answer.status = path == kHealthcheck ? 500 : 503;
  answer.content_type = "text/plain; charset=utf-8";
  answer.body = path == kHealthcheck && !draining
                    ? http1::SharedBytes::Constant("OK")
                    : http1::SharedBytes::Constant(draining ? "not ready\n" : "ok\n");
  exchange.Finish(std::move(answer));
}

}  // namespace sluice::web
