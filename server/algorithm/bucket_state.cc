#include "server/algorithm/bucket_state.h"

#include <algorithm>

#include "common/bounds.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

// So many estimates are forgotten at once, about 20 us if all their receipts are open; of more, one
// chunk at a time.
constexpr size_t kFewEstimates = 256;

// How much of a bucket is used, for carry-over between algorithms. numerator <= denominator.
struct UsedFraction {
  uint64_t numerator = 0;
  uint64_t denominator = 1;
};

UsedFraction UsedOf(uint64_t counted, uint64_t capacity) {
  return {std::min(counted, capacity), capacity};
}

uint64_t RoundedUp(UsedFraction used, uint64_t of) {
  return static_cast<uint64_t>(
      CeilDiv(static_cast<Uint128>(used.numerator) * of, used.denominator));
}

template <size_t... kinds>
AnyState FullState(Kind kind, std::index_sequence<kinds...>) {
  AnyState state;
  ((kind == static_cast<Kind>(kinds) ? void(state.emplace<kinds>()) : void()), ...);
  return state;
}

}  // namespace

BucketState::BucketState(const Parameters& parameters)
    : state_(
          FullState(parameters.kind, std::make_index_sequence<std::variant_size_v<AnyState>>())) {}

BucketState BucketState::FromTat(uint64_t tat) {
  BucketState state{Parameters()};
  state.state_ = TokenBucketState{tat};
  return state;
}

bool BucketState::TryTakePast(const Parameters& parameters, uint64_t permits, Moment at,
                              uint64_t receipt_id, bool* evicted, OpenReceipts::Kept kept) {
  if (ConcurrencyState* const slots = MutableSlots(); slots != nullptr) {
    return slots->TryTake(parameters.concurrency, permits, at.now_ns, receipt_id);
  }
  CloseWorthless(parameters, at, Forget::kSome);
  const auto kept_of_take = [&] {
    const OpenReceipts::Kept of_estimate = OpenEstimate(receipt_id, at.now_ns);
    return kept == OpenReceipts::Kept::kYes ? kept : of_estimate;
  };
  bool closed_older = false;
  const bool granted = VisitRate(
      Overloaded{[&](TokenBucketState& state) {
                   const TokenBucket& token = parameters.token_bucket;
                   const uint64_t now_ticks = ToTicks(token, at.now_ns);
                   if (!algorithm::TryTake(token, permits, now_ticks, &state.tat)) return false;
                   if (receipt_id == 0) return true;
                   closed_older =
                       receipts_.OpenTicks(receipt_id, permits * token.unit_ticks,
                                           ShortfallTicks(state.tat, now_ticks), kept_of_take());
                   return true;
                 },
                 [&](auto& state) {
                   uint64_t when = 0;
                   if (!state.TryTake(Of(parameters, state), permits, Time(at, state), &when)) {
                     return false;
                   }
                   if (receipt_id == 0) return true;
                   closed_older = receipts_.OpenPermits(receipt_id, when, permits, kept_of_take());
                   return true;
                 }},
      state_);
  if (closed_older && evicted != nullptr) *evicted = true;
  return granted;
}

bool BucketState::TakeBooked(const Parameters& parameters, const Booking& booking, Moment at) {
  CloseWorthless(parameters, at, Forget::kSome);
  const OpenReceipts::Kept kept = OpenEstimate(booking.id, booking.grant_time_ns);
  return VisitRate(
      Overloaded{[&](TokenBucketState& state) {
                   const TokenBucket& token = parameters.token_bucket;
                   const uint64_t now_ticks = ToTicks(token, at.now_ns);
                   const Uint128 cost = static_cast<Uint128>(booking.permits) * token.unit_ticks;
                   const Uint128 tat = std::max(state.tat, now_ticks) + cost;
                   state.tat = static_cast<uint64_t>(std::min<Uint128>(tat, kMaxTat));
                   return receipts_.OpenTicks(
                       booking.id, static_cast<uint64_t>(std::min<Uint128>(cost, kMaxTat)),
                       ShortfallTicks(state.tat, now_ticks), kept);
                 },
                 [&](auto& state) {
                   const uint64_t when =
                       state.Add(Of(parameters, state), booking.permits, Time(at, state));
                   return receipts_.OpenPermits(booking.id, when, booking.permits, kept);
                 }},
      state_);
}

