#include "server/transport/rpc/rpc_server.h"

#include <algorithm>

#include "server/transport/rpc/rpc_connection.h"
#include "server/transport/rpc/server_call.h"

namespace sluice::transport {

GrpcLoop::GrpcLoop(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
                   const RpcServerOptions& options, net::EventLoop& loop, size_t index)
    : methods_(methods),
      clock_(clock),
      options_(options),
      loop_(loop),
      index_(index),
      unknown_method_{"unknown", nullptr, nullptr, {}, methods.size()},
      metrics_(metrics),
      environment_(options.http2) {}

void GrpcLoop::FindCounters() {
  common::Metrics::Shard& shard = metrics_.Local();
  for (size_t i = 0; i < methods_.size(); ++i) {
    method_counters_.push_back(&shard.OfMethod(metrics_.AddMethod(methods_.method(i).path)));
  }
  method_counters_.push_back(&shard.OfMethod(metrics_.AddMethod(unknown_method_.path)));
  transport_counters_ = &shard.OfTransport(metrics_.AddTransport(options_.metrics_name));
}

GrpcLoop::~GrpcLoop() {
  while (connections_ != nullptr) Remove(connections_);
  while (free_calls_ != nullptr) {
    ServerCall* call = free_calls_;
    free_calls_ = call->next_;
    delete call;
  }
}

RpcConnection* GrpcLoop::Adopt(net::Stream& stream) {
  if (transport_counters_ == nullptr) FindCounters();
  auto* connection = new RpcConnection(*this, stream);
  connection->next_ = connections_;
  connection->previous_ = &connections_;
  if (connections_ != nullptr) connections_->previous_ = &connection->next_;
  connections_ = connection;
  return connection;
}

void GrpcLoop::CountRefused() {
  if (transport_counters_ == nullptr) FindCounters();
  counters().connections_refused.Add(1);
}

void GrpcLoop::Remove(RpcConnection* connection) {
  *connection->previous_ = connection->next_;
  if (connection->next_ != nullptr) connection->next_->previous_ = connection->previous_;
  if (connection->previous_dirty_ != nullptr) {
    *connection->previous_dirty_ = connection->next_dirty_;
    if (connection->next_dirty_ != nullptr) {
      connection->next_dirty_->previous_dirty_ = connection->previous_dirty_;
    }
  }
  delete connection;
}

void GrpcLoop::Drain() {
  if (draining_) return;
  draining_ = true;
  for (RpcConnection* connection = connections_; connection != nullptr;
       connection = connection->next_) {
    connection->Drain();
  }
}

void GrpcLoop::MarkDirty(RpcConnection* connection) {
  if (connection->previous_dirty_ != nullptr) return;
  connection->next_dirty_ = dirty_;
  connection->previous_dirty_ = &dirty_;
  if (dirty_ != nullptr) dirty_->previous_dirty_ = &connection->next_dirty_;
  dirty_ = connection;
  loop_.AtIterationEnd(*this);
}

void GrpcLoop::OnIterationEnd() {
  while (dirty_ != nullptr) {
    RpcConnection* connection = dirty_;
    dirty_ = connection->next_dirty_;
    if (dirty_ != nullptr) dirty_->previous_dirty_ = &dirty_;
    connection->previous_dirty_ = nullptr;
    connection->next_dirty_ = nullptr;
    connection->Flush();
    connection->ConsiderTimers();
  }
}

ServerCall* GrpcLoop::NewCall() {
  ServerCall* call = free_calls_;
  if (call == nullptr) return new ServerCall();
  free_calls_ = call->next_;
  --free_call_count_;
  return call;
}

void GrpcLoop::Recycle(ServerCall* call) {
  call->Recycle();
  // What a burst of calls needed is not kept for ever.
  constexpr size_t kMaxFreeCalls = 4096;
  if (free_call_count_ >= kMaxFreeCalls) {
    delete call;
    return;
  }
  call->next_ = free_calls_;
  free_calls_ = call;
  ++free_call_count_;
}

RpcServer::RpcServer(const MethodTable& methods, const common::Clock& clock,
                     common::Metrics& metrics, const RpcServerOptions& options)
    : methods_(methods), clock_(clock), metrics_(metrics), options_(options) {}

RpcServer::~RpcServer() = default;

void RpcServer::AddLoop(net::EventLoop& loop) {
  loops_.push_back(
      std::make_unique<GrpcLoop>(methods_, clock_, metrics_, options_, loop, loops_.size()));
}

net::StreamHandler* RpcServer::Accept(net::Stream& stream) {
  for (const auto& grpc : loops_) {
    if (&grpc->loop() == &stream.loop()) return grpc->Adopt(stream);
  }
  return nullptr;
}

void RpcServer::OnRefused(net::EventLoop& loop) {
  for (const auto& grpc : loops_) {
    if (&grpc->loop() == &loop) return grpc->CountRefused();
  }
}

void RpcServer::Drain() {
  for (const auto& grpc : loops_) {
    GrpcLoop* on = grpc.get();
    on->loop().Post([on] { on->Drain(); });
  }
}

size_t GrpcLoop::memory_in_use() const {
  size_t bytes = environment_.memory().bytes_in_use();
  for (const RpcConnection* connection = connections_; connection != nullptr;
       connection = connection->next_) {
    bytes += sizeof(RpcConnection) + connection->CallMemory();
  }
  return bytes;
}

size_t RpcServer::memory_in_use() const {
  size_t bytes = 0;
  for (const auto& grpc : loops_) bytes += grpc->memory_in_use();
  return bytes;
}

uint64_t RpcServer::connections() const {
  uint64_t open = 0;
  for (const auto& grpc : loops_) open += grpc->connections();
  return open;
}

}  // namespace sluice::transport
