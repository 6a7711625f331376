// Decides an acquisition, a refund or a move on buckets that are open: locked in the memory store,
// read from Redis in the Redis store. So both stores decide alike. Three shorter ways must agree
// with this one, and tests compare them: MemoryStore for a token bucket without a lock,
// LocalBuckets for a node's share, and the Lua scripts (redis/scripts) where Redis decides.
//
// All buckets are decided at one moment, and all or none of them change. An open bucket is a copy
// or is locked, so nothing is in force until the store has written the buckets back. Shadow limits
// never deny: they are charged when they fit, and only report that they do not.
//
// The bucket is a template parameter, so that a decision costs no virtual call. REQUIRES
// everywhere: buckets[i] is the bucket of charges[i] under the parameters of its rule, and its
// bookings up to now_ns are folded (BucketState::Fold). Thread-safe as far as the buckets are.
#ifndef SLUICE_SERVER_STORE_DECIDE_H_
#define SLUICE_SERVER_STORE_DECIDE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/algorithm/bucket_state.h"
#include "server/algorithm/calendar/calendar.h"
#include "server/algorithm/estimates.h"
#include "server/algorithm/level.h"
#include "server/store/store.h"

namespace sluice::store {

// What the store must offer of an open bucket. The functions of the same names in
// algorithm::BucketState say what they do.
template <typename Bucket>
concept OpenForDecision = requires(
    Bucket& bucket, const Bucket& view, uint64_t number, int64_t now_ns, algorithm::Booking booking,
    const algorithm::BucketState::Settlement& settlement, SearchBudget* budget) {
  // There is no bucket and no room for one: OverflowPolicy decides.
  { view.missing() } -> std::same_as<bool>;
  { view.CanTake(number, now_ns, number) } -> std::same_as<bool>;
  { bucket.Take(number, now_ns, number, number) };
  { view.EarliestNs(number, now_ns, number, now_ns, budget) } -> std::same_as<int64_t>;
  { view.LevelAt(now_ns, budget) } -> std::same_as<algorithm::Level>;
  { bucket.Refund(number, now_ns) } -> std::same_as<std::optional<uint64_t>>;
  { bucket.Force(number, number, now_ns, number) } -> std::same_as<uint64_t>;
  { bucket.GiveBack(number, now_ns) };
  { bucket.HeldUntilNs(number, now_ns) } -> std::same_as<std::optional<int64_t>>;
  { bucket.RenewHold(number, now_ns) } -> std::same_as<std::optional<int64_t>>;
  { bucket.Book(booking, now_ns) };
  { bucket.CancelBooking(now_ns, number) } -> std::same_as<bool>;
  { view.FindBooking(now_ns, number, &booking, &now_ns) } -> std::same_as<bool>;
  { view.bookings() } -> std::same_as<size_t>;
  // A bound on bookings is reached, if there are so many more than it has; no argument: 0.
  { view.BookingsFull() } -> std::same_as<bool>;
  { view.BookingsFull(size_t{}) } -> std::same_as<bool>;
  { view.NextGrantTimeNs() } -> std::same_as<int64_t>;
  { view.LastGrantTimeNs() } -> std::same_as<int64_t>;
  { bucket.HasRoomForEstimate(now_ns) } -> std::same_as<bool>;
  { bucket.BeginEstimate(number, number, now_ns, now_ns) };
  { view.FindEstimate(number) } -> std::same_as<std::optional<algorithm::Estimate>>;
  { bucket.Settle(number, settlement, now_ns) } -> std::same_as<uint64_t>;
  { bucket.CloseReceipt(number) };
};

// What a shared store must offer as well, so that its nodes serve waiting callers in one order.
template <typename Bucket>
concept OpenForTickets =
    OpenForDecision<Bucket> &&
    requires(Bucket& bucket, const Bucket& view, uint64_t permits, int64_t now_ns,
             const QueuePlace* place, const QueuePlace::Next& next) {
      // Callers with earlier tickets need the slots. Null: the caller does not wait.
      { view.IsBehind(place, permits, now_ns) } -> std::same_as<bool>;
      { bucket.LeaveTicket(*place, permits, now_ns) };
      { bucket.DropTicket(*place, next, now_ns) };
    };

template <OpenForDecision Bucket>
bool IsBehind(const Bucket& bucket, const QueuePlace* place, uint64_t permits, int64_t now_ns) {
  if constexpr (OpenForTickets<Bucket>) {
    return bucket.IsBehind(place, permits, now_ns);
  } else {
    return false;
  }
}

// Leaves tickets of the place in the slot buckets of these charges, or removes them.
template <OpenForDecision Bucket>
void UpdateTickets(const QueuePlace& place, bool leave, absl::Span<const Charge> charges,
                   absl::Span<Bucket> buckets, int64_t now_ns) {
  if constexpr (OpenForTickets<Bucket>) {
    for (size_t i = 0; i < buckets.size(); ++i) {
      const Rule& rule = *charges[i].rule;
      if (rule.shadow || !algorithm::IsConcurrency(rule.parameters)) continue;
      if (leave) {
        buckets[i].LeaveTicket(place, charges[i].permits, now_ns);
      } else {
        buckets[i].DropTicket(place, place.next.empty() ? QueuePlace::Next() : place.next[i],
                              now_ns);
      }
    }
  }
}

// The charges that can deny: those of limits that are not in shadow mode, on buckets that exist.
// `bucket_of(i)` is the bucket of charges[i]. `set`: see algorithm::Booking::set.
template <typename BucketOf>
class EnforcedCharges {
 public:
  EnforcedCharges(absl::Span<const Charge> charges, BucketOf bucket_of, int64_t now_ns,
                  uint64_t set, SearchBudget* budget)
      : charges_(charges),
        bucket_of_(bucket_of),
        now_ns_(now_ns),
        set_(set),
        budget_(budget),
        after_all_ns_(now_ns) {
    for (size_t i = 0; i < charges.size(); ++i) {
      const auto& bucket = bucket_of_(i);
      if (charges[i].rule->shadow || bucket.missing()) continue;
      indexes_[size_++] = i;
      if (bucket.bookings() == 0) continue;
      after_all_ns_ = std::max(after_all_ns_, bucket.LastGrantTimeNs());
    }
  }

