#include "server/transport/rpc/rpc_loop.h"

#include "server/transport/rpc/rpc_call.h"
#include "server/transport/rpc/rpc_connection.h"

namespace sluice::transport {
RpcLoop::RpcLoop(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
                 const RpcServerOptions& options, net::EventLoop& loop, size_t index)
    : PortLoop(metrics, options, loop, index),
      methods_(methods),
      clock_(clock),
      options_(options),
      unknown_method_{"unknown", nullptr, nullptr, {}, methods.size()} {
  for (Decompressor& one : large_) free_large_.push_back(&one);
}

RpcLoop::~RpcLoop() { RemoveAll(); }

std::vector<std::string> RpcLoop::MethodNames() const {
  std::vector<std::string> names;
  names.reserve(methods_.size() + 1);
  for (size_t i = 0; i < methods_.size(); ++i) names.push_back(methods_.method(i).path);
  names.push_back(unknown_method_.path);
  return names;
}

PortConnection* RpcLoop::NewConnection(net::Stream& stream) {
  return new RpcConnection(*this, stream);
}

Decompressor* RpcLoop::ClaimLarge(RpcConnection& connection) {
  if (free_large_.empty()) {
    if (IntrusiveList<RpcConnection, WaitingConnections>::Contains(connection)) return nullptr;
    WaitingPeer& peer = waiting_[connection.stream().peer()];
    if (peer.connections.empty()) waiting_turns_.PushBack(peer);
    peer.connections.PushBack(connection);
    return nullptr;
  }
  Decompressor* const one = free_large_.back();
  free_large_.pop_back();
  return one;
}

void RpcLoop::ReleaseLarge(Decompressor& decompressor) {
  constexpr size_t kKeepBytes = 16 << 10;
  decompressor.inflater.Cancel();
  decompressor.message.Clear(kKeepBytes);
  if (waiting_turns_.empty()) return free_large_.push_back(&decompressor);
  WaitingPeer& peer = waiting_turns_.PopFront();
  RpcConnection& next = peer.connections.PopFront();
  if (peer.connections.empty()) {
    waiting_.erase(next.stream().peer());
  } else {
    waiting_turns_.PushBack(peer);
  }
  next.OnLargeMessage(decompressor);
}

void RpcLoop::CancelClaim(RpcConnection& connection) {
  if (!IntrusiveList<RpcConnection, WaitingConnections>::Contains(connection)) return;
  const auto found = waiting_.find(connection.stream().peer());
  WaitingPeer& peer = found->second;
  peer.connections.Remove(connection);
  if (!peer.connections.empty()) return;
  waiting_turns_.Remove(peer);
  waiting_.erase(found);
}

}  // namespace sluice::transport
