// PortLoop: the connections that a port has on one event loop, and what they share: counters,
// memory, turns.
#ifndef SLUICE_SERVER_TRANSPORT_PORT_PORT_LOOP_H_
#define SLUICE_SERVER_TRANSPORT_PORT_PORT_LOOP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/intrusive_list.h"
#include "common/memory_account.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/transport/port/connection_options.h"
#include "server/transport/port/port_connection.h"
#include "server/transport/port/shed_budget.h"

namespace sluice::transport {

using common::IntrusiveList;

// Used on its loop only, except for connections() and settled_bytes().
class PortLoop : private net::IterationHook {
 public:
  ~PortLoop() override = default;
  PortLoop(const PortLoop&) = delete;
  PortLoop& operator=(const PortLoop&) = delete;

  // ---- For PortAcceptor.
  // A connection for `stream`, owned by the loop until the stream's OnClosed. `loops`: of the port.
  net::StreamHandler* Adopt(net::Stream& stream, size_t loops);
  void CountRefused();
  void CountDisplaced();
  void CountHandshakeDisplaced();
  // Drains all connections, and each later one.
  void Drain(int64_t most_notice_ns);
  // If the process is nearly over its memory limit, closes the connections that hold most; none
  // that holds less than `least_bytes`.
  void RelieveMemory(int64_t least_bytes);
  net::EventLoop& loop() { return loop_; }
  // Open connections. Thread-safe.
  uint64_t connections() const { return opened_.value() - closed_.value(); }
  // Bytes that its connections hold, as they last reported them. Thread-safe.
  int64_t settled_bytes() const { return static_cast<int64_t>(settled_bytes_.value()); }
  size_t memory_in_use() const;

  // ---- For its connections.
  void CountOpened();
  void CountClosed();
  // Destroys the connection.
  void Remove(PortConnection& connection);
  // PortConnection::Work follows when the loop's iteration ends.
  void MarkDirty(PortConnection& connection);
  bool draining() const { return draining_; }
  int64_t most_notice_ns() const { return most_notice_ns_; }
  // As ConnectionOptions::linger_ns, but not longer than the notice of a drain may take.
  int64_t linger_ns() const {
    return draining_ ? std::min(options_.linger_ns, most_notice_ns_) : options_.linger_ns;
  }

  // Adds to the bytes that connections hold; negative: fewer.
  void AddSettled(int64_t bytes) {
    settled_bytes_.Add(static_cast<uint64_t>(bytes));
    memory_.Add(bytes);
  }
  // The same of bytes that count for no connection.
  void AddMemory(int64_t bytes) { memory_.Add(bytes); }
  // Adds `bytes` until the result is destroyed, on any thread.
  std::shared_ptr<void> HoldMemory(size_t bytes);
  bool over_memory() const { return memory_.over(); }
  // Whether a call of a connection that holds held_bytes is refused. Connections that hold less
  // than a quarter of an equal share are served: together they take at most a quarter of the limit.
  // REQUIRES: over_memory().
  bool RefusesCallOf(size_t held_bytes) const;
  // A connection holds much memory, or no longer.
  void MarkHeavy(PortConnection& connection, bool heavy);
  // Count, and log, a connection that is ended for what it holds.
  void CountStalled(const net::Stream& stream);
  void CountClosedOverMemory(const net::Stream& stream, size_t bytes);
  const access::Clients* clients() const { return options_.clients; }
  int64_t stall_timeout_ns() const { return options_.stall_timeout_ns; }

  // Whether a call that has waited so long for its turn is to be refused; then it is counted.
  bool Sheds(int64_t queued_ns) {
    const int64_t most_ns = options_.max_queue_ns;
    if (most_ns <= 0 || queued_ns <= most_ns || !shed_budget_.Spend()) return false;
    counters().sheds.Add(1);
    return true;
  }
  // A message is served.
  void EarnSheds(size_t message_bytes) { shed_budget_.Earn(message_bytes); }

  size_t index() const { return index_; }
  common::TransportCounters& counters() { return *transport_counters_; }
  // Bytes of unfinished requests, of all connections.
  size_t buffered_bytes() const { return buffered_bytes_; }
  // Bytes of calls that last, of all connections and of those that have ended. Negative numbers
  // wrap around.
  void AddLastingBytes(size_t bytes) { lasting_bytes_ += bytes; }
  bool HasRoomToLast(size_t bytes) const {
    return lasting_bytes_ + bytes <= options_.max_loop_lasting_bytes;
  }
  void AddBufferedBytes(size_t bytes) { buffered_bytes_ += bytes; }
  // For bytes on their way to a stream; used within one call.
  common::Buffer& output() { return output_; }

 protected:
  // All outlive the PortLoop. The derived class removes all connections before it is destroyed.
  PortLoop(common::Metrics& metrics, const ConnectionOptions& options, net::EventLoop& loop,
           size_t index);

  void RemoveAll();
  // Of the method whose name is at `index` of MethodNames().
  common::MethodCounters& CountersAt(size_t index) { return *method_counters_[index]; }

 private:
  // The names under which calls are counted. Called once, before the first connection.
  virtual std::vector<std::string> MethodNames() const = 0;
  virtual PortConnection* NewConnection(net::Stream& stream) = 0;
  void FindCounters();
  void OnIterationEnd() override;

  common::Metrics& metrics_;
  const ConnectionOptions options_;
  net::EventLoop& loop_;
  const size_t index_;
  // Counters of the loop's thread, looked up at its first connection.
  std::vector<common::MethodCounters*> method_counters_;
  common::TransportCounters* transport_counters_ = nullptr;
  common::OwnedCounter opened_;
  common::OwnedCounter closed_;
  common::OwnedCounter settled_bytes_;
  common::Buffer output_;
  size_t buffered_bytes_ = 0;
  size_t lasting_bytes_ = 0;
  size_t loops_ = 1;  // of the port
  bool draining_ = false;
  int64_t most_notice_ns_ = 0;  // of the drain
  ShedBudget shed_budget_;
  IntrusiveList<PortConnection, OpenConnections> connections_;
  IntrusiveList<PortConnection, DirtyConnections> dirty_;
  IntrusiveList<PortConnection, HeavyConnections> heavy_;
  common::MemoryPart memory_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_PORT_PORT_LOOP_H_
