// Parameters: the parameters of a limit of any algorithm. This file has the only list of the
// algorithms.
//
// Three algorithms count permits (sliding_log, sliding_window, fixed_window). Their states have the
// same functions, so BucketState treats them alike; only token_bucket is a case of its own. To add
// an algorithm that counts: write its parameters, its state with the functions of
// SlidingWindowState, and its Make function; then add it to each list in this file. The compiler
// names whatever is missing, here and in every switch over Kind.
#ifndef SLUICE_SERVER_ALGORITHM_PARAMETERS_H_
#define SLUICE_SERVER_ALGORITHM_PARAMETERS_H_

#include <cstdint>
#include <iterator>
#include <string_view>
#include <variant>

#include "server/algorithm/fixed_window.h"
#include "server/algorithm/moment.h"
#include "server/algorithm/sliding_log.h"
#include "server/algorithm/sliding_window.h"
#include "server/algorithm/token_bucket.h"

namespace sluice::algorithm {

enum class Kind : uint8_t { kTokenBucket = 0, kSlidingLog, kSlidingWindow, kFixedWindow };

// The lists below are in the order of Kind.
inline constexpr Kind kKinds[] = {Kind::kTokenBucket, Kind::kSlidingLog, Kind::kSlidingWindow,
                                  Kind::kFixedWindow};
inline constexpr std::string_view kKindNames[] = {"token_bucket", "sliding_log", "sliding_window",
                                                  "fixed_window"};

// The state of one bucket.
using AnyState =
    std::variant<TokenBucketState, SlidingLogState, SlidingWindowState, FixedWindowState>;

static_assert(std::size(kKinds) == std::variant_size_v<AnyState> &&
              std::size(kKindNames) == std::variant_size_v<AnyState>);

// Only the member that `kind` names is used, also by ==.
struct Parameters {
  Kind kind = Kind::kTokenBucket;
  TokenBucket token_bucket;
  SlidingLog sliding_log;
  SlidingWindow sliding_window;
  FixedWindow fixed_window;
};

// Calls visit(member), where `member` points to the member of Parameters that `kind` names.
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
  }
  return visit(&Parameters::token_bucket);
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
  return a.kind == b.kind &&
         VisitMember(a.kind, [&](auto member) { return a.*member == b.*member; });
}

// The rate, whatever the algorithm.
inline const Rate& RateOf(const Parameters& parameters) {
  return VisitMember(parameters.kind,
                     [&](auto member) -> const Rate& { return (parameters.*member).rate; });
}

// Most permits that a bucket can hold: burst, or a window's permits.
inline uint64_t Capacity(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket ? parameters.token_bucket.burst
                                               : RateOf(parameters).permits;
}

// How long a log or window counts a permit, rounding aside: its period. 0: a token bucket.
inline int64_t WindowNs(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket ? 0 : RateOf(parameters).period_ns;
}

// Permits that a request may leave owed. 0: a log or window.
inline uint64_t Debt(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket ? parameters.token_bucket.debt : 0;
}

// The most permits that a bucket's numbers can hold as owed, beside its burst or its window's
// permits (MakeTokenBucket chooses the ticks by burst and debt).
inline uint64_t GreatestOwed(const Parameters& parameters) {
  if (parameters.kind != Kind::kTokenBucket)
    return MostCounted(Capacity(parameters), ~uint64_t{0}) - Capacity(parameters);
  const TokenBucket& bucket = parameters.token_bucket;
  return (kMaxBurstTicks - bucket.burst_ticks) / bucket.unit_ticks;
}

// Most permits that one request can ever be granted: burst + debt, or a window's permits.
inline uint64_t MaxGrant(const Parameters& parameters) {
  return Capacity(parameters) + Debt(parameters);
}

// "token_bucket".
inline std::string_view KindName(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_PARAMETERS_H_
