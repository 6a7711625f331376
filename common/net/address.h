// Address: where to listen or to connect, as users write it. SocketAddress: as the kernel takes it.
#ifndef SLUICE_COMMON_NET_ADDRESS_H_
#define SLUICE_COMMON_NET_ADDRESS_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice::net {

// "127.0.0.1:7200", "[::1]:7200", "cache.example:6379", "unix:/run/sluice.sock", "unix:@name"
// (Linux's abstract names).
struct Address {
  std::string host;  // a name or an IP address, without brackets
  uint16_t port = 0;
  std::string unix_path;  // not empty: a Unix socket; host and port are unused

  bool is_unix() const { return !unix_path.empty(); }
  // As Parse reads it.
  std::string ToString() const;

  // INVALID_ARGUMENT names the error and the valid forms.
  static absl::StatusOr<Address> Parse(std::string_view text);

  friend bool operator==(const Address&, const Address&) = default;
};

// A sockaddr of any family.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  // 0 for Unix sockets.
  uint16_t port() const;
  // "127.0.0.1:7200", "[::1]:7200", "unix:/path"; "unix:" if the socket has no name.
  std::string ToString() const;
  // What one peer can be expected to hold: an IPv4 address, or the /64 of an IPv6 address. 0 for
  // Unix sockets (PeerOf).
  uint64_t PeerNetwork() const;

  // From an IP address or a Unix path. INVALID_ARGUMENT: the host is a name, or the path has more
  // than 107 bytes.
  static absl::StatusOr<SocketAddress> FromNumeric(const Address& address);
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_ADDRESS_H_