  absl::Span<const size_t> indexes() const { return {indexes_.data(), size_}; }

  // The first moment from from_ns on at which charge i fits, whether it is enforced or not.
  int64_t EarliestNs(size_t i, int64_t from_ns) const {
    return bucket_of_(i).EarliestNs(charges_[i].permits, now_ns_, set_, from_ns, budget_);
  }
  // Whether charge i, which need not be enforced, fits at the grant time. Slots cannot be booked:
  // those that are free now are taken now, also if the rates of the acquisition are booked for
  // later.
  bool FitsAt(size_t i, int64_t grant_time_ns) const {
    return IsSlots(i) ? bucket_of_(i).CanTake(charges_[i].permits, now_ns_, set_)
                      : EarliestNs(i, grant_time_ns) == grant_time_ns;
  }
  // Whether all enforced slots are free now.
  bool SlotsAreFree() const {
    return std::all_of(indexes().begin(), indexes().end(),
                       [this](size_t i) { return !IsSlots(i) || FitsAt(i, now_ns_); });
  }
  // The first moment from from_ns on at which all enforced charges fit.
  int64_t JointGrantTimeNs(int64_t from_ns) const {
    return algorithm::JointGrantTimeNs(
        size_, from_ns, after_all_ns_, budget_,
        [this](size_t e, int64_t not_before_ns) { return EarliestNs(indexes_[e], not_before_ns); });
  }

 private:
  bool IsSlots(size_t i) const { return algorithm::IsConcurrency(charges_[i].rule->parameters); }

  const absl::Span<const Charge> charges_;
  const BucketOf bucket_of_;
  const int64_t now_ns_;
  const uint64_t set_;
  SearchBudget* const budget_;
  std::array<size_t, common::bounds::kMaxCharges> indexes_;
  size_t size_ = 0;
  int64_t after_all_ns_;  // no bucket has a later booking
};

// Whether a charge without a bucket is granted and not counted. Slots are not: they must be held.
inline bool AllowsOverflow(const Charge& charge, OverflowPolicy overflow) {
  return overflow == OverflowPolicy::kAllow && !algorithm::IsConcurrency(charge.rule->parameters);
}

// Why the acquisition cannot be an estimate, whatever the buckets hold. kPending: it can.
template <OpenForDecision Bucket>
Outcome CheckEstimate(absl::Span<const Charge> charges, absl::Span<Bucket> buckets,
                      int64_t now_ns) {
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (algorithm::IsConcurrency(charges[i].rule->parameters)) continue;
    if (buckets[i].missing() || !buckets[i].HasRoomForEstimate(now_ns)) {
      return Outcome::kNoRoomForEstimate;
    }
  }
  return Outcome::kPending;
}

