// DataServer: sluiced's data plane on HTTP/2: event loops, one port, and Sluice's services on it.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_DATA_SERVER_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_DATA_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bounds.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/certificate_watcher.h"
#include "common/net/loop_group.h"
#include "common/net/socket_stream.h"
#include "common/net/tls_context.h"
#include "server/service/bucket_watch.h"
#include "server/service/rate_limiter.h"
#include "server/transport/rpc/rpc_server.h"
#include "server/transport/services/health_board.h"
#include "server/transport/services/rate_limiter_service.h"
#include "server/transport/services/reflection.h"

namespace sluice::transport {

struct DataServerOptions {
  std::string listen;  // as net::Address reads it
  // Open at once, over all loops; those beyond are closed at once.
  int max_connections = common::bounds::kDefaultMaxConnections;
  // PEM files; the certificate empty: plaintext. With client_ca: clients must show a certificate.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  RpcServerOptions grpc;
};

// Used by one thread (main).
class DataServer {
 public:
  // Event loops as fit for serving on: main makes them, since a shared store may live on them too
  // (then a request and its Redis reply stay on one thread).
  static absl::StatusOr<std::unique_ptr<net::LoopGroup>> MakeLoops(const common::Clock& clock,
                                                                   int threads);

  // Listens and serves on `loops`, which it starts unless they run already. Collaborators outlive
  // it; the loops are stopped before it goes (its destructor sees to that). INVALID_ARGUMENT: the
  // files of TLS, or the address; UNAVAILABLE, ALREADY_EXISTS, ...: it cannot be listened on.
  // `tls_changed` is told, on a thread of its own, when certificate files changed and what came of
  // it.
  static absl::StatusOr<std::unique_ptr<DataServer>> Start(
      const DataServerOptions& options, net::LoopGroup& loops, const common::Clock& clock,
      common::Metrics& metrics, service::RateLimiter& limiter, service::WatchHub& watches,
      HealthBoard& health, const Reflection& reflection,
      std::function<void(const absl::Status&)> tls_changed);
  ~DataServer();
  DataServer(const DataServer&) = delete;
  DataServer& operator=(const DataServer&) = delete;

  // "127.0.0.1:7200", with the port that was picked.
  const std::string& address() const { return address_; }
  // Looks at the certificate files now.
  void ReloadCertificates();

  // Stops accepting, sends clients elsewhere, waits for the calls under way until `deadline`. What
  // is left ends with the loops.
  void Shutdown(absl::Time deadline);

 private:
  DataServer(const DataServerOptions& options, net::LoopGroup& loops, const common::Clock& clock,
             common::Metrics& metrics, service::RateLimiter& limiter, service::WatchHub& watches,
             HealthBoard& health, const Reflection& reflection);

  RateLimiterBinding limiter_;
  HealthBinding health_;
  ReflectionBinding reflection_;
  MethodTable methods_;
  RpcServer server_;
  net::ConnectionBudget connections_;
  net::LoopGroup& loops_;  // its threads use all the above
  std::unique_ptr<net::CertificateWatcher> certificates_;
  std::string address_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_DATA_SERVER_H_
