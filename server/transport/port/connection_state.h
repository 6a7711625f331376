// ConnectionState: what a service keeps for a connection.
#ifndef SLUICE_SERVER_TRANSPORT_PORT_CONNECTION_STATE_H_
#define SLUICE_SERVER_TRANSPORT_PORT_CONNECTION_STATE_H_

#include <cstddef>
#include <cstdint>

namespace sluice::transport {

// Used on the connection's loop.
class ConnectionState {
 public:
  virtual ~ConnectionState() = default;
  // Bytes, which count in the connection's account.
  virtual size_t memory() const = 0;
  // Forgets some of what is over by now, which takes some microseconds. Returns whether there is
  // more. `now_ns` as EventLoop::now_ns.
  virtual bool ForgetSome(int64_t now_ns) = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_PORT_CONNECTION_STATE_H_
