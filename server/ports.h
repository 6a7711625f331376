// Ports: the ports of sluiced, each with the services or routes that it serves.
#ifndef SLUICE_SERVER_PORTS_H_
#define SLUICE_SERVER_PORTS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "common/metrics.h"
#include "common/net/address.h"
#include "server/flags.h"
#include "server/loops.h"
#include "server/transport/envoy/rate_limit_service.h"
#include "server/transport/services/bearer_token.h"
#include "server/transport/services/limit_admin_service.h"
#include "server/transport/services/port_server.h"
#include "server/transport/services/rate_limiter_service.h"
#include "server/transport/services/tls_files.h"
#include "server/transport/web/access.h"
#include "server/transport/web/check_handler.h"
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
    transport::BearerToken* token;  // of the admin port; null: none is required
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
  const std::string& admin_address() const { return admin_->address(); }
  const std::string& http_address() const { return http_->address(); }
  // Empty: there is no such port.
  std::string metrics_address() const;

  // What health checks are told.
  void SetServing(bool serving);
  // Checks the TLS files now. Does not wait for the outcome.
  void ReloadCertificates();
  // Closes the connections that hold most if the process is over its memory limit. Thread-safe.
  void RelieveMemory();

  // Ends the calls that watch the ports' health.
  void CloseHealth();
  // Stops accepting, and tells clients to use another server. Does not wait.
  void Drain();
  // Waits until all calls and connections have ended, at most until `deadline`.
  void AwaitDrained(absl::Time deadline);

 private:
  void MakeData();
  void MakeEnvoyService();
  void MakeAdmin();
  void MakeHttp();
  void MakeMetrics();
  transport::PortServerOptions GrpcOptions(const transport::TlsFiles& tls) const;
  web::HttpPortOptions HttpOptions(const net::Address& listen) const;
  template <typename Port>
  absl::Status ListenOn(Port& port, const char* name, const char* flag,
                        const net::Address& address);
  // Calls `use` with each port.
  template <typename Use>
  void ForEach(const Use& use);

  const Collaborators with_;
  std::unique_ptr<transport::RateLimiterService> data_service_;
  std::unique_ptr<transport::DescriptorLimiter> descriptors_;  // null: no configuration of Envoy
  std::unique_ptr<transport::RateLimitService> envoy_service_;
  std::unique_ptr<transport::LimitAdminService> admin_service_;
  std::unique_ptr<transport::PortServer> data_;
  std::unique_ptr<transport::PortServer> admin_;
  std::unique_ptr<web::Access> access_;
  const web::JsonCodec json_;
  std::unique_ptr<web::CheckHandler> check_;
  std::unique_ptr<web::JsonApi> json_api_;
  web::HealthRoutes health_;
  std::unique_ptr<metrics::Scraper> scraper_;
  std::unique_ptr<web::MetricsRoutes> metrics_routes_;
  std::unique_ptr<web::Overview> overview_;
  web::PageFiles page_files_;
  std::unique_ptr<web::HttpPort> http_;
  std::unique_ptr<web::HttpPort> metrics_port_;  // null: there is none
};

}  // namespace sluice

#endif  // SLUICE_SERVER_PORTS_H_
