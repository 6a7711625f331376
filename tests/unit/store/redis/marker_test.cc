#include "server/store/redis/marker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/store/redis/slots.h"

namespace sluice::store::redis {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecondUs = 1'000'000;

ServerFacts ServerOf(const std::string& identity) {
  ServerFacts server;
  server.identity = identity;
  server.role = "master";
  server.max_lag_us = 10 * kSecondUs;
  return server;
}

ServerFacts WithReplica(ServerFacts server) {
  server.has_replicas = server.guarded = true;
  server.replicas = server.good_replicas = 1;
  return server;
}

Marker MarkerOf(const std::string& identity, uint64_t number, const std::string& word) {
  Marker marker;
  marker.identity = identity;
  marker.number = number;
  marker.word = word;
  return marker;
}

TEST(MarkerTest, IsReadAsItWasWritten) {
  Marker marker = MarkerOf("run.repl", 7, "word");
  marker.floor_us = 1'790'000'000'000'000;
  marker.lag_us = 10 * kSecondUs;
  marker.promised_us = 5;
  marker.durable = true;
  const auto read = Marker::Parse(marker.Text());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Text(), marker.Text());
  EXPECT_EQ(read->floor_us, marker.floor_us);
  EXPECT_TRUE(read->durable);
  for (const char* text : {"", "theirs", "a 1 w 2 3 4", "a 1 w -2 3 4 0", "a x w 2 3 4 0"}) {
    EXPECT_FALSE(Marker::Parse(text).ok()) << text;
  }
}

TEST(MarkerTest, StandsWhileTheServerIsTheSame) {
  const Marker marker = MarkerOf("a", 3, "w");
  EXPECT_TRUE(NextMarker(ServerOf("a"), marker, true, marker, {}, "x").adopt);
  // A node that starts, and one that others were faster than.
  EXPECT_TRUE(NextMarker(ServerOf("a"), marker, true, std::nullopt, {}, "x").adopt);
  EXPECT_TRUE(NextMarker(ServerOf("a"), marker, true, MarkerOf("b", 2, "v"), {}, "x").adopt);
}

TEST(MarkerTest, AFirstStartHasNoFloor) {
  const MarkerStep step = NextMarker(ServerOf("a"), std::nullopt, true, std::nullopt, {}, "x");
  EXPECT_FALSE(step.adopt);
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_EQ(step.write.Text(), "a 1 x 0 0 0 0");
}

TEST(MarkerTest, WhatWasAReplicaMayHaveMissedTheFirstMarker) {
  ServerFacts server = ServerOf("a");
  server.was_promoted = true;
  const MarkerStep step = NextMarker(server, std::nullopt, true, std::nullopt, {}, "x");
  EXPECT_EQ(step.floor_after_us, 10 * kSecondUs + kLagMarginUs);
}

TEST(MarkerTest, WhereThereIsNoMarkerNothingIsReadOfIt) {
  ServerFacts server = ServerOf("a");
  server.was_promoted = true;
  server.durable = true;
  server.max_lag_us = 0;
  // What an optional held is still in its memory when it was reset.
  std::optional<Marker> found = MarkerOf("a", 3, "w");
  found->durable = true;
  ASSERT_TRUE(NextMarker(server, found, true, std::nullopt, {}, "x").adopt);
  found.reset();
  const MarkerStep step = NextMarker(server, found, true, std::nullopt, {}, "x");
  EXPECT_FALSE(step.adopt);
  EXPECT_EQ(step.floor_after_us, 0);
  EXPECT_EQ(step.write.Text(), "a 1 x 0 0 0 1");
  EXPECT_STREQ(step.why, "data may be lost");
}

TEST(MarkerTest, APromotedServerWaitsForTheOldOneAndForWhatWasPromised) {
  Marker old = MarkerOf("a", 3, "w");
  old.lag_us = 20 * kSecondUs;
  old.promised_us = 60 * kSecondUs;
  old.floor_us = 5;
  for (const auto& known : {std::optional<Marker>(), std::optional<Marker>(old)}) {
    const MarkerStep step = NextMarker(WithReplica(ServerOf("b")), old, true, known, {}, "x");
    EXPECT_EQ(step.floor_after_us, 20 * kSecondUs + kLagMarginUs);
    // Its own lag from now on; and not before the last promise.
    EXPECT_EQ(step.write.Text(), "b 4 x 60000000 10000000 60000000 0");
  }
  // Sentinel may promote another, though this one has no replica yet.
  MarkerPolicy sentinel;
  sentinel.may_fail_over = true;
  EXPECT_EQ(NextMarker(ServerOf("b"), MarkerOf("a", 3, "w"), true, std::nullopt, sentinel, "x")
                .floor_after_us,
            10 * kSecondUs + kLagMarginUs);
}

