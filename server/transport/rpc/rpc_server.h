// RpcServer: gRPC over HTTP/2 on event loops. It knows methods by their paths, and messages as
// bytes.
//
//   MethodTable methods;
//   methods.AddUnary("/package.Service/Method", handler);
//   RpcServer server(methods, clock, metrics, options);
//   for each loop: server.AddLoop(loop);
//   listener: Accept = server.Accept
//   ...
//   server.Drain();            // from any thread; then wait for connections() to be 0
//   stop the loops; destroy the server
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_H_

#include <cstddef>
#include <memory>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "server/transport/port/port_acceptor.h"
#include "server/transport/rpc/method.h"
#include "server/transport/rpc/rpc_loop.h"

namespace sluice::transport {

// Thread-safe after its last AddLoop.
class RpcServer final : public PortAcceptor {
 public:
  // All outlive it. Calls are counted in `metrics` by their paths ("unknown" for methods that are
  // not in the table), connections and sheds by ConnectionOptions::metrics_name; per thread,
  // without locks.
  RpcServer(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
            const RpcServerOptions& options);

 private:
  std::unique_ptr<PortLoop> MakeLoop(net::EventLoop& loop, size_t index) override;

  const MethodTable& methods_;
  const common::Clock& clock_;
  common::Metrics& metrics_;
  const RpcServerOptions options_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_H_
