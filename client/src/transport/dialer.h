// Dialer: makes one connection to a server, by any of its addresses.
//
// It looks the name up each time. It tries the addresses in the system's order, and begins with the
// next one while the last has not answered within 250 ms. The first that connects, completes TLS's
// handshake and is accepted by `greet` wins. An address that connects and says nothing has an
// equal part of the time that is left, but at least a second or a half of it: then the next is
// tried.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_DIALER_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_DIALER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/src/transport/channel.h"
#include "client/src/transport/server_address.h"
#include "client/src/transport/transport_options.h"
#include "sluice/connection.h"
#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice::client_internal {

// Ends a Dial on another thread. Thread-safe.
class DialCancel {
 public:
  DialCancel();
  ~DialCancel();
  DialCancel(const DialCancel&) = delete;
  DialCancel& operator=(const DialCancel&) = delete;

  void Cancel();
  // Readable once cancelled.
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// Waits until the socket is readable (or writable). Returns false at the deadline or if cancelled.
bool AwaitSocket(int fd, bool write, TimePoint deadline, const DialCancel& cancel);

class Dialer {
 public:
  // Waits until the server speaks HTTP/2, and keeps the channel. Not OK: try another address.
  using Greet = std::function<Status(std::unique_ptr<Channel> channel, TimePoint deadline)>;

  // `tls` may be null: no TLS.
  Dialer(ServerAddress server, TlsOptions options, std::shared_ptr<const TlsSetup> tls,
         Resolver resolver = Resolve)
      : server_(std::move(server)),
        options_(std::move(options)),
        tls_(std::move(tls)),
        resolver_(std::move(resolver)) {}

  // Blocks; at most until the deadline, except for the look-up of a name, which cannot be ended.
  // UNAVAILABLE: "cannot connect to SERVER: " with the cause of each address, and advice.
  Status Dial(TimePoint deadline, const DialCancel& cancel, const Greet& greet) const;

 private:
  struct Attempt;

  // TCP: returns the socket that connects first and removes its address from the list; -1: none.
  int Connect(std::vector<SocketAddress>* addresses, std::string* address, TimePoint deadline,
              const DialCancel& cancel, std::string* causes) const;
  Status Secure(int fd, TimePoint deadline, const DialCancel& cancel,
                std::unique_ptr<Channel>* channel) const;

  const ServerAddress server_;
  const TlsOptions options_;
  const std::shared_ptr<const TlsSetup> tls_;
  const Resolver resolver_;
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_DIALER_H_
