// HttpServer: HTTP/1.1 on event loops. It knows requests by their routes.
//
//   RouteTable routes;
//   routes.Add("/v1/check", handler, {.methods = Methods::All()});
//   HttpServer server(routes, clock, metrics, options);
//   for each loop: server.AddLoop(loop);
//   listener: Accept = server.Accept
//   ...
//   server.Drain();            // from any thread; then wait for connections() to be 0
//   stop the loops; destroy the server
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_HTTP_SERVER_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/bounds.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "server/transport/http1/route.h"
#include "server/transport/port/connection_options.h"
#include "server/transport/port/port_acceptor.h"

namespace sluice::http1 {

// Time limits and bounds of an HttpServer.
struct ServerOptions : transport::ConnectionOptions {
  ServerOptions() : ConnectionOptions("http") {}

  // Checked before a route's own gate; null: none. Outlives the server.
  const Gate* gate = nullptr;
  // From the first byte of a request to the end of its headers; from there to the end of its body;
  // from the end of an answer (or of accepting) to the next request.
  int64_t header_timeout_ns = common::bounds::kHttpHeaderTimeoutNs;
  int64_t body_timeout_ns = common::bounds::kHttpBodyTimeoutNs;
  int64_t idle_timeout_ns = common::bounds::kHttpIdleTimeoutNs;
};

// Thread-safe after its last AddLoop.
class HttpServer final : public transport::PortAcceptor {
 public:
  // All outlive it. Requests are counted in `metrics` by the names of their routes ("http:other"
  // for those without one), connections by ConnectionOptions::metrics_name.
  HttpServer(const RouteTable& routes, const common::Clock& clock, common::Metrics& metrics,
             const ServerOptions& options);

 private:
  std::unique_ptr<transport::PortLoop> MakeLoop(net::EventLoop& loop, size_t index) override;

  const RouteTable& routes_;
  const common::Clock& clock_;
  common::Metrics& metrics_;
  const ServerOptions options_;
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_HTTP_SERVER_H_
