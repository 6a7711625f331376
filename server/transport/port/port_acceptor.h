// PortAcceptor: all connections of a port, each on the event loop that accepted it.
#ifndef SLUICE_SERVER_TRANSPORT_PORT_PORT_ACCEPTOR_H_
#define SLUICE_SERVER_TRANSPORT_PORT_PORT_ACCEPTOR_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/memory_account.h"
#include "common/net/event_loop.h"
#include "common/net/listener.h"
#include "common/net/stream.h"
#include "server/transport/port/port_loop.h"

namespace sluice::transport {

// Thread-safe after its last AddLoop.
class PortAcceptor : public net::Acceptor {
 public:
  // REQUIRES: the loops have ended, or their connections have.
  ~PortAcceptor() override;
  PortAcceptor(const PortAcceptor&) = delete;
  PortAcceptor& operator=(const PortAcceptor&) = delete;

  // Call before the loop accepts.
  void AddLoop(net::EventLoop& loop);

  net::StreamHandler* Accept(net::Stream& stream) override;
  void OnRefused(net::EventLoop& loop) override;
  void OnDisplaced(net::EventLoop& loop) override;
  void OnHandshakeDisplaced(net::EventLoop& loop) override;

  // Accepts no new calls, asks clients to reconnect elsewhere, finishes open calls. Returns at
  // once. Clients have at most `most_notice_ns` to say that they have read that, and
  // as long again to end their side.
  void Drain(int64_t most_notice_ns = std::numeric_limits<int64_t>::max());

  // Closes the port's connections that hold most if the process is nearly over its memory limit.
  // Returns at once. Call it several times a second.
  void RelieveMemory();

  // Open connections.
  uint64_t connections() const;

  // Bytes that the connections of all loops hold, as they are counted against the limit. REQUIRES:
  // on the loop's thread, if there is one loop, or none runs.
  size_t memory_in_use() const;

 protected:
  // `memory`: of ConnectionOptions.
  explicit PortAcceptor(const common::MemoryBudget* memory) : memory_(memory) {}

 private:
  virtual std::unique_ptr<PortLoop> MakeLoop(net::EventLoop& loop, size_t index) = 0;
  // Null: not one of this port's loops.
  PortLoop* Find(const net::EventLoop& loop) const;

  const common::MemoryBudget* const memory_;
  std::vector<std::unique_ptr<PortLoop>> loops_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_PORT_PORT_ACCEPTOR_H_
