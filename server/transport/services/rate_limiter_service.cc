#include "server/transport/services/rate_limiter_service.h"

#include "common/bounds.h"
#include "server/transport/services/rate_limiter_methods.h"

namespace sluice::transport {

RateLimiterService::RateLimiterService(service::RateLimiter& limiter, service::WatchHub& watches,
                                       size_t loops)
    : acquire_(MakeAcquire(limiter, loops)),
      acquire_batch_(MakeAcquireBatch(limiter, loops)),
      acquire_stream_(MakeAcquireStream(limiter, loops)),
      query_(MakeQuery(limiter, loops)),
      watch_(MakeWatch(watches)),
      refund_(MakeRefund(limiter, loops)) {}

void RateLimiterService::Register(MethodTable* methods) {
  // Only batches are decoded in steps.
  const MethodOptions small = {.max_request_bytes = common::bounds::kMaxAcquisitionBytes};
  const MethodOptions query = {.max_request_bytes = common::bounds::kMaxQueryBytes};
  methods->AddUnary("/sluice.v1.RateLimiter/Acquire", *acquire_, small);
  methods->AddUnary("/sluice.v1.RateLimiter/AcquireBatch", *acquire_batch_);
  methods->AddStreaming("/sluice.v1.RateLimiter/AcquireStream", *acquire_stream_);
  methods->AddUnary("/sluice.v1.RateLimiter/Query", *query_, query);
  methods->AddStreaming("/sluice.v1.RateLimiter/Watch", *watch_, query);
  methods->AddUnary("/sluice.v1.RateLimiter/Refund", *refund_, small);
}

}  // namespace sluice::transport
