// Advice for connections that failed: what is wrong, in which file, on which side.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_CONNECT_ADVICE_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_CONNECT_ADVICE_H_

#include <string>

#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice::client_internal {

// The phrases by which WithAdvice knows a cause.
inline constexpr char kServerHungUp[] = "the server closed the connection";
inline constexpr char kNameNotInCertificate[] = "is not in peer certificate";

// The options that name a server: of the data port, and of the admin port.
inline constexpr char kDataServerOption[] = "ClientOptions::servers (--server)";
inline constexpr char kAdminServerOption[] = "AdminOptions::server (--admin)";

// Adds advice to the cause of a connection that failed, if the cause is known. The cause alone
// names neither the file nor the side that is wrong. Also knows grpc++'s texts. `server_option`:
// the option that named the server.
std::string WithAdvice(const std::string& cause, const TlsOptions& tls, const char* server_option);

// Checks the files' presence and kind. INVALID_ARGUMENT names the file.
Status CheckTlsFiles(const TlsOptions& tls);

// INVALID_ARGUMENT: the file cannot be read, or is empty.
Result<std::string> ReadTlsFile(const std::string& path);

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_CONNECT_ADVICE_H_
