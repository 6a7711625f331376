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
      refund_(MakeRefund(limiter, loops)),
      renew_(MakeRenew(limiter, loops)),
      settle_(MakeSettle(limiter, loops)),
      settle_batch_(MakeSettleBatch(limiter, loops)) {}

void RateLimiterService::Register(MethodTable* methods) {
  using access::Call;
  const auto options = [](Call call, size_t max_request_bytes = common::bounds::kMaxRequestBytes) {
    return MethodOptions{.max_request_bytes = max_request_bytes, .call = call};
  };
  // Only batches are decoded in steps.
  constexpr size_t kSmall = common::bounds::kMaxAcquisitionBytes;
  constexpr size_t kQuery = common::bounds::kMaxQueryBytes;
  methods->AddUnary("/sluice.v1.RateLimiter/Acquire", *acquire_, options(Call::kAcquire, kSmall));
  methods->AddUnary("/sluice.v1.RateLimiter/AcquireBatch", *acquire_batch_,
                    options(Call::kAcquire));
  methods->AddStreaming("/sluice.v1.RateLimiter/AcquireStream", *acquire_stream_,
                        options(Call::kAcquire));
  methods->AddUnary("/sluice.v1.RateLimiter/Query", *query_, options(Call::kQuery, kQuery));
  methods->AddStreaming("/sluice.v1.RateLimiter/Watch", *watch_, options(Call::kWatch, kQuery));
  methods->AddUnary("/sluice.v1.RateLimiter/Refund", *refund_, options(Call::kRefund, kSmall));
  methods->AddUnary("/sluice.v1.RateLimiter/Renew", *renew_, options(Call::kSettle));
  methods->AddUnary("/sluice.v1.RateLimiter/Settle", *settle_, options(Call::kSettle, kSmall));
  methods->AddUnary("/sluice.v1.RateLimiter/SettleBatch", *settle_batch_, options(Call::kSettle));
}

}  // namespace sluice::transport
