// RefundCall: one Refund, by receipt, once.
#ifndef SLUICE_SERVER_SERVICE_REFUND_CALL_H_
#define SLUICE_SERVER_SERVICE_REFUND_CALL_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "server/store/store.h"

namespace sluice::service {

class RateLimiter;

// What was given back to one bucket. Views belong to the call.
struct RefundedCharge {
  std::string_view limit;
  std::string_view key;
  uint64_t permits = 0;
};

// Thread-compatible. The receipt's bytes are the caller's until Refund returns.
class RefundCall {
 public:
  // As AcquireCall::DoneFn.
  using DoneFn = void (*)(void* context, RefundCall* call);

  RefundCall();
  ~RefundCall();
  RefundCall(const RefundCall&) = delete;
  RefundCall& operator=(const RefundCall&) = delete;

  void Reset(std::string_view receipt);

  // After completion. INVALID_ARGUMENT: the receipt was changed, cut, or is of another server or
  // from before a restart. DEADLINE_EXCEEDED, UNAVAILABLE.
  const absl::Status& status() const;
  // REQUIRES: status() is OK. kRefunded, kAlreadyRefunded or kExpired.
  store::RefundOutcome outcome() const;
  // One for each bucket that was debited; all 0 unless kRefunded.
  size_t size() const;
  RefundedCharge charge(size_t i) const;

 private:
  friend class RateLimiter;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_REFUND_CALL_H_
