#include "server/transport/rpc/rpc_server.h"

#include <algorithm>

namespace sluice::transport {

RpcServer::RpcServer(const MethodTable& methods, const common::Clock& clock,
                     common::Metrics& metrics, const RpcServerOptions& options)
    : methods_(methods), clock_(clock), metrics_(metrics), options_(options) {}

RpcServer::~RpcServer() = default;

void RpcServer::AddLoop(net::EventLoop& loop) {
  loops_.push_back(
      std::make_unique<RpcLoop>(methods_, clock_, metrics_, options_, loop, loops_.size()));
}

RpcLoop* RpcServer::Find(const net::EventLoop& loop) const {
  for (const auto& rpc_loop : loops_) {
    if (&rpc_loop->loop() == &loop) return rpc_loop.get();
  }
  return nullptr;
}

net::StreamHandler* RpcServer::Accept(net::Stream& stream) {
  RpcLoop* const rpc_loop = Find(stream.loop());
  if (rpc_loop == nullptr) return nullptr;
  // The last part is for the calls of connections that exist.
  if (options_.memory != nullptr && options_.memory->nearly_over()) {
    rpc_loop->CountRefused();
    return nullptr;
  }
  return rpc_loop->Adopt(stream);
}

void RpcServer::OnRefused(net::EventLoop& loop) {
  if (RpcLoop* const rpc_loop = Find(loop); rpc_loop != nullptr) rpc_loop->CountRefused();
}

void RpcServer::OnHandshakeDisplaced(net::EventLoop& loop) {
  if (RpcLoop* const rpc_loop = Find(loop); rpc_loop != nullptr) rpc_loop->CountDisplaced();
}

void RpcServer::Drain() {
  for (const auto& rpc_loop : loops_) {
    rpc_loop->loop().Post([&rpc_loop = *rpc_loop] { rpc_loop.Drain(); });
  }
}

void RpcServer::RelieveMemory() {
  if (options_.memory == nullptr || !options_.memory->over()) return;
  // The largest of all connections holds at least the average.
  const auto open = static_cast<int64_t>(std::max<uint64_t>(1, connections()));
  const int64_t average_bytes = options_.memory->held() / open;
  for (const auto& rpc_loop : loops_) {
    rpc_loop->loop().Post(
        [&rpc_loop = *rpc_loop, average_bytes] { rpc_loop.RelieveMemory(average_bytes); });
  }
}

size_t RpcServer::memory_in_use() const {
  size_t bytes = 0;
  for (const auto& rpc_loop : loops_) bytes += rpc_loop->memory_in_use();
  return bytes;
}

uint64_t RpcServer::connections() const {
  uint64_t open = 0;
  for (const auto& rpc_loop : loops_) open += rpc_loop->connections();
  return open;
}

}  // namespace sluice::transport
