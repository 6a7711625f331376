#include "server/store/redis/wire/ticket_list.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/bounds.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'780'000'000 * kSecond;
constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

TEST(TicketListTest, CountsWhatEarlierCallersWaitFor) {
  TicketList list;
  EXPECT_FALSE(list.AnyAt(kNow));
  EXPECT_TRUE(list.Leave({30, 3, 4, kNow + kSecond}, kNow));
  EXPECT_TRUE(list.Leave({10, 1, 1, kNow + kSecond}, kNow));
  EXPECT_TRUE(list.Leave({20, 2, 2, kNow + kSecond}, kNow));
  EXPECT_TRUE(list.Leave({20, 1, 5, kNow + kSecond}, kNow)) << "in place of the earlier one";
  EXPECT_TRUE(list.AnyAt(kNow));
  EXPECT_EQ(list.tickets().size(), 3u);
  EXPECT_EQ(list.PermitsBefore(20, 1, kNow), 0u);
  EXPECT_EQ(list.PermitsBefore(20, 2, kNow), 5u) << "of two nodes with one number one is first";
  EXPECT_EQ(list.PermitsBefore(30, 3, kNow), 7u);
  EXPECT_EQ(list.PermitsBefore(31, 0, kNow), 11u);
  EXPECT_TRUE(list.Drop(20, 2));
  EXPECT_FALSE(list.Drop(20, 2));
  EXPECT_FALSE(list.Drop(30, 2)) << "it is of another node";
  EXPECT_EQ(list.PermitsBefore(30, 3, kNow), 5u);
}

TEST(TicketListTest, DoesNotOverflow) {
  TicketList list;
  list.Leave({1, 1, kMost, kNow + kSecond}, kNow);
  list.Leave({2, 2, kMost, kNow + kSecond}, kNow);
  EXPECT_EQ(list.PermitsBefore(3, 3, kNow), kMost);
}

TEST(TicketListTest, TicketEndsUnlessItIsRenewed) {
  TicketList list;
  list.Leave({1, 1, 1, kNow + kSecond}, kNow);
  list.Leave({2, 2, 1, kNow + kSecond}, kNow);
  const int64_t later = kNow + kSecond / 2;
  EXPECT_FALSE(list.Leave({1, 1, 1, later - 1 + kSecond}, later - 1)) << "half of its life is left";
  EXPECT_TRUE(list.Leave({1, 1, 1, later + kSecond}, later));
  EXPECT_EQ(list.PermitsBefore(3, 3, kNow + kSecond - 1), 2u);
  EXPECT_EQ(list.PermitsBefore(3, 3, kNow + kSecond), 1u);
  EXPECT_EQ(list.LastUntilNs(), later + kSecond);
  EXPECT_FALSE(list.AnyAt(later + kSecond));
  // Those that have ended are removed by the next one.
  EXPECT_TRUE(list.Leave({9, 9, 1, later + 2 * kSecond}, later + kSecond));
  EXPECT_EQ(list.tickets().size(), 1u);
}

TEST(TicketListTest, AsksForOtherPermitsAtOnce) {
  TicketList list;
  list.Leave({1, 1, 1, kNow + kSecond}, kNow);
  EXPECT_TRUE(list.Leave({1, 1, 3, kNow + kSecond}, kNow));
  EXPECT_EQ(list.PermitsBefore(2, 2, kNow), 3u);
}

TEST(TicketListTest, TicketFromBeforeTheClockWasSetBackIsDead) {
  TicketList list;
  list.Leave({1, 1, 1, kNow + kSecond}, kNow);
  EXPECT_FALSE(list.AnyAt(kNow - 3600 * kSecond));
  EXPECT_EQ(list.PermitsBefore(2, 2, kNow - 3600 * kSecond), 0u);
}

TEST(TicketListTest, KeepsTheFirstOnesIfThereAreTooMany) {
  constexpr uint64_t kRoom = common::bounds::kMaxTicketsPerBucketInRedis;
  TicketList list;
  for (uint64_t node = 1; node <= kRoom; ++node) {
    EXPECT_TRUE(list.Leave({static_cast<int64_t>(10 * node), node, 1, kNow + kSecond}, kNow));
  }
  EXPECT_FALSE(list.Leave({1'000'000, 1000, 1, kNow + kSecond}, kNow)) << "there is no room";
  EXPECT_EQ(list.PermitsBefore(1'000'000, 1000, kNow), kRoom) << "but it waits its turn";
  EXPECT_TRUE(list.Leave({15, 1001, 1, kNow + kSecond}, kNow)) << "it came before others";
  EXPECT_EQ(list.tickets().size(), kRoom);
  EXPECT_EQ(list.PermitsBefore(20, 2, kNow), 2u);
  EXPECT_EQ(list.tickets().back().node, kRoom - 1);
}

}  // namespace
}  // namespace sluice::store::redis
