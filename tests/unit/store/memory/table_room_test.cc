#include "server/store/memory/table_room.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::store::memory {
namespace {

Rule RuleOf(uint32_t limit_id, std::optional<uint64_t> min_keys = {}) {
  Rule rule;
  rule.limit_id = limit_id;
  rule.min_keys = min_keys;
  return rule;
}

bool Takes(TableRoom& room, TableRoom::Part& part, size_t key_bytes,
           const BucketMaker& maker = {}) {
  return room.Take(part, key_bytes, maker) == TableRoom::Taken::kYes;
}

uint64_t TakeAll(TableRoom& room, TableRoom::Part& part, size_t key_bytes = 8) {
  uint64_t taken = 0;
  while (Takes(room, part, key_bytes)) ++taken;
  return taken;
}

TEST(TableRoomTest, OneLimitHasTheWholeTable) {
  for (const uint64_t buckets : {1, 2, 3, 100}) {
    TableRoom room(buckets, 0);
    EXPECT_EQ(TakeAll(room, *room.Join(RuleOf(1))), buckets);
  }
}

TEST(TableRoomTest, FollowsTheExampleInTheHeader) {
  TableRoom room(100, 0);
  const auto first = room.Join(RuleOf(1));
  const auto second = room.Join(RuleOf(2));
  EXPECT_EQ(TakeAll(room, *first), 75u);
  EXPECT_EQ(TakeAll(room, *second), 25u);
  for (int i = 0; i < 25; ++i) room.Give(*second, 8);
  const auto third = room.Join(RuleOf(3));
  room.Refresh();
  EXPECT_TRUE(room.Full(*first));
  EXPECT_EQ(TakeAll(room, *third), 16u);
  for (int i = 75; i > 68; --i) {
    EXPECT_FALSE(Takes(room, *first, 8));
    room.Give(*first, 8);
  }
  EXPECT_FALSE(Takes(room, *first, 8));
  room.Give(*first, 8);
  EXPECT_FALSE(room.Full(*first));
  EXPECT_TRUE(Takes(room, *first, 8));
}

TEST(TableRoomTest, PartOfALimitIsItsOwnWhateverElseIsRefused) {
  TableRoom room(100, 0);
  const auto part = room.Join(RuleOf(1));
  uint64_t taken = 0;
  while (room.Take(*part, 8, {}, /*beyond=*/false) == TableRoom::Taken::kYes) ++taken;
  EXPECT_EQ(taken, 50u);
  EXPECT_TRUE(Takes(room, *part, 8));
}

TEST(TableRoomTest, MakerGetsRoomBeyondReservedPartsWhileItsBucketsTakeLessThanItsShare) {
  TableRoom room(100, 0);
  const auto first = room.Join(RuleOf(1));
  const auto second = room.Join(RuleOf(2));
  const BucketMaker maker{.number = 7, .percent = 80};  // 40 of the 50 that are shared
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(Takes(room, *first, 8, maker)) << i;
  EXPECT_EQ(room.Take(*first, 8, maker), TableRoom::Taken::kShareUsedUp);
  EXPECT_TRUE(Takes(room, *second, 8, maker)) << "that part is reserved";
  room.Give(*second, 8, maker.number);
  // Another one's bucket does not count for it, and takes what is left.
  EXPECT_TRUE(Takes(room, *first, 8, {.number = 8, .percent = 10}));
  for (int i = 0; i < 34; ++i) ASSERT_TRUE(Takes(room, *first, 8)) << i;
  EXPECT_EQ(room.Take(*first, 8), TableRoom::Taken::kNoRoom);
  room.Give(*first, 8, maker.number);
  EXPECT_TRUE(Takes(room, *first, 8, maker));
}

TEST(TableRoomTest, MakerBeyondItsShareLetsNoBucketGrow) {
  TableRoom room(1000, 1'000'000);
  const auto part = room.Join(RuleOf(1));
  const BucketMaker maker{.number = 65535, .percent = 10};  // 50,000 bytes
  ASSERT_TRUE(Takes(room, *part, 8, maker));
  room.Grow(*part, 50'000, maker.number);
  EXPECT_FALSE(room.Full(*part, maker)) << "within the limit's part";
  room.Grow(*part, 460'000);
  EXPECT_TRUE(room.Full(*part, maker));
  EXPECT_FALSE(room.Full(*part)) << "others have room";
  room.Grow(*part, -10'000, maker.number);
  EXPECT_FALSE(room.Full(*part, maker));
}

TEST(TableRoomTest, AChangedShareCountsForBucketsThatGrow) {
  TableRoom room(1000, 1'000'000);
  const auto part = room.Join(RuleOf(1));
  BucketMaker maker{.number = 7, .percent = 100};
  ASSERT_TRUE(Takes(room, *part, 8, maker));
  room.Grow(*part, 600'000, maker.number);
  EXPECT_FALSE(room.Full(*part, maker));
  maker.percent = 10;
  EXPECT_TRUE(room.Full(*part, maker));
  EXPECT_FALSE(room.Full(*part, {.number = 8, .percent = 10}));
  maker.percent = 100;
  EXPECT_FALSE(room.Full(*part, maker));
}

TEST(TableRoomTest, MakerWithoutABoundLetsBucketsGrowUntilTheRestIsUsedUp) {
  TableRoom room(1000, 1'000'000);
  const auto part = room.Join(RuleOf(1));
  const BucketMaker maker{.number = 3, .percent = 100};
  ASSERT_TRUE(Takes(room, *part, 8, maker));
  room.Grow(*part, 700'000, maker.number);
  EXPECT_FALSE(room.Full(*part, maker));
  room.Grow(*part, 400'000, maker.number);
  EXPECT_TRUE(room.Full(*part, maker));
}

TEST(TableRoomTest, MinKeysComeBeforeEqualParts) {
  TableRoom room(1000, 0);
  const auto asks = room.Join(RuleOf(1, 300));
  const auto nothing = room.Join(RuleOf(2, 0));
  const auto equal = room.Join(RuleOf(3));
  EXPECT_EQ(TakeAll(room, *nothing), 500u);
  EXPECT_EQ(TakeAll(room, *asks), 300u);
  EXPECT_EQ(TakeAll(room, *equal), 200u);
}

TEST(TableRoomTest, ChangedMinKeysReplaceTheOldOnes) {
  TableRoom room(1000, 0);
  const auto lowered = room.Join(RuleOf(1, 400));
  EXPECT_EQ(room.Join(RuleOf(1, 100)), lowered);
  const auto equal = room.Join(RuleOf(2));
  EXPECT_EQ(TakeAll(room, *lowered), 600u);
  EXPECT_EQ(TakeAll(room, *equal), 400u);
}

TEST(TableRoomTest, RuleThatNoTableHoldsReservesNothing) {
  TableRoom room(1000, 1'000'000);
  Rule log = RuleOf(1, 9);
  log.parameters = algorithm::MakeSlidingLog({10'000, int64_t{86'400'000'000'000}}).value();
  const auto part = room.Join(log);
  Rule tokens = RuleOf(1, 9);
  room.Join(tokens);
  room.Refresh();
  const uint64_t of_log = part->reserved;
  EXPECT_GT(of_log, 9 * 20'000u);
  room.SetHeld(*part, log, false);
  room.Refresh();
  EXPECT_LT(part->reserved, of_log / 10);
  EXPECT_GE(part->reserved, 9 * 1000u);
  // It is held again.
  room.SetHeld(*part, log, true);
  room.Refresh();
  EXPECT_EQ(part->reserved, of_log);
  // A caller that waits may hold a rule of other min_keys for a day.
  room.Join(RuleOf(1, 100));
  room.Refresh();
  EXPECT_LT(part->reserved, 100 * 2000u);
}

TEST(TableRoomTest, PartOfALimitThatNoTableHoldsGoesToTheOthers) {
  TableRoom room(100, 0);
  const auto gone = room.Join(RuleOf(1));
  const auto stays = room.Join(RuleOf(2));
  EXPECT_EQ(TakeAll(room, *gone), 75u);
  room.SetHeld(*gone, RuleOf(1), false);
  // 50 are reserved for the other one, but the 75 leave 25 of all.
  EXPECT_EQ(TakeAll(room, *stays), 25u);
  for (int i = 0; i < 75; ++i) room.Give(*gone, 8);
  EXPECT_EQ(TakeAll(room, *stays), 75u);
  room.Leave(*gone);
  // Back again, with a new part.
  const auto again = room.Join(RuleOf(1));
  EXPECT_EQ(TakeAll(room, *again), 0u);
  for (int i = 0; i < 75; ++i) room.Give(*stays, 8);
  EXPECT_EQ(TakeAll(room, *again), 75u);
}

TEST(TableRoomTest, LongKeysAndStatesTakeMoreOfATableBoundedInBytes) {
  TableRoom room(1'000'000, 1 << 20);
  const auto part = room.Join(RuleOf(1));
  const uint64_t many = TakeAll(room, *part, 8);
  EXPECT_GT(many, (1u << 20) / 64);
  for (uint64_t i = 0; i < many; ++i) room.Give(*part, 8);
  EXPECT_LT(TakeAll(room, *part, 512), (1u << 20) / 512);
  EXPECT_FALSE(room.Full(*part));
  room.Grow(*part, 1000);
  EXPECT_TRUE(room.Full(*part));
  room.Grow(*part, -1000);
  EXPECT_FALSE(room.Full(*part));
}

TEST(TableRoomTest, StatesThatGrowLeaveNoRoomForNewBuckets) {
  TableRoom room(1'000'000, 1 << 20);
  const auto grown = room.Join(RuleOf(1));
  const auto other = room.Join(RuleOf(2));
  room.Refresh();
  room.Grow(*grown, 1 << 20);
  EXPECT_TRUE(room.Full(*grown));
  EXPECT_FALSE(room.Full(*other));
  EXPECT_FALSE(Takes(room, *other, 8));
}

TEST(TableRoomTest, NumberOfBucketsIsAnUpperBoundOfATableBoundedInBytes) {
  TableRoom room(1000, 1 << 30);
  const auto first = room.Join(RuleOf(1));
  const auto second = room.Join(RuleOf(2));
  EXPECT_LE(TakeAll(room, *first) + TakeAll(room, *second), 1000u);
}

TEST(TableRoomTest, MinKeysOfTheLongestKeysHaveRoom) {
  for (const auto& parameters : {algorithm::MakeTokenBucket({10, 1'000'000'000}, 10, 0),
                                 algorithm::MakeSlidingLog({50, 1'000'000'000}),
                                 algorithm::MakeSlidingWindow({50, 1'000'000'000}, 100)}) {
    TableRoom room(1'000'000, 8 << 20);
    Rule rule = RuleOf(1, 500);
    rule.parameters = *parameters;
    ASSERT_LE(500 * TableRoom::MaxBytesPerKey(rule.parameters), room.ReservableBytes());
    const auto asks = room.Join(rule);
    TakeAll(room, *room.Join(RuleOf(2)));
    for (int i = 0; i < 500; ++i) {
      ASSERT_TRUE(Takes(room, *asks, 512)) << i;
      room.Grow(*asks, static_cast<int64_t>(algorithm::BucketState::MaxBytes(rule.parameters)));
      ASSERT_FALSE(room.Full(*asks)) << i;
    }
  }
}

// The longest logs: a permit in each quantum, and few permits far apart.
TEST(TableRoomTest, MaxBytesBoundTheStatesOfLogs) {
  for (const uint64_t permits : {1, 50, 1000, 30'000, 65'537, 100'000, 40'000'000}) {
    const int64_t period_ns = int64_t{60} * 1'000'000'000;
    const algorithm::Parameters parameters =
        algorithm::MakeSlidingLog({permits, period_ns}).value();
    algorithm::BucketState state(parameters);
    const uint64_t runs = std::min<uint64_t>(permits, 65'536);
    size_t most = 0;
    for (uint64_t i = 0; i < 2 * runs; ++i) {
      const auto now_ns = static_cast<int64_t>(i * static_cast<uint64_t>(period_ns) / runs);
      state.TryTake(parameters, permits / runs, {now_ns, now_ns});
      most = std::max(most, state.MemoryBytes());
    }
    EXPECT_LE(most, algorithm::BucketState::MaxBytes(parameters)) << permits;
  }
}

// Limits that come, go, ask for room and give it back, against the definition.
RC_GTEST_PROP(TableRoomPropertyTest, PartsAreNeverLent, ()) {
  const auto size = *rc::gen::inRange<uint64_t>(1, 200);
  TableRoom room(size, 0);
  struct Limit {
    std::shared_ptr<TableRoom::Part> part;
    std::optional<uint64_t> min_keys;
    uint64_t used = 0;
    bool held = true;
  };
  std::map<uint32_t, Limit> limits;
  uint32_t last_id = 0;
  uint64_t used = 0;
  for (int step = 0; step < 200; ++step) {
    const int kind = *rc::gen::inRange(0, 12);
    if (kind == 0 || limits.empty()) {
      Limit limit;
      if (*rc::gen::arbitrary<bool>()) limit.min_keys = *rc::gen::inRange<uint64_t>(0, 50);
      limit.part = room.Join(RuleOf(++last_id, limit.min_keys));
      limits[last_id] = limit;
      continue;
    }
    auto at = limits.begin();
    std::advance(at, *rc::gen::inRange<size_t>(0, limits.size()));
    Limit& limit = at->second;
    if (kind == 1) {
      limit.held = !limit.held;
      room.SetHeld(*limit.part, RuleOf(at->first, limit.min_keys), limit.held);
      continue;
    }
    if (kind == 2 && !limit.held && limit.used == 0) {
      room.Leave(*limit.part);
      limits.erase(at);
      continue;
    }
    if (kind < 5) {
      if (limit.used == 0) continue;
      room.Give(*limit.part, 1);
      --limit.used;
      --used;
      continue;
    }
    room.Refresh();
    // By the definition.
    uint64_t left = size / 2;
    uint64_t equal = 0;
    std::map<uint32_t, uint64_t> reserved;
    for (const auto& [id, other] : limits) {
      if (other.held && !other.min_keys.has_value()) ++equal;
    }
    uint64_t asked = 0;
    for (const auto& [id, other] : limits) {
      if (other.held) asked += other.min_keys.value_or(0);
    }
    if (asked > left) continue;  // the configuration would have been refused
    left -= asked;
    uint64_t rest = size;
    uint64_t beyond = 0;
    uint64_t beyond_with_one_more = 0;
    for (const auto& [id, other] : limits) {
      const uint64_t part =
          !other.held ? 0 : other.min_keys.value_or(equal == 0 ? 0 : left / equal);
      rest -= part;
      beyond += other.used > part ? other.used - part : 0;
      const uint64_t more = other.used + (id == at->first ? 1 : 0);
      beyond_with_one_more += more > part ? more - part : 0;
    }
    const bool fits =
        used < size && (beyond_with_one_more == beyond || beyond_with_one_more <= rest);
    RC_ASSERT(Takes(room, *limit.part, 1) == fits);
    if (fits) {
      ++limit.used;
      ++used;
    }
  }
}

}  // namespace
}  // namespace sluice::store::memory
