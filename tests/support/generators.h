// Random limits and histories for property tests (RapidCheck).
#ifndef SLUICE_TESTS_SUPPORT_GENERATORS_H_
#define SLUICE_TESTS_SUPPORT_GENERATORS_H_

#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sluice::test_support {

// From 1 to most, every order of magnitude alike. REQUIRES: most >= 1.
inline rc::Gen<uint64_t> Magnitude(uint64_t most) {
  return rc::gen::exec([most] {
    int bits = 0;
    while (bits < 63 && (most >> (bits + 1)) != 0) ++bits;
    const int chosen = *rc::gen::inRange(0, bits + 1);
    const uint64_t low = uint64_t{1} << chosen;
    const uint64_t high = std::min(most, low + (low - 1));
    return *rc::gen::inRange<uint64_t>(low, high + 1);
  });
}

struct RandomParameters {
  uint64_t permits = 1;
  int64_t period_ns = 1'000'000'000;
};

// Rates from 1/year to 1e9/s, periods from 1 ms to a year, the usual ones among them.
inline rc::Gen<RandomParameters> AnyParameters(uint64_t most_permits = ~uint64_t{0}) {
  constexpr int64_t kSecond = 1'000'000'000;
  constexpr int64_t kYear = 366 * 24 * 3600 * kSecond;
  return rc::gen::exec([most_permits] {
    int64_t period = *rc::gen::oneOf(
        rc::gen::elementOf(std::vector<int64_t>{
            kSecond, 1'000'000, 60 * kSecond, 24 * 3600 * kSecond, kYear, 250'000'000, 3'000'017}),
        rc::gen::map(Magnitude(kYear - 1'000'000),
                     [](uint64_t ns) { return static_cast<int64_t>(ns) + 999'999; }));
    const auto most = std::min<uint64_t>(most_permits, static_cast<uint64_t>(period));
    const uint64_t permits =
        *rc::gen::oneOf(Magnitude(most), rc::gen::just(most), rc::gen::just(uint64_t{1}),
                        rc::gen::just(std::min<uint64_t>(most, 10)));
    return RandomParameters{permits, period};
  });
}

// One request of a history, in terms that make sense for any limit.
struct Step {
  int64_t advance_ns = 0;  // negative: the clock steps back
  uint64_t permits = 1;
};

// Moves the clock by a step, and keeps it between boot and two years after it.
inline int64_t Advanced(int64_t now_ns, const Step& step) {
  return std::clamp<int64_t>(now_ns + step.advance_ns, 0, int64_t{1} << 56);
}

// Steps whose distances and permits are interesting for a limit of `parameters` that grants at most
// `most` at once.
inline rc::Gen<Step> AnyStep(RandomParameters random, uint64_t most) {
  return rc::gen::exec([random, most] {
    const int64_t period = random.period_ns;
    const auto unit = std::max<int64_t>(
        1, period / static_cast<int64_t>(std::min<uint64_t>(random.permits, 1ULL << 62)));
    Step step;
    switch (*rc::gen::inRange(0, 12)) {
      case 0:
      case 1:
      case 2:
        break;  // the clock stands still
      case 3:
        step.advance_ns = *rc::gen::inRange<int64_t>(0, 10);
        break;
      case 4:
      case 5:
        step.advance_ns = *rc::gen::inRange<int64_t>(unit - 1, unit + 2);
        break;
      case 6:
        step.advance_ns = *rc::gen::inRange<int64_t>(0, 5 * unit + 1);
        break;
      case 7:
      case 8:
        step.advance_ns = *rc::gen::inRange<int64_t>(0, period / 3 + 1);
        break;
      case 9:
        step.advance_ns = period + *rc::gen::inRange<int64_t>(-2, 3);
        break;
      case 10:
        step.advance_ns = *rc::gen::inRange<int64_t>(0, 3 * period + 1);
        break;
      case 11:
        step.advance_ns = -*rc::gen::inRange<int64_t>(0, period + 1);
        break;
    }
    step.permits = *rc::gen::weightedOneOf<uint64_t>(
        {{4, rc::gen::just(uint64_t{1})},
         {3, Magnitude(std::max<uint64_t>(1, most))},
         {2, rc::gen::inRange<uint64_t>(std::max<uint64_t>(1, most / 2),
                                        std::max<uint64_t>(1, most) + 1)},
         {1, rc::gen::inRange<uint64_t>(std::max<uint64_t>(1, most / 10),
                                        std::max<uint64_t>(1, most / 5) + 2)},
         {1, Magnitude((uint64_t{1} << 63) - 1)},
         {1, rc::gen::just((uint64_t{1} << 63) - 1)}});
    return step;
  });
}

inline rc::Gen<std::vector<Step>> AnySteps(RandomParameters random, uint64_t most, int length) {
  return rc::gen::container<std::vector<Step>>(static_cast<std::size_t>(length),
                                               AnyStep(random, most));
}

inline void showValue(const Step& step, std::ostream& os) {
  os << "{+" << step.advance_ns << "ns, " << step.permits << "}";
}
inline void showValue(const RandomParameters& random, std::ostream& os) {
  os << random.permits << "/" << random.period_ns << "ns";
}

}  // namespace sluice::test_support

#endif  // SLUICE_TESTS_SUPPORT_GENERATORS_H_
