// ReflectionService: gRPC server reflection (v1 and v1alpha) of one port, from protobuf's generated
// descriptors.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_REFLECTION_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_REFLECTION_SERVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "server/transport/rpc/method.h"

namespace sluice::transport {

// Thread-safe: immutable. Outlives the event loops that serve it.
class ReflectionService {
 public:
  // `services`: full names of the port's other services, as "sluice.v1.RateLimiter".
  explicit ReflectionService(std::vector<std::string> services);
  ~ReflectionService();
  ReflectionService(const ReflectionService&) = delete;
  ReflectionService& operator=(const ReflectionService&) = delete;

  void Register(MethodTable* methods);

 private:
  class InfoMethod;

  std::vector<std::string> services_;  // sorted
  std::unique_ptr<StreamingMethod> info_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_REFLECTION_SERVICE_H_
