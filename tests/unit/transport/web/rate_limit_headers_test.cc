// The quota that the headers state.
#include "server/transport/web/rate_limit_headers.h"

#include "gtest/gtest.h"

namespace sluice::web {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

void ExpectQuota(const algorithm::Rate& rate, uint64_t capacity, uint64_t permits,
                 uint64_t window_s) {
  const Quota quota = QuotaOf(rate, capacity);
  EXPECT_EQ(quota.permits, permits);
  EXPECT_EQ(quota.window_s, window_s);
}

TEST(QuotaTest, IsTheCapacityAndTheTimeToFillIt) {
  ExpectQuota({.permits = 100, .period_ns = kSecond}, 200, 200, 2);
  ExpectQuota({.permits = 10'000, .period_ns = 86'400 * kSecond}, 10'000, 10'000, 86'400);
}

TEST(QuotaTest, RoundsTheWindowUp) { ExpectQuota({.permits = 2, .period_ns = kSecond}, 3, 3, 2); }

TEST(QuotaTest, StatesTheRateOfASecondIfTheWindowIsShorter) {
  ExpectQuota({.permits = 10, .period_ns = kSecond}, 1, 10, 1);
  ExpectQuota({.permits = 500, .period_ns = kSecond / 4}, 500, 2000, 1);
}

TEST(QuotaTest, HasNoOverflow) {
  ExpectQuota({.permits = (uint64_t{1} << 63) - 1, .period_ns = 366 * 86'400 * kSecond},
              (uint64_t{1} << 63) - 1, (uint64_t{1} << 63) - 1, 366 * 86'400);
}

TEST(QuotaTest, StatesTheRateIfNothingCanBeStored) {
  ExpectQuota({.permits = 5, .period_ns = kSecond}, 0, 5, 1);
}

}  // namespace
}  // namespace sluice::web
