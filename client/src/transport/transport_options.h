// TransportOptions: what a connection to a server can be made with beside its address, TLS and
// token.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_TRANSPORT_OPTIONS_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_TRANSPORT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "client/src/transport/server_address.h"
#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice::client_internal {

using Resolver = std::function<Result<std::vector<SocketAddress>>(const ServerAddress& server)>;

struct TransportOptions {
  KeepaliveOptions keepalive = {};
  // Finds the addresses each time that a connection is made.
  Resolver resolver = Resolve;
  // The stream id of a connection's first call; odd. From a high one the ids are soon used up.
  int32_t first_stream_id = 1;
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_TRANSPORT_OPTIONS_H_
