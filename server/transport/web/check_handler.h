// CheckHandler: /v1/check, with which gateways ask whether a request may pass (docs/http.md).
//
// It decides as Acquire does, from parameters of the query or from headers, and answers with a
// status and headers. Nothing is encoded with protobuf on the way, and a call in steady state
// allocates nothing.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_CHECK_HANDLER_H_
#define SLUICE_SERVER_TRANSPORT_WEB_CHECK_HANDLER_H_

#include <cstddef>
#include <vector>

#include "common/net/event_loop.h"
#include "server/service/rate_limiter.h"
#include "server/transport/http1/route.h"
#include "server/transport/services/call_pool.h"
#include "server/transport/web/access.h"
#include "server/transport/web/json_codec.h"

namespace sluice::web {

// Thread-safe: all event loops call it. Outlives the loops and the decisions in progress.
class CheckHandler final : public http1::Handler {
 public:
  // `loops`: the number of event loops that serve it. `background`: where a decision goes on that
  // is more than one slice of work. Collaborators outlive it.
  CheckHandler(service::RateLimiter& limiter, const JsonCodec& json, size_t loops,
               net::EventLoop& background);
  ~CheckHandler() override;

  void Register(const Access& gates, http1::RouteTable* routes);

  void OnRequest(http1::Exchange& exchange) override;
  void OnCancelled(http1::Exchange& exchange) override;

 private:
  struct Check;

  void Decided(Check& check);

  service::RateLimiter& limiter_;
  const JsonCodec& json_;
  net::EventLoop& background_;
  std::vector<transport::CallPool<Check>> pools_;  // by loop
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_CHECK_HANDLER_H_
