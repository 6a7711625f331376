// AlgorithmOf: what BucketState needs to know of each algorithm's state. Private to BucketState.
//
// The three algorithms that count permits (sliding_log, sliding_window, fixed_window) have states
// with the same functions, so BucketState treats them alike; only token_bucket is a case of its
// own. To add an algorithm that counts: write its state with the functions of SlidingWindowState,
// add it to BucketState::State, add its parameters and kind to parameters.h, and specialize
// AlgorithmOf. The compiler names whatever is missing.
#ifndef SLUICE_SERVER_ALGORITHM_ALGORITHM_OF_H_
#define SLUICE_SERVER_ALGORITHM_ALGORITHM_OF_H_

#include <cstdint>

#include "server/algorithm/moment.h"
#include "server/algorithm/parameters.h"

namespace sluice::algorithm {

// Of(parameters): the parameters that the state's functions take. Time(at): the moment, as they
// take it; only fixed_window follows the wall clock.
template <typename State>
struct AlgorithmOf;

template <>
struct AlgorithmOf<TokenBucketState> {
  static const TokenBucket& Of(const Parameters& parameters) { return parameters.token_bucket; }
  static int64_t Time(Moment at) { return at.now_ns; }
};

template <>
struct AlgorithmOf<SlidingLogState> {
  static const SlidingLog& Of(const Parameters& parameters) { return parameters.sliding_log; }
  static int64_t Time(Moment at) { return at.now_ns; }
};

template <>
struct AlgorithmOf<SlidingWindowState> {
  static const SlidingWindow& Of(const Parameters& parameters) { return parameters.sliding_window; }
  static int64_t Time(Moment at) { return at.now_ns; }
};

template <>
struct AlgorithmOf<FixedWindowState> {
  static const FixedWindow& Of(const Parameters& parameters) { return parameters.fixed_window; }
  static Moment Time(Moment at) { return at; }
};

// For std::visit: the parameters and the moment for the visited state.
template <typename State>
const auto& Of(const Parameters& parameters, const State&) {
  return AlgorithmOf<State>::Of(parameters);
}
template <typename State>
auto Time(Moment at, const State&) {
  return AlgorithmOf<State>::Time(at);
}

// For std::visit: one function object of several lambdas.
template <typename... Lambdas>
struct Overloaded : Lambdas... {
  using Lambdas::operator()...;
};
template <typename... Lambdas>
Overloaded(Lambdas...) -> Overloaded<Lambdas...>;

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_ALGORITHM_OF_H_
