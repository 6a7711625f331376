// RateLimiterService: sluice.v1.RateLimiter as methods of a MethodTable.
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

  void Register(MethodTable* methods);

 private:
  const std::unique_ptr<UnaryMethod> acquire_;
  const std::unique_ptr<UnaryMethod> acquire_batch_;
  const std::unique_ptr<StreamingMethod> acquire_stream_;
  const std::unique_ptr<UnaryMethod> query_;
  const std::unique_ptr<StreamingMethod> watch_;
  const std::unique_ptr<UnaryMethod> refund_;
  const std::unique_ptr<UnaryMethod> renew_;
  const std::unique_ptr<UnaryMethod> settle_;
  const std::unique_ptr<UnaryMethod> settle_batch_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_RATE_LIMITER_SERVICE_H_
