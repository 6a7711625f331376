#include "server/transport/rpc/rpc_loop.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "server/transport/rpc/rpc_call.h"
#include "server/transport/rpc/rpc_connection.h"

namespace sluice::transport {
namespace {

// Units of work (net::WorkQueue) of all connections in one step, and of one without requests.
constexpr int64_t kStepUnits = net::WorkQueue::kTurnUnits;
constexpr int64_t kWorkUnits = 4;

}  // namespace

RpcLoop::RpcLoop(const MethodTable& methods, const common::Clock& clock, common::Metrics& metrics,
                 const RpcServerOptions& options, net::EventLoop& loop, size_t index)
    : methods_(methods),
      clock_(clock),
      options_(options),
      loop_(loop),
      index_(index),
      unknown_method_{"unknown", nullptr, nullptr, {}, methods.size()},
      metrics_(metrics),
      memory_(options.memory) {
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
  if (heavy_.Contains(connection)) heavy_.Remove(connection);
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
  dirty_.PushBack(connection);
  loop_.AtIterationEnd(*this);
}

void RpcLoop::OnIterationEnd() {
  // Many may have something to send, and each may also handle a turn's worth of requests.
  for (int64_t left = kStepUnits; !dirty_.empty() && left > 0;) {
    RpcConnection& connection = dirty_.PopFront();
    loop_.work().Refill(connection);
    const int64_t before = connection.credit();
    connection.Work();
    left -= kWorkUnits + before - connection.credit();
  }
  if (!dirty_.empty()) loop_.AtIterationEnd(*this);
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
  RpcCall& call = free_calls_.PopFront();
  free_call_bytes_ -= call.memory();
  return call;
}

void RpcLoop::Recycle(RpcCall& call) {
  call.Recycle();
  // Gives back the memory of a burst of calls.
  constexpr size_t kMaxFreeCallBytes = 1 << 20;
  if (free_call_bytes_ + call.memory() > kMaxFreeCallBytes) {
    delete &call;
    return;
  }
  free_calls_.PushFront(call);
  free_call_bytes_ += call.memory();
}

void RpcLoop::MarkHeavy(RpcConnection& connection, bool heavy) {
  if (heavy == heavy_.Contains(connection)) return;
  if (heavy) {
    heavy_.PushFront(connection);
  } else {
    heavy_.Remove(connection);
  }
}

void RpcLoop::RelieveMemory(int64_t least_bytes) {
  if (!memory_.over()) return;
  std::vector<std::pair<int64_t, RpcConnection*>> most;
  for (RpcConnection* one = heavy_.front(); one != nullptr; one = heavy_.Next(*one)) {
    const auto bytes = static_cast<int64_t>(one->memory());
    if (bytes >= least_bytes) most.emplace_back(bytes, one);
  }
  std::sort(most.begin(), most.end(), std::greater<>());
  int64_t excess = options_.memory->excess();
  for (auto it = most.begin(); it != most.end() && excess > 0; ++it) {
    excess -= it->first;
    it->second->CloseOverMemory();
  }
}

void RpcLoop::CountStalled(const net::Stream& stream) {
  counters().stalls.Add(1);
  if (options_.log == nullptr) return;
  options_.log->Warning("peer_stalled",
                        {{"port", options_.metrics_name}, {"peer", stream.peer_address()}});
}

void RpcLoop::CountClosedOverMemory(const net::Stream& stream, size_t bytes) {
  counters().connections_closed_over_memory.Add(1);
  if (options_.log == nullptr) return;
  options_.log->Warning(
      "connection_closed_over_memory",
      {{"port", options_.metrics_name}, {"peer", stream.peer_address()}, {"bytes", bytes}});
}

size_t RpcLoop::memory_in_use() const {
  size_t bytes = 0;
  for (const RpcConnection* connection = connections_.front(); connection != nullptr;
       connection = connections_.Next(*connection)) {
    bytes += connection->memory();
  }
  return bytes;
}

}  // namespace sluice::transport
