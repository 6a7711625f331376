// LastingBytes: what the calls of a connection that last (watches) hold, or calls that were
// cancelled while a store had them; in the account of the connection. It may be held for longer
// than the call, by work that cannot be stopped; and for longer than the connection, then in the
// account of its loop.
#ifndef SLUICE_SERVER_TRANSPORT_PORT_LASTING_BYTES_H_
#define SLUICE_SERVER_TRANSPORT_PORT_LASTING_BYTES_H_

#include <cstddef>
#include <memory>

namespace sluice::transport {

class PortConnection;
class PortLoop;

// Used on its loop only.
class LastingBytes : public std::enable_shared_from_this<LastingBytes> {
 public:
  // `bounded`: whether they count against ConnectionOptions::max_loop_lasting_bytes.
  LastingBytes(PortLoop& loop, PortConnection& connection, bool bounded)
      : loop_(loop), connection_(&connection), bounded_(bounded) {}

  size_t bytes() const { return bytes_; }
  // Negative numbers wrap around.
  void Add(size_t bytes);
  // Adds `bytes` until the result is destroyed, on any thread.
  std::shared_ptr<void> Hold(size_t bytes);
  // The connection is being destroyed, and gives back what it has in the loop's account.
  void LeaveConnection();

 private:
  void Release(size_t bytes);

  PortLoop& loop_;
  PortConnection* connection_;  // null: it was destroyed
  const bool bounded_;
  size_t bytes_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_PORT_LASTING_BYTES_H_
