// PortServer: one port of sluiced, the data port or the admin port: its event loops, TLS, health
// and reflection, and its drain.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_PORT_SERVER_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_PORT_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/net/address.h"
#include "common/net/loop_group.h"
#include "server/transport/rpc/rpc_server.h"
#include "server/transport/services/health_service.h"
#include "server/transport/services/port_listener.h"
#include "server/transport/services/reflection_service.h"
#include "server/transport/services/tls_files.h"

namespace sluice::transport {

struct PortServerOptions {
  // The full name of the port's service, as "sluice.v1.RateLimiter".
  std::string service;
  // Those of its other services, for reflection.
  std::vector<std::string> more_services = {};
  net::Address listen;
  TlsFiles tls;
  // As PortListenerOptions.
  int max_connections = 0;
  common::Log* log = nullptr;  // null: nothing is logged
  RpcServerOptions rpc;
};

// Used by one thread (main), except health().
//
//   PortServer port(options, loops, clock, metrics);
//   service.Register(&port.methods());
//   port.Listen(on_certificates);
//   ...
//   port.Drain(notice); while (!port.drained()) { ... }
class PortServer {
 public:
  // Event loops with options that suit a server. The caller makes them, since a shared store may
  // use them too (then a request and its Redis reply stay on one thread). `metrics` counts the
  // times of their steps; null: nothing does.
  static absl::StatusOr<std::unique_ptr<net::LoopGroup>> MakeLoops(const common::Clock& clock,
                                                                   int threads,
                                                                   common::Metrics* metrics);

  // All outlive the server.
  PortServer(PortServerOptions options, net::LoopGroup& loops, const common::Clock& clock,
             common::Metrics& metrics);
  // Stops the loops.
  ~PortServer();
  PortServer(const PortServer&) = delete;
  PortServer& operator=(const PortServer&) = delete;

  // Add the port's service before Listen. Health and reflection are there already.
  MethodTable& methods() { return methods_; }
  HealthService& health() { return health_; }

  // As PortListener::Listen.
  absl::Status Listen(std::function<void(const absl::Status&)> certificates_changed,
                      std::shared_ptr<net::ListeningSockets>* sockets = nullptr);

  // "127.0.0.1:7200", with the port that was picked. REQUIRES: Listen succeeded.
  const std::string& address() const { return listener_.address(); }
  // Checks the TLS files now. Does not wait for the outcome.
  void ReloadCertificates() { listener_.ReloadCertificates(); }

  // Stops accepting, and tells clients to use another server, as PortAcceptor::Drain.
  void Drain(int64_t most_notice_ns);
  // As RpcServer::RelieveMemory.
  void RelieveMemory() { server_.RelieveMemory(); }
  // Whether all calls and connections have ended. Connections that the kernel had queued are
  // accepted while the listeners stop, and count one iteration of the loops later.
  bool drained() const { return server_.connections() == 0; }

 private:
  const PortServerOptions options_;
  HealthService health_;
  ReflectionService reflection_;
  MethodTable methods_;
  RpcServer server_;
  net::LoopGroup& loops_;  // whose threads use the members above
  PortListener listener_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_PORT_SERVER_H_
