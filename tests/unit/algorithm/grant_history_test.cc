// The checker of the fault tests: a history that holds one permit too many must not pass.
#include "tests/support/grant_history.h"

#include <gtest/gtest.h>

#include "server/algorithm/make_parameters.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(GrantHistoryTest, DetectsOneExtraGrantOfATokenBucket) {
  GrantHistory history(algorithm::MakeTokenBucket({10, kSecond}, 5, 3).value());
  // In any order: nodes report when they are answered.
  history.Add(2 * kSecond, 1);
  history.Add(kSecond, 8);
  history.Add(2 * kSecond, 7);
  EXPECT_EQ(history.Check(), "");
  history.Add(2 * kSecond, 1);
  EXPECT_NE(history.Check(), "");
}

TEST(GrantHistoryTest, DetectsOneExtraGrantOfARollingWindow) {
  GrantHistory log(algorithm::MakeSlidingLog({5, kSecond}).value());
  GrantHistory window(algorithm::MakeSlidingWindow({5, kSecond}, 10).value());
  for (GrantHistory* history : {&log, &window}) {
    history->Add(kSecond / 2, 5);
    history->Add(3 * kSecond / 2, 5);
    EXPECT_EQ(history->Check(), "");
    history->Add(3 * kSecond / 2 - 1, 1);
    EXPECT_NE(history->Check(), "");
  }
}

TEST(GrantHistoryTest, DetectsOneExtraGrantOfAFixedWindow) {
  GrantHistory history(algorithm::MakeFixedWindow({5, kSecond}, kSecond / 4).value());
  history.Add(3 * kSecond / 4 - 1, 5);
  history.Add(3 * kSecond / 4, 5);
  EXPECT_EQ(history.Check(), "");
  history.Add(kSecond, 1);
  EXPECT_NE(history.Check(), "");
}

}  // namespace
}  // namespace sluice::testing
