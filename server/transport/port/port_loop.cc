#include "server/transport/port/port_loop.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace sluice::transport {
namespace {

// Units of work (net::WorkQueue) of all connections in one step, and of one without requests.
constexpr int64_t kStepUnits = net::WorkQueue::kTurnUnits;
constexpr int64_t kWorkUnits = 4;

}  // namespace

PortLoop::PortLoop(common::Metrics& metrics, const ConnectionOptions& options, net::EventLoop& loop,
                   size_t index)
    : metrics_(metrics), options_(options), loop_(loop), index_(index), memory_(options.memory) {}

void PortLoop::FindCounters() {
  if (transport_counters_ != nullptr) return;
  common::Metrics::Shard& shard = metrics_.Local();
  for (const std::string& name : MethodNames()) {
    method_counters_.push_back(&shard.OfMethod(metrics_.AddMethod(name)));
  }
  transport_counters_ = &shard.OfTransport(metrics_.AddTransport(options_.metrics_name));
}

net::StreamHandler* PortLoop::Adopt(net::Stream& stream, size_t loops) {
  FindCounters();
  loops_ = loops;
  PortConnection* const connection = NewConnection(stream);
  connections_.PushFront(*connection);
  return connection;
}

void PortLoop::CountRefused() {
  FindCounters();
  counters().connections_refused.Add(1);
}

void PortLoop::CountDisplaced() {
  FindCounters();
  counters().connections_displaced.Add(1);
}

void PortLoop::CountHandshakeDisplaced() {
  FindCounters();
  counters().handshakes_displaced.Add(1);
}

void PortLoop::CountOpened() {
  opened_.Add(1);
  counters().connections_accepted.Add(1);
}

void PortLoop::CountClosed() {
  counters().connections_closed.Add(1);
  closed_.Add(1);
}

void PortLoop::Remove(PortConnection& connection) {
  connections_.Remove(connection);
  if (dirty_.Contains(connection)) dirty_.Remove(connection);
  if (heavy_.Contains(connection)) heavy_.Remove(connection);
  delete &connection;
}

void PortLoop::RemoveAll() {
  while (!connections_.empty()) Remove(*connections_.front());
}

void PortLoop::Drain(int64_t most_notice_ns) {
  if (draining_) return;
  most_notice_ns_ = most_notice_ns;
  draining_ = true;
  for (PortConnection* one = connections_.front(); one != nullptr; one = connections_.Next(*one)) {
    one->Drain();
  }
}

void PortLoop::MarkDirty(PortConnection& connection) {
  if (dirty_.Contains(connection)) return;
  dirty_.PushBack(connection);
  loop_.AtIterationEnd(*this);
}

void PortLoop::OnIterationEnd() {
  // Many may have something to send, and each may also handle a turn's worth of requests.
  for (int64_t left = kStepUnits; !dirty_.empty() && left > 0;) {
    PortConnection& connection = dirty_.PopFront();
    loop_.work().Refill(connection);
    const int64_t before = connection.credit();
    connection.Work();
    left -= kWorkUnits + before - connection.credit();
  }
  if (!dirty_.empty()) loop_.AtIterationEnd(*this);
}

std::shared_ptr<void> PortLoop::HoldMemory(size_t bytes) {
  const auto held = static_cast<int64_t>(bytes);
  AddMemory(held);
  return {static_cast<void*>(this),
          [this, &loop = loop_, held](void*) { loop.Post([this, held] { AddMemory(-held); }); }};
}

void PortLoop::MarkHeavy(PortConnection& connection, bool heavy) {
  if (heavy == heavy_.Contains(connection)) return;
  if (heavy) {
    heavy_.PushFront(connection);
  } else {
    heavy_.Remove(connection);
  }
}

void PortLoop::RelieveMemory(int64_t least_bytes) {
  const common::MemoryBudget& all = *options_.memory;
  if (!all.nearly_over()) return;
  // The part of the excess that these connections hold: other loops and ports give theirs back.
  const double part = static_cast<double>(settled_bytes()) / static_cast<double>(all.held());
  auto excess = static_cast<int64_t>(part * static_cast<double>(all.excess()));
  std::vector<std::pair<int64_t, PortConnection*>> most;
  for (PortConnection* one = heavy_.front(); one != nullptr; one = heavy_.Next(*one)) {
    const auto bytes = static_cast<int64_t>(one->settled_bytes());
    if (bytes >= least_bytes) most.emplace_back(bytes, one);
  }
  std::sort(most.begin(), most.end(), std::greater<>());
  for (auto it = most.begin(); it != most.end() && excess > 0; ++it) {
    excess -= it->first;
    it->second->CloseOverMemory();
  }
}

bool PortLoop::RefusesCallOf(size_t held_bytes) const {
  const uint64_t all = std::max<uint64_t>(connections(), 1) * loops_;
  return held_bytes > static_cast<uint64_t>(options_.memory->limit()) / 4 / all;
}

void PortLoop::CountStalled(const net::Stream& stream) {
  counters().stalls.Add(1);
  if (options_.log == nullptr) return;
  options_.log->Warning("peer_stalled",
                        {{"port", options_.metrics_name}, {"peer", stream.peer_address()}});
}

void PortLoop::CountClosedOverMemory(const net::Stream& stream, size_t bytes) {
  counters().connections_closed_over_memory.Add(1);
  if (options_.log == nullptr) return;
  options_.log->Warning(
      "connection_closed_over_memory",
      {{"port", options_.metrics_name}, {"peer", stream.peer_address()}, {"bytes", bytes}});
}

size_t PortLoop::memory_in_use() const {
  size_t bytes = 0;
  for (const PortConnection* one = connections_.front(); one != nullptr;
       one = connections_.Next(*one)) {
    bytes += one->memory();
  }
  return bytes;
}

}  // namespace sluice::transport