TEST(MarkerTest, AServerThatWasDemotedAndPromotedIsAnother) {
  const Marker marker = MarkerOf("run.first", 1, "w");
  EXPECT_TRUE(NextMarker(ServerOf("run.second"), marker, true, marker, {}, "x").floor_after_us);
}

TEST(MarkerTest, DataThatWasLoadedIsALossThoughItsMarkerStands) {
  const Marker marker = MarkerOf("a", 3, "w");
  for (const auto& known : {std::optional<Marker>(), std::optional<Marker>(marker)}) {
    const MarkerStep step = NextMarker(ServerOf("a"), marker, false, known, {}, "x");
    EXPECT_FALSE(step.adopt);
    EXPECT_TRUE(step.floor_after_us.has_value());
    EXPECT_EQ(step.write.number, 4u);
  }
}

TEST(MarkerTest, AnOldPrimaryThatIsMetAgainIsALoss) {
  // It was never demoted, so that its marker is its own; but there was a later one.
  const Marker old = MarkerOf("a", 3, "w");
  const Marker later = MarkerOf("b", 4, "v");
  const MarkerStep step = NextMarker(ServerOf("a"), old, true, later, {}, "x");
  EXPECT_TRUE(step.floor_after_us.has_value());
  EXPECT_EQ(step.write.number, 5u);
}

TEST(MarkerTest, WhatIsGoneStartsEmptyUnlessToldOtherwise) {
  Marker known = MarkerOf("a", 3, "w");
  known.promised_us = 7;
  // FLUSHALL: nobody else grants, but promises stand.
  MarkerStep step = NextMarker(ServerOf("a"), std::nullopt, true, known, {}, "x");
  EXPECT_EQ(step.floor_after_us, kLagMarginUs);
  EXPECT_EQ(step.write.floor_us, 7);
  EXPECT_EQ(step.write.number, 4u);
  // Somebody else has begun anew since.
  step = NextMarker(ServerOf("a"), MarkerOf("a", 1, "v"), true, known, {}, "x");
  EXPECT_EQ(step.write.floor_us, 7);
  // Restarted without its data.
  step = NextMarker(ServerOf("b"), std::nullopt, true, known, {}, "x");
  EXPECT_EQ(step.write.floor_us, 7);
  // Nothing was promised.
  known.promised_us = 0;
  EXPECT_EQ(NextMarker(ServerOf("b"), std::nullopt, true, known, {}, "x").floor_after_us, 0);
  MarkerPolicy full;
  full.after_loss = AfterLoss::kFull;
  EXPECT_FALSE(NextMarker(ServerOf("b"), std::nullopt, true, known, full, "x").floor_after_us);
  // Not where another may still grant.
  known.lag_us = 1;
  EXPECT_TRUE(NextMarker(ServerOf("b"), std::nullopt, true, known, full, "x").floor_after_us);
}

TEST(MarkerTest, ADurableServerThatRestartsAloneHasLostNothing) {
  ServerFacts server = ServerOf("b");
  server.durable = true;
  Marker before = MarkerOf("a", 3, "w");
  before.floor_us = 9;
  EXPECT_TRUE(NextMarker(server, before, true, before, {}, "x").floor_after_us);
  before.durable = true;
  const MarkerStep step = NextMarker(server, before, true, before, {}, "x");
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_EQ(step.write.floor_us, 9);
  // Of another's data it cannot know.
  EXPECT_TRUE(NextMarker(WithReplica(server), before, true, before, {}, "x").floor_after_us);
  EXPECT_TRUE(NextMarker(server, before, true, MarkerOf("c", 8, "v"), {}, "x").floor_after_us);
  server.durable = false;
  EXPECT_TRUE(NextMarker(server, before, true, before, {}, "x").floor_after_us);
}

// ---- ServerFacts ----

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

