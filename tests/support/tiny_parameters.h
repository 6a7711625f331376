// Limits so small that every moment can be tried: periods of a few nanoseconds.
#ifndef SLUICE_TESTS_SUPPORT_TINY_PARAMETERS_H_
#define SLUICE_TESTS_SUPPORT_TINY_PARAMETERS_H_

#include <rapidcheck.h>

#include <cstdint>

#include "server/algorithm/parameters.h"

namespace sluice::testing {

inline algorithm::Parameters TinyTokenBucket(uint64_t unit_ticks, uint64_t burst, uint64_t debt,
                                             uint8_t shift) {
  algorithm::Parameters parameters;
  parameters.kind = algorithm::Kind::kTokenBucket;
  parameters.token_bucket = {{1, static_cast<int64_t>(unit_ticks >> shift)},
                             burst,
                             debt,
                             unit_ticks,
                             burst * unit_ticks,
                             debt * unit_ticks,
                             shift};
  return parameters;
}

inline algorithm::Parameters TinyLog(uint64_t most, int64_t period_ns, int64_t quantum_ns) {
  algorithm::Parameters parameters;
  parameters.kind = algorithm::Kind::kSlidingLog;
  parameters.sliding_log = {{most, period_ns}, quantum_ns};
  return parameters;
}

inline algorithm::Parameters TinySlidingWindow(uint64_t most, int64_t period_ns, uint32_t k) {
  algorithm::Parameters parameters;
  parameters.kind = algorithm::Kind::kSlidingWindow;
  parameters.sliding_window = {{most, period_ns}, k};
  return parameters;
}

inline algorithm::Parameters TinyFixedWindow(uint64_t most, int64_t period_ns) {
  algorithm::Parameters parameters;
  parameters.kind = algorithm::Kind::kFixedWindow;
  parameters.fixed_window = {{most, period_ns}, 0};
  return parameters;
}

// Within a property of RapidCheck. REQUIRES: not kConcurrency.
inline algorithm::Parameters AnyTiny(algorithm::Kind kind) {
  using algorithm::Kind;
  switch (kind) {
    case Kind::kTokenBucket: {
      const auto shift = static_cast<uint8_t>(*rc::gen::inRange(0, 3));
      const uint64_t debt = *rc::gen::element<uint64_t>(0, 0, 1, 3);
      const uint64_t burst = *rc::gen::inRange<uint64_t>(debt > 0 ? 0 : 1, 5);
      return TinyTokenBucket(*rc::gen::inRange<uint64_t>(1, 20), burst, debt, shift);
    }
    case Kind::kSlidingLog:
      return TinyLog(*rc::gen::inRange<uint64_t>(1, 5), *rc::gen::inRange<int64_t>(3, 25),
                     *rc::gen::inRange<int64_t>(1, 4));
    case Kind::kSlidingWindow: {
      const auto k = *rc::gen::inRange<uint32_t>(1, 5);
      return TinySlidingWindow(*rc::gen::inRange<uint64_t>(1, 5), *rc::gen::inRange<int64_t>(5, 25),
                               k);
    }
    case Kind::kFixedWindow:
      return TinyFixedWindow(*rc::gen::inRange<uint64_t>(1, 5), *rc::gen::inRange<int64_t>(3, 25));
    case Kind::kConcurrency:
      break;
  }
  return {};
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_TINY_PARAMETERS_H_