// To be called when the acquisition has its receipt, before any bucket is changed. Slots have
// nothing to account for.
template <OpenForDecision Bucket>
void BeginEstimate(const Acquisition& acquisition, absl::Span<Bucket> buckets) {
  if (acquisition.settle_within_ns == 0) return;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (algorithm::IsConcurrency(acquisition.charges[i].rule->parameters)) continue;
    buckets[i].BeginEstimate(acquisition.receipt_id, acquisition.charges[i].permits,
                             acquisition.now_ns + acquisition.wait_ns,
                             acquisition.settle_within_ns);
  }
}

// Books an acquisition that cannot be granted now, if it fits within max_wait_ns; else writes when
// it would fit. REQUIRES: slots that are not free have their reason. Returns whether it was booked.
template <OpenForDecision Bucket>
bool Reserve(Acquisition* acquisition, absl::Span<Bucket> buckets, int64_t now_ns, uint64_t set,
             absl::FunctionRef<uint64_t()> new_receipt, SearchBudget* budget) {
  const absl::Span<const Charge> charges = acquisition->charges;
  ChargeResult* const results = acquisition->results;
  const EnforcedCharges enforced(
      charges, [&](size_t i) -> const Bucket& { return buckets[i]; }, now_ns, set, budget);
  const int64_t grant_time_ns = enforced.JointGrantTimeNs(now_ns);
  const bool never = grant_time_ns == algorithm::kNeverNs;
  const int64_t wait_ns = never ? grant_time_ns : std::max<int64_t>(grant_time_ns - now_ns, 0);
  if (std::any_of(enforced.indexes().begin(), enforced.indexes().end(),
                  [&](size_t i) { return LacksSlots(charges[i], results[i]); })) {
    // If other callers are first, its own slots may be free.
    const bool behind = acquisition->behind_others || wait_ns == 0;
    acquisition->retry_after_ns = behind ? std::max(wait_ns, kOverflowRetryNs) : wait_ns;
    return false;
  }
  if (wait_ns > acquisition->max_wait_ns) {
    acquisition->retry_after_ns = never ? wait_ns : wait_ns - acquisition->max_wait_ns;
    if (acquisition->max_wait_ns == 0) return false;
    // Report only charges that would miss the deadline alone, unless there are none.
    const int64_t until_ns = now_ns + acquisition->max_wait_ns;
    std::array<bool, common::bounds::kMaxCharges> late = {};
    bool any = false;
    for (const size_t i : enforced.indexes()) {
      any |= late[i] = enforced.EarliestNs(i, now_ns) > until_ns;
    }
    for (const size_t i : enforced.indexes()) {
      if (any) results[i].reason = late[i] ? Reason::kNotEnough : Reason::kNone;
    }
    return false;
  }

  bool full = false;
  for (const size_t i : enforced.indexes()) {
    results[i].reason = buckets[i].BookingsFull() ? Reason::kWaitingBound : Reason::kNone;
    if (results[i].reason == Reason::kNone) continue;
    full = true;
    // There is room in this bucket at its next grant time; for other bounds that is not known.
    const int64_t next_ns = buckets[i].bookings() != 0 ? buckets[i].NextGrantTimeNs() - now_ns : 0;
    acquisition->retry_after_ns =
        std::max(acquisition->retry_after_ns, next_ns > 0 ? next_ns : kOverflowRetryNs);
  }
  if (full) return false;

  acquisition->wait_ns = wait_ns;
  acquisition->receipt_id = new_receipt();
  BeginEstimate(*acquisition, buckets);
  for (size_t i = 0; i < charges.size(); ++i) {
    if (buckets[i].missing()) continue;
    results[i].reason = Reason::kNone;
    if (charges[i].rule->shadow &&
        (!enforced.FitsAt(i, grant_time_ns) || buckets[i].BookingsFull())) {
      results[i].reason = Reason::kShadowDenied;
      continue;
    }
    buckets[i].Book({grant_time_ns, charges[i].permits, acquisition->receipt_id, set}, now_ns);
  }
  return true;
}

