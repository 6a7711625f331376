#include "server/transport/rpc/rpc_loop.h"

#include "server/transport/rpc/rpc_call.h"
#include "server/transport/rpc/rpc_connection.h"

namespace sluice::transport {

RpcLoop::RpcLoop(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
                 const RpcServerOptions& options, net::EventLoop& loop, size_t index)
    : methods_(methods),
      clock_(clock),
      options_(options),
      loop_(loop),
      index_(index),
      unknown_method_{"unknown", nullptr, nullptr, {}, methods.size()},
      metrics_(metrics),
      environment_(options.http2) {
  for (Decompressor& one : large_) free_large_.push_back(&one);
}

RpcLoop::~RpcLoop() {
  while (!connections_.empty()) Remove(*connections_.front());
  while (!free_calls_.empty()) delete &free_calls_.PopFront();
}

void RpcLoop::FindCounters() {
  common::Metrics::Shard& shard = metrics_.Local();
  for (size_t i = 0; i < methods_.size(); ++i) {
    method_counters_.push_back(&shard.OfMethod(metrics_.AddMethod(methods_.method(i).path)));
  }
  method_counters_.push_back(&shard.OfMethod(metrics_.AddMethod(unknown_method_.path)));
  transport_counters_ = &shard.OfTransport(metrics_.AddTransport(options_.metrics_name));
}

net::StreamHandler* RpcLoop::Adopt(net::Stream& stream) {
  if (transport_counters_ == nullptr) FindCounters();
  auto* connection = new RpcConnection(*this, stream);
  connections_.PushFront(*connection);
  return connection;
}

void RpcLoop::CountRefused() {
  if (transport_counters_ == nullptr) FindCounters();
  counters().connections_refused.Add(1);
}

void RpcLoop::CountDisplaced() {
  if (transport_counters_ == nullptr) FindCounters();
  counters().handshakes_displaced.Add();
}

void RpcLoop::CountOpened() {
  connections_opened_.Add(1);
  counters().connections_accepted.Add(1);
}

void RpcLoop::CountClosed() {
  counters().connections_closed.Add(1);
  connections_closed_.Add(1);
}

void RpcLoop::Remove(RpcConnection& connection) {
  connections_.Remove(connection);
  if (dirty_.Contains(connection)) dirty_.Remove(connection);
  delete &connection;
}

void RpcLoop::Drain() {
  if (draining_) return;
  draining_ = true;
  for (RpcConnection* connection = connections_.front(); connection != nullptr;
       connection = connections_.Next(*connection)) {
    connection->Drain();
  }
}

void RpcLoop::MarkDirty(RpcConnection& connection) {
  if (dirty_.Contains(connection)) return;
  dirty_.PushFront(connection);
  loop_.AtIterationEnd(*this);
}

void RpcLoop::OnIterationEnd() {
  while (!dirty_.empty()) {
    dirty_.PopFront().Work();
  }
}

Decompressor* RpcLoop::ClaimLarge(RpcConnection& connection) {
  if (free_large_.empty()) {
    if (!waiting_.Contains(connection)) waiting_.PushBack(connection);
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
  if (waiting_.empty()) {
    free_large_.push_back(&decompressor);
  } else {
    waiting_.PopFront().OnLargeMessage(decompressor);
  }
}

void RpcLoop::CancelClaim(RpcConnection& connection) {
  if (waiting_.Contains(connection)) waiting_.Remove(connection);
}

RpcCall& RpcLoop::NewCall() {
  if (free_calls_.empty()) return *new RpcCall();
  --free_call_count_;
  return free_calls_.PopFront();
}

void RpcLoop::Recycle(RpcCall& call) {
  call.Recycle();
  // Gives back the memory of a burst of calls.
  constexpr size_t kMaxFreeCalls = 4096;
  if (free_call_count_ >= kMaxFreeCalls) {
    delete &call;
    return;
  }
  free_calls_.PushFront(call);
  ++free_call_count_;
}

size_t RpcLoop::memory_in_use() const {
  size_t bytes = environment_.memory().bytes_in_use();
  for (const RpcConnection* connection = connections_.front(); connection != nullptr;
       connection = connections_.Next(*connection)) {
    bytes += connection->memory();
  }
  return bytes;
}

}  // namespace sluice::transport
