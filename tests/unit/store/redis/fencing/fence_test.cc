#include "server/store/redis/fencing/fence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "server/algorithm/make_parameters.h"
#include "server/store/redis/fencing/known_fences.h"
#include "server/store/redis/wire/hash_slot.h"

namespace sluice::store::redis {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecondUs = 1'000'000;

ServerInfo ServerOf(const std::string& identity) {
  ServerInfo server;
  server.identity = identity;
  server.role = "master";
  server.max_lag_us = 10 * kSecondUs;
  return server;
}

ServerInfo WithReplica(ServerInfo server) {
  server.has_replicas = server.guarded = true;
  server.replicas = server.good_replicas = 1;
  return server;
}

Fence FenceOf(const std::string& identity, uint64_t number, const std::string& word) {
  Fence fence;
  fence.identity = identity;
  fence.number = number;
  fence.word = word;
  return fence;
}

TEST(FenceTest, IsParsedAsItWasWritten) {
  Fence fence = FenceOf("run.repl", 7, "word");
  fence.floor_us = 1'790'000'000'000'000;
  fence.lag_us = 10 * kSecondUs;
  fence.promised_us = 5;
  fence.durable = true;
  const auto read = Fence::Parse(fence.Text());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Text(), fence.Text());
  EXPECT_EQ(read->floor_us, fence.floor_us);
  EXPECT_TRUE(read->durable);
  Fence raised = fence;
  raised.raises = 3;
  raised.limits["api"] = {.floor_us = 7, .promised_us = 9, .lifted_us = 8};
  raised.limits["5"] = {.promised_us = 6};
  EXPECT_EQ(Fence::Parse(raised.Text())->limits, raised.limits);
  EXPECT_EQ(Fence::Parse(raised.Text())->Text(), raised.Text());
  for (const char* text : {"", "theirs", "a 1 w 2 3 4", "a 1 w -2 3 4 0", "a x w 2 3 4 0",
                           "a 1 w 2 3 4 0 x", "a 1 w 2 3 4 0 1 api 2 3"}) {
    EXPECT_FALSE(Fence::Parse(text).ok()) << text;
  }
}

TEST(FenceTest, StandsWhileTheServerIsTheSame) {
  const Fence fence = FenceOf("a", 3, "w");
  EXPECT_TRUE(NextFence(ServerOf("a"), fence, true, fence, {}, "x").adopt);
  // A node that starts, and one that others were faster than.
  EXPECT_TRUE(NextFence(ServerOf("a"), fence, true, std::nullopt, {}, "x").adopt);
  EXPECT_TRUE(NextFence(ServerOf("a"), fence, true, FenceOf("b", 2, "v"), {}, "x").adopt);
}

TEST(FenceTest, HasNoFloorAtTheFirstStart) {
  const FenceStep step = NextFence(ServerOf("a"), std::nullopt, true, std::nullopt, {}, "x");
  EXPECT_FALSE(step.adopt);
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_EQ(step.write.Text(), "a 1 x 0 0 0 0");
}

TEST(FenceTest, HasAFloorIfAFormerReplicaHasNoFence) {
  ServerInfo server = ServerOf("a");
  server.was_promoted = true;
  const FenceStep step = NextFence(server, std::nullopt, true, std::nullopt, {}, "x");
  EXPECT_EQ(step.floor_after_us, 10 * kSecondUs + kLagMarginUs);
}

TEST(FenceTest, IgnoresTheValueOfAMissingFence) {
  ServerInfo server = ServerOf("a");
  server.was_promoted = true;
  server.durable = true;
  server.max_lag_us = 0;
  // What an optional held is still in its memory when it was reset.
  std::optional<Fence> found = FenceOf("a", 3, "w");
  found->durable = true;
  ASSERT_TRUE(NextFence(server, found, true, std::nullopt, {}, "x").adopt);
  found.reset();
  const FenceStep step = NextFence(server, found, true, std::nullopt, {}, "x");
  EXPECT_FALSE(step.adopt);
  EXPECT_EQ(step.floor_after_us, 0);
  EXPECT_EQ(step.write.Text(), "a 1 x 0 0 0 1");
  EXPECT_STREQ(step.why, "data may be lost");
}

