#include <memory>

#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/services/rate_limiter_methods.h"
#include "server/transport/services/unary_use_case.h"

namespace sluice::transport {
namespace {

struct RefundKind : AnyKind<service::RefundCall, &service::RateLimiter::Refund> {
  static constexpr int64_t kUnits = 10;
  static constexpr auto Decode = DecodeRefund;
  static constexpr auto Encode = EncodeRefund;
};

}  // namespace

std::unique_ptr<UnaryMethod> MakeRefund(service::RateLimiter& limiter, size_t loops) {
  return std::make_unique<UnaryUseCase<RefundKind>>(limiter, loops);
}

}  // namespace sluice::transport
