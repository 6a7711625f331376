#include <memory>

#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/services/rate_limiter_methods.h"
#include "server/transport/services/unary_use_case.h"

namespace sluice::transport {
namespace {

struct AcquireKind : AnyKind<service::AcquireCall, &service::RateLimiter::Acquire> {
  static constexpr int64_t kUnits = 2;
  static size_t PendingBytes(const Call& call) { return call.held_memory(); }
  static bool Drops(const Call& call) { return call.held_memory() > 0; }
  static constexpr auto Decode = DecodeAcquire;
  static constexpr auto Encode = EncodeAcquire;
  static int64_t Cancel(service::RateLimiter& limiter, Call* call) {
    // Of a charge, at most: its bucket may have thousands of bookings.
    constexpr int64_t kRefundUnits = 200;
    return kRefundUnits * static_cast<int64_t>(limiter.CancelHeld(call));
  }
  // The only acquisition's error is the call's.
  static absl::Status Outcome(const Call& call) {
    return call.status().ok() ? call.result(0).status : call.status();
  }
};

}  // namespace

std::unique_ptr<UnaryMethod> MakeAcquire(service::RateLimiter& limiter, size_t loops) {
  return std::make_unique<UnaryUseCase<AcquireKind>>(limiter, loops);
}

}  // namespace sluice::transport
