#include "server/transport/services/port_server.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/bounds.h"
#include "common/net/tls_stream.h"

namespace sluice::transport {
namespace {

constexpr char kHealth[] = "grpc.health.v1.Health";
constexpr std::chrono::seconds kCertificateInterval{10};

absl::StatusOr<std::shared_ptr<net::TlsContext>> LoadTls(const TlsFiles& files) {
  if (!files.enabled()) return nullptr;
  return net::TlsContext::Create(net::TlsContext::Role::kServer,
                                 {.certificate_chain_file = files.cert,
                                  .private_key_file = files.key,
                                  .trusted_ca_file = files.client_ca});
}

// TLS handshakes of a loop. All of them hold at most an eighth of what peers may make the process
// hold; a few per loop are always possible.
size_t MaxHandshakes(const common::MemoryBudget* memory, size_t loops) {
  constexpr size_t kFew = 16;
  if (memory == nullptr) return common::bounds::kMaxHandshakesPerLoop;
  const size_t share = static_cast<size_t>(memory->limit()) / 8 / loops;
  return std::clamp(share / net::TlsStream::kHandshakeMemory, kFew,
                    common::bounds::kMaxHandshakesPerLoop);
}

}  // namespace

absl::StatusOr<std::unique_ptr<net::LoopGroup>> PortServer::MakeLoops(const common::Clock& clock,
                                                                      int threads,
                                                                      common::Metrics* metrics) {
  // About a hundred small calls per turn: one connection delays the others by at most a
  // millisecond, and the answers are still in the cache when they are sent.
  net::EventLoop::Options loop;
  loop.read_buffer_bytes = size_t{16} << 10;
  loop.metrics = metrics;
  return net::LoopGroup::Create(clock, {.threads = threads, .loop = loop});
}

PortServer::PortServer(PortServerOptions options, net::LoopGroup& loops, const common::Clock& clock,
                       common::Metrics& metrics)
    : options_(std::move(options)),
      health_(options_.service),
      reflection_({options_.service, kHealth}),
      server_(methods_, clock, metrics, options_.rpc),
      connections_(options_.max_connections),
      loops_(loops) {
  health_.Register(&methods_);
  reflection_.Register(&methods_);
}

PortServer::~PortServer() { loops_.Stop(); }

absl::Status PortServer::Listen(std::function<void(const absl::Status&)> certificates_changed) {
  auto tls = LoadTls(options_.tls);
  if (!tls.ok()) return tls.status();
  for (size_t i = 0; i < loops_.size(); ++i) server_.AddLoop(loops_.loop(i));
  net::ListenerOptions listener;
  listener.tls = *tls;
  listener.budget = &connections_;
  listener.log = options_.log;
  listener.memory = options_.rpc.memory;
  listener.max_handshakes = MaxHandshakes(options_.rpc.memory, loops_.size());
  auto bound = loops_.Listen(options_.listen, server_, listener);
  if (!bound.ok()) return bound.status();
  address_ = bound->ToString();
  if (*tls != nullptr) {
    certificates_ = std::make_unique<net::CertificateWatcher>(
        std::vector{*tls}, kCertificateInterval,
        [changed = std::move(certificates_changed)](
            const net::TlsContext&, const absl::Status& status) { changed(status); });
  }
  loops_.Start();
  return absl::OkStatus();
}

void PortServer::ReloadCertificates() {
  if (certificates_ != nullptr) certificates_->Wake();
}

void PortServer::Drain() {
  loops_.StopAccepting();
  server_.Drain();
}

void PortServer::AwaitDrained(absl::Time deadline) {
  // Connections that the kernel had queued are accepted while the listeners stop, and are counted
  // one iteration later. Polling is good enough for a shutdown.
  do {
    absl::SleepFor(absl::Milliseconds(5));
  } while (server_.connections() > 0 && absl::Now() < deadline);
}

}  // namespace sluice::transport
