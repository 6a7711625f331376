#include <memory>

#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/services/rate_limiter_methods.h"
#include "server/transport/services/unary_use_case.h"

namespace sluice::transport {
namespace {

struct RenewKind : AnyKind<service::RenewCall, &service::RateLimiter::Renew> {
  static constexpr int64_t kUnits = 1;
  static constexpr bool kSlicesLater = true;
  using Decoder = RenewDecoder;
  static constexpr auto Encode = EncodeRenew;
};

}  // namespace

std::unique_ptr<UnaryMethod> MakeRenew(service::RateLimiter& limiter, size_t loops) {
  return std::make_unique<UnaryUseCase<RenewKind>>(limiter, loops);
}

}  // namespace sluice::transport
