#include "server/store/redis/connection/clock_lead.h"

#include <gtest/gtest.h>

namespace sluice::store::redis {
namespace {

constexpr int64_t kAhead = 1'000'000;  // Redis' clock

TEST(ClockLeadTest, IsAtMostTheFirstBound) {
  ClockLead lead;
  EXPECT_FALSE(lead.known());
  lead.OnAnswer(100, 140, kAhead + 120);
  EXPECT_TRUE(lead.known());
  EXPECT_EQ(lead.us(), kAhead + 20);
}

// The heartbeat waited in the socket of a stopped Redis, and was answered as too late.
TEST(ClockLeadTest, KeepsItsEstimateAfterASlowReply) {
  ClockLead lead;
  lead.OnAnswer(100, 140, kAhead + 120);
  lead.OnAnswer(1000, 5'000'000, kAhead + 4'999'990);
  EXPECT_EQ(lead.us(), kAhead + 20);
}

TEST(ClockLeadTest, CorrectsASlowFirstReplyByTheNext) {
  ClockLead lead;
  lead.OnAnswer(1000, 5'000'000, kAhead + 4'999'990);
  EXPECT_GT(lead.us(), kAhead + 4'000'000);
  lead.OnAnswer(6'000'000, 6'000'040, kAhead + 6'000'020);
  EXPECT_EQ(lead.us(), kAhead + 20);
}

TEST(ClockLeadTest, FollowsAClockThatIsSet) {
  ClockLead lead;
  lead.OnAnswer(100, 140, kAhead + 120);
  lead.OnAnswer(200, 240, 5 * kAhead + 220);
  EXPECT_EQ(lead.us(), 5 * kAhead - 20);
  lead.OnAnswer(300, 340, 320);
  EXPECT_EQ(lead.us(), 20);
}

}  // namespace
}  // namespace sluice::store::redis
