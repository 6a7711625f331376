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
#include <vector>

#include "common/bounds.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/listener.h"
#include "common/net/stream.h"
#include "server/transport/http1/route.h"

namespace sluice::http1 {

class Loop;

// Time limits and bounds of an HttpServer.
struct ServerOptions {
  // Names the server's connections in the metrics.
  const char* metrics_name = "http";
  // Checked before a route's own gate; null: none. Outlives the server.
  const Gate* gate = nullptr;
  // Open connections, over all loops. Above, a new one displaces the connection of its loop that
  // has waited longest for a request.
  size_t max_connections = common::bounds::kMaxHttpConnections;
  // From the first byte of a request to the end of its headers; from there to the end of its body;
  // from the end of an answer (or of accepting) to the next request.
  int64_t header_timeout_ns = common::bounds::kHttpHeaderTimeoutNs;
  int64_t body_timeout_ns = common::bounds::kHttpBodyTimeoutNs;
  int64_t idle_timeout_ns = common::bounds::kHttpIdleTimeoutNs;
  // A connection whose peer takes no byte of its responses for this long is ended.
  int64_t stall_timeout_ns = common::bounds::kDefaultStallTimeoutNs;
  // What all connections hold is counted here; null: nowhere. Over its limit, requests are refused
  // with 503. Outlives the server.
  common::MemoryBudget* memory = nullptr;
  // Bytes of a connection that the transport does not see: its stream, and TLS.
  size_t connection_bytes = size_t{2} << 10;
  // Gets a line for each connection that is closed for what it holds; null: none. Outlives the
  // server.
  common::Log* log = nullptr;
  // How long a connection that ended is still read, so that the peer gets our last bytes.
  int64_t linger_ns = int64_t{2} * 1'000'000'000;
};

// Thread-safe after its last AddLoop.
class HttpServer final : public net::Acceptor {
 public:
  // All outlive it. Requests are counted in `metrics` by the names of their routes ("http:other"
  // for those without one), connections by ServerOptions::metrics_name.
  HttpServer(const RouteTable& routes, const common::Clock& clock, common::Metrics& metrics,
             const ServerOptions& options);
  // REQUIRES: the loops have ended, or their connections have.
  ~HttpServer() override;

  // Call before the loop accepts.
  void AddLoop(net::EventLoop& loop);

  net::StreamHandler* Accept(net::Stream& stream) override;
  void OnRefused(net::EventLoop& loop) override;
  void OnHandshakeDisplaced(net::EventLoop& loop) override;

  // Each connection ends with the answer to its present request; idle ones end now. Returns at
  // once.
  void Drain();
  // Closes the connections that hold most if the process is over its memory limit. Returns at once.
  // Call it several times a second.
  void RelieveMemory();

  // Open connections.
  uint64_t connections() const;

 private:
  // Null: not one of this server's loops.
  Loop* Find(const net::EventLoop& loop) const;

  const RouteTable& routes_;
  const common::Clock& clock_;
  common::Metrics& metrics_;
  const ServerOptions options_;
  std::vector<std::unique_ptr<Loop>> loops_;
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_HTTP_SERVER_H_
