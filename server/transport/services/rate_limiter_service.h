// Puts sluice.v1.RateLimiter, grpc.health.v1 and grpc.reflection on the gRPC library: framing and
// conversion only, the use cases are the service's.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_SERVICE_H_

#include <cstddef>
#include <memory>

#include "server/service/bucket_watch.h"
#include "server/service/rate_limiter.h"
#include "server/transport/rpc/method.h"
#include "server/transport/services/health_board.h"
#include "server/transport/services/reflection.h"

namespace sluice::transport {

// The handlers, used by all loops at the same time. Outlives the server and the decisions under
// way.
class RateLimiterBinding {
 public:
  // `loops`: how many event loops will serve it. Collaborators outlive it.
  RateLimiterBinding(service::RateLimiter& limiter, service::WatchHub& watches, size_t loops);
  ~RateLimiterBinding();
  RateLimiterBinding(const RateLimiterBinding&) = delete;
  RateLimiterBinding& operator=(const RateLimiterBinding&) = delete;

  void Register(MethodTable* methods);

 private:
  struct Handlers;
  const std::unique_ptr<Handlers> handlers_;
};

// grpc.health.v1.Health: Check and Watch, never shed.
class HealthBinding {
 public:
  explicit HealthBinding(HealthBoard& board);
  ~HealthBinding();
  void Register(MethodTable* methods);

 private:
  struct Handlers;
  const std::unique_ptr<Handlers> handlers_;
};

// grpc.reflection.v1 and v1alpha.
class ReflectionBinding {
 public:
  explicit ReflectionBinding(const Reflection& reflection);
  ~ReflectionBinding();
  void Register(MethodTable* methods);

 private:
  struct Handlers;
  const std::unique_ptr<Handlers> handlers_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_SERVICE_H_
