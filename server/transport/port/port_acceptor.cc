#include "server/transport/port/port_acceptor.h"

#include <algorithm>

namespace sluice::transport {

PortAcceptor::~PortAcceptor() = default;

void PortAcceptor::AddLoop(net::EventLoop& loop) {
  loops_.push_back(MakeLoop(loop, loops_.size()));
}

PortLoop* PortAcceptor::Find(const net::EventLoop& loop) const {
  for (const auto& one : loops_) {
    if (&one->loop() == &loop) return one.get();
  }
  return nullptr;
}

net::StreamHandler* PortAcceptor::Accept(net::Stream& stream) {
  PortLoop* const loop = Find(stream.loop());
  return loop == nullptr ? nullptr : loop->Adopt(stream, loops_.size());
}

void PortAcceptor::OnRefused(net::EventLoop& loop) {
  if (PortLoop* const one = Find(loop); one != nullptr) one->CountRefused();
}

void PortAcceptor::OnDisplaced(net::EventLoop& loop) {
  if (PortLoop* const one = Find(loop); one != nullptr) one->CountDisplaced();
}

void PortAcceptor::OnHandshakeDisplaced(net::EventLoop& loop) {
  if (PortLoop* const one = Find(loop); one != nullptr) one->CountHandshakeDisplaced();
}

void PortAcceptor::Drain(int64_t most_notice_ns) {
  for (const auto& one : loops_) {
    one->loop().Post([&loop = *one, most_notice_ns] { loop.Drain(most_notice_ns); });
  }
}

void PortAcceptor::RelieveMemory() {
  if (memory_ == nullptr || !memory_->nearly_over()) return;
  // Of this port alone: its largest connection holds at least the average of its connections,
  // whatever other ports and handshakes hold.
  int64_t settled_bytes = 0;
  for (const auto& one : loops_) settled_bytes += one->settled_bytes();
  const auto open = static_cast<int64_t>(std::max<uint64_t>(1, connections()));
  const int64_t average_bytes = settled_bytes / open;
  for (const auto& one : loops_) {
    one->loop().Post([&loop = *one, average_bytes] { loop.RelieveMemory(average_bytes); });
  }
}

size_t PortAcceptor::memory_in_use() const {
  size_t bytes = 0;
  for (const auto& one : loops_) bytes += one->memory_in_use();
  return bytes;
}

uint64_t PortAcceptor::connections() const {
  uint64_t open = 0;
  for (const auto& one : loops_) open += one->connections();
  return open;
}

}  // namespace sluice::transport
