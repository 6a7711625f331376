#include "server/store/redis/topology/slot_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sluice::store::redis {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const net::Address kA = net::Address::Parse("a:7000").value();
const net::Address kB = net::Address::Parse("b:7000").value();
const net::Address kC = net::Address::Parse("c:7000").value();

struct Range {
  int64_t first;
  int64_t last;
  net::Address primary;
  bool replicated = false;
};

Reply Integer(int64_t value) {
  Reply reply;
  reply.type = Reply::Type::kInteger;
  reply.integer = value;
  return reply;
}
Reply Array(std::vector<Reply> elements) {
  Reply reply;
  reply.type = Reply::Type::kArray;
  reply.elements = std::move(elements);
  return reply;
}
Reply Server(const net::Address& address) {
  Reply host;
  host.type = Reply::Type::kString;
  host.text = address.host;
  return Array({host, Integer(address.port)});
}

SlotMap MapOf(const std::vector<Range>& ranges) {
  std::vector<Reply> replies;
  for (const Range& range : ranges) {
    std::vector<Reply> reply = {Integer(range.first), Integer(range.last), Server(range.primary)};
    if (range.replicated) reply.push_back(Server(kC));
    replies.push_back(Array(std::move(reply)));
  }
  return SlotMap::FromReply(Array(std::move(replies)), kA).value();
}

std::vector<std::string> Grown(SlotTable& slots, const std::vector<Range>& ranges) {
  std::vector<std::string> hosts;
  for (const uint16_t place : slots.Adopt(MapOf(ranges))) {
    hosts.push_back(slots.map().primaries()[place].host);
  }
  return hosts;
}

void SetFloor(SlotTable* slots, uint16_t slot, int64_t floor_us) {
  slots->SetFloors(slot, std::make_shared<const SlotFloors>(SlotFloors{floor_us, {}}));
}

// 0: unread.
int64_t FloorUs(const SlotTable& slots, uint16_t slot) {
  return slots.FloorsOf(slot) == nullptr ? 0 : slots.FloorsOf(slot)->floor_us;
}

TEST(SlotTableTest, NamesEachPrimaryThatGainedSlotsOnce) {
  SlotTable slots;
  EXPECT_THAT(Grown(slots, {{0, 9, kA}, {20, 29, kB}, {30, 39, kA}}), ElementsAre("a", "b"));
  EXPECT_THAT(Grown(slots, {{20, 29, kB}, {0, 9, kA}, {30, 39, kA}}), IsEmpty());
  EXPECT_THAT(Grown(slots, {{0, 5, kA}, {6, 29, kB}, {30, 39, kA}}), ElementsAre("b"));
  EXPECT_THAT(Grown(slots, {{6, 29, kB}}), IsEmpty());
}

TEST(SlotTableTest, KeepsFloorsOfSlotsThatStay) {
  SlotTable slots;
  slots.Adopt(MapOf({{0, 9, kA}, {10, 19, kB}}));
  EXPECT_EQ(slots.FloorsOf(15), nullptr);
  SetFloor(&slots, 5, 50);
  SetFloor(&slots, 15, 150);
  // The map names the primaries in another order, and B has lost some slots.
  slots.Adopt(MapOf({{14, 19, kB}, {0, 13, kA}}));
  EXPECT_EQ(FloorUs(slots, 5), 50);
  EXPECT_EQ(FloorUs(slots, 15), 150);
}

TEST(SlotTableTest, ForgetsFloorsOfSlotsThatMove) {
  SlotTable slots;
  slots.Adopt(MapOf({{0, 9, kA}, {10, 19, kB}}));
  SetFloor(&slots, 5, 50);
  SetFloor(&slots, 15, 150);
  slots.Adopt(MapOf({{0, 4, kA}, {5, 19, kB}}));
  EXPECT_EQ(slots.FloorsOf(5), nullptr);
  slots.Move(15, kC);
  EXPECT_EQ(slots.FloorsOf(15), nullptr);
}

TEST(SlotTableTest, ForgetsFloorOfSlotThatLosesItsOwner) {
  SlotTable slots;
  slots.Adopt(MapOf({{0, 9, kA}, {10, 19, kB}}));
  SetFloor(&slots, 15, 150);
  slots.Adopt(MapOf({{0, 9, kA}}));
  EXPECT_EQ(slots.FloorsOf(15), nullptr);
}

TEST(SlotTableTest, ListsSlotsInAscendingOrder) {
  SlotTable slots;
  slots.Adopt(MapOf({{30, 31, kA}, {10, 12, kB}, {0, 1, kA}}));
  EXPECT_THAT(slots.SlotsOf(kA), ElementsAre(0, 1, 30, 31));
  EXPECT_THAT(slots.SlotsOf(kC), IsEmpty());
  slots.Move(11, kA);
  slots.Move(12, kC);
  EXPECT_THAT(slots.SlotsOf(kA), ElementsAre(0, 1, 11, 30, 31));
  EXPECT_THAT(slots.SlotsOf(kC), ElementsAre(12));
}

TEST(SlotTableTest, SlotWithoutOwnerBelongsToNoPrimary) {
  SlotTable slots;
  EXPECT_FALSE(slots.Has(kA, 5));
  slots.Adopt(MapOf({{0, 9, kA}}));
  EXPECT_TRUE(slots.Has(kA, 5));
  EXPECT_FALSE(slots.Has(kB, 5));
  EXPECT_FALSE(slots.Has(kA, 10));
}

TEST(SlotTableTest, KnowsWhichPrimariesHaveReplicas) {
  SlotTable slots;
  slots.Adopt(MapOf({{0, 9, kA, true}, {10, 19, kB}}));
  EXPECT_TRUE(slots.HasReplicas(kA));
  EXPECT_FALSE(slots.HasReplicas(kB));
  EXPECT_FALSE(slots.HasReplicas(kC));
}

}  // namespace
}  // namespace sluice::store::redis