void BucketState::BeginEstimate(uint64_t receipt_id, uint64_t permits, int64_t grant_time_ns,
                                int64_t within_ns) {
  if (estimates_ == nullptr) estimates_ = std::make_unique<Estimates>();
  Estimate estimate;
  estimate.id = receipt_id;
  estimate.asked = permits;
  estimate.end_ns = grant_time_ns + within_ns;
  estimate.within_ns = static_cast<uint64_t>(within_ns);
  estimates_->Add(estimate);
}

bool BucketState::HasRoomForEstimate(Moment at, std::vector<uint64_t>* removed) {
  if (estimates_ == nullptr) return true;
  // Whenever one may come, a whole chunk is looked at, so those that are over stay few.
  RemoveSomeEstimates(at, removed);
  return receipts_.kept() < common::bounds::kMaxOpenEstimatesPerBucket &&
         estimates_->MemoryBytes() < common::bounds::kMaxEstimateBytesPerBucket;
}

void BucketState::RemoveSomeEstimates(Moment at, std::vector<uint64_t>* removed) {
  estimates_->RemoveSome(at.now_ns, [&](const Estimate& over) {
    if (!over.closed()) receipts_.Drop(over.id);
    if (removed != nullptr) removed->push_back(over.id);
  });
}

OpenReceipts::Kept BucketState::OpenEstimate(uint64_t receipt_id, int64_t grant_time_ns) {
  Estimate* const estimate = estimates_ == nullptr ? nullptr : estimates_->Find(receipt_id);
  if (estimate == nullptr) return OpenReceipts::Kept::kNo;
  estimate->state = Estimate::State::kOpen;
  estimate->changed = 0;
  estimate->end_ns = grant_time_ns + static_cast<int64_t>(estimate->within_ns);
  estimates_->NoteEnd(*estimate);
  return OpenReceipts::Kept::kYes;
}

uint64_t BucketState::Settle(const Parameters& parameters, uint64_t receipt_id,
                             const Settlement& settlement, Moment at) {
  Estimate estimate = *FindEstimate(receipt_id);
  const bool late = at.now_ns > estimate.end_ns;
  const bool goes_on = settlement.more && !late;
  uint64_t counted = 0;
  if (settlement.actual > estimate.asked_so_far()) {
    counted = settlement.share - Force(parameters, settlement.share, settlement.max_owed, at);
    estimate.changed += counted;
  } else if (!goes_on && !late) {
    const auto given = GiveBackReceipt(parameters, receipt_id, settlement.actual, at);
    if (settlement.actual <= estimate.asked) estimate.changed = given.value_or(0);
  }
  estimate.actual = settlement.actual;
  if (goes_on) {
    estimate.state = Estimate::State::kContinued;
    estimate.end_ns = at.now_ns + static_cast<int64_t>(estimate.within_ns);
  } else {
    estimate.state = late ? Estimate::State::kLate : Estimate::State::kSettled;
    receipts_.Drop(receipt_id);
  }
  // If its time is over, Force may have forgotten it.
  if (estimates_ == nullptr) estimates_ = std::make_unique<Estimates>();
  if (Estimate* const kept = estimates_->Find(receipt_id); kept != nullptr) {
    *kept = estimate;
    estimates_->NoteEnd(estimate);
  } else {
    estimates_->Add(estimate);
  }
  return counted;
}

