#include "server/algorithm/make_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "common/bounds.h"
#include "tests/support/generators.h"
#include "tests/support/window_checker.h"

namespace sluice::algorithm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kYear = int64_t{365} * 24 * 3600 * kSecond;

std::string ErrorOf(const absl::StatusOr<Parameters>& made) {
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(made.status().message());
}

TEST(MakeParametersTest, RejectsRatesOutOfBounds) {
  EXPECT_THAT(ErrorOf(MakeTokenBucket({0, kSecond}, 1, 0)), StartsWith("rate 0/1s: "));
  EXPECT_THAT(ErrorOf(MakeSlidingLog({5, 999'999})), StartsWith("rate 5/999999ns: the period"));
  EXPECT_THAT(ErrorOf(MakeSlidingWindow({5, 2 * kYear}, 10)), HasSubstr("to 8784h"));
  EXPECT_THAT(ErrorOf(MakeFixedWindow({1'000'000'001, kSecond}, 0)),
              HasSubstr("at most 1000000000 permits a second"));
  EXPECT_THAT(ErrorOf(MakeSlidingLog({~uint64_t{0}, kYear})), StartsWith("rate 184467"));
  EXPECT_THAT(ErrorOf(MakeSlidingLog({1, -5})), StartsWith("rate 1/-5ns"));
}

TEST(MakeParametersTest, RejectsATokenBucketThatGrantsNothing) {
  EXPECT_THAT(ErrorOf(MakeTokenBucket({1, kSecond}, 0, 0)),
              ::testing::AllOf(StartsWith("burst 0: "), HasSubstr("debt: 1")));
  EXPECT_TRUE(MakeTokenBucket({1, kSecond}, 0, 1).ok());
}

TEST(MakeParametersTest, RejectsBurstAndDebtThatDoNotFitTheTicks) {
  EXPECT_THAT(ErrorOf(MakeTokenBucket({1, kYear}, 74, 0)),
              ::testing::AllOf(StartsWith("burst 74: "), HasSubstr("at most 73 permits")));
  EXPECT_TRUE(MakeTokenBucket({1, kYear}, 73, 0).ok());
  EXPECT_THAT(ErrorOf(MakeTokenBucket({1, kYear}, 10, 64)), StartsWith("debt 64: "));
  EXPECT_THAT(ErrorOf(MakeTokenBucket({1, kSecond}, uint64_t{1} << 63, 0)),
              StartsWith("burst 9223372036854775808: at most 9223372036854775807"));
  EXPECT_THAT(ErrorOf(MakeTokenBucket({1, kSecond}, 1, ~uint64_t{0})), StartsWith("debt 18446"));
  EXPECT_THAT(ErrorOf(MakeTokenBucket({1, kSecond}, common::bounds::kMaxPermits,
                                      common::bounds::kMaxPermits)),
              StartsWith("burst "));
}

TEST(MakeParametersTest, AcceptsOncePerYearWithBurst20) {
  const auto made = MakeTokenBucket({1, kYear}, 20, 0);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->token_bucket.shift, 0);  // exact as it is
}

// 99M/s needs the finest tick for 1 %, and then only so much burst fits.
TEST(MakeParametersTest, RejectsABurstThatWouldMakeAFastRateInexact) {
  EXPECT_THAT(ErrorOf(MakeTokenBucket({99'000'000, kSecond}, uint64_t{1} << 57, 0)),
              StartsWith("burst "));
}

TEST(MakeParametersTest, RejectsSubWindowsAndOffsetsOutOfBounds) {
  EXPECT_THAT(ErrorOf(MakeSlidingWindow({5, kSecond}, 0)), StartsWith("sub_windows 0: "));
  EXPECT_THAT(ErrorOf(MakeSlidingWindow({5, kSecond}, 101)), HasSubstr("from 1 to 100"));
  EXPECT_THAT(ErrorOf(MakeFixedWindow({5, kSecond}, 25 * 3600 * kSecond)),
              StartsWith("utc_offset 25h: "));
  EXPECT_TRUE(MakeFixedWindow({5, kSecond}, -24 * 3600 * kSecond).ok());
}

TEST(MakeParametersTest, ComparesOnlyTheParametersOfTheKind) {
  Parameters a = *MakeSlidingLog({5, kSecond});
  Parameters b = a;
  b.token_bucket.burst = 99;
  EXPECT_EQ(a, b);
  b.sliding_log.rate.permits = 6;
  EXPECT_FALSE(a == b);
  EXPECT_FALSE(a == *MakeFixedWindow({5, kSecond}, 0));
}

TEST(MakeParametersTest, MaxGrantIsTheMostOneRequestCanGet) {
  EXPECT_EQ(MaxGrant(*MakeTokenBucket({5, kSecond}, 7, 3)), 10u);
  EXPECT_EQ(Capacity(*MakeTokenBucket({5, kSecond}, 7, 3)), 7u);
  EXPECT_EQ(MaxGrant(*MakeSlidingWindow({5, kSecond}, 10)), 5u);
  EXPECT_EQ(Capacity(*MakeFixedWindow({6, kSecond}, 0)), 6u);
}

// The design's bounds on the sustained rate: never above; at most 1 % below up to 100M/s.
RC_GTEST_PROP(MakeParametersTest, TicksKeepTheRateWithinOnePercentAndNeverAbove, ()) {
  const test_support::RandomParameters random = *test_support::AnyParameters();
  const auto made = MakeTokenBucket({random.permits, random.period_ns}, 1, 0);
  RC_ASSERT(made.ok());
  const TokenBucket& bucket = made->token_bucket;
  // A period of permits costs at least a period of ticks.
  const auto period = static_cast<test_support::Wide>(random.period_ns) << bucket.shift;
  const auto cost = static_cast<test_support::Wide>(bucket.unit_ticks) * random.permits;
  RC_ASSERT(cost >= period);
  if (random.permits <= static_cast<uint64_t>(random.period_ns) / 10) {
    RC_ASSERT(period * 100 >= cost * 99);
  }
}

}  // namespace
}  // namespace sluice::algorithm
