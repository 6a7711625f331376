#include "server/transport/web/health_routes.h"

#include <utility>

#include "server/transport/http1/exchange.h"

namespace sluice::web {
namespace {

constexpr char kReadiness[] = "/readyz";

}  // namespace

void HealthRoutes::Register(http1::RouteTable* routes) {
  for (const char* path : {"/healthz", kReadiness}) {
    routes->Add(path, *this, {.exempt_from_shedding = true, .metric = "/healthz"});
  }
}

void HealthRoutes::OnRequest(http1::Exchange& exchange) {
  const bool draining =
      exchange.route().path == kReadiness && !ready_.load(std::memory_order_relaxed);
  http1::Answer answer;
  answer.status = draining ? 503 : 200;
  answer.content_type = "text/plain; charset=utf-8";
  answer.body = http1::SharedBytes::Constant(draining ? "not ready\n" : "ok\n");
  exchange.Finish(std::move(answer));
}

}  // namespace sluice::web