// The permits that each charge of a forced acquisition may count (Acquisition::charged_by).
class ForcedShares {
 public:
  explicit ForcedShares(const Acquisition& acquisition)
      : charges_(acquisition.charges), charged_by_(acquisition.charged_by) {
    std::iota(order_.begin(), order_.end(), uint8_t{0});
    for (size_t i = 0; i < charges_.size(); ++i) own_[i] = charges_[i].permits;
    if (charged_by_ == nullptr) return;
    // The sets are transitive, so a charge has more of them than each of those in its set.
    std::sort(order_.begin(), order_.begin() + charges_.size(), [&](uint8_t a, uint8_t b) {
      return std::pair(std::popcount(charged_by_[a]), a) <
             std::pair(std::popcount(charged_by_[b]), b);
    });
    if (acquisition.own != nullptr) {
      std::copy_n(acquisition.own, charges_.size(), own_.begin());
      return;
    }
    for (const size_t i : order()) {
      ForEachOf(i, [&](size_t by) { own_[i] -= std::min(own_[i], own_[by]); });
    }
  }

  // The charges, each behind those that charge it.
  absl::Span<const uint8_t> order() const { return {order_.data(), charges_.size()}; }

  // Acquisition::own of the charge.
  uint64_t own(size_t charge) const { return own_[charge]; }

  // REQUIRES: Counted was called for each charge before it.
  uint64_t Of(size_t charge) const {
    uint64_t share = charges_[charge].permits;
    ForEachOf(charge, [&](size_t by) {
      share -= std::min(share, own_[by] - std::min(own_[by], counted_[by]));
    });
    return share;
  }
  void Counted(size_t charge, uint64_t permits) { counted_[charge] = permits; }

 private:
  // Calls visit(by) for each charge in the set of `charge`.
  template <typename Visit>
  void ForEachOf(size_t charge, Visit visit) const {
    for (uint32_t left = charged_by_ == nullptr ? 0 : charged_by_[charge]; left != 0;
         left &= left - 1) {
      visit(static_cast<size_t>(std::countr_zero(left)));
    }
  }

  const absl::Span<const Charge> charges_;
  const uint16_t* const charged_by_;
  std::array<uint8_t, common::bounds::kMaxCharges> order_;
  std::array<uint64_t, common::bounds::kMaxCharges> own_;
  std::array<uint64_t, common::bounds::kMaxCharges> counted_;
};

// Carries out an acquisition that is granted whatever its buckets hold.
template <OpenForDecision Bucket>
void Force(Acquisition* acquisition, absl::Span<Bucket> buckets, int64_t now_ns, uint64_t set,
           absl::FunctionRef<uint64_t()> new_receipt, OverflowPolicy overflow,
           SearchBudget* budget) {
  const absl::Span<const Charge> charges = acquisition->charges;
  if (acquisition->want_receipt) acquisition->receipt_id = new_receipt();
  BeginEstimate(*acquisition, buckets);
  ForcedShares shares(*acquisition);
  for (const size_t i : shares.order()) {
    const Charge& charge = charges[i];
    Bucket& bucket = buckets[i];
    ChargeResult& result = acquisition->results[i];
    if (bucket.missing()) {
      result.reason = overflow == OverflowPolicy::kAllow ? Reason::kNone : Reason::kOverflow;
      result.forgiven = charge.permits;
      acquisition->source = Source::kOverflow;
      // As without force: where the policy allows, the other buckets are charged.
      const uint64_t share = shares.Of(i);
      shares.Counted(i, overflow == OverflowPolicy::kAllow ? share : 0);
    } else if (acquisition->debit == Debit::kGiveBack) {
      bucket.GiveBack(charge.permits, now_ns);
    } else {
      if (!bucket.CanTake(charge.permits, now_ns, set)) {
        result.reason = charge.rule->shadow ? Reason::kShadowDenied : Reason::kNotEnough;
      }
      const uint64_t share = shares.Of(i);
      const uint64_t counted =
          share - bucket.Force(share, MaxOwed(*charge.rule), now_ns, acquisition->receipt_id);
      shares.Counted(i, counted);
      result.forgiven = charge.permits - counted;
    }
  }
  for (size_t i = 0; i < charges.size(); ++i) {
    acquisition->results[i].level = buckets[i].LevelAt(now_ns, budget);
  }
}

