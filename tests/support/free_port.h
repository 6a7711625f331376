// Leases ports to servers that cannot choose one themselves.
#ifndef SLUICE_TESTS_SUPPORT_FREE_PORT_H_
#define SLUICE_TESTS_SUPPORT_FREE_PORT_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace sluice::testing {

// Whether nothing is bound to this port of 127.0.0.1.
inline bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return free;
}

// Whether this process now holds the lease of `port`: a Unix socket in the abstract namespace,
// which one process can bind, and which is closed when the process ends.
inline bool Lease(int port) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::string name = "sluice-test-port-" + std::to_string(port);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return true;
  close(fd);
  return false;
}

// A free port of 127.0.0.1 that no other test gets until this process ends, also while its server
// is stopped. Below the ephemeral ports, which an outgoing connection could take.
inline int FreePort() {
  static std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<int> ports(11000, 32000);
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = ports(random);
    if (Lease(port) && IsFree(port)) return port;
  }
  std::fprintf(stderr, "no free port\n");
  std::abort();
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_FREE_PORT_H_