TEST(ServerFactsTest, ReadsInfoAndConfig) {
  const std::string info =
      "# Server\r\nrun_id:abc\r\n# Replication\r\nrole:master\r\nconnected_slaves:3\r\n"
      "min_slaves_good_slaves:3\r\n"
      "slave0:ip=127.0.0.1,port=1,state=online,offset=9,lag=1\r\n"
      "slave1:ip=127.0.0.1,port=2,state=online,offset=9,lag=3\r\n"
      "slave2:ip=127.0.0.1,port=3,state=wait_bgsave,offset=9,lag=0\r\n"
      "master_replid:def\r\nmaster_replid2:0000000000\r\n";
  ServerFacts facts = ServerFacts::From(info, nullptr, 10 * kSecondUs);
  EXPECT_EQ(facts.identity, "abc.def");
  EXPECT_TRUE(facts.has_replicas);
  EXPECT_TRUE(facts.guarded);
  EXPECT_EQ(facts.good_replicas, 2);
  EXPECT_EQ(facts.max_lag_us, 10 * kSecondUs);
  EXPECT_FALSE(facts.durable);
  EXPECT_FALSE(facts.was_promoted);
  EXPECT_TRUE(ServerFacts::From("master_replid2:00e0\r\n", nullptr, 0).was_promoted);
  const Reply config =
      ConfigOf({"min-replicas-max-lag", "2", "appendonly", "yes", "appendfsync", "always"});
  facts = ServerFacts::From(info, &config, 10 * kSecondUs);
  EXPECT_EQ(facts.max_lag_us, 2 * kSecondUs);
  EXPECT_EQ(facts.good_replicas, 1);
  EXPECT_TRUE(facts.durable);
}

TEST(ServerFactsTest, ARowOfReplicasMustBeAbleToStopThePrimary) {
  ServerFacts alone = ServerOf("a");
  EXPECT_TRUE(alone.Guarded(false).ok());
  EXPECT_EQ(alone.Guarded(true).code(), absl::StatusCode::kFailedPrecondition);
  ServerFacts server = WithReplica(alone);
  EXPECT_TRUE(server.Guarded(true).ok());
  server.good_replicas = 0;
  EXPECT_EQ(server.Guarded(true).code(), absl::StatusCode::kUnavailable);
  server.guarded = false;
  EXPECT_EQ(server.Guarded(false).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(server.Guarded(false).message()),
              HasSubstr("min-replicas-to-write to 1"));
}

TEST(MarkerTest, WhoKnowsOfMorePromisesRaisesTheFloor) {
  Marker known = MarkerOf("a", 3, "w");
  known.promised_us = 90 * kSecondUs;
  Marker found = MarkerOf("b", 4, "v");
  found.floor_us = 50 * kSecondUs;
  const MarkerStep step = NextMarker(ServerOf("b"), found, true, known, {}, "x");
  EXPECT_FALSE(step.adopt);
  EXPECT_EQ(step.write.number, 5u);
  EXPECT_EQ(step.write.floor_us, 90 * kSecondUs);
  EXPECT_EQ(step.write.promised_us, 90 * kSecondUs);
  EXPECT_FALSE(step.floor_after_us.has_value());
  EXPECT_TRUE(NextMarker(ServerOf("b"), step.write, true, known, {}, "y").adopt);
  // Only moved, in a Cluster.
  Marker moved = MovedMarker(known, "y").write;
  moved.promised_us = 0;
  EXPECT_TRUE(NextMarker(ServerOf("a"), moved, true, known, {}, "x").adopt);
}

TEST(MarkerTest, GoesOnElsewhereWhenItsSlotWasMovedAway) {
  Marker marker = MarkerOf("a", 3, "w");
  marker.floor_us = 17;
  marker.lag_us = 5;
  const MarkerStep step = MovedMarker(marker, "x");
  EXPECT_EQ(step.write.number, 4u);
  EXPECT_EQ(step.write.word, "x");
  EXPECT_EQ(step.write.floor_us, 17);
  EXPECT_EQ(step.write.lag_us, 5);
  EXPECT_FALSE(step.floor_after_us.has_value());
}

TEST(MarkerTest, AndItsWordAreInTheSlotThatIsMeant) {
  for (const uint16_t slot : {0, 5460, 16383}) {
    const std::string key = MarkerKeyInSlot("team", slot);
    EXPECT_EQ(SlotOf(key), slot);
    EXPECT_EQ(SlotOf(WordKey(key, "w")), slot);
    EXPECT_EQ(SlotOf(FloorKey("team", slot)), slot);
  }
}

}  // namespace
}  // namespace sluice::store::redis
