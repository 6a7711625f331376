// RateLimiter: the use cases of the data plane, for any transport. Validates before any work,
// resolves names against the running table, decides, and counts.
#ifndef SLUICE_SERVER_SERVICE_RATE_LIMITER_H_
#define SLUICE_SERVER_SERVICE_RATE_LIMITER_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/clock.h"
#include "common/metrics.h"
#include "server/limits/limit_registry.h"
#include "server/limits/limit_table.h"
#include "server/service/acquire_call.h"
#include "server/service/engine.h"
#include "server/service/query_call.h"
#include "server/service/refund_call.h"
#include "server/store/store.h"

namespace sluice::service {

class KeyUsage;
class ReceiptSigner;

// Thread-safe. Never blocks. All collaborators outlive it.
class RateLimiter {
 public:
  RateLimiter(limits::LimitRegistry& registry, service::Engine& engine, store::Store& store,
              const common::Clock& clock, common::Metrics& metrics, KeyUsage& usage,
              const ReceiptSigner& signer)
      : registry_(registry),
        engine_(engine),
        store_(store),
        clock_(clock),
        metrics_(metrics),
        usage_(usage),
        signer_(signer) {}
  RateLimiter(const RateLimiter&) = delete;
  RateLimiter& operator=(const RateLimiter&) = delete;

  // Decides the call's acquisitions in their order, then done(context, call). One whose limit
  // changed under way is resolved again and decided after the others. `deadline_ns` is on the
  // Clock's NowNs line (store::kNoDeadline: none): past it nothing is debited. A caller that
  // knows of a cancellation does not call.
  void Acquire(AcquireCall* call, int64_t deadline_ns, AcquireCall::DoneFn done, void* context);

  // Lets calls be held; REQUIRES: before the first call. The line outlives this. Without one `hold`
  // is UNIMPLEMENTED.
  void UseHeldCallers(waiting::HeldCallers* line) { line_ = line; }

  // For a transport whose caller is gone. If the call is held its permits are given back and it
  // completes, with CANCELLED, before this returns. Else nothing happens. REQUIRES: the call is
  // under way, or its completion waits for this to return.
  void CancelHeld(AcquireCall* call) {
    if (line_ != nullptr) line_->Cancel(&call->held_);
  }

  void Query(QueryCall* call, int64_t deadline_ns, QueryCall::DoneFn done, void* context);

  // What Query would refuse the call for, without asking the store.
  absl::Status Validate(QueryCall* call);

  void Refund(RefundCall* call, int64_t deadline_ns, RefundCall::DoneFn done, void* context);

  const common::Clock& clock() const { return clock_; }

 private:
  friend class AcquireCall;
  friend class QueryCall;
  friend class RefundCall;

  // Puts the item into the attempt's work if it is one charge for now, without parents, and
  // nothing is wrong with it. False: it is another, or something is, and nothing was done.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static bool PrepareUsual(const AcquireCall& call,
                                                        const AcquireCall::Item& item,
                                                        AcquireCall::Attempt& attempt);
  // Puts item i into the attempt's work, or says what is wrong with it.
  void Prepare(AcquireCall& call, size_t i, AcquireCall::Attempt& attempt, bool* suggested);
  void Decide(AcquireCall* call, AcquireCall::Attempt* attempt);
  void Decided(AcquireCall* call);
  // Holds a call that was granted for later. False: it is to be answered now.
  bool Hold(AcquireCall* call);
  void Answer(AcquireCall* call, waiting::HeldOutcome outcome);
  static void CountAway(common::Metrics::Shard& shard, const store::Acquisition& decided);
  // Of a held call that is denied: tells its deadline apart from a limit that is used up.
  static void BlameDeadline(AcquireCall* call);
  void Count(AcquireCall& call);
  // Resolves the call's buckets; its status says what is wrong.
  void Resolve(QueryCall* call);
  void Queried(QueryCall* call);
  void TryRefund(RefundCall* call);
  void Refunded(RefundCall* call);

  limits::LimitRegistry& registry_;
  service::Engine& engine_;
  store::Store& store_;
  const common::Clock& clock_;
  common::Metrics& metrics_;
  KeyUsage& usage_;
  const ReceiptSigner& signer_;
  waiting::HeldCallers* line_ = nullptr;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_RATE_LIMITER_H_