TEST(FenceTest, HasAFloorAfterTheLagAndPromisesOnAPromotedServer) {
  Fence old = FenceOf("a", 3, "w");
  old.lag_us = 20 * kSecondUs;
  old.promised_us = 60 * kSecondUs;
  old.floor_us = 5;
  for (const auto& known : {std::optional<Fence>(), std::optional<Fence>(old)}) {
    const FenceStep step = NextFence(WithReplica(ServerOf("b")), old, true, known, {}, "x");
    EXPECT_EQ(step.floor_after_us, 20 * kSecondUs + kLagMarginUs);
    // Its own lag from now on; and not before the last promise.
    EXPECT_EQ(step.write.Text(), "b 4 x 60000000 10000000 60000000 0");
  }
  // Sentinel may promote another, though this one has no replica yet.
  FencePolicy sentinel;
  sentinel.may_fail_over = true;
  EXPECT_EQ(NextFence(ServerOf("b"), FenceOf("a", 3, "w"), true, std::nullopt, sentinel, "x")
                .floor_after_us,
            10 * kSecondUs + kLagMarginUs);
}

TEST(FenceTest, IsReplacedAfterDemotionAndPromotion) {
  const Fence fence = FenceOf("run.first", 1, "w");
  EXPECT_TRUE(NextFence(ServerOf("run.second"), fence, true, fence, {}, "x").floor_after_us);
}

TEST(FenceTest, TreatsLoadedDataAsLost) {
  const Fence fence = FenceOf("a", 3, "w");
  for (const auto& known : {std::optional<Fence>(), std::optional<Fence>(fence)}) {
    const FenceStep step = NextFence(ServerOf("a"), fence, false, known, {}, "x");
    EXPECT_FALSE(step.adopt);
    EXPECT_TRUE(step.floor_after_us.has_value());
    EXPECT_EQ(step.write.number, 4u);
  }
}

TEST(FenceTest, TreatsAnOldPrimaryThatReturnsAsLoss) {
  // It was never demoted, so that its fence is its own; but there was a later one.
  const Fence old = FenceOf("a", 3, "w");
  const Fence later = FenceOf("b", 4, "v");
  const FenceStep step = NextFence(ServerOf("a"), old, true, later, {}, "x");
  EXPECT_TRUE(step.floor_after_us.has_value());
  EXPECT_EQ(step.write.number, 5u);
}

TEST(FenceTest, EmptiesBucketsAfterLossUnlessConfiguredOtherwise) {
  Fence known = FenceOf("a", 3, "w");
  known.promised_us = 7;
  // FLUSHALL: no other server grants, but promises hold.
  FenceStep step = NextFence(ServerOf("a"), std::nullopt, true, known, {}, "x");
  EXPECT_EQ(step.floor_after_us, kLagMarginUs);
  EXPECT_EQ(step.write.floor_us, 7);
  EXPECT_EQ(step.write.number, 4u);
  // Another node has started from scratch since.
  step = NextFence(ServerOf("a"), FenceOf("a", 1, "v"), true, known, {}, "x");
  EXPECT_EQ(step.write.floor_us, 7);
  // Restarted without its data.
  step = NextFence(ServerOf("b"), std::nullopt, true, known, {}, "x");
  EXPECT_EQ(step.write.floor_us, 7);
  // Nothing was promised.
  known.promised_us = 0;
  EXPECT_EQ(NextFence(ServerOf("b"), std::nullopt, true, known, {}, "x").floor_after_us, 0);
  FencePolicy full;
  full.after_loss = AfterLoss::kFull;
  EXPECT_FALSE(NextFence(ServerOf("b"), std::nullopt, true, known, full, "x").floor_after_us);
  // Not where another may still grant.
  known.lag_us = 1;
  EXPECT_TRUE(NextFence(ServerOf("b"), std::nullopt, true, known, full, "x").floor_after_us);
}

TEST(FenceTest, HasNoFloorAfterADurableServerRestarts) {
  ServerInfo server = ServerOf("b");
  server.durable = true;
  Fence before = FenceOf("a", 3, "w");
  before.floor_us = 9;
  EXPECT_TRUE(NextFence(server, before, true, before, {}, "x").floor_after_us);
  before.durable = true;
  const FenceStep step = NextFence(server, before, true, before, {}, "x");
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_EQ(step.write.floor_us, 9);
  // Of another's data it cannot know.
  EXPECT_TRUE(NextFence(WithReplica(server), before, true, before, {}, "x").floor_after_us);
  EXPECT_TRUE(NextFence(server, before, true, FenceOf("c", 8, "v"), {}, "x").floor_after_us);
  server.durable = false;
  EXPECT_TRUE(NextFence(server, before, true, before, {}, "x").floor_after_us);
}

