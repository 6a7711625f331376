// DecisionCounter: adds the decisions of one call to the counters and to the key usage.
#ifndef SLUICE_SERVER_SERVICE_DECISION_COUNTER_H_
#define SLUICE_SERVER_SERVICE_DECISION_COUNTER_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "common/metrics.h"
#include "server/store/store.h"

namespace sluice::service {

// Counts a decision that on_store_failure made.
inline void CountUnavailable(common::Metrics::Shard& shard, const store::Acquisition& decided) {
  for (const store::Charge& charge : decided.charges) {
    common::LimitCounters& limit = shard.OfLimit(charge.rule->limit_id);
    (decided.outcome == store::Outcome::kGranted ? limit.allowed_while_unavailable
                                                 : limit.denied_while_unavailable)
        .Add(1);
  }
}

// Not thread-safe. Numbers that nearly every decision changes are added once for a run of decisions
// on the same limit, and at the end. `Usage`: what KeyUsage::Record passes.
template <typename Usage>
class DecisionCounter {
 public:
  DecisionCounter(common::Metrics::Shard& shard, Usage& usage) : shard_(shard), usage_(usage) {}
  ~DecisionCounter() {
    EndRun();
    if (granted_ != 0) shard_.granted.Add(granted_);
    if (denied_ != 0) shard_.denied.Add(denied_);
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE void Count(const store::Acquisition& decided) {
    const bool usual = decided.outcome == store::Outcome::kGranted &&
                       decided.source == store::Source::kStore && decided.charges.size() == 1 &&
                       decided.results->reason == store::Reason::kNone;
    if (!usual) return CountAny(decided);
    ++granted_;
    BeginRun(*decided.charges[0].rule);
    CountGrant(decided.charges[0]);
  }

 private:
  // Apart from Count, which then stays small.
  [[gnu::noinline]] void CountAny(const store::Acquisition& decided) {
    const bool granted = decided.outcome == store::Outcome::kGranted;
    if (decided.source == store::Source::kStoreUnavailable) CountUnavailable(shard_, decided);
    ++(granted ? granted_ : denied_);
    for (size_t c = 0; c < decided.charges.size(); ++c) {
      BeginRun(*decided.charges[c].rule);
      CountCharge(decided, c);
    }
  }

  void CountCharge(const store::Acquisition& decided, size_t c) {
    const store::Charge& charge = decided.charges[c];
    const store::Reason reason = decided.results[c].reason;
    const bool granted = decided.outcome == store::Outcome::kGranted;
    const bool shadow = reason == store::Reason::kShadowDenied;
    if (reason == store::Reason::kOverflow) run_->overflow_denied.Add(1);
    if (!granted) {
      run_->denied.Add(1);
      if (reason == store::Reason::kWaitingBound) run_->bookings_denied.Add(1);
      if (reason != store::Reason::kNone && !shadow) {
        usage_.Denied(charge.rule->limit_id, charge.key);
      }
    } else if (shadow) {
      ++run_grants_;
      run_->shadow_denied.Add(1);
      usage_.Denied(charge.rule->limit_id, charge.key);
    } else {
      if (decided.source == store::Source::kOverflow) run_->overflow_allowed.Add(1);
      CountGrant(charge);
    }
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE void CountGrant(const store::Charge& charge) {
    ++run_grants_;
    run_permits_ += charge.permits;
    usage_.Used(charge.rule->limit_id, charge.key, charge.permits);
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE void BeginRun(const store::Rule& rule) {
    if (&rule == run_rule_) return;
    EndRun();
    run_rule_ = &rule;
    run_ = &shard_.OfLimit(rule.limit_id);
  }
  void EndRun() {
    if (run_grants_ == 0) return;
    run_->granted.Add(run_grants_);
    run_->permits_granted.Add(run_permits_);
    run_grants_ = run_permits_ = 0;
  }

  common::Metrics::Shard& shard_;
  Usage& usage_;
  // The last charge's limit, and what is not yet added to it.
  const store::Rule* run_rule_ = nullptr;
  common::LimitCounters* run_ = nullptr;
  uint64_t run_grants_ = 0;
  uint64_t run_permits_ = 0;
  uint64_t granted_ = 0;  // acquisitions
  uint64_t denied_ = 0;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_DECISION_COUNTER_H_