void BucketState::SetReceipts(const BucketImage& image) {
  estimates_ = nullptr;
  if (!image.estimates.empty()) estimates_ = std::make_unique<Estimates>();
  for (const Estimate& estimate : image.estimates) estimates_->Add(estimate);
  receipts_.Clear();
  for (const OpenReceipts::Receipt& receipt : image.receipts) {
    const auto kept =
        FindEstimate(receipt.id) == nullptr ? OpenReceipts::Kept::kNo : OpenReceipts::Kept::kYes;
    if (kind() == Kind::kTokenBucket) {
      receipts_.OpenTicks(receipt.id, receipt.cost_or_when, receipt.shortfall_or_permits, kept);
    } else {
      receipts_.OpenPermits(receipt.id, receipt.cost_or_when, receipt.shortfall_or_permits, kept);
    }
  }
}

void BucketState::CloseWorthless(const Parameters& parameters, Moment at, Forget forget) {
  if (HasOldEstimates(at.now_ns)) {
    if (forget == Forget::kAll) {
      receipts_.DropKept();
      estimates_ = nullptr;
    } else {
      do {
        RemoveSomeEstimates(at);
      } while (0 < estimates_->size() && estimates_->size() <= kFewEstimates);
      if (estimates_->size() == 0) estimates_ = nullptr;
    }
  }
  if (receipts_.empty()) return;
  VisitRate(Overloaded{[&](const TokenBucketState& state) {
                         receipts_.NoteShortfall(ShortfallTicks(
                             state.tat, ToTicks(parameters.token_bucket, at.now_ns)));
                       },
                       [&](const auto& state) {
                         receipts_.CloseUncounted([&](uint64_t when) {
                           return state.Counts(Of(parameters, state), when, Time(at, state));
                         });
                       }},
            state_);
}

std::optional<uint64_t> BucketState::RefundPast(const Parameters& parameters, uint64_t receipt_id,
                                                uint64_t keep, Moment at, uint64_t* when) {
  if (slots() != nullptr) return EndHold(receipt_id, at);
  CloseWorthless(parameters, at, Forget::kSome);
  return VisitRate(
      Overloaded{[&](TokenBucketState& state) -> std::optional<uint64_t> {
                   const uint64_t unit = parameters.token_bucket.unit_ticks;
                   const Uint128 keep_ticks = static_cast<Uint128>(keep) * unit;
                   const std::optional<uint64_t> ticks = receipts_.RefundTicks(
                       receipt_id, static_cast<uint64_t>(std::min<Uint128>(keep_ticks, kMaxTat)));
                   if (!ticks.has_value()) return std::nullopt;
                   state.tat -= *ticks;
                   return *ticks / unit;
                 },
                 [&](auto& state) -> std::optional<uint64_t> {
                   const auto receipt = receipts_.Close(receipt_id);
                   if (!receipt.has_value()) return std::nullopt;
                   *when = receipt->cost_or_when;
                   const uint64_t permits = receipt->shortfall_or_permits;
                   return state.Refund(Of(parameters, state), receipt->cost_or_when,
                                       permits - std::min(permits, keep), Time(at, state));
                 }},
      state_);
}

