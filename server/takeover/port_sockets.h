// PortSockets: the listening sockets of a process, by the names of its ports.
#ifndef SLUICE_SERVER_TAKEOVER_PORT_SOCKETS_H_
#define SLUICE_SERVER_TAKEOVER_PORT_SOCKETS_H_

#include <map>
#include <memory>
#include <string>

#include "common/net/listening_socket.h"

namespace sluice::takeover {

struct PortSocket {
  std::string listen;  // as the flag gives the address: its port may be 0
  std::shared_ptr<net::ListeningSockets> sockets;
  // Of a Unix socket that another process handed over: the file is to be removed with it.
  bool takes_file = false;
};

using PortSockets = std::map<std::string, PortSocket>;

// The name of the socket of --takeover itself, which is handed over with the others.
inline constexpr char kTakeoverPort[] = "takeover";

}  // namespace sluice::takeover

#endif  // SLUICE_SERVER_TAKEOVER_PORT_SOCKETS_H_
