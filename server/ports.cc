#include "server/ports.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bounds.h"

namespace sluice {
namespace {

// An idle connection takes about 20 KiB (bounds::kDefaultMaxConnections), and OpenSSL another 16
// KiB while the peer has sent a part of a record.
constexpr size_t kTlsConnectionBytes = size_t{36} << 10;

}  // namespace

Ports::Ports(const Collaborators& with)
    : with_(with), refusals_(with.log, with.audit, with.loops.background()) {
  MakeData();
  MakeAdmin();
  MakeHttp();
  MakeMetrics();
  MakeEnvoyPorts();
}

Ports::~Ports() = default;

// ---- What each port serves ----

// What the gRPC ports have in common.
transport::PortServerOptions Ports::GrpcOptions(const transport::TlsFiles& tls) {
  transport::PortServerOptions options;
  options.tls = tls;
  options.log = &with_.log;
  options.rpc.memory = &with_.memory;
  options.rpc.clients = with_.clients;
  options.rpc.guesses = &guesses_;
  options.rpc.refusals = &refusals_;
  options.rpc.log = &with_.log;
  options.rpc.stall_timeout_ns = with_.flags.stall_timeout_ns;
  if (tls.enabled()) options.rpc.connection_bytes = kTlsConnectionBytes;
  return options;
}

// What the HTTP ports have in common.
web::HttpPortOptions Ports::HttpOptions(const net::Address& listen) {
  web::HttpPortOptions options;
  options.listen = listen;
  options.http.memory = &with_.memory;
  options.http.clients = with_.clients;
  options.http.guesses = &guesses_;
  options.http.refusals = &refusals_;
  options.http.log = &with_.log;
  options.http.stall_timeout_ns = with_.flags.stall_timeout_ns;
  return options;
}

void Ports::MakeData() {
  net::LoopGroup& loops = with_.loops.data();
  transport::PortServerOptions options = GrpcOptions(with_.flags.tls);
  options.service = "sluice.v1.RateLimiter";
  options.listen = with_.flags.listen;
  options.max_connections = with_.flags.max_connections;
  options.rpc.metrics_name = "data";
  options.rpc.max_loop_buffered_bytes = common::bounds::kMaxPortRequestBytes / loops.size();
  options.rpc.max_loop_unsent_bytes = common::bounds::kMaxPortUnsentBytes / loops.size();
  options.rpc.max_loop_lasting_bytes = common::bounds::kMaxPortWatchBytes / loops.size();
  options.more_services = transport::RateLimitService::ServiceNames();
  data_ = std::make_unique<transport::PortServer>(options, loops, with_.clock, with_.metrics);
  data_service_ = std::make_unique<transport::RateLimiterService>(
      with_.use_cases.limiter, with_.use_cases.watches, loops.size());
  data_service_->Register(&data_->methods());
  MakeEnvoyService();
}

// Its methods are served without a configuration too, to say what is missing.
void Ports::MakeEnvoyService() {
  if (with_.flags.HasRateLimitConfiguration()) {
    descriptors_ = std::make_unique<transport::DescriptorLimiter>(
        with_.use_cases.limiter.collaborators(), with_.flags.descriptors);
    data_->health().AddName(transport::RateLimitService::kHealthName);
  }
  envoy_service_ =
      std::make_unique<transport::RateLimitService>(descriptors_.get(), with_.loops.data().size());
  envoy_service_->Register(&data_->methods());
}

// Its service is needed without the port too: the HTTP port serves its methods.
void Ports::MakeAdmin() {
  transport::PortServerOptions options = GrpcOptions(with_.flags.admin_tls);
  options.service = "sluice.v1.LimitAdmin";
  options.listen = with_.flags.admin_listen.value_or(net::Address());
  options.max_connections = common::bounds::kMaxAdminConnections;
  options.rpc.metrics_name = "admin";
  options.rpc.max_loop_buffered_bytes = common::bounds::kMaxAdminRequestBytes;
  options.rpc.max_queue_ns = 0;  // a call waits for a long one before it, and is not shed
  admin_ = std::make_unique<transport::PortServer>(options, with_.loops.admin(), with_.clock,
                                                   with_.metrics);
  admin_service_ =
      std::make_unique<transport::LimitAdminService>(transport::LimitAdminService::Collaborators{
          with_.use_cases.admin, with_.token, with_.log, with_.audit});
  admin_service_->Register(&admin_->methods());
  admin_service_->UndoEndedChangesOn(with_.loops.background());
}

// The HTTP port uses the data port's loops: /v1/check decides there.
void Ports::MakeHttp() {
  const Flags& flags = with_.flags;
  UseCases& use_cases = with_.use_cases;
  net::LoopGroup& loops = with_.loops.data();
  const net::Address listen = flags.http_listen.value_or(net::Address());
  access_ = std::make_unique<web::Access>(
      web::AccessOptions{.listen = listen,
                         .client_certificates = flags.http_tls.mutual(),
                         .data_client_certificates = flags.tls.mutual(),
                         .token = with_.token,
                         .clients = with_.clients != nullptr,
                         .hosts = flags.http_hosts,
                         .refusals = &refusals_});
  web::HttpPortOptions options = HttpOptions(listen);
  options.tls = flags.http_tls;
  options.http.gate = &access_->site();
  options.http.max_loop_lasting_bytes = common::bounds::kMaxPortWatchBytes / loops.size();
  if (flags.http_tls.enabled()) options.http.connection_bytes = kTlsConnectionBytes;
  http_ = std::make_unique<web::HttpPort>(options, loops, with_.clock, with_.metrics);
  check_ = std::make_unique<web::CheckHandler>(use_cases.limiter, json_, loops.size(),
                                               with_.loops.background());
  check_->Register(*access_, &http_->routes());
  json_api_ = std::make_unique<web::JsonApi>(
      web::JsonApi::Collaborators{use_cases.limiter, use_cases.watches, *admin_service_, json_,
                                  with_.loops.background()},
      SLUICE_VERSION);
  json_api_->Register(*access_, &http_->routes());
  overview_ = std::make_unique<web::Overview>(
      web::OverviewSources{.admin = use_cases.admin,
                           .usage = use_cases.usage,
                           .held = use_cases.held,
                           .clock = with_.clock,
                           .changes = with_.token != nullptr || with_.clients != nullptr},
      loops, with_.loops.background());
  overview_->Register(&http_->routes(), access_->reading());
  overview_->Start();
  page_files_.Register(&http_->routes());
}

// What the HTTP port and the metrics port serve of it. The data port's loops only pass the answers
// on.
void Ports::MakeMetrics() {
  UseCases& use_cases = with_.use_cases;
  scraper_ = std::make_unique<metrics::Scraper>(metrics::Sources{
      use_cases.admin, use_cases.held, use_cases.watches, with_.memory,
      descriptors_ != nullptr ? &descriptors_->counters() : nullptr, with_.clients});
  metrics_routes_ = std::make_unique<web::MetricsRoutes>(*scraper_);
  metrics_routes_->Register(&access_->reading(), &http_->routes());
  health_.Register(&http_->routes());
  web::HttpPort* const port = AddPort("metrics", "metrics_listen", with_.flags.metrics_listen);
  if (port == nullptr) return;
  metrics_routes_->Register(nullptr, &port->routes());
  health_.Register(&port->routes());
}

// The HTTP ports of envoyproxy/ratelimit.
void Ports::MakeEnvoyPorts() {
  if (descriptors_ == nullptr) return;
  statistics_ = std::make_unique<envoy::Statistics>(
      descriptors_->counters(), with_.use_cases.registry, with_.rate_limit_status);
  rate_limit_json_ =
      std::make_unique<web::RateLimitJson>(*descriptors_, json_, with_.loops.background());
  rate_limit_pages_ = std::make_unique<web::RateLimitPages>(*statistics_, with_.loops.background());
  const Flags& flags = with_.flags;
  if (flags.ratelimit_http_listen.has_value()) {
    rate_limit_access_ = std::make_unique<web::Access>(
        web::AccessOptions{.listen = *flags.ratelimit_http_listen,
                           .data_client_certificates = flags.tls.mutual(),
                           .clients = with_.clients != nullptr});
    web::HttpPort* const port = AddPort("ratelimit_http", "ratelimit_http_listen",
                                        flags.ratelimit_http_listen, &rate_limit_access_->pages());
    health_.RegisterHealthcheck(&port->routes());
    rate_limit_json_->Register(rate_limit_access_->data(access::Call::kAcquire), &port->routes());
  }
  if (web::HttpPort* const port =
          AddPort("ratelimit_debug", "ratelimit_debug_listen", flags.ratelimit_debug_listen)) {
    rate_limit_pages_->Register(&port->routes());
  }
  if (!flags.statsd.has_value()) return;
  statsd_ = std::make_unique<envoy::Statsd>(
      envoy::Statsd::Options{.host = flags.statsd->host,
                             .port = flags.statsd->port,
                             .interval = std::chrono::nanoseconds(flags.statsd_interval_ns)},
      *statistics_);
}

// Null: there is no such port.
web::HttpPort* Ports::AddPort(const char* name, const char* flag,
                              const std::optional<net::Address>& listen, const http1::Gate* gate) {
  if (!listen.has_value()) return nullptr;
  web::HttpPortOptions options = HttpOptions(*listen);
  options.http.gate = gate;
  options.http.metrics_name = name;
  further_.push_back(
      {name, flag, *listen,
       std::make_unique<web::HttpPort>(options, with_.loops.data(), with_.clock, with_.metrics)});
  return further_.back().port.get();
}

// ---- What all ports do ----

absl::Status Ports::Listen() {
  const Flags& flags = with_.flags;
  absl::Status status = ListenOn(*data_, "data", "listen", flags.listen);
  if (status.ok() && flags.admin_listen.has_value()) {
    status = ListenOn(*admin_, "admin", "admin_listen", *flags.admin_listen);
  }
  if (status.ok() && flags.http_listen.has_value()) {
    status = ListenOn(*http_, "http", "http_listen", *flags.http_listen);
  }
  for (const FurtherPort& one : further_) {
    if (status.ok()) status = ListenOn(*one.port, one.name, one.flag, one.listen);
  }
  return status;
}

template <typename Port>
absl::Status Ports::ListenOn(Port& port, const char* name, const char* flag,
                             const net::Address& address) {
  takeover::PortSocket& socket = with_.sockets[name];
  socket.listen = address.ToString();
  absl::Status listening = port.Listen(
      [&log = with_.log, name](const absl::Status& status) {
        if (status.ok()) {
          log.Info("certificates_reloaded", {{"port", name}});
        } else {
          log.Error("certificates_not_reloaded", {{"port", name}, {"error", status.message()}});
        }
      },
      &socket.sockets);
  if (listening.ok()) return listening;
  if (socket.sockets == nullptr) with_.sockets.erase(name);
  return absl::Status(listening.code(),
                      absl::StrCat("--", flag, "=", address.ToString(), ": ", listening.message()));
}

std::string Ports::admin_address() const {
  return with_.flags.admin_listen.has_value() ? admin_->address() : "none";
}

std::string Ports::http_address() const {
  return with_.flags.http_listen.has_value() ? http_->address() : "none";
}

std::string Ports::further_addresses() const {
  std::string text;
  for (const FurtherPort& one : further_) {
    absl::StrAppend(&text, " ", one.name, "=", one.port->address());
  }
  return text;
}

template <typename Use>
void Ports::ForEach(const Use& use) {
  use(*data_);
  use(*admin_);
  use(*http_);
  for (const FurtherPort& one : further_) use(*one.port);
}

void Ports::SetServing(bool serving) {
  data_->health().SetServing(serving);
  admin_->health().SetServing(serving);
  health_.SetReady(serving);
}

void Ports::ReloadCertificates() {
  ForEach([](auto& port) { port.ReloadCertificates(); });
}

void Ports::RelieveMemory() {
  ForEach([](auto& port) { port.RelieveMemory(); });
}

void Ports::CloseHealth() {
  data_->health().Close();
  admin_->health().Close();
}

void Ports::LeaveSockets() {
  with_.loops.data().LeaveSockets();
  with_.loops.admin().LeaveSockets();
}

void Ports::Drain(int64_t most_notice_ns) {
  ForEach([most_notice_ns](auto& port) { port.Drain(most_notice_ns); });
}

void Ports::AwaitDrained(absl::Time deadline) {
  // Polling is good enough for a shutdown.
  bool drained = false;
  do {
    absl::SleepFor(absl::Milliseconds(5));
    drained = true;
    ForEach([&drained](auto& port) { drained = drained && port.drained(); });
  } while (!drained && absl::Now() < deadline);
}

}  // namespace sluice
