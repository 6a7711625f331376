// HttpPort: an HTTP port of sluiced: its routes, listener, TLS and drain.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_HTTP_PORT_H_
#define SLUICE_SERVER_TRANSPORT_WEB_HTTP_PORT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/address.h"
#include "common/net/loop_group.h"
#include "server/transport/http1/http_server.h"
#include "server/transport/http1/route.h"
#include "server/transport/services/port_listener.h"
#include "server/transport/services/tls_files.h"

namespace sluice::web {

struct HttpPortOptions {
  net::Address listen;
  transport::TlsFiles tls;
  http1::ServerOptions http;
};

// Used by one thread (main).
//
//   HttpPort port(options, loops, clock, metrics);
//   check.Register(&port.routes());
//   port.Listen(on_certificates);
//   ...
//   port.Drain(notice); while (!port.drained()) { ... }
class HttpPort {
 public:
  // All outlive the port. The loops may serve other ports too. REQUIRES: they have stopped before
  // the port is destroyed.
  HttpPort(HttpPortOptions options, net::LoopGroup& loops, const common::Clock& clock,
           common::Metrics& metrics);
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;

  // Add the port's routes before Listen.
  http1::RouteTable& routes() { return routes_; }

  // As transport::PortServer::Listen.
  absl::Status Listen(std::function<void(const absl::Status&)> certificates_changed,
                      std::shared_ptr<net::ListeningSockets>* sockets = nullptr);
  const std::string& address() const { return listener_.address(); }
  void ReloadCertificates() { listener_.ReloadCertificates(); }

  // Tells clients to leave. Does not wait. REQUIRES: the loops accept no more.
  void Drain(int64_t most_notice_ns) { server_.Drain(most_notice_ns); }
  void RelieveMemory() { server_.RelieveMemory(); }
  // As transport::PortServer::drained.
  bool drained() const { return server_.connections() == 0; }

 private:
  const HttpPortOptions options_;
  http1::RouteTable routes_;
  http1::HttpServer server_;
  net::LoopGroup& loops_;
  transport::PortListener listener_;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_HTTP_PORT_H_
