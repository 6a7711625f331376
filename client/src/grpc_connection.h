// A Connection over grpc++, with one channel (one socket) and one thread that reads the socket and
// runs the callbacks.
#ifndef SLUICE_CLIENT_SRC_GRPC_CONNECTION_H_
#define SLUICE_CLIENT_SRC_GRPC_CONNECTION_H_

#include <memory>
#include <string>

#include "sluice/connection.h"

namespace sluice::client_internal {

Result<std::shared_ptr<Connection>> MakeGrpcConnection(const std::string& server,
                                                       const TlsOptions& tls,
                                                       const std::string& token);

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_GRPC_CONNECTION_H_
