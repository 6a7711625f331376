#include "server/transport/http1/http_server.h"

#include "server/transport/http1/loop.h"

namespace sluice::http1 {

HttpServer::HttpServer(const RouteTable& routes, const common::Clock& clock,
                       common::Metrics& metrics, const ServerOptions& options)
    : PortAcceptor(options.memory),
      routes_(routes),
      clock_(clock),
      metrics_(metrics),
      options_(options) {}

std::unique_ptr<transport::PortLoop> HttpServer::MakeLoop(net::EventLoop& loop, size_t index) {
  return std::make_unique<Loop>(routes_, clock_, metrics_, options_, loop, index);
}

}  // namespace sluice::http1
