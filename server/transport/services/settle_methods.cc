// Settle and SettleBatch.
#include <memory>

#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/services/rate_limiter_methods.h"
#include "server/transport/services/unary_use_case.h"

namespace sluice::transport {
namespace {

struct SettleKind : AnyKind<service::SettleCall, &service::RateLimiter::Settle> {
  static constexpr int64_t kUnits = 10;
  static constexpr bool kSlicesLater = true;
  static constexpr auto Decode = DecodeSettle;
  static constexpr auto Encode = EncodeSettle;
  static absl::Status Outcome(const service::SettleCall& call) {
    return call.status().ok() ? call.result(0).status : call.status();
  }
};

struct SettleBatchKind : AnyKind<service::SettleCall, &service::RateLimiter::Settle> {
  static constexpr int64_t kUnits = 2;
  static constexpr bool kSlicesLater = true;
  static constexpr bool kEncodesSlices = true;
  using Decoder = SettleBatchDecoder;
  static constexpr auto Encode = EncodeSettleBatch;
};

}  // namespace

std::unique_ptr<UnaryMethod> MakeSettle(service::RateLimiter& limiter, size_t loops) {
  return std::make_unique<UnaryUseCase<SettleKind>>(limiter, loops);
}

std::unique_ptr<UnaryMethod> MakeSettleBatch(service::RateLimiter& limiter, size_t loops) {
  return std::make_unique<UnaryUseCase<SettleBatchKind>>(limiter, loops);
}

}  // namespace sluice::transport
