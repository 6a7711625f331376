// Settles an estimate on open buckets (decide.h): in all of them or, if it cannot be settled, in
// none.
//
// The caller says what its own charges took. A bucket that other limits charge takes the sum over
// the charges that it was charged for, as when it was acquired:
//   charges [{api, user:1, 5}, {bulk, user:1, 5}]; api and bulk charge `overall`, which took 10
//   settle api 3, bulk 9:  api gets back 2; bulk and overall are charged: 4, and 12 - 10 = 2
// A bucket counts at most what the buckets that charge it counted of their excess, as with forced
// acquisitions (ForcedShares). That holds for all settlements together: with `more`, the excess of
// one charge may reach `overall` only later, when another takes as much as it had asked for.
//
// A last settlement also ends the slots of the acquisition. An acquisition without settle_within
// has no account. It is settled as long as it holds slots: if actuals are named it gets an account,
// which ends at once, and so the same call again is answered alike. Otherwise the stores remember
// its receipt for a while (OutcomeOfUsed, NumberOfNamed).
#ifndef SLUICE_SERVER_STORE_SETTLE_H_
#define SLUICE_SERVER_STORE_SETTLE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>

#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/algorithm/estimates.h"
#include "server/store/decide.h"
#include "server/store/store.h"

namespace sluice::store {

inline bool NamesActual(const SettleOperation& operation) {
  const size_t charges = operation.charges.size() + operation.deleted.size();
  return std::any_of(operation.actual, operation.actual + charges,
                     [](uint64_t actual) { return actual != SettleOperation::kAsTaken; });
}

template <OpenForDecision Bucket>
class Settling {
 public:
  Settling(SettleOperation* operation, absl::Span<Bucket> buckets, int64_t now_ns,
           OverflowPolicy overflow = OverflowPolicy::kDeny)
      : operation_(operation),
        buckets_(buckets),
        charges_(buckets.size() + operation->deleted.size()),
        now_ns_(now_ns),
        overflow_(overflow) {
    std::iota(order_.begin(), order_.end(), uint8_t{0});
    // The sets are transitive, so a charge has more of them than each of those in its set.
    std::stable_sort(order_.begin(), order_.begin() + charges_, [&](uint8_t a, uint8_t b) {
      return std::popcount(ChargedBy(a)) < std::popcount(ChargedBy(b));
    });
  }

