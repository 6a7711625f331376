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
#include <cstdint>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/listener.h"
#include "common/net/stream.h"
#include "server/transport/rpc/method.h"
#include "server/transport/rpc/rpc_loop.h"

namespace sluice::transport {

// Thread-safe after its last AddLoop.
class RpcServer final : public net::Acceptor {
 public:
  // All outlive it. Calls are counted in `metrics` by their paths ("unknown" for methods that are
  // not in the table), connections and sheds by RpcServerOptions::metrics_name; per thread, without
  // locks.
  RpcServer(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
            const RpcServerOptions& options);
  // REQUIRES: the loops have ended, or their connections have.
  ~RpcServer() override;

  // Call before the loop accepts.
  void AddLoop(net::EventLoop& loop);

  net::StreamHandler* Accept(net::Stream& stream) override;
  void OnRefused(net::EventLoop& loop) override;
  void OnHandshakeDisplaced(net::EventLoop& loop) override;

  // Accepts no new calls, asks clients to reconnect elsewhere, finishes open calls. Returns at
  // once.
  void Drain();

  // Closes the connections that hold most if the process is over its memory limit. Returns at once.
  // Call it several times a second.
  void RelieveMemory();

  // Open connections.
  uint64_t connections() const;

  // Bytes that the connections of all loops hold, as they are counted against the limit. REQUIRES:
  // on the loop's thread, if there is one loop, or none runs.
  size_t memory_in_use() const;

 private:
  // Null: not one of this server's loops.
  RpcLoop* Find(const net::EventLoop& loop) const;

  const MethodTable& methods_;
  const common::Clock& clock_;
  common::Metrics& metrics_;
  const RpcServerOptions options_;
  std::vector<std::unique_ptr<RpcLoop>> loops_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_H_