// ---- ServerInfo ----

Reply ConfigOf(const std::vector<std::string>& words) {
  Reply reply;
  reply.type = Reply::Type::kArray;
  for (const std::string& word : words) {
    reply.elements.emplace_back();
    reply.elements.back().type = Reply::Type::kString;
    reply.elements.back().text = word;
  }
  return reply;
}

TEST(ServerInfoTest, ReadsInfoAndConfig) {
  const std::string info =
      "# Server\r\nrun_id:abc\r\n# Replication\r\nrole:master\r\nconnected_slaves:3\r\n"
      "min_slaves_good_slaves:3\r\n"
      "slave0:ip=127.0.0.1,port=1,state=online,offset=9,lag=1\r\n"
      "slave1:ip=127.0.0.1,port=2,state=online,offset=9,lag=3\r\n"
      "slave2:ip=127.0.0.1,port=3,state=wait_bgsave,offset=9,lag=0\r\n"
      "master_replid:def\r\nmaster_replid2:0000000000\r\n";
  ServerInfo facts = ServerInfo::From(info, nullptr, 10 * kSecondUs);
  EXPECT_EQ(facts.identity, "abc.def");
  EXPECT_TRUE(facts.has_replicas);
  EXPECT_TRUE(facts.guarded);
  EXPECT_EQ(facts.good_replicas, 2);
  EXPECT_EQ(facts.max_lag_us, 10 * kSecondUs);
  EXPECT_FALSE(facts.durable);
  EXPECT_FALSE(facts.was_promoted);
  EXPECT_TRUE(ServerInfo::From("master_replid2:00e0\r\n", nullptr, 0).was_promoted);
  const Reply config =
      ConfigOf({"min-replicas-max-lag", "2", "appendonly", "yes", "appendfsync", "always"});
  facts = ServerInfo::From(info, &config, 10 * kSecondUs);
  EXPECT_EQ(facts.max_lag_us, 2 * kSecondUs);
  EXPECT_EQ(facts.good_replicas, 1);
  EXPECT_TRUE(facts.durable);
}

TEST(ServerInfoTest, RequiresMinReplicasToWriteWithReplicas) {
  ServerInfo alone = ServerOf("a");
  EXPECT_TRUE(alone.Guarded(false).ok());
  EXPECT_EQ(alone.Guarded(true).code(), absl::StatusCode::kFailedPrecondition);
  ServerInfo server = WithReplica(alone);
  EXPECT_TRUE(server.Guarded(true).ok());
  server.good_replicas = 0;
  EXPECT_EQ(server.Guarded(true).code(), absl::StatusCode::kUnavailable);
  server.guarded = false;
  EXPECT_EQ(server.Guarded(false).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(server.Guarded(false).message()),
              HasSubstr("min-replicas-to-write to 1"));
}

TEST(FenceTest, RaisesTheFloorByPromisesThatItLacks) {
  Fence known = FenceOf("a", 3, "w");
  known.promised_us = 90 * kSecondUs;
  Fence found = FenceOf("b", 4, "v");
  found.floor_us = 50 * kSecondUs;
  const FenceStep step = NextFence(ServerOf("b"), found, true, known, {}, "x");
  EXPECT_FALSE(step.adopt);
  EXPECT_EQ(step.write.number, 5u);
  EXPECT_EQ(step.write.floor_us, 90 * kSecondUs);
  EXPECT_EQ(step.write.promised_us, 90 * kSecondUs);
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_TRUE(NextFence(ServerOf("b"), step.write, true, known, {}, "y").adopt);
  // Only moved, in a Cluster.
  Fence moved = MovedFence(known, "y").write;
  moved.promised_us = 0;
  EXPECT_TRUE(NextFence(ServerOf("a"), moved, true, known, {}, "x").adopt);
}

// ---- Promises of single limits ----

Fence Promising(Fence fence, const std::string& limit, int64_t until_us) {
  ++fence.raises;
  fence.limits[limit].promised_us = until_us;
  return fence;
}

