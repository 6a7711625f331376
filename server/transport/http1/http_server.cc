#include "server/transport/http1/http_server.h"

#include <algorithm>

#include "server/transport/http1/loop.h"

namespace sluice::http1 {

HttpServer::HttpServer(const RouteTable& routes, const common::Clock& clock,
                       common::Metrics& metrics, const ServerOptions& options)
    : routes_(routes), clock_(clock), metrics_(metrics), options_(options) {}

HttpServer::~HttpServer() = default;

void HttpServer::AddLoop(net::EventLoop& loop) {
  loops_.push_back(
      std::make_unique<Loop>(routes_, clock_, metrics_, options_, loop, loops_.size()));
}

Loop* HttpServer::Find(const net::EventLoop& loop) const {
  for (const auto& one : loops_) {
    if (&one->loop() == &loop) return one.get();
  }
  return nullptr;
}

net::StreamHandler* HttpServer::Accept(net::Stream& stream) {
  Loop* const loop = Find(stream.loop());
  if (loop == nullptr) return nullptr;
  // The last part is for the requests of connections that exist.
  if (options_.memory != nullptr && options_.memory->nearly_over()) {
    loop->CountRefused();
    return nullptr;
  }
  return loop->Adopt(stream, std::max<size_t>(1, options_.max_connections / loops_.size()));
}

void HttpServer::OnRefused(net::EventLoop& loop) {
  if (Loop* const one = Find(loop); one != nullptr) one->CountRefused();
}

void HttpServer::OnHandshakeDisplaced(net::EventLoop& loop) {
  if (Loop* const one = Find(loop); one != nullptr) one->CountDisplaced();
}

void HttpServer::Drain() {
  for (const auto& one : loops_) {
    one->loop().Post([&loop = *one] { loop.Drain(); });
  }
}

void HttpServer::RelieveMemory() {
  if (options_.memory == nullptr || !options_.memory->over()) return;
  // The largest of all connections holds at least the average.
  const auto open = static_cast<int64_t>(std::max<uint64_t>(1, connections()));
  const int64_t average_bytes = options_.memory->held() / open;
  for (const auto& one : loops_) {
    one->loop().Post([&loop = *one, average_bytes] { loop.RelieveMemory(average_bytes); });
  }
}

uint64_t HttpServer::connections() const {
  uint64_t open = 0;
  for (const auto& one : loops_) open += one->connections();
  return open;
}

}  // namespace sluice::http1
