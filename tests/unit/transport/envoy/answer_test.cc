#include "server/transport/envoy/answer.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::transport {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// A descriptor with a limit: 'o' over, 'u' under; in quota mode as a capital; 's' over in shadow
// mode; '-' without a limit.
std::vector<DescriptorStatus> Statuses(const std::string& descriptors) {
  std::vector<DescriptorStatus> statuses;
  for (const char c : descriptors) {
    DescriptorStatus& status = statuses.emplace_back();
    if (c == '-') continue;
    status.limit = DescriptorStatus::Limit::kCounted;
    status.over = c == 'o' || c == 'O' || c == 's';
    status.shadow_mode = c == 's';
    status.quota_mode = c == 'O' || c == 'U';
    status.remaining = status.over ? 0 : 5;
  }
  return statuses;
}

TEST(AnswerTest, OverallCodeIsOverIfADescriptorIsOverOrAllOfQuotaModeAre) {
  const struct {
    const char* descriptors;
    bool over;
  } kCases[] = {
      {"-", false}, {"u", false}, {"o", true},   {"uou", true}, {"s", false},  {"su", false},
      {"so", true}, {"O", true},  {"OU", false}, {"OO", true},  {"uO", true},  {"uOU", false},
      {"oU", true}, {"-O", true}, {"--", false}, {"sO", true},  {"sU", false},
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(OverallCode(Statuses(one.descriptors)), one.over ? Code::kOverLimit : Code::kOk)
        << one.descriptors;
  }
}

TEST(AnswerTest, HeadersAreOfTheLastOverLimitElseOfTheLeastRemaining) {
  const auto index = [](std::vector<DescriptorStatus> statuses) {
    const DescriptorStatus* const found = StatusOfHeaders(statuses);
    return found == nullptr ? -1 : static_cast<int>(found - statuses.data());
  };
  EXPECT_EQ(index(Statuses("--")), -1);
  EXPECT_EQ(index(Statuses("-uu")), 1);
  EXPECT_EQ(index(Statuses("ouou")), 2);
  EXPECT_EQ(index(Statuses("oO")), 0);
  EXPECT_EQ(index(Statuses("uO")), 1);
  EXPECT_EQ(index(Statuses("us")), 1);
  std::vector<DescriptorStatus> least = Statuses("uuu");
  least[1].remaining = least[2].remaining = 3;
  EXPECT_EQ(index(least), 1);
  // As envoyproxy/ratelimit: the greatest number is not the least.
  std::vector<DescriptorStatus> untouched = Statuses("u");
  untouched[0].remaining = UINT32_MAX;
  EXPECT_EQ(index(untouched), -1);
  std::vector<DescriptorStatus> unlimited = Statuses("-u");
  unlimited[0].limit = DescriptorStatus::Limit::kUnlimited;
  EXPECT_EQ(index(unlimited), 1);
}

TEST(AnswerTest, ResetIsInWholeSecondsAndNeverZero) {
  EXPECT_EQ(ResetSeconds(1, 0, 0), 1u);
  EXPECT_EQ(ResetSeconds(kSecond, 0, 0), 1u);
  EXPECT_EQ(ResetSeconds(kSecond + 1, 0, 0), 2u);
  EXPECT_EQ(ResetSeconds(0, 0, 0), 1u);
  EXPECT_EQ(ResetSeconds(INT64_MAX, 0, 0), UINT32_MAX);
}

TEST(AnswerTest, UnopenedWindowEndsByTheWallClock) {
  EXPECT_EQ(ResetSeconds(0, 60 * kSecond, 0), 60u);
  EXPECT_EQ(ResetSeconds(0, 60 * kSecond, 59 * kSecond), 1u);
  EXPECT_EQ(ResetSeconds(0, 60 * kSecond, 61 * kSecond - 1), 60u);
  EXPECT_EQ(ResetSeconds(0, kSecond, 7 * kSecond + 1), 1u);
  EXPECT_EQ(ResetSeconds(0, 60 * kSecond, -kSecond), 1u);
}

TEST(AnswerTest, CountedHitsIncludeWhatIsOwedAndForgiven) {
  const auto counted = [](int64_t remaining, uint64_t capacity, uint64_t forgiven) {
    store::BucketLevel level;
    level.remaining = remaining;
    level.capacity = capacity;
    return CountedHits(level, forgiven);
  };
  EXPECT_EQ(counted(10, 10, 0), 0u);
  EXPECT_EQ(counted(0, 10, 0), 10u);
  EXPECT_EQ(counted(-5, 10, 0), 15u);
  EXPECT_EQ(counted(-5, 10, 3), 18u);
  EXPECT_EQ(counted(INT64_MIN, 10, 0), (uint64_t{1} << 63) + 10);
  EXPECT_EQ(counted(INT64_MIN, 10, UINT64_MAX), UINT64_MAX);
}

TEST(AnswerTest, HitsAreSharedAmongTheCounters) {
  const struct {
    uint64_t hits, after;
    uint32_t limit;
    HitShares shares;
  } kCases[] = {
      // over, near, within
      {1, 1, 10, {0, 0, 1}},   {1, 8, 10, {0, 0, 1}},
      {1, 9, 10, {0, 1, 1}},   {1, 10, 10, {0, 1, 1}},
      {1, 11, 10, {1, 0, 0}},  {10, 10, 10, {0, 2, 10}},
      {15, 15, 10, {5, 2, 0}}, {5, 12, 10, {2, 2, 0}},
      {3, 12, 10, {2, 1, 0}},  {100, 200, 10, {100, 0, 0}},
      {1, 1, 0, {1, 0, 0}},    {0, 11, 10, {0, 0, 0}},
      {0, 10, 10, {0, 0, 0}},  {UINT64_MAX, UINT64_MAX, 10, {UINT64_MAX - 10, 2, 0}},
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(ShareHits(one.hits, one.after, one.limit, 0.8F), one.shares)
        << one.hits << " of " << one.after << " in " << one.limit;
  }
}

}  // namespace
}  // namespace sluice::transport
