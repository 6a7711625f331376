// Where a port listens, as the flags say it.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_LISTEN_ADDRESS_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_LISTEN_ADDRESS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::transport {

struct ListenAddress {
  std::string host;  // without brackets; empty for a Unix socket
  uint16_t port = 0;
  std::string unix_path;

  bool is_unix() const { return !unix_path.empty(); }
  // Reached from this machine alone: 127.0.0.0/8, ::1, localhost, a Unix socket.
  bool is_loopback() const;
  // "127.0.0.1:7200", "[::1]:7200", "unix:/path".
  std::string ToString() const;

  // INVALID_ARGUMENT says what to write instead.
  static absl::StatusOr<ListenAddress> Parse(std::string_view text);
};

// Whether the address can be bound now, or why not ("address already in use"). Removes a Unix
// socket that nobody listens on any more.
absl::Status ProbeBind(const ListenAddress& address);

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_LISTEN_ADDRESS_H_
