// Ports: the ports of sluiced, each with the services or routes that it serves.
#ifndef SLUICE_SERVER_PORTS_H_
#define SLUICE_SERVER_PORTS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/metrics.h"
#include "common/net/address.h"
#include "server/access/refusal_log.h"
#include "server/access/token_guesses.h"
#include "server/envoy/statistics.h"
#include "server/envoy/statsd.h"
#include "server/flags.h"
#include "server/limits/limit_registry.h"
#include "server/loops.h"
#include "server/takeover/port_sockets.h"
#include "server/transport/envoy/rate_limit_service.h"
#include "server/transport/services/bearer_token.h"
#include "server/transport/services/limit_admin_service.h"
#include "server/transport/services/port_server.h"
#include "server/transport/services/rate_limiter_service.h"
#include "server/transport/services/tls_files.h"
#include "server/transport/web/access.h"
#include "server/transport/web/check_handler.h"
#include "server/transport/web/envoy/rate_limit_json.h"
#include "server/transport/web/envoy/rate_limit_pages.h"
#include "server/transport/web/health_routes.h"
#include "server/transport/web/http_port.h"
#include "server/transport/web/json_api.h"
#include "server/transport/web/json_codec.h"
#include "server/transport/web/metrics/scraper.h"
#include "server/transport/web/metrics_routes.h"
#include "server/transport/web/page/overview.h"
#include "server/transport/web/page/page_files.h"
#include "server/use_cases.h"

namespace sluice {

// Used by the main thread, except RelieveMemory.
class Ports {
 public:
  // All outlive the Ports.
  struct Collaborators {
    const Flags& flags;
    const common::Clock& clock;
    common::Log& log;
    common::Metrics& metrics;
    common::MemoryBudget& memory;  // what peers make the server hold
    Loops& loops;
    UseCases& use_cases;
    transport::BearerToken* token;   // of the admin port; null: none is required
    const access::Clients* clients;  // null: all callers are served
    access::AuditLog* audit;         // null: none
    // Of Envoy's rate-limit configuration.
    std::function<limits::FileStatus()> rate_limit_status;
    // Sockets that listen already; Listen adds those of the other ports.
    takeover::PortSockets& sockets;
  };

  explicit Ports(const Collaborators& with);
  // REQUIRES: the loops have stopped.
  ~Ports();
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  // Listens on all ports. The error names the flag and the address.
  absl::Status Listen();
  // REQUIRES for these: Listen succeeded.
  const std::string& data_address() const { return data_->address(); }
  // "none" if there is no such port.
  std::string admin_address() const;
  std::string http_address() const;
  // " metrics=HOST:PORT", and so on for each of the ports that not every server has.
  std::string further_addresses() const;

  // What health checks are told.
  void SetServing(bool serving);
  // Checks the TLS files now. Does not wait for the outcome.
  void ReloadCertificates();
  // Closes the connections that hold most if the process is nearly over its memory limit.
  // Thread-safe.
  void RelieveMemory();

  // Ends the calls that watch the ports' health.
  void CloseHealth();
  // Stops accepting, and leaves the sockets and their queues to another process. Before Drain.
  void LeaveSockets();
  // Stops accepting, and tells clients to use another server. Does not wait. Clients have at most
  // `most_notice_ns` to say that they have read that.
  void Drain(int64_t most_notice_ns);
  // Waits until all calls and connections have ended, at most until `deadline`.
  void AwaitDrained(absl::Time deadline);

 private:
  void MakeData();
  void MakeEnvoyService();
  void MakeAdmin();
  void MakeHttp();
  void MakeMetrics();
  void MakeEnvoyPorts();
  transport::PortServerOptions GrpcOptions(const transport::TlsFiles& tls);
  web::HttpPortOptions HttpOptions(const net::Address& listen);
  template <typename Port>
  absl::Status ListenOn(Port& port, const char* name, const char* flag,
                        const net::Address& address);
  // Calls `use` with each port.
  template <typename Use>
  void ForEach(const Use& use);

  const Collaborators with_;
  access::TokenGuesses guesses_;
  access::RefusalLog refusals_;
  std::unique_ptr<transport::RateLimiterService> data_service_;
  std::unique_ptr<transport::DescriptorLimiter> descriptors_;  // null: no configuration of Envoy
  std::unique_ptr<transport::RateLimitService> envoy_service_;
  std::unique_ptr<transport::LimitAdminService> admin_service_;
  std::unique_ptr<transport::PortServer> data_;
  std::unique_ptr<transport::PortServer> admin_;
  std::unique_ptr<web::Access> access_;             // to the HTTP port
  std::unique_ptr<web::Access> rate_limit_access_;  // to /json; null: there is no such port
  const web::JsonCodec json_;
  std::unique_ptr<web::CheckHandler> check_;
  std::unique_ptr<web::JsonApi> json_api_;
  web::HealthRoutes health_;
  std::unique_ptr<metrics::Scraper> scraper_;
  std::unique_ptr<web::MetricsRoutes> metrics_routes_;
  std::unique_ptr<web::Overview> overview_;
  web::PageFiles page_files_;
  std::unique_ptr<web::HttpPort> http_;
  std::unique_ptr<envoy::Statistics> statistics_;  // null: no configuration of Envoy
  std::unique_ptr<web::RateLimitJson> rate_limit_json_;
  std::unique_ptr<web::RateLimitPages> rate_limit_pages_;

  // A port that not every server has.
  struct FurtherPort {
    const char* name;  // of its connections in the metrics
    const char* flag;
    net::Address listen;
    std::unique_ptr<web::HttpPort> port;
  };
  web::HttpPort* AddPort(const char* name, const char* flag,
                         const std::optional<net::Address>& listen,
                         const http1::Gate* gate = nullptr);
  std::vector<FurtherPort> further_;
  std::unique_ptr<envoy::Statsd> statsd_;  // null: nothing is sent
};

}  // namespace sluice

#endif  // SLUICE_SERVER_PORTS_H_
