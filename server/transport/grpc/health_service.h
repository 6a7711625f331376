// grpc.health.v1.Health on grpc++'s callback API, over the board that all transports share.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_HEALTH_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_HEALTH_SERVICE_H_

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/transport/services/health_board.h"

namespace sluice::transport {

// Thread-safe. Outlives its server; the board outlives it.
class HealthService final : public ::grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(HealthBoard& board) : board_(board) {}

  ::grpc::ServerUnaryReactor* Check(::grpc::CallbackServerContext* context,
                                    const ::grpc::health::v1::HealthCheckRequest* request,
                                    ::grpc::health::v1::HealthCheckResponse* response) override;
  ::grpc::ServerWriteReactor<::grpc::health::v1::HealthCheckResponse>* Watch(
      ::grpc::CallbackServerContext* context,
      const ::grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class WatchReactor;
  HealthBoard& board_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_HEALTH_SERVICE_H_