  // Whether it can charge what the work took only if missing buckets of rates are made: they were
  // full again, and so were dropped.
  bool NeedsMissingBuckets() {
    if (operation_->estimate || !NamesActual(*operation_) || !FindHolds()) return false;
    for (const size_t i : Order()) Resolve(i);
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i].missing() && !IsSlots(i) && ChargesMore(i)) return true;
    }
    return false;
  }

  // Settles it, and writes all results but the outcome, which it returns.
  SettleOutcome Settle() {
    std::fill_n(operation_->settled, buckets_.size(), SettledPermits());
    if (operation_->grant_time_ns > now_ns_) return SettleOutcome::kTooEarly;
    const bool held = FindHolds();
    std::optional<algorithm::Estimate> one = Find();
    if (!one.has_value() && !held) return SettleOutcome::kUnknown;
    if (!one.has_value() && !operation_->estimate && NamesActual(*operation_)) {
      if (!BeginAccounts()) return SettleOutcome::kNoRoom;
      one = Find();
    }
    if (!one.has_value()) return SettleSlots();
    if (one->state == State::kRefunded) return SettleOutcome::kRefunded;
    for (const size_t i : Order()) Resolve(i);
    if (one->closed()) {
      for (size_t i = 0; i < buckets_.size(); ++i) {
        const Part& part = parts_[i];
        if (part.estimate.has_value() && part.estimate->actual != part.actual) {
          return SettleOutcome::kAlreadySettled;
        }
      }
    } else {
      for (size_t i = 0; i < buckets_.size(); ++i) {
        if (parts_[i].own_actual >= parts_[i].own_before) continue;
        operation_->decreased_charge = i;
        operation_->actual_before = parts_[i].own_before;
        return SettleOutcome::kActualDecreased;
      }
      for (const size_t i : Order()) Carry(i);
    }
    if (!operation_->more) EndHolds();
    return WriteResults() ? SettleOutcome::kLate : SettleOutcome::kSettled;
  }

 private:
  using State = algorithm::Estimate::State;
  static constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();

  // One charge. `own`: of what its own request named, without the charges in its set.
  struct Part {
    std::optional<algorithm::Estimate> estimate;
    bool known = false;       // whether own_before is: slots have no account, and always take `own`
    uint64_t own = 0;         // as granted
    uint64_t own_before = 0;  // actual, as it was settled last; 0: it was not
    uint64_t own_taken = 0;
    uint64_t own_actual = 0;
    uint64_t actual = 0;  // of the bucket
    // Of its own excess, what its bucket did not count: in this settlement, and in all of them.
    uint64_t forgiven_now = 0;
    uint64_t forgiven = 0;
  };

  uint16_t ChargedBy(size_t i) const {
    return operation_->charged_by == nullptr ? 0 : operation_->charged_by[i];
  }
  // The charges, each behind those that charge it.
  absl::Span<const uint8_t> Order() const { return {order_.data(), charges_}; }
  // Calls visit(part) for each charge in the set of charge i.
  template <typename Visit>
  void ForEachOf(size_t i, Visit visit) const {
    for (uint32_t left = ChargedBy(i); left != 0; left &= left - 1) {
      visit(parts_[static_cast<size_t>(std::countr_zero(left))]);
    }
  }

  // Fills in the estimates. Returns one of them: all have the same state, but for those of shadow
  // charges that were left out: when their reservation was made, which is not cancelled in them; or
  // when it was moved, and they stay refunded.
  std::optional<algorithm::Estimate> Find() {
    std::optional<algorithm::Estimate> one;
    bool of_shadow = false;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      std::optional<algorithm::Estimate>& estimate = parts_[i].estimate;
      estimate = buckets_[i].FindEstimate(operation_->receipt_id);
      if (!estimate.has_value()) continue;
      // Whether it is still there depends on other callers.
      if (operation_->estimate && now_ns_ > estimate->kept_until_ns()) {
        estimate.reset();
        continue;
      }
      const bool shadow = operation_->charges[i].rule->shadow;
      if (one.has_value()) {
        const bool better = shadow == of_shadow ? one->state == State::kRefunded : of_shadow;
        if (!better) continue;
      }
      one = estimate;
      of_shadow = shadow;
    }
    return one;
  }

  bool IsSlots(size_t i) const {
    return algorithm::IsConcurrency(operation_->charges[i].rule->parameters);
  }
  // Notes the slots that are still held. Returns whether any are.
  bool FindHolds() {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      held_[i] = IsSlots(i) && !buckets_[i].missing() &&
                 buckets_[i].HeldUntilNs(operation_->receipt_id, now_ns_).has_value();
    }
    return std::find(held_.begin(), held_.begin() + buckets_.size(), true) !=
           held_.begin() + buckets_.size();
  }
  void EndHolds() {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (held_[i]) buckets_[i].Refund(operation_->receipt_id, now_ns_);
    }
  }
  // Of an acquisition without accounts, which holds slots: rates stay as they were taken, and can
  // no longer be refunded.
  SettleOutcome SettleSlots() {
    if (operation_->more) return SettleOutcome::kLate;
    bool rates = false;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (IsSlots(i)) continue;
      rates = true;
      if (!buckets_[i].missing()) buckets_[i].CloseReceipt(operation_->receipt_id);
    }
    EndHolds();
    // Estimates whose accounts are gone: their time was over long ago.
    return rates && operation_->estimate ? SettleOutcome::kLate : SettleOutcome::kSettled;
  }

  // REQUIRES: Resolve(i).
  bool ChargesMore(size_t i) const { return parts_[i].actual > operation_->charges[i].permits; }
  // Begins an account in each bucket of a rate. Returns false, and begins none, if there is no room
  // for all. A bucket that found no room is full: it needs no account unless it is charged more.
  bool BeginAccounts() {
    for (const size_t i : Order()) Resolve(i);
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (IsSlots(i)) continue;
      const bool room = buckets_[i].missing()
                            ? overflow_ == OverflowPolicy::kAllow || !ChargesMore(i)
                            : buckets_[i].HasRoomForEstimate(now_ns_);
      if (!room) return false;
    }
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (IsSlots(i)) continue;
      if (buckets_[i].missing()) {
        if (ChargesMore(i)) {
          operation_->settled[i].forgiven = parts_[i].actual - operation_->charges[i].permits;
        }
        continue;
      }
      buckets_[i].BeginEstimate(operation_->receipt_id, operation_->charges[i].permits, now_ns_,
                                /*within_ns=*/0);
    }
    return true;
  }

  // What the charge took so far, and what it takes now.
  void Resolve(size_t i) {
    Part& part = parts_[i];
    const bool settled = part.estimate.has_value() && part.estimate->state != State::kOpen;
    part.own = i < buckets_.size() ? operation_->charges[i].permits
                                   : operation_->deleted[i - buckets_.size()];
    part.own_before = settled ? part.estimate->actual : 0;
    bool known = true;
    ForEachOf(i, [&](const Part& by) {
      part.own -= std::min(part.own, by.own);
      part.own_before -= std::min(part.own_before, by.own_before);
      known &= by.known;
    });
    part.known = part.estimate.has_value();
    if (!part.known && i < buckets_.size() && IsSlots(i)) {
      part.known = true;
      part.own_before = part.own;
    }
    // A limit that charged it was deleted since: what is left may be all that limit's.
    if (!known) part.own_before = 0;
    part.own_taken = std::max(part.own, part.own_before);
    const uint64_t asked = operation_->actual[i];
    part.own_actual = asked == SettleOperation::kAsTaken ? part.own_taken : asked;
    part.actual = part.own_actual;
    // No sum of 16 passes 2^64 unless it passes kMost first.
    ForEachOf(i,
              [&](const Part& by) { part.actual = std::min(part.actual + by.own_actual, kMost); });
    if (!known && settled) part.actual = std::max(part.actual, part.estimate->actual);
  }

  void Carry(size_t i) {
    Part& part = parts_[i];
    // Its limit is new or deleted, so it forgives nothing that another limit's bucket may count.
    if (!part.estimate.has_value()) return;
    const algorithm::Estimate& before = *part.estimate;
    const uint64_t so_far = before.asked_so_far();
    const uint64_t excess = Excess(part.actual, before.asked);
    uint64_t share = Excess(part.actual, so_far);
    uint64_t share_of_all = excess;
    ForEachOf(i, [&](const Part& by) {
      share -= std::min(share, by.forgiven_now);
      share_of_all -= std::min(share_of_all, by.forgiven);
    });
    // Until it is closed, nothing was given back: what was changed was charged.
    share = std::min(share, Excess(share_of_all, before.changed));
    const uint64_t counted = buckets_[i].Settle(operation_->receipt_id,
                                                {.actual = part.actual,
                                                 .share = share,
                                                 .max_owed = MaxOwed(*operation_->charges[i].rule),
                                                 .more = operation_->more},
                                                now_ns_);
    const uint64_t charged = before.changed + counted;
    part.forgiven_now = std::min(Excess(Excess(part.own_actual, part.own_taken), counted),
                                 Excess(Excess(part.actual, so_far), counted));
    part.forgiven =
        std::min(Excess(Excess(part.own_actual, part.own), charged), Excess(excess, charged));
  }
  static uint64_t Excess(uint64_t permits, uint64_t over) {
    return permits - std::min(permits, over);
  }

  // Returns whether it was settled after its end.
  bool WriteResults() {
    bool late = false;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      const std::optional<algorithm::Estimate> now =
          buckets_[i].FindEstimate(operation_->receipt_id);
      const std::optional<algorithm::Estimate>& before = parts_[i].estimate;
      // Of a shadow charge that was left out, the account may have been forgotten before.
      if (!now.has_value() || !before.has_value()) continue;
      late |= now->state == State::kLate;
      SettledPermits& settled = operation_->settled[i];
      if (now->actual <= now->asked) {
        settled.given_back = now->changed;
        settled.given_back_now = now->changed - before->changed;
      } else {
        settled.charged = now->changed;
        settled.charged_now = now->changed - before->changed;
        settled.forgiven = now->actual - now->asked - now->changed;
      }
    }
    return late;
  }

  SettleOperation* const operation_;
  const absl::Span<Bucket> buckets_;
  const size_t charges_;  // with those of deleted limits, which are behind the others
  const int64_t now_ns_;
  const OverflowPolicy overflow_;
  std::array<uint8_t, common::bounds::kMaxCharges> order_;
  std::array<Part, common::bounds::kMaxCharges> parts_;
  std::array<bool, common::bounds::kMaxCharges> held_ = {};
};

