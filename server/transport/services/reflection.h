// Server reflection (grpc.reflection.v1 and v1alpha): answers one request from protobuf's
// generated descriptors. Shared by all transports: a transport frames the stream.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_REFLECTION_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_REFLECTION_H_

#include <string>
#include <vector>

#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"

namespace sluice::transport {

// Thread-safe: immutable.
class Reflection {
 public:
  // Full names of the services of this port, such as "sluice.v1.RateLimiter".
  explicit Reflection(std::vector<std::string> services);

  // Fills `response` in. What is not found is an error_response in it, never an RPC error.
  void Answer(const ::grpc::reflection::v1::ServerReflectionRequest& request,
              ::grpc::reflection::v1::ServerReflectionResponse* response) const;
  void Answer(const ::grpc::reflection::v1alpha::ServerReflectionRequest& request,
              ::grpc::reflection::v1alpha::ServerReflectionResponse* response) const;

 private:
  std::vector<std::string> services_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_REFLECTION_H_
