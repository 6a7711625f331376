// RateLimitJson: POST /json, envoyproxy/ratelimit's form of ShouldRateLimit over HTTP: 200 (OK),
// 429 (over a limit) or 400, with the answer as JSON.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_ENVOY_RATE_LIMIT_JSON_H_
#define SLUICE_SERVER_TRANSPORT_WEB_ENVOY_RATE_LIMIT_JSON_H_

#include <memory>

#include "common/net/event_loop.h"
#include "server/transport/envoy/rate_limit_service.h"
#include "server/transport/http1/route.h"
#include "server/transport/web/json_call.h"
#include "server/transport/web/json_codec.h"

namespace sluice::web {

// Thread-safe: all event loops call it. Outlives the loops and the calls in progress.
class RateLimitJson final : public JsonMethod {
 public:
  // All outlive it. `background`: where large requests are parsed and decided.
  RateLimitJson(transport::DescriptorLimiter& limiter, const JsonCodec& json,
                net::EventLoop& background);

  // `gate` outlives the routes.
  void Register(const http1::Gate& gate, http1::RouteTable* routes);

 private:
  std::shared_ptr<JsonCall> NewCall() override;

  transport::DescriptorLimiter& limiter_;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_ENVOY_RATE_LIMIT_JSON_H_
