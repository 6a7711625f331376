// Repeat: answers an acquisition whose request id was granted before (once.h). Used by both stores.
#ifndef SLUICE_SERVER_STORE_REPEAT_H_
#define SLUICE_SERVER_STORE_REPEAT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "server/algorithm/parameters.h"
#include "server/store/once.h"
#include "server/store/store.h"

namespace sluice::store {

// REQUIRES: granted now, with a request id.
inline RememberedGrant GrantOf(const Acquisition& granted) {
  RememberedGrant grant = {granted.once->fingerprint,
                           granted.wait_ns == 0 ? 0 : granted.now_ns + granted.wait_ns,
                           granted.receipt_id};
  const size_t charges = granted.charges.size();
  if (granted.debit != Debit::kForced ||
      std::none_of(granted.results, granted.results + charges,
                   [](const ChargeResult& result) { return result.forgiven != 0; })) {
    return grant;
  }
  for (size_t i = 0; i < charges; ++i) {
    grant.counted.push_back(granted.charges[i].permits - granted.results[i].forgiven);
  }
  return grant;
}

// Writes the result of a charge on slots, which the grant holds until `held_until_ns`; nullopt: not
// any more. Returns false if it has lost slots. Charges of shadow limits that were granted without
// slots have none to lose.
inline bool RepeatSlots(const Charge& charge, const RememberedGrant& grant,
                        std::optional<int64_t> held_until_ns, int64_t now_ns,
                        ChargeResult* result) {
  if (!held_until_ns.has_value()) return charge.rule->shadow;
  const int64_t left_ns = *held_until_ns - std::max(now_ns, grant.grant_time_ns);
  result->debited_before_ns = charge.rule->parameters.concurrency.hold_for_ns - left_ns;
  return true;
}

// Writes all results but those of the charges, of which only what was forgiven, and returns the
// outcome: kGranted, with Once::repeated, or kOtherRequest, or kEnded.
inline Outcome Repeat(const RememberedGrant& grant, int64_t now_ns, Acquisition* acquisition) {
  Once& once = *acquisition->once;
  acquisition->now_ns = now_ns;
  if (grant.fingerprint != once.fingerprint) return Outcome::kOtherRequest;
  if (grant.receipt_id == RememberedGrant::kRefunded) return Outcome::kEnded;
  acquisition->source = Source::kStore;
  acquisition->wait_ns =
      grant.grant_time_ns == 0 ? 0 : std::max<int64_t>(grant.grant_time_ns - now_ns, 0);
  acquisition->retry_after_ns = 0;
  acquisition->receipt_id = grant.receipt_id;
  // If a reload has changed what `charges` adds, these are other charges.
  const size_t charges = acquisition->charges.size();
  for (size_t i = 0; i < charges && grant.counted.size() == charges; ++i) {
    const uint64_t permits = acquisition->charges[i].permits;
    acquisition->results[i].forgiven = permits - std::min(permits, grant.counted[i]);
  }
  once.repeated = true;
  once.grant_time_ns = grant.grant_time_ns;
  return Outcome::kGranted;
}

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_REPEAT_H_
