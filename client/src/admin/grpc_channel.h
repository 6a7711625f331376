// gRPC channels and errors, for the connections to the admin port.
#ifndef SLUICE_CLIENT_SRC_ADMIN_GRPC_CHANNEL_H_
#define SLUICE_CLIENT_SRC_ADMIN_GRPC_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice::client_internal {

// INVALID_ARGUMENT: `server` is neither HOST:PORT nor unix:PATH, or a TLS file cannot be read.
Result<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server,
                                                   const TlsOptions& tls);

void AddToken(const std::string& token, grpc::ClientContext* context);

// REQUIRES: !status.ok(). The call may have been executed, unless its code is one with which
// servers refuse calls, or the server says that it did not execute it. (grpc++ 1.51 does not tell
// whether a failed call was sent: peer() is empty until there is an answer.)
Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context,
                const TlsOptions& tls);

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_ADMIN_GRPC_CHANNEL_H_
