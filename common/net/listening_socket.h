// Sockets to accept from, one for each loop that shares an address.
//
// A TCP port is shared among our own loops (SO_REUSEPORT), and with nobody else: the first socket
// listens alone and only then allows sharing, so a second server of the same user is told that
// the port is in use, even when both start at the same moment.
//
// A Unix socket has one socket, duplicated. A file left over by a server that died is replaced; one
// that somebody listens on is not; anything that is no socket is never removed.
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
  // (blocking) and takes its first address. Errors: ALREADY_EXISTS, somebody listens there;
  // INVALID_ARGUMENT, the address; PERMISSION_DENIED; UNAVAILABLE, everything else.
  static absl::StatusOr<ListeningSockets> Open(const Address& address, int count,
                                               const Options& options);

  ListeningSockets(ListeningSockets&&) noexcept;
  ListeningSockets& operator=(ListeningSockets&&) = delete;
  // Closes what was not released, and removes the Unix socket's file, if it is still ours.
  ~ListeningSockets();

  // "127.0.0.1:7200" with the port that was picked, "unix:/path".
  const SocketAddress& address() const { return address_; }
  // Hands over a descriptor, non-blocking and close-on-exec. REQUIRES: index < count, once each.
  int Release(int index);

 private:
  ListeningSockets() = default;
  absl::Status OpenTcp(const Address& address, int count, const Options& options);
  absl::Status OpenUnix(const Address& address, int count, const Options& options);

  SocketAddress address_;
  std::vector<int> fds_;
  std::string unix_file_;  // to be removed; empty: none
  dev_t unix_device_ = 0;
  ino_t unix_inode_ = 0;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_LISTENING_SOCKET_H_
