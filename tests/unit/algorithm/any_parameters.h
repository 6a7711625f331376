// Random parameters of any algorithm, for property tests.
#ifndef SLUICE_TESTS_UNIT_ALGORITHM_ANY_PARAMETERS_H_
#define SLUICE_TESTS_UNIT_ALGORITHM_ANY_PARAMETERS_H_

#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>

#include "server/algorithm/make_parameters.h"
#include "server/algorithm/parameters.h"
#include "tests/support/generators.h"

namespace sluice::algorithm {

struct AnyLimit {
  test_support::RandomParameters random;
  Parameters parameters;
};

// The parameters of a kind with given parameters. fixed_window: UTC. REQUIRES: not kConcurrency.
inline Parameters ParametersOf(Kind kind, test_support::RandomParameters random, uint64_t burst,
                               uint64_t debt, uint32_t sub_windows) {
  const Rate rate{random.permits, random.period_ns};
  switch (kind) {
    case Kind::kTokenBucket:
      return *MakeTokenBucket(rate, burst, debt);
    case Kind::kSlidingLog:
      return *MakeSlidingLog(rate);
    case Kind::kSlidingWindow:
      return *MakeSlidingWindow(rate, sub_windows);
    case Kind::kFixedWindow:
      return *MakeFixedWindow(rate, 0);
    case Kind::kConcurrency:
      break;
  }
  return {};
}

// One that has a rate.
inline Kind AnyKind() { return static_cast<Kind>(*rc::gen::inRange(0, 4)); }

// Burst and debt that fit at any tick; together at least 1.
struct BurstAndDebt {
  uint64_t burst = 1;
  uint64_t debt = 0;
};

inline BurstAndDebt AnyBurst(test_support::RandomParameters random) {
  const uint64_t unit_ns =
      (static_cast<uint64_t>(random.period_ns) + random.permits - 1) / random.permits;
  const uint64_t most = std::max<uint64_t>(1, ((uint64_t{1} << 57) / unit_ns) / 2);
  BurstAndDebt any;
  any.burst = *rc::gen::oneOf(test_support::Magnitude(most),
                              test_support::Magnitude(std::min<uint64_t>(most, 20)),
                              rc::gen::just(uint64_t{0}));
  any.debt = *rc::gen::oneOf(test_support::Magnitude(most), rc::gen::just(uint64_t{0}),
                             rc::gen::just(uint64_t{0}));
  if (any.burst + any.debt == 0) any.burst = 1;
  return any;
}

inline AnyLimit AnyParameters() {
  const test_support::RandomParameters random = *test_support::AnyParameters();
  const BurstAndDebt any = AnyBurst(random);
  return {random,
          ParametersOf(AnyKind(), random, any.burst, any.debt, *rc::gen::inRange<uint32_t>(1, 30))};
}

}  // namespace sluice::algorithm

#endif  // SLUICE_TESTS_UNIT_ALGORITHM_ANY_PARAMETERS_H_
