#include <gtest/gtest.h>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/sharing/local_buckets.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDay = 24 * 3600 * kSecond;

TEST(ShareTest, SharesTogetherAreAtMostTheWhole) {
  for (const uint64_t permits : {1, 2, 3, 7, 10, 100, 999, 1'000'003}) {
    for (const uint64_t burst : {1, 2, 5, 99, 100, 1'000'000}) {
      for (const uint64_t debt : {0, 1, 7}) {
        const auto whole = algorithm::MakeTokenBucket({permits, kSecond}, burst, debt).value();
        for (const uint32_t nodes : {1, 2, 3, 7, 50, 1000}) {
          const auto share = ShareOf(whole, nodes);
          if (!share.has_value()) {
            EXPECT_TRUE(burst < nodes && debt < nodes);
            continue;
          }
          const algorithm::TokenBucket& one = share->token_bucket;
          EXPECT_LE(one.burst * nodes, burst);
          EXPECT_LE(one.debt * nodes, debt);
          // A permit of a share takes at least so many times as long as one of the whole.
          EXPECT_GE(static_cast<unsigned __int128>(one.unit_ticks) * permits,
                    static_cast<unsigned __int128>(kSecond) * nodes << one.shift);
        }
      }
    }
  }
}

TEST(ShareTest, DividesThePermitsOfWindows) {
  const auto log = algorithm::MakeSlidingLog({10, kSecond}).value();
  EXPECT_EQ(ShareOf(log, 3)->sliding_log.rate, (algorithm::Rate{3, kSecond}));
  const auto window = algorithm::MakeSlidingWindow({10, kSecond}, 5).value();
  EXPECT_EQ(ShareOf(window, 4)->sliding_window.rate.permits, 2u);
  EXPECT_EQ(ShareOf(window, 4)->sliding_window.sub_windows, 5u);
  const auto fixed = algorithm::MakeFixedWindow({10, kSecond}, 3600 * kSecond).value();
  EXPECT_EQ(ShareOf(fixed, 10)->fixed_window.rate.permits, 1u);
  EXPECT_EQ(ShareOf(fixed, 10)->fixed_window.utc_offset_ns, 3600 * kSecond);
  EXPECT_FALSE(ShareOf(fixed, 11).has_value());
}

TEST(ShareTest, DividesThePermitsIfThePeriodCannotBeLonger) {
  const auto whole = algorithm::MakeTokenBucket({10, 300 * kDay}, 10, 0).value();
  const auto share = ShareOf(whole, 3);
  ASSERT_TRUE(share.has_value());
  EXPECT_EQ(share->token_bucket.rate, (algorithm::Rate{3, 300 * kDay}));
  EXPECT_FALSE(ShareOf(whole, 11).has_value());
}

}  // namespace
}  // namespace sluice::store::redis