// The outcome of a settlement for which no bucket has a hold or an account (kUnknown), if its
// receipt is known to be used: its slots were settled, or it was refunded.
inline SettleOutcome OutcomeOfUsed(const SettleOperation& operation, bool settled, bool refunded) {
  if (refunded) return SettleOutcome::kRefunded;
  if (!settled) return SettleOutcome::kUnknown;
  const bool as_taken =
      std::all_of(operation.actual, operation.actual + operation.charges.size(),
                  [](uint64_t actual) { return actual == SettleOperation::kAsTaken; });
  return as_taken ? SettleOutcome::kSettled : SettleOutcome::kAlreadySettled;
}

// A settlement that named actuals leaves no account of a rate whose bucket was full again, and so
// was dropped. Under this number, which no receipt has, the memory store remembers which actuals it
// named, so that the same call again is answered alike, and another one is not. Only for this
// process.
inline uint64_t NumberOfNamed(const SettleOperation& operation) {
  const size_t charges = operation.charges.size() + operation.deleted.size();
  return absl::HashOf(operation.receipt_id, absl::MakeConstSpan(operation.actual, charges)) |
         uint64_t{1} << 63;
}

template <OpenForDecision Bucket>
SettleOutcome Settle(SettleOperation* operation, absl::Span<Bucket> buckets, int64_t now_ns,
                     OverflowPolicy overflow = OverflowPolicy::kDeny) {
  return Settling<Bucket>(operation, buckets, now_ns, overflow).Settle();
}

template <OpenForDecision Bucket>
bool NeedsMissingBuckets(SettleOperation* operation, absl::Span<Bucket> buckets, int64_t now_ns) {
  return Settling<Bucket>(operation, buckets, now_ns).NeedsMissingBuckets();
}

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_SETTLE_H_