// Decides and carries out one acquisition. Writes all its results but the outcome, and returns
// that: kGranted, kDenied, or why there is no estimate. `new_receipt` is called at most once.
// `overflow` decides charges whose buckets are missing. `budget`: of the searches among bookings;
// null: one of its own.
template <OpenForDecision Bucket>
Outcome Decide(Acquisition* acquisition, absl::Span<Bucket> buckets, int64_t now_ns, uint64_t set,
               absl::FunctionRef<uint64_t()> new_receipt,
               OverflowPolicy overflow = OverflowPolicy::kDeny, SearchBudget* budget = nullptr) {
  SearchBudget own;
  if (budget == nullptr) budget = &own;
  const absl::Span<const Charge> charges = acquisition->charges;
  acquisition->source = Source::kStore;
  acquisition->wait_ns = 0;
  acquisition->retry_after_ns = 0;
  acquisition->receipt_id = 0;
  acquisition->now_ns = now_ns;
  for (size_t i = 0; i < charges.size(); ++i) {
    acquisition->results[i].reason = Reason::kNone;
    acquisition->results[i].forgiven = 0;
  }
  if (acquisition->settle_within_ns != 0) {
    const Outcome unable = CheckEstimate(charges, buckets, now_ns);
    if (unable != Outcome::kPending) return unable;
  }
  if (acquisition->debit != Debit::kIfAllowed) {
    Force(acquisition, buckets, now_ns, set, new_receipt, overflow, budget);
    return Outcome::kGranted;
  }
  bool granted = true;
  bool room = true;
  std::array<bool, common::bounds::kMaxCharges> fits = {};
  for (size_t i = 0; i < charges.size(); ++i) {
    const bool shadow = charges[i].rule->shadow;
    const bool slots = algorithm::IsConcurrency(charges[i].rule->parameters);
    Reason& reason = acquisition->results[i].reason;
    if (buckets[i].missing()) {
      if (AllowsOverflow(charges[i], overflow)) {
        acquisition->source = Source::kOverflow;
      } else if (shadow) {
        reason = Reason::kShadowDenied;
      } else {
        reason = Reason::kOverflow;
        acquisition->source = Source::kOverflow;
        acquisition->retry_after_ns = kOverflowRetryNs;
        granted = room = false;
      }
      continue;
    }
    fits[i] = buckets[i].CanTake(charges[i].permits, now_ns, set) &&
              (!slots || shadow ||
               (!acquisition->behind_others &&
                !IsBehind(buckets[i], acquisition->place, charges[i].permits, now_ns)));
    if (fits[i]) continue;
    reason = shadow ? Reason::kShadowDenied : Reason::kNotEnough;
    granted &= shadow;
    if (!shadow && slots && buckets[i].BookingsFull()) reason = Reason::kWaitingBound;
  }
  const bool reserved =
      !granted && room && Reserve(acquisition, buckets, now_ns, set, new_receipt, budget);
  if (granted && acquisition->want_receipt) acquisition->receipt_id = new_receipt();
  if (granted) BeginEstimate(*acquisition, buckets);
  for (size_t i = 0; i < charges.size(); ++i) {
    if (granted && fits[i]) {
      buckets[i].Take(charges[i].permits, now_ns, acquisition->receipt_id, set);
    }
    acquisition->results[i].level = buckets[i].LevelAt(now_ns, budget);
  }
  const Outcome outcome = granted || reserved ? Outcome::kGranted : Outcome::kDenied;
  if (acquisition->place != nullptr) {
    const bool leave = StaysInLine(*acquisition, outcome) && !acquisition->place->last;
    UpdateTickets(*acquisition->place, leave, charges, buckets, now_ns);
  }
  return outcome;
}

// Whether the receipt is of an estimate that was settled, which cannot be refunded.
template <OpenForDecision Bucket>
bool WasSettled(uint64_t receipt_id, absl::Span<Bucket> buckets) {
  for (const Bucket& bucket : buckets) {
    const std::optional<algorithm::Estimate> estimate = bucket.FindEstimate(receipt_id);
    if (estimate.has_value() && estimate->state != algorithm::Estimate::State::kOpen &&
        estimate->state != algorithm::Estimate::State::kRefunded) {
      return true;
    }
  }
  return false;
}

// Gives back what the receipt is worth, and writes how much. Returns whether the receipt was open
// in any of the buckets.
template <OpenForDecision Bucket>
bool Refund(const RefundOperation& operation, absl::Span<Bucket> buckets, int64_t now_ns) {
  bool open = false;
  if (operation.place != nullptr) {
    UpdateTickets(*operation.place, /*leave=*/false, operation.charges, buckets, now_ns);
  }
  for (size_t i = 0; i < buckets.size(); ++i) {
    operation.refunded[i] = 0;
    if (buckets[i].missing()) continue;
    // The grant time is the same in all buckets, so it is ahead in all or in none. A call that read
    // the clock later may have been quicker: then the booking is a receipt already.
    if (operation.grant_time_ns > now_ns &&
        buckets[i].CancelBooking(operation.grant_time_ns, operation.receipt_id)) {
      operation.refunded[i] = operation.charges[i].permits;
      open = true;
    } else if (const std::optional<uint64_t> given =
                   buckets[i].Refund(operation.receipt_id, now_ns);
               given.has_value()) {
      operation.refunded[i] = *given;
      open = true;
    }
  }
  return open;
}

