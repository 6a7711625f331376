#include "server/transport/web/http_port.h"

#include <utility>

#include "common/bounds.h"

namespace sluice::web {

HttpPort::HttpPort(HttpPortOptions options, net::LoopGroup& loops, const common::Clock& clock,
                   common::Metrics& metrics)
    : options_(std::move(options)),
      server_(routes_, clock, metrics, options_.http),
      loops_(loops),
      listener_({.listen = options_.listen,
                 .tls = options_.tls,
                 .protocol = "http/1.1",
                 .max_connections = common::bounds::kMaxHttpConnections,
                 // Browsers and gateways open another one, and lose no request.
                 .displaces_idle = true,
                 .memory = options_.http.memory,
                 .log = options_.http.log}) {}

absl::Status HttpPort::Listen(std::function<void(const absl::Status&)> certificates_changed,
                              std::shared_ptr<net::ListeningSockets>* sockets) {
  for (size_t i = 0; i < loops_.size(); ++i) server_.AddLoop(loops_.loop(i));
  return listener_.Listen(loops_, server_, std::move(certificates_changed), sockets);
}

}  // namespace sluice::web
