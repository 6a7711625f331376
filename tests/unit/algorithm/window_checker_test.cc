// The checkers of tests/support must themselves be able to fail.
#include "tests/support/window_checker.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "tests/support/generators.h"

namespace sluice::test_support {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(WindowCheckerTest, AcceptsGrantsExactlyAtTheRate) {
  EXPECT_EQ(CheckRateInEveryWindow({{0, 2}, {kSecond, 1}, {2 * kSecond, 1}}, 1, kSecond, 2), "");
}

TEST(WindowCheckerTest, DetectsAPermitOneNanosecondTooEarly) {
  EXPECT_NE(CheckRateInEveryWindow({{0, 2}, {kSecond - 1, 1}}, 1, kSecond, 2), "");
  EXPECT_NE(CheckRateInEveryWindow({{0, 3}}, 1, kSecond, 2), "");
}

TEST(WindowCheckerTest, DetectsAnOverfullWindowInTheMiddle) {
  EXPECT_NE(CheckRateInEveryWindow({{0, 1}, {9 * kSecond, 1}, {9 * kSecond, 2}, {30 * kSecond, 1}},
                                   1, kSecond, 2),
            "");
}

TEST(WindowCheckerTest, CountsHalfOpenWindows) {
  EXPECT_EQ(CheckCountInEveryWindow({{0, 3}, {kSecond, 3}}, kSecond, 3), "");
  EXPECT_NE(CheckCountInEveryWindow({{0, 3}, {kSecond - 1, 1}}, kSecond, 3), "");
}

// The timer that resets each second: 1000 at 0.75 s and 1000 at 1.25 s.
TEST(WindowCheckerTest, DetectsTheBurstAroundATimerReset) {
  EXPECT_NE(CheckCountInEveryWindow({{750'000'000, 1000}, {1'250'000'000, 1000}}, kSecond, 1000),
            "");
}

RC_GTEST_PROP(WindowCheckerTest, AgreesWithCheckingEveryPair, ()) {
  const RandomParameters random{*rc::gen::inRange<uint64_t>(1, 5), 10};
  const auto most = *rc::gen::inRange<uint64_t>(1, 12);
  std::vector<Grant> history;
  int64_t now = 0;
  const auto length = *rc::gen::inRange(0, 12);
  for (int i = 0; i < length; ++i) {
    now += *rc::gen::inRange(0, 9);
    history.push_back({now, *rc::gen::inRange<uint64_t>(1, 4)});
  }
  bool rate_holds = true;
  bool count_holds = true;
  for (size_t i = 0; i < history.size(); ++i) {
    Wide sum = 0;
    for (size_t j = i; j < history.size(); ++j) {
      sum += history[j].permits;
      const Wide elapsed = history[j].at_ns - history[i].at_ns;
      if (sum * random.period_ns > most * random.period_ns + random.permits * elapsed) {
        rate_holds = false;
      }
      if (elapsed < random.period_ns && sum > most) count_holds = false;
    }
  }
  RC_ASSERT(rate_holds ==
            CheckRateInEveryWindow(history, random.permits, random.period_ns, most).empty());
  RC_ASSERT(count_holds == CheckCountInEveryWindow(history, random.period_ns, most).empty());
}

}  // namespace
}  // namespace sluice::test_support