int64_t FloorOf(const Fence& fence, const std::string& limit) {
  FencingToken token;
  token.floor_us = fence.floor_us;
  token.limits = std::make_shared<const LimitTable>(fence.limits);
  return token.FloorOf(limit);
}

TEST(FenceTest, ClosesOnlyLimitsThatWerePromisedFarAhead) {
  const Fence known = Promising(FenceOf("a", 3, "w"), "far", 90 * kSecondUs);
  for (const ServerInfo& server : {ServerOf("a"), ServerOf("b")}) {
    const FenceStep step = NextFence(server, std::nullopt, true, known, {}, "x");
    EXPECT_EQ(step.floor_after_us, kLagMarginUs);
    EXPECT_EQ(FloorOf(step.write, "far"), 90 * kSecondUs);
    EXPECT_EQ(FloorOf(step.write, "other"), 0);
    EXPECT_EQ(step.write.PromisedTo("far"), 0);
  }
}

TEST(FenceTest, FloorIsLaterByWhatForcedDebitsMayOwe) {
  Rule rule;
  rule.parameters = *algorithm::MakeTokenBucket({1, 1'000'000'000}, 10, 2);
  FencingToken token;
  EXPECT_EQ(token.FloorOf(rule), 0);
  token.floor_us = 100 * kSecondUs;
  EXPECT_EQ(token.FloorOf(rule), 100 * kSecondUs);
  rule.max_owed = 5;
  EXPECT_EQ(token.FloorOf(rule), 103 * kSecondUs + 1);
  // The bucket is full again at 115 s, so what is missing then was dropped too early.
  token.missing_floor_us = 112 * kSecondUs;
  EXPECT_EQ(token.FloorOf(rule), 115 * kSecondUs + 1);
  token.missing_floor_us = 200 * kSecondUs;
  EXPECT_EQ(token.FloorOf(rule), -(203 * kSecondUs + 1));
  rule.parameters = *algorithm::MakeSlidingLog({1, 1'000'000'000});
  EXPECT_EQ(token.FloorOf(rule), 200 * kSecondUs);
}

store::Rule SlotsOf(const std::string& limit, int64_t hold_for_us) {
  store::Rule rule;
  rule.limit_name = limit;
  rule.parameters = *algorithm::MakeConcurrency(3, hold_for_us * 1000);
  return rule;
}

// When slots of the rule are granted again.
int64_t OpensAt(const Fence& fence, const store::Rule& rule) {
  FencingToken token;
  token.floor_us = fence.floor_us;
  token.limits = std::make_shared<const LimitTable>(fence.limits);
  return token.FloorOf(rule) + rule.parameters.concurrency.hold_for_ns / 1000;
}

TEST(FenceTest, ClosesSlotsUntilHoldsOfALongerHoldForHaveEnded) {
  Fence known =
      Promising(FenceOf("a", 3, "w"), HoldsEntry("calls", 60 * kSecondUs), 150 * kSecondUs);
  known = Promising(known, HoldsEntry("calls", kSecondUs), 111 * kSecondUs);
  known = Promising(known, HoldsEntryOfAny(20 * kSecondUs), 118 * kSecondUs);
  Fence lost = NextFence(ServerOf("a"), std::nullopt, true, known, {}, "x").write;
  lost.floor_us = 100 * kSecondUs;
  EXPECT_EQ(OpensAt(lost, SlotsOf("calls", kSecondUs)), 150 * kSecondUs);
  // It is raised ahead of the holds, which began before the floor.
  EXPECT_EQ(OpensAt(lost, SlotsOf("calls", 60 * kSecondUs)), 160 * kSecondUs);
  lost.limits[HoldsEntry("calls", 60 * kSecondUs)].floor_us = 175 * kSecondUs;
  EXPECT_EQ(OpensAt(lost, SlotsOf("calls", kSecondUs)), 160 * kSecondUs);
  // Of any limit.
  EXPECT_EQ(OpensAt(lost, SlotsOf("others", kSecondUs)), 118 * kSecondUs);
  EXPECT_EQ(FloorOf(lost, "calls"), 100 * kSecondUs);
  lost.limits[HoldsEntry("calls", 60 * kSecondUs)].lifted_us = 175 * kSecondUs;
  EXPECT_EQ(OpensAt(lost, SlotsOf("calls", kSecondUs)), 118 * kSecondUs);
}

TEST(FenceTest, SlotWithoutAReadNoteHasTheLatestFloorsAndEndsOfHolds) {
  KnownFences known;
  EXPECT_EQ(*known.Latest(), SlotFloors());
  Fence fence = FenceOf("a", 3, "w");
  fence.floor_us = 100 * kSecondUs;
  fence.limits["rate"].floor_us = 120 * kSecondUs;
  fence.limits["lifted"] = {.floor_us = 900 * kSecondUs, .lifted_us = 900 * kSecondUs};
  fence.limits[HoldsEntry("calls", 60 * kSecondUs)].floor_us = 150 * kSecondUs;
  ASSERT_TRUE(known.Adopt("fence", fence));
  FencingToken token;
  token.slot = known.Latest();
  token.floor_us = token.slot->floor_us;
  EXPECT_EQ(token.FloorOf("other"), 120 * kSecondUs);
  // Until the hold that may have been there has ended.
  EXPECT_EQ(token.FloorOf(SlotsOf("calls", kSecondUs)), 149 * kSecondUs);
  EXPECT_EQ(token.FloorOf(SlotsOf("calls", 60 * kSecondUs)), 120 * kSecondUs);
}

TEST(FenceTest, KeepsPromisesOfLimitsIfNothingWasLost) {
  ServerInfo server = ServerOf("b");
  server.durable = true;
  Fence before = Promising(FenceOf("a", 3, "w"), "far", 90 * kSecondUs);
  before.durable = true;
  const FenceStep step = NextFence(server, before, true, before, {}, "x");
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_EQ(step.write.PromisedTo("far"), 90 * kSecondUs);
  EXPECT_EQ(FloorOf(step.write, "far"), 0);
  EXPECT_TRUE(NextFence(server, step.write, true, before, {}, "y").adopt);
  EXPECT_EQ(MovedFence(before, "x").write.PromisedTo("far"), 90 * kSecondUs);
}

TEST(FenceTest, ClosesLimitsByRaisesOfFoundAndKnownFence) {
  Fence found = Promising(FenceOf("a", 3, "w"), "one", 70 * kSecondUs);
  Fence known = Promising(found, "two", 90 * kSecondUs);
  known = Promising(known, "one", 80 * kSecondUs);
  found = Promising(found, "three", 60 * kSecondUs);
  const FenceStep step = NextFence(ServerOf("b"), found, true, known, {}, "x");
  EXPECT_EQ(FloorOf(step.write, "one"), 80 * kSecondUs);
  EXPECT_EQ(FloorOf(step.write, "two"), 90 * kSecondUs);
  EXPECT_EQ(FloorOf(step.write, "three"), 60 * kSecondUs);
}

TEST(FenceTest, ClosesLimitsThatTheWriterDidNotKnowOf) {
  const Fence known = Promising(FenceOf("a", 3, "w"), "far", 90 * kSecondUs);
  Fence found = Promising(FenceOf("b", 4, "v"), "far", 99 * kSecondUs);  // after the loss
  found.floor_us = 50 * kSecondUs;
  FenceStep step = NextFence(ServerOf("b"), found, true, known, {}, "x");
  EXPECT_FALSE(step.adopt);
  EXPECT_EQ(step.write.floor_us, 50 * kSecondUs);
  EXPECT_EQ(FloorOf(step.write, "far"), 90 * kSecondUs);
  EXPECT_EQ(step.write.PromisedTo("far"), 99 * kSecondUs);
  EXPECT_EQ(FloorOf(step.write, "other"), 50 * kSecondUs);
  EXPECT_TRUE(NextFence(ServerOf("b"), step.write, true, known, {}, "y").adopt);
  // Over when the floor of all limits is.
  found.floor_us = 90 * kSecondUs;
  EXPECT_TRUE(NextFence(ServerOf("b"), found, true, known, {}, "x").adopt);
}

TEST(FenceTest, TakesFloorsOfOtherServersUnlessTheyAreLifted) {
  Fence other = Promising(FenceOf("b", 3, "w"), "promised", 80 * kSecondUs);
  other.floor_us = 20 * kSecondUs;
  other.limits["closed"] = {.floor_us = 90 * kSecondUs, .promised_us = 95 * kSecondUs};
  other.limits["closed"].lifted_us = 10 * kSecondUs;
  other.limits["floor"].floor_us = 70 * kSecondUs;
  other.limits["lifted"] = {.floor_us = 60 * kSecondUs, .lifted_us = 60 * kSecondUs};
  other.limits[HoldsEntry("calls", 60 * kSecondUs)].floor_us = 75 * kSecondUs;
  Fence lost = FenceOf("a", 5, "v");
  lost.AddFloorsIfLost(other);
  EXPECT_EQ(lost.floor_us, 20 * kSecondUs);
  EXPECT_EQ(FloorOf(lost, "promised"), 80 * kSecondUs);
  EXPECT_EQ(FloorOf(lost, "closed"), 95 * kSecondUs);
  EXPECT_EQ(FloorOf(lost, "floor"), 70 * kSecondUs);
  EXPECT_EQ(FloorOf(lost, "lifted"), 20 * kSecondUs);
  EXPECT_EQ(OpensAt(lost, SlotsOf("calls", kSecondUs)), 75 * kSecondUs);
  // Promises of that server's data are its own.
  EXPECT_EQ(lost.PromisedTo("promised"), 0);
  EXPECT_EQ(lost.PromisedTo("closed"), 0);
}

TEST(FenceTest, LeavesALiftedLimitOpen) {
  const Fence known = Promising(FenceOf("a", 3, "w"), "far", 90 * kSecondUs);
  Fence found = FenceOf("b", 4, "v");
  found.floor_us = 50 * kSecondUs;
  found.limits["far"] = {.floor_us = 90 * kSecondUs, .lifted_us = 90 * kSecondUs};
  EXPECT_EQ(FloorOf(found, "far"), 50 * kSecondUs);
  EXPECT_TRUE(NextFence(ServerOf("b"), found, true, known, {}, "x").adopt);
  // A later promise than the operator knew of.
  const Fence more = Promising(FenceOf("a", 3, "w"), "far", 91 * kSecondUs);
  EXPECT_FALSE(NextFence(ServerOf("b"), found, true, more, {}, "x").adopt);
  // After the next loss it is open too, unless it was promised since.
  EXPECT_EQ(FloorOf(NextFence(ServerOf("b"), std::nullopt, true, found, {}, "x").write, "far"),
            50 * kSecondUs);
  const Fence again = Promising(found, "far", 95 * kSecondUs);
  EXPECT_EQ(FloorOf(NextFence(ServerOf("b"), std::nullopt, true, again, {}, "x").write, "far"),
            95 * kSecondUs);
}

TEST(FenceTest, SlotHasFloorsOfItsNote) {
  const SlotFloors floors = ParseSlotFloors("30 api 80 5 90");
  EXPECT_EQ(floors.floor_us, 30);
  EXPECT_EQ(floors.limits, (std::map<std::string, int64_t, std::less<>>{{"api", 80}, {"5", 90}}));
  EXPECT_EQ(ParseSlotFloors("30").floor_us, 30);
  for (const char* note : {"", "theirs", "30 api", "30 api x"}) {
    EXPECT_EQ(ParseSlotFloors(note).floor_us, 0) << note;
    EXPECT_TRUE(ParseSlotFloors(note).limits.empty()) << note;
  }
}

TEST(FenceTest, MovesToAnotherSlotWhenItsSlotMoves) {
  Fence fence = FenceOf("a", 3, "w");
  fence.floor_us = 17;
  fence.lag_us = 5;
  const FenceStep step = MovedFence(fence, "x");
  EXPECT_EQ(step.write.number, 4u);
  EXPECT_EQ(step.write.word, "x");
  EXPECT_EQ(step.write.floor_us, 17);
  EXPECT_EQ(step.write.lag_us, 5);
  EXPECT_FALSE(step.floor_after_us.has_value());
}

TEST(FenceTest, IsInTheSameSlotAsItsWord) {
  for (const uint16_t slot : {0, 5460, 16383}) {
    const std::string key = FenceKeyInSlot("team", slot);
    EXPECT_EQ(SlotOf(key), slot);
    EXPECT_EQ(SlotOf(WordKey(key, "w")), slot);
    EXPECT_EQ(SlotOf(FloorKey("team", slot)), slot);
  }
}

}  // namespace
}  // namespace sluice::store::redis
