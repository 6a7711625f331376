// GrpcServer: one grpc++ server on one port.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_GRPC_SERVER_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_GRPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/transport/grpc/listen_address.h"

namespace sluice::transport {

// PEM files. All empty: plaintext.
struct TlsFiles {
  std::string cert;
  std::string key;
  // Set: clients must show a certificate that one of these authorities signed.
  std::string client_ca;

  bool enabled() const { return !cert.empty() || !key.empty() || !client_ca.empty(); }
  bool mutual() const { return !client_ca.empty(); }
};

// INVALID_ARGUMENT: a file is missing or holds no PEM of its kind, certificate and key do not
// belong together, or just one of them is given. `prefix` is of the flags' names ("tls_").
absl::StatusOr<std::shared_ptr<::grpc::ServerCredentials>> MakeCredentials(const TlsFiles& files,
                                                                           const char* prefix);

// Thread-safe.
class GrpcServer {
 public:
  // UNAVAILABLE: the address cannot be bound; says why. The services outlive the server.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const ListenAddress& address, std::shared_ptr<::grpc::ServerCredentials> credentials,
      const std::vector<::grpc::Service*>& services);

  // With the port that was picked.
  const ListenAddress& address() const { return address_; }

  // Takes no new calls, and waits for those that run; after the deadline they are cancelled.
  void Shutdown(absl::Time deadline);

 private:
  GrpcServer() = default;
  ListenAddress address_;
  std::unique_ptr<::grpc::Server> server_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_GRPC_SERVER_H_
