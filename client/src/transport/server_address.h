// ServerAddress: a server as users write it. Resolve finds the socket addresses behind it.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_SERVER_ADDRESS_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_SERVER_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/status.h"

namespace sluice::client_internal {

struct ServerAddress {
  std::string text;  // as the user wrote it
  std::string host;  // a name or an IP address, without brackets; empty: a Unix socket
  std::string port;
  std::string unix_path;  // "@name": Linux's abstract names

  bool is_unix() const { return host.empty(); }

  // INVALID_ARGUMENT: neither HOST:PORT nor unix:PATH.
  static Result<ServerAddress> Parse(const std::string& text);
};

// An address that a socket can connect to.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  std::string text;  // "127.0.0.1:7200", "[::1]:7200", "unix:/run/sluice.sock"
};

// All addresses of the server, in the system's order of preference. Blocks while a name is looked
// up. UNAVAILABLE: the name is unknown, or no name server answers.
Result<std::vector<SocketAddress>> Resolve(const ServerAddress& server);

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_SERVER_ADDRESS_H_
