// RateLimiterService: sluice.v1.RateLimiter on the gRPC library. It frames and converts messages;
// service::RateLimiter decides.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_SERVICE_H_

#include <cstddef>
#include <memory>

#include "server/service/bucket_watch.h"
#include "server/service/rate_limiter.h"
#include "server/transport/rpc/method.h"

namespace sluice::transport {

// Thread-safe: all event loops call its methods. Outlives the loops and the decisions in progress.
class RateLimiterService {
 public:
  // `loops`: the number of event loops that serve it. Collaborators outlive it.
  RateLimiterService(service::RateLimiter& limiter, service::WatchHub& watches, size_t loops);
  ~RateLimiterService();
  RateLimiterService(const RateLimiterService&) = delete;
  RateLimiterService& operator=(const RateLimiterService&) = delete;

  void Register(MethodTable* methods);

 private:
  struct Methods;
  const std::unique_ptr<Methods> methods_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_SERVICE_H_
