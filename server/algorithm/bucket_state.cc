#include "server/algorithm/bucket_state.h"

#include <algorithm>

#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

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
                              uint64_t receipt_id, bool* evicted) {
  CloseWorthless(parameters, at);
  bool closed_older = false;
  const bool granted = std::visit(
      Overloaded{[&](TokenBucketState& state) {
                   const TokenBucket& token = parameters.token_bucket;
                   const uint64_t now_ticks = ToTicks(token, at.now_ns);
                   if (!algorithm::TryTake(token, permits, now_ticks, &state.tat)) return false;
                   if (receipt_id == 0) return true;
                   closed_older = receipts_.Open(receipt_id, permits * token.unit_ticks,
                                                 ShortfallTicks(state.tat, now_ticks));
                   return true;
                 },
                 [&](auto& state) {
                   uint64_t when = 0;
                   if (!state.TryTake(Of(parameters, state), permits, Time(at, state), &when)) {
                     return false;
                   }
                   if (receipt_id == 0) return true;
                   closed_older = receipts_.Open(receipt_id, when, permits);
                   return true;
                 }},
      state_);
  if (closed_older && evicted != nullptr) *evicted = true;
  return granted;
}

bool BucketState::TakeBooked(const Parameters& parameters, const Booking& booking, Moment at) {
  CloseWorthless(parameters, at);
  return std::visit(
      Overloaded{[&](TokenBucketState& state) {
                   const TokenBucket& token = parameters.token_bucket;
                   const uint64_t now_ticks = ToTicks(token, at.now_ns);
                   const Uint128 cost = static_cast<Uint128>(booking.permits) * token.unit_ticks;
                   const Uint128 tat = std::max(state.tat, now_ticks) + cost;
                   state.tat = static_cast<uint64_t>(std::min<Uint128>(tat, kMaxTat));
                   return receipts_.Open(booking.id,
                                         static_cast<uint64_t>(std::min<Uint128>(cost, kMaxTat)),
                                         ShortfallTicks(state.tat, now_ticks));
                 },
                 [&](auto& state) {
                   const uint64_t when =
                       state.Add(Of(parameters, state), booking.permits, Time(at, state));
                   return receipts_.Open(booking.id, when, booking.permits);
                 }},
      state_);
}

void BucketState::CloseWorthless(const Parameters& parameters, Moment at) {
  if (open_receipts() == 0) return;
  std::visit(Overloaded{[&](const TokenBucketState& state) {
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
                                                Moment at, uint64_t* when) {
  CloseWorthless(parameters, at);
  return std::visit(
      Overloaded{[&](TokenBucketState& state) -> std::optional<uint64_t> {
                   const std::optional<uint64_t> ticks = receipts_.RefundTicks(receipt_id);
                   if (!ticks.has_value()) return std::nullopt;
                   state.tat -= *ticks;
                   return *ticks / parameters.token_bucket.unit_ticks;
                 },
                 [&](auto& state) -> std::optional<uint64_t> {
                   const auto receipt = receipts_.Close(receipt_id);
                   if (!receipt.has_value()) return std::nullopt;
                   *when = receipt->cost_or_when;
                   return state.Refund(Of(parameters, state), receipt->cost_or_when,
                                       receipt->shortfall_or_permits, Time(at, state));
                 }},
      state_);
}

void BucketState::ConvertPast(const Parameters& from, const Parameters& to, Moment at,
                              int64_t moved_ns) {
  if (from == to) return;
  CloseWorthless(from, at);
  if (from.kind == to.kind) {
    std::visit(Overloaded{[&](TokenBucketState& state) {
                            ConvertTokens(from.token_bucket, to.token_bucket, at.now_ns, &state);
                          },
                          [&](auto& state) {
                            receipts_.Convert([&](uint64_t when) {
                              return state.ConvertWhen(Of(from, state), Of(to, state), when,
                                                       Time(at, state));
                            });
                            state =
                                state.ConvertTo(Of(from, state), Of(to, state), Time(at, state));
                          }},
               state_);
    CloseWorthless(to, at);
    return;
  }

  const UsedFraction used = std::visit(
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
  // Another algorithm returns permits at other times, so receipts are closed.
  state_ = BucketState(to).state_;
  receipts_.Clear();
  if (used.numerator == 0) return;
  std::visit(
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

}  // namespace sluice::algorithm
