#include "server/transport/services/port_server.h"

#include <string>
#include <utility>
#include <vector>

namespace sluice::transport {
namespace {

constexpr char kHealth[] = "grpc.health.v1.Health";

std::vector<std::string> ServicesOf(const PortServerOptions& options) {
  std::vector<std::string> services = options.more_services;
  services.insert(services.end(), {options.service, kHealth});
  return services;
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
      reflection_(ServicesOf(options_)),
      server_(methods_, clock, metrics, options_.rpc),
      loops_(loops),
      listener_({.listen = options_.listen,
                 .tls = options_.tls,
                 .protocol = "h2",
                 .max_connections = options_.max_connections,
                 .memory = options_.rpc.memory,
                 .log = options_.log}) {
  health_.Register(&methods_);
  reflection_.Register(&methods_);
}

PortServer::~PortServer() { loops_.Stop(); }

absl::Status PortServer::Listen(std::function<void(const absl::Status&)> certificates_changed,
                                std::shared_ptr<net::ListeningSockets>* sockets) {
  for (size_t i = 0; i < loops_.size(); ++i) server_.AddLoop(loops_.loop(i));
  return listener_.Listen(loops_, server_, std::move(certificates_changed), sockets);
}

void PortServer::Drain(int64_t most_notice_ns) {
  loops_.StopAccepting();
  server_.Drain(most_notice_ns);
}

}  // namespace sluice::transport
