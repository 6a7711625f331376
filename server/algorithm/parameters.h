// Parameters: the parameters of a limit of any algorithm. This file has the only list of the
// algorithms.
//
// Three algorithms count the permits of a period (sliding_log, sliding_window, fixed_window). Their
// states have the same functions, so BucketState treats them alike; token_bucket is a case of its
// own. These four have a rate. The fifth, concurrency, counts the permits in use, and has no rate,
// no bookings and no open receipts but its holds. To add an algorithm that counts: write its
// parameters with the functions of SlidingWindow, its state with those of SlidingWindowState, and
// its Make function; then add it to each list in this file. The compiler names whatever is missing,
// here and in every switch over Kind.
#ifndef SLUICE_SERVER_ALGORITHM_PARAMETERS_H_
#define SLUICE_SERVER_ALGORITHM_PARAMETERS_H_

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <variant>

#include "server/algorithm/concurrency.h"
#include "server/algorithm/fixed_window.h"
#include "server/algorithm/moment.h"
#include "server/algorithm/sliding_log.h"
#include "server/algorithm/sliding_window.h"
#include "server/algorithm/token_bucket.h"

namespace sluice::algorithm {

enum class Kind : uint8_t {
  kTokenBucket = 0,
  kSlidingLog,
  kSlidingWindow,
  kFixedWindow,
  kConcurrency
};

// The lists below are in the order of Kind.
inline constexpr Kind kKinds[] = {Kind::kTokenBucket, Kind::kSlidingLog, Kind::kSlidingWindow,
                                  Kind::kFixedWindow, Kind::kConcurrency};
inline constexpr Kind kLastKind = kKinds[std::size(kKinds) - 1];
inline constexpr std::string_view kKindNames[] = {"token_bucket", "sliding_log", "sliding_window",
                                                  "fixed_window", "concurrency"};

// The state of one bucket.
using AnyState = std::variant<TokenBucketState, SlidingLogState, SlidingWindowState,
                              FixedWindowState, ConcurrencyState>;

// As std::visit, for the states of rates. REQUIRES: the state is not a ConcurrencyState.
template <typename Visit, typename State>
decltype(auto) VisitRate(Visit visit, State& state) {
  return std::visit(
      [&](auto& one) -> decltype(visit(std::get<0>(state))) {
        if constexpr (std::is_same_v<std::remove_const_t<std::remove_reference_t<decltype(one)>>,
                                     ConcurrencyState>) {
          std::abort();
        } else {
          return visit(one);
        }
      },
      state);
}

static_assert(std::size(kKinds) == std::variant_size_v<AnyState> &&
              std::size(kKindNames) == std::variant_size_v<AnyState>);

// Only the member that `kind` names is used, also by ==.
struct Parameters {
  Kind kind = Kind::kTokenBucket;
  TokenBucket token_bucket;
  SlidingLog sliding_log;
  SlidingWindow sliding_window;
  FixedWindow fixed_window;
  Concurrency concurrency;
};

// Whether the limit bounds what is in use, and its grants hold slots. It has no rate.
inline bool IsConcurrency(const Parameters& parameters) {
  return parameters.kind == Kind::kConcurrency;
}

// Calls visit(member), where `member` points to the member of Parameters that `kind` names.
// REQUIRES: not kConcurrency.
template <typename Visit>
decltype(auto) VisitMember(Kind kind, Visit visit) {
  switch (kind) {
    case Kind::kTokenBucket:
      break;
    case Kind::kSlidingLog:
      return visit(&Parameters::sliding_log);
    case Kind::kSlidingWindow:
      return visit(&Parameters::sliding_window);
    case Kind::kFixedWindow:
      return visit(&Parameters::fixed_window);
    case Kind::kConcurrency:
      std::abort();
  }
  return visit(&Parameters::token_bucket);
}

// Calls visit(own), where `own` is the member of `parameters` that its kind names.
template <typename Any, typename Visit>
decltype(auto) VisitOwn(Any& parameters, Visit visit) {
  if (IsConcurrency(parameters)) return visit(parameters.concurrency);
  return VisitMember(parameters.kind, [&](auto member) { return visit(parameters.*member); });
}

// The parameters that the state's functions take.
inline const TokenBucket& Of(const Parameters& parameters, const TokenBucketState&) {
  return parameters.token_bucket;
}
inline const SlidingLog& Of(const Parameters& parameters, const SlidingLogState&) {
  return parameters.sliding_log;
}
inline const SlidingWindow& Of(const Parameters& parameters, const SlidingWindowState&) {
  return parameters.sliding_window;
}
inline const FixedWindow& Of(const Parameters& parameters, const FixedWindowState&) {
  return parameters.fixed_window;
}
inline const Concurrency& Of(const Parameters& parameters, const ConcurrencyState&) {
  return parameters.concurrency;
}

// The moment, as the state's functions take it; only fixed_window follows the wall clock.
template <typename OneState>
int64_t Time(Moment at, const OneState&) {
  return at.now_ns;
}
inline Moment Time(Moment at, const FixedWindowState&) { return at; }

// Whether decisions need Moment::wall_ns.
inline bool UsesWallClock(const Parameters& parameters) {
  return parameters.kind == Kind::kFixedWindow;
}

inline bool operator==(const Parameters& a, const Parameters& b) {
  if (a.kind != b.kind) return false;
  if (IsConcurrency(a)) return a.concurrency == b.concurrency;
  return VisitMember(a.kind, [&](auto member) { return a.*member == b.*member; });
}

// The rate of any algorithm that has one. REQUIRES: not IsConcurrency.
inline const Rate& RateOf(const Parameters& parameters) {
  return VisitMember(parameters.kind,
                     [&](auto member) -> const Rate& { return (parameters.*member).rate; });
}

// Most permits that a bucket can hold: burst, a window's permits, or slots.
inline uint64_t Capacity(const Parameters& parameters) {
  if (IsConcurrency(parameters)) return parameters.concurrency.permits;
  return parameters.kind == Kind::kTokenBucket ? parameters.token_bucket.burst
                                               : RateOf(parameters).permits;
}

// How long a log or window counts a permit, rounding aside: its period. Of slots: how long a grant
// holds them. 0: a token bucket.
inline int64_t WindowNs(const Parameters& parameters) {
  if (IsConcurrency(parameters)) return parameters.concurrency.hold_for_ns;
  return parameters.kind == Kind::kTokenBucket ? 0 : RateOf(parameters).period_ns;
}

// Permits that a request may leave owed. 0: a log or window.
inline uint64_t Debt(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket ? parameters.token_bucket.debt : 0;
}

// The most permits that a bucket's numbers can hold as owed, beside its burst or its window's
// permits (MakeTokenBucket chooses the ticks by burst and debt). Slots are never owed.
inline uint64_t GreatestOwed(const Parameters& parameters) {
  if (IsConcurrency(parameters)) return 0;
  if (parameters.kind != Kind::kTokenBucket)
    return MostCounted(Capacity(parameters), ~uint64_t{0}) - Capacity(parameters);
  const TokenBucket& bucket = parameters.token_bucket;
  return (kMaxBurstTicks - bucket.burst_ticks) / bucket.unit_ticks;
}

// Most permits that one request can ever be granted: burst + debt, a window's permits, or
// all slots.
inline uint64_t MaxGrant(const Parameters& parameters) {
  return Capacity(parameters) + Debt(parameters);
}

// "token_bucket".
inline std::string_view KindName(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_PARAMETERS_H_
