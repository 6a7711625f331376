// RateLimitPages: /rlconfig and /stats of envoyproxy/ratelimit's debug port: the configuration in
// force and the counters, as text.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_ENVOY_RATE_LIMIT_PAGES_H_
#define SLUICE_SERVER_TRANSPORT_WEB_ENVOY_RATE_LIMIT_PAGES_H_

#include <string>

#include "common/net/event_loop.h"
#include "server/envoy/matcher.h"
#include "server/envoy/statistics.h"
#include "server/transport/http1/answer.h"
#include "server/transport/http1/background.h"
#include "server/transport/http1/request.h"
#include "server/transport/http1/route.h"

namespace sluice::web {

// "eg.path_/login: unit=MINUTE requests_per_unit=10, shadow_mode: false\n" for each limit.
std::string ConfigurationText(const envoy::Matcher& matcher);

// Thread-safe: all event loops call it. Outlives the loops.
class RateLimitPages final : public http1::BackgroundHandler {
 public:
  // Both outlive it. The pages are written on `background`: they take milliseconds.
  RateLimitPages(const envoy::Statistics& statistics, net::EventLoop& background)
      : BackgroundHandler(background), statistics_(statistics) {}

  void Register(http1::RouteTable* routes);

 private:
  http1::Answer MakeAnswer(const http1::Request& request) override;

  const envoy::Statistics& statistics_;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_ENVOY_RATE_LIMIT_PAGES_H_