// Holds the slots for longer, if all of them are still held. Charges of shadow limits that were
// granted without slots have none to lose.
template <OpenForDecision Bucket>
RenewOutcome Renew(Renewal* renewal, absl::Span<Bucket> buckets, int64_t now_ns) {
  renewal->held_for_ns = algorithm::kNeverNs;
  const auto held = [&](size_t i) {
    return !buckets[i].missing() && buckets[i].HeldUntilNs(renewal->receipt_id, now_ns).has_value();
  };
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!renewal->charges[i].rule->shadow && !held(i)) return RenewOutcome::kGone;
  }
  for (size_t i = 0; i < buckets.size(); ++i) {
    int64_t held_for_ns = renewal->charges[i].rule->parameters.concurrency.hold_for_ns;
    if (held(i)) {
      const std::optional<int64_t> end_ns = buckets[i].RenewHold(renewal->receipt_id, now_ns);
      if (end_ns.has_value()) held_for_ns = *end_ns - now_ns;
    }
    renewal->held_for_ns = std::min(renewal->held_for_ns, held_for_ns);
  }
  return RenewOutcome::kRenewed;
}

// The holds of an open bucket of slots, for HoldsOperation and QueryItem.
inline void ListHolds(const algorithm::ConcurrencyState& slots, int64_t now_ns,
                      HoldsOperation* operation) {
  const size_t ended = slots.holds().EndedUpTo(now_ns).holds;
  operation->holds = slots.holds().size() - ended;
  slots.holds().ForEach(
      [&](const algorithm::Hold& hold) {
        operation->listed.push_back({hold.id, hold.permits, hold.end_ns - now_ns});
      },
      ended, operation->most_listed);
}
inline void NoteHolds(const algorithm::ConcurrencyState& slots, int64_t now_ns, QueryItem* item) {
  item->holds = slots.HoldsAt(now_ns);
  if (item->holds != 0) item->next_end_after_ns = slots.NextEndNs(now_ns) - now_ns;
  if (item->hold_id == 0) return;
  const std::optional<algorithm::Hold> hold = slots.Find(item->hold_id, now_ns);
  if (hold.has_value()) item->held_until_ns = hold->end_ns;
}

// Moves the booking at *booked_ns to the earliest moment at which it fits, but not before the
// bookings of its set that precede it, and writes its new grant time.
template <OpenForDecision Bucket>
MoveOutcome Move(uint64_t receipt_id, absl::Span<const Charge> charges, absl::Span<Bucket> buckets,
                 int64_t now_ns, int64_t* booked_ns) {
  algorithm::Booking booking;
  std::array<bool, common::bounds::kMaxCharges> booked = {};
  bool any = false;
  // At now_ns it would be a take, not a booking.
  int64_t from_ns = now_ns + 1;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].missing()) continue;
    int64_t previous_ns = 0;
    booked[i] = buckets[i].FindBooking(*booked_ns, receipt_id, &booking, &previous_ns);
    any |= booked[i];
    if (booked[i]) from_ns = std::max(from_ns, previous_ns);
  }
  if (!any) return MoveOutcome::kGone;
  // from_ns keeps the order of the set, so the search need not.
  SearchBudget budget;
  const EnforcedCharges enforced(
      charges, [&](size_t i) -> const Bucket& { return buckets[i]; }, now_ns, /*set=*/0, &budget);
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (booked[i]) buckets[i].CancelBooking(*booked_ns, receipt_id);
  }
  const int64_t grant_time_ns = enforced.JointGrantTimeNs(from_ns);
  // If a lowered limit leaves no earlier place, keep the booking where it is.
  const bool moved = grant_time_ns < *booked_ns && enforced.SlotsAreFree();
  booking.grant_time_ns = moved ? grant_time_ns : *booked_ns;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!booked[i]) continue;
    if (charges[i].rule->shadow && moved && !enforced.FitsAt(i, booking.grant_time_ns)) continue;
    booking.permits = charges[i].permits;
    buckets[i].Book(booking, now_ns);
  }
  *booked_ns = booking.grant_time_ns;
  return moved ? MoveOutcome::kMoved : MoveOutcome::kStays;
}

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_DECIDE_H_
