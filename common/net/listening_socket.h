// ListeningSockets: the listening sockets of one address, one for each loop.
//
// The loops share a TCP port (SO_REUSEPORT), but no other process does: the first socket listens
// alone before it allows sharing. So a second server of the same user fails with "in use", even if
// both start at the same time.
//
// A Unix address has one socket, with duplicated descriptors. The file of a server that died is
// replaced. The file of a running server, and a file that is not a socket, are never removed.
#ifndef SLUICE_COMMON_NET_LISTENING_SOCKET_H_
#define SLUICE_COMMON_NET_LISTENING_SOCKET_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/address.h"

namespace sluice::net {

class ListeningSockets {
 public:
  struct Options {
    int backlog = 4096;
    // Permissions of a Unix socket's file.
    mode_t unix_mode = 0660;
  };

  // Listens on `address` with `count` sockets; port 0 picks a free one. Resolves a host name
  // (blocking) and takes its first address. Errors: ALREADY_EXISTS: the address is in use;
  // INVALID_ARGUMENT: the address is wrong; PERMISSION_DENIED; UNAVAILABLE: all others.
  static absl::StatusOr<ListeningSockets> Open(const Address& address, int count,
                                               const Options& options);

  ListeningSockets(ListeningSockets&&) noexcept;
  ListeningSockets& operator=(ListeningSockets&&) = delete;
  // Closes the sockets that were not released. Removes the Unix socket's file, if it is still ours.
  ~ListeningSockets();

  // "127.0.0.1:7200" with the actual port, or "unix:/path".
  const SocketAddress& address() const { return address_; }
  // Gives away a descriptor, non-blocking and close-on-exec. REQUIRES: index < count, once each.
  int Release(int index);

 private:
  ListeningSockets() = default;
  absl::Status OpenTcp(const Address& address, int count, const Options& options);
  absl::Status OpenUnix(const Address& address, int count, const Options& options);

  SocketAddress address_;
  std::vector<int> fds_;
  std::string unix_file_;  // to remove; empty: none
  dev_t unix_device_ = 0;
  ino_t unix_inode_ = 0;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_LISTENING_SOCKET_H_
