#include "server/transport/services/data_server.h"

#include <chrono>
#include <utility>

#include "absl/time/clock.h"
#include "common/net/address.h"

namespace sluice::transport {

absl::StatusOr<std::unique_ptr<net::LoopGroup>> DataServer::MakeLoops(const common::Clock& clock,
                                                                      int threads) {
  // Some hundred small calls a turn: what one connection sends at once keeps the others waiting for
  // no longer than a millisecond, and their answers are still in the cache when they are sent.
  net::EventLoop::Options loop;
  loop.read_buffer_bytes = size_t{16} << 10;
  return net::LoopGroup::Create(clock, {.threads = threads, .loop = loop});
}

absl::StatusOr<std::unique_ptr<DataServer>> DataServer::Start(
    const DataServerOptions& options, net::LoopGroup& loops, const common::Clock& clock,
    common::Metrics& metrics, service::RateLimiter& limiter, service::WatchHub& watches,
    HealthBoard& health, const Reflection& reflection,
    std::function<void(const absl::Status&)> tls_changed) {
  auto address = net::Address::Parse(options.listen);
  if (!address.ok()) return address.status();
  net::ListenerOptions listener;
  std::shared_ptr<net::TlsContext> tls;
  if (!options.tls_cert.empty()) {
    net::TlsOptions files;
    files.certificate_chain_file = options.tls_cert;
    files.private_key_file = options.tls_key;
    files.trusted_ca_file = options.tls_client_ca;
    auto context = net::TlsContext::Create(net::TlsContext::Role::kServer, std::move(files));
    if (!context.ok()) return context.status();
    tls = *std::move(context);
    listener.tls = tls;
  }
  auto server = std::unique_ptr<DataServer>(
      new DataServer(options, loops, clock, metrics, limiter, watches, health, reflection));
  for (size_t i = 0; i < loops.size(); ++i) server->server_.AddLoop(loops.loop(i));
  listener.budget = &server->connections_;
  auto bound = loops.Listen(*address, server->server_, listener);
  if (!bound.ok()) return bound.status();
  server->address_ = bound->ToString();
  if (tls != nullptr) {
    server->certificates_ = std::make_unique<net::CertificateWatcher>(
        std::vector<std::shared_ptr<net::TlsContext>>{tls}, std::chrono::seconds(10),
        [tls_changed = std::move(tls_changed)](const net::TlsContext&, const absl::Status& status) {
          tls_changed(status);
        });
  }
  loops.Start();
  return server;
}

DataServer::DataServer(const DataServerOptions& options, net::LoopGroup& loops,
                       const common::Clock& clock, common::Metrics& metrics,
                       service::RateLimiter& limiter, service::WatchHub& watches,
                       HealthBoard& health, const Reflection& reflection)
    : limiter_(limiter, watches, loops.size()),
      health_(health),
      reflection_(reflection),
      server_(methods_, clock, metrics, options.grpc),
      connections_(options.max_connections),
      loops_(loops) {
  limiter_.Register(&methods_);
  health_.Register(&methods_);
  reflection_.Register(&methods_);
}

DataServer::~DataServer() { loops_.Stop(); }

void DataServer::ReloadCertificates() {
  if (certificates_ != nullptr) certificates_->Wake();
}

void DataServer::Shutdown(absl::Time deadline) {
  loops_.StopAccepting();
  server_.Drain();
  // Connections that the kernel had queued are accepted while we stop; one iteration later they
  // are known. A poll is all that a shutdown needs.
  do {
    absl::SleepFor(absl::Milliseconds(5));
  } while (server_.connections() > 0 && absl::Now() < deadline);
}

}  // namespace sluice::transport
