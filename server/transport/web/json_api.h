// JsonApi: every RPC of RateLimiter and LimitAdmin over HTTP, and /openapi.json, which describes
// them. The use cases and their codecs are those of gRPC.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_JSON_API_H_
#define SLUICE_SERVER_TRANSPORT_WEB_JSON_API_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/net/event_loop.h"
#include "server/access/client.h"
#include "server/service/bucket_watch.h"
#include "server/service/rate_limiter.h"
#include "server/transport/http1/route.h"
#include "server/transport/services/limit_admin_service.h"
#include "server/transport/web/access.h"
#include "server/transport/web/background_turns.h"
#include "server/transport/web/json_codec.h"

namespace sluice::web {

// Thread-safe. Outlives the loops and the calls in progress.
class JsonApi {
 public:
  struct Collaborators {
    service::RateLimiter& limiter;
    service::WatchHub& watches;
    const transport::LimitAdminService& admin;
    const JsonCodec& json;
    // Where long work is done.
    net::EventLoop& background;
  };
  // They outlive it. `version`: of the server.
  JsonApi(const Collaborators& with, std::string_view version);
  ~JsonApi();
  JsonApi(const JsonApi&) = delete;
  JsonApi& operator=(const JsonApi&) = delete;

  void Register(const Access& gates, http1::RouteTable* routes);

 private:
  struct OneRoute {
    std::string path;
    // nullopt: all may call it.
    std::optional<access::Call> call;
    http1::RouteOptions options;
    std::unique_ptr<http1::Handler> handler;
  };

  void AddDataMethods(const Collaborators& with);
  void AddAdminMethods(const Collaborators& with);

  BackgroundTurns turns_;  // of batches
  std::vector<OneRoute> routes_;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_JSON_API_H_
