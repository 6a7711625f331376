// Finds a free port, for servers that cannot choose one themselves.
#ifndef SLUICE_TESTS_SUPPORT_FREE_PORT_H_
#define SLUICE_TESTS_SUPPORT_FREE_PORT_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sluice::testing {

// A port of 127.0.0.1 that was free at the call.
inline int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(fd, reinterpret_cast<const sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_FREE_PORT_H_