void BucketState::ConvertPast(const Parameters& from, const Parameters& to, Moment at,
                              int64_t moved_ns) {
  if (from == to) return;
  if (IsConcurrency(from) || IsConcurrency(to)) {
    // Slots have no rate, so nothing can be carried over to one or from it.
    if (from.kind == to.kind) return;
    MakeFull(to, Moved(at, moved_ns));
    if (estimates_ != nullptr) estimates_->Move(moved_ns);
    return;
  }
  CloseWorthless(from, at, Forget::kSome);
  if (from.kind == to.kind) {
    VisitRate(Overloaded{[&](TokenBucketState& state) {
                           ConvertTokens(from.token_bucket, to.token_bucket, at.now_ns, &state);
                         },
                         [&](auto& state) {
                           receipts_.Convert([&](uint64_t when) {
                             return state.ConvertWhen(Of(from, state), Of(to, state), when,
                                                      Time(at, state));
                           });
                           state = state.ConvertTo(Of(from, state), Of(to, state), Time(at, state));
                         }},
              state_);
    CloseWorthless(to, at, Forget::kSome);
    return;
  }

  const UsedFraction used = VisitRate(
      Overloaded{[&](const TokenBucketState& state) {
                   const TokenBucket& token = from.token_bucket;
                   const uint64_t lacking = ShortfallTicks(state.tat, ToTicks(token, at.now_ns));
                   // A bucket that never stores permits is used up by any debt.
                   return UsedOf(lacking, std::max<uint64_t>(token.burst_ticks, 1));
                 },
                 [&](const auto& state) {
                   return UsedOf(state.Counted(Of(from, state), Time(at, state)),
                                 Of(from, state).rate.permits);
                 }},
      state_);
  at = Moved(at, moved_ns);
  if (estimates_ != nullptr) estimates_->Move(moved_ns);
  // Another algorithm returns permits at other times, so receipts are closed.
  state_ = BucketState(to).state_;
  receipts_.Clear();
  if (used.numerator == 0) return;
  VisitRate(
      Overloaded{[&](TokenBucketState& state) {
                   const TokenBucket& token = to.token_bucket;
                   // A bucket that stores nothing can only owe.
                   const uint64_t of = token.burst != 0 ? token.burst_ticks : token.debt_ticks;
                   state.tat = std::min(ToTicks(token, at.now_ns) + RoundedUp(used, of), kMaxTat);
                 },
                 [&](auto& state) {
                   state.Add(Of(to, state), RoundedUp(used, Of(to, state).rate.permits),
                             Time(at, state));
                 }},
      state_);
}

void BucketState::ConvertTokens(const TokenBucket& from, const TokenBucket& to, int64_t now_ns,
                                TokenBucketState* state) {
  state->tat = ConvertTat(from, to, state->tat, now_ns);
  const uint64_t lacking = ShortfallTicks(state->tat, ToTicks(to, now_ns));
  if (state->tat == kMaxTat) {
    // The TAT saturated: a refund might give back permits that it does not count.
    receipts_.Clear();
  } else if (to.burst < from.burst) {
    receipts_.Scale(to.burst_ticks, from.burst_ticks, lacking);
  } else {
    receipts_.Scale(to.unit_ticks, from.unit_ticks, lacking);
  }
}

void BucketState::MakeFull(const Parameters& parameters, Moment at) {
  state_ = BucketState(parameters).state_;
  receipts_.Clear();
  if (auto* const token = std::get_if<TokenBucketState>(&state_); token != nullptr) {
    token->tat = ToTicks(parameters.token_bucket, at.now_ns);
  }
}

std::optional<uint64_t> BucketState::EndHold(uint64_t receipt_id, Moment at) {
  return slots() == nullptr ? std::nullopt : MutableSlots()->EndHold(receipt_id, at.now_ns);
}

BucketState BucketState::TakeHolds() {
  BucketState taken{Parameters()};
  if (slots() != nullptr) taken.state_ = std::exchange(state_, ConcurrencyState());
  return taken;
}

std::optional<int64_t> BucketState::HeldUntilNs(uint64_t receipt_id, Moment at) const {
  if (slots() == nullptr) return std::nullopt;
  const std::optional<Hold> hold = slots()->Find(receipt_id, at.now_ns);
  return hold.has_value() ? std::optional(hold->end_ns) : std::nullopt;
}

std::optional<int64_t> BucketState::RenewHold(const Parameters& parameters, uint64_t receipt_id,
                                              Moment at) {
  if (slots() == nullptr) return std::nullopt;
  return MutableSlots()->Renew(parameters.concurrency, receipt_id, at.now_ns);
}

}  // namespace sluice::algorithm
