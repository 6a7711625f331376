// What the data plane's and the admin's grpc++ connections share: the channel, and what a failed
// call says.
#ifndef SLUICE_CLIENT_SRC_GRPC_CHANNEL_H_
#define SLUICE_CLIENT_SRC_GRPC_CHANNEL_H_

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

// What grpc++ says of a connection that it cannot make, and what to do about it if that is known:
// its own words name neither the file nor the side that is wrong.
std::string Explained(const std::string& message, const TlsOptions& tls);

// REQUIRES: !status.ok(). Says whether the call may have been executed. It may, unless the code is
// one with which servers refuse, or the server says that it did not. (grpc++ 1.51 does not tell
// whether a call that failed was sent: its peer() knows only of calls that were answered.)
Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context,
                const TlsOptions& tls);

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_GRPC_CHANNEL_H_
