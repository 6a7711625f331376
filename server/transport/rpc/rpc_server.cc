#include "server/transport/rpc/rpc_server.h"

namespace sluice::transport {

RpcServer::RpcServer(const MethodTable& methods, const common::Clock& clock,
                     common::Metrics& metrics, const RpcServerOptions& options)
    : PortAcceptor(options.memory),
      methods_(methods),
      clock_(clock),
      metrics_(metrics),
      options_(options) {}

std::unique_ptr<PortLoop> RpcServer::MakeLoop(net::EventLoop& loop, size_t index) {
  return std::make_unique<RpcLoop>(methods_, clock_, metrics_, options_, loop, index);
}

}  // namespace sluice::transport
