// RateLimiter: the use cases of the data plane, for any transport.
#ifndef SLUICE_SERVER_SERVICE_RATE_LIMITER_H_
#define SLUICE_SERVER_SERVICE_RATE_LIMITER_H_

#include <cstdint>

#include "server/service/acquire_call.h"
#include "server/service/collaborators.h"
#include "server/service/query_call.h"
#include "server/service/refund_call.h"
#include "server/service/remembered_room.h"
#include "server/service/renew_call.h"
#include "server/service/settle_call.h"

namespace sluice::service {

// Thread-safe. Never blocks. Each call validates before any other work, resolves names in the
// running table, asks the store, and counts. `deadline_ns` is on the time line of Clock::NowNs
// (store::kNoDeadline: none): past it nothing is debited or given back.
class RateLimiter {
 public:
  // `most_remembered`: grants that may be remembered under request ids.
  RateLimiter(limits::LimitRegistry& registry, store::Store& store, const common::Clock& clock,
              common::Metrics& metrics, KeyUsage& usage, const ReceiptSigner& signer,
              size_t most_remembered = common::bounds::kMaxRememberedGrants)
      : room_(most_remembered),
        with_{registry, store, clock, metrics, usage, signer, nullptr, &room_} {}
  RateLimiter(const RateLimiter&) = delete;
  RateLimiter& operator=(const RateLimiter&) = delete;

  // Decides the call's acquisitions in their order, then calls done(context, call). Acquisitions
  // whose limits changed meanwhile are resolved again and decided after the others.
  void Acquire(AcquireCall* call, int64_t deadline_ns, AcquireCall::DoneFn done, void* context) {
    call->Start(with_, deadline_ns, done, context);
  }

  // Decides the next slice of any call (DecideInSlices). REQUIRES: call->more(), and
  // `done` was called for the slice before.
  template <typename Call>
  void Continue(Call* call) {
    call->Continue();
  }

  // Lets calls be held. REQUIRES: before the first call; `held_callers` outlives this.
  void UseHeldCallers(waiting::HeldCallers* held_callers) { with_.held_callers = held_callers; }

  // For a transport whose caller has disconnected or cancelled. If the call is held, it completes
  // with CANCELLED before this returns, and its permits are given back. Else nothing happens.
  // Returns how many charges were refunded at once (HeldCallers::kChargesByCancel).
  // REQUIRES: the call is under way, or its completion waits for this to return.
  size_t CancelHeld(AcquireCall* call) {
    if (with_.held_callers == nullptr) return 0;
    return with_.held_callers->Cancel(call->as_held_caller()).value_or(0);
  }

  void Query(QueryCall* call, int64_t deadline_ns, QueryCall::DoneFn done, void* context) {
    call->Start(with_, deadline_ns, done, context);
  }

  // The checks of Query alone; does not ask the store.
  absl::Status Validate(QueryCall* call) const { return call->Resolve(with_.registry); }

  void Refund(RefundCall* call, int64_t deadline_ns, RefundCall::DoneFn done, void* context) {
    call->Start(with_, deadline_ns, done, context);
  }

  void Renew(RenewCall* call, int64_t deadline_ns, RenewCall::DoneFn done, void* context) {
    call->Start(with_, deadline_ns, done, context);
  }

  // Settles one acquisition after the other.
  void Settle(SettleCall* call, int64_t deadline_ns, SettleCall::DoneFn done, void* context) {
    call->Start(with_, deadline_ns, done, context);
  }

  const common::Clock& clock() const { return with_.clock; }
  const Collaborators& collaborators() const { return with_; }

 private:
  RememberedRoom room_;
  Collaborators with_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_RATE_LIMITER_H_
