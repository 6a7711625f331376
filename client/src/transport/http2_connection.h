// A Connection over HTTP/2 of our own: see Http2Core for its threads.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_HTTP2_CONNECTION_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_HTTP2_CONNECTION_H_

#include <memory>
#include <string>

#include "client/src/transport/transport_options.h"
#include "sluice/connection.h"
#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice::client_internal {

// INVALID_ARGUMENT: `server` is neither HOST:PORT nor unix:PATH, or a TLS file cannot be used.
Result<std::shared_ptr<Connection>> MakeHttp2Connection(const std::string& server,
                                                        const TlsOptions& tls,
                                                        const std::string& token,
                                                        const TransportOptions& options = {});

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_HTTP2_CONNECTION_H_
