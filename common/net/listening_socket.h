// ListeningSockets: the listening sockets of one address, one for each loop.
//
// The loops share a TCP port (SO_REUSEPORT), but no other process does: the first socket listens
// alone before it allows sharing. So a second server of the same user fails with "in use", even if
// both start at the same time.
//
// A Unix address has one socket, with duplicated descriptors. The file of a server that died is
// replaced. The file of a running server, and a file that is not a socket, are never removed.
//
// The sockets stay open here as long as others may get them; the loops have duplicates. So a
// connection that the kernel has queued is not lost when the loops stop.
#ifndef SLUICE_COMMON_NET_LISTENING_SOCKET_H_
#define SLUICE_COMMON_NET_LISTENING_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/address.h"
#include "common/net/descriptor.h"

namespace sluice::net {

class ListeningSockets {
 public:
  struct Options {
    int backlog = 4096;
    // Permissions of a Unix socket's file.
    mode_t unix_mode = 0660;
    // SOCK_STREAM or SOCK_SEQPACKET.
    int unix_type = SOCK_STREAM;
  };

  // Listens on `address` with `count` sockets; port 0 picks a free one. Resolves a host name
  // (blocking) and takes its first address. Errors: ALREADY_EXISTS: the address is in use;
  // INVALID_ARGUMENT: the address is wrong; PERMISSION_DENIED; UNAVAILABLE: all others.
  static absl::StatusOr<ListeningSockets> Open(const Address& address, int count,
                                               const Options& options);

  // Takes over sockets of one address that listen already, of another process. The file of a Unix
  // socket stays the other's until TakeFile. INVALID_ARGUMENT: what one of them is instead of a
  // listening socket of `type`.
  static absl::StatusOr<ListeningSockets> Adopt(std::vector<Descriptor> sockets,
                                                int type = SOCK_STREAM);

  ListeningSockets(ListeningSockets&&) noexcept;
  ListeningSockets& operator=(ListeningSockets&&) = delete;
  // Closes the sockets. Removes the Unix socket's file, if it is still ours.
  ~ListeningSockets();

  // "127.0.0.1:7200" with the actual port, or "unix:/path".
  const SocketAddress& address() const { return address_; }
  // The sockets themselves, which stay ours.
  const std::vector<Descriptor>& sockets() const { return sockets_; }

  // Makes the descriptors that the loops will take: at least `loops`, and at least one of each
  // socket, since a connection may be in the queue of any.
  absl::Status Prepare(int loops);
  int prepared() const { return static_cast<int>(prepared_.size()); }
  // Gives away a descriptor, non-blocking and close-on-exec. REQUIRES: index < prepared(), once
  // each.
  int Release(int index) { return prepared_[index].Release(); }

  // Closes the sockets, except those that were released.
  void Close() { sockets_.clear(); }
  // Whether the file of a Unix socket is removed with this; whether it is from now on.
  bool owns_file() const { return !unix_file_.empty(); }
  void TakeFile();
  void GiveUpFile() { unix_file_.clear(); }

 private:
  ListeningSockets() = default;
  absl::Status OpenTcp(const Address& address, int count, const Options& options);
  absl::Status OpenUnix(const Address& address, const Options& options);

  SocketAddress address_;
  std::vector<Descriptor> sockets_;
  std::vector<Descriptor> prepared_;
  std::string unix_file_;  // to remove; empty: none
  dev_t unix_device_ = 0;
  ino_t unix_inode_ = 0;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_LISTENING_SOCKET_H_
