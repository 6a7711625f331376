#include "server/store/redis/commands/optimistic_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/scripts/scripts.h"
#include "tests/unit/store/redis/command_scene.h"

namespace sluice::store::redis {
namespace {

using ::testing::ElementsAre;

// On one bucket. Decide takes one permit, or books one for a second later.
class RecordedOperation final : public BucketOperation {
 public:
  RecordedOperation(CommandContext& context, std::vector<Bucket> buckets,
                    std::vector<std::string>* events)
      : BucketOperation(context, std::move(buckets)), events_(*events) {}
  ~RecordedOperation() override { events_.emplace_back("ended"); }

  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override {
    *words = ScriptWords(Script::kQuery, token);
    return true;
  }
  Handled OnScriptReply(const Reply&, const FencingToken&) override {
    events_.emplace_back("script");
    return handled;
  }
  bool CallersWait() override { return callers_wait; }
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    events_.push_back(
        absl::StrCat("decided at ", now_ns, " with ", open[0].LevelAt(now_ns).remaining));
    if (books) {
      open[0].Book({now_ns + 1'000'000'000, 1, /*id=*/7, /*set=*/1}, now_ns);
    } else if (changes) {
      open[0].Take(1, now_ns, /*receipt_id=*/0, /*set=*/1);
    }
  }
  void OnDecided() override { events_.emplace_back("in force"); }
  void OnContended() override { events_.emplace_back("contended"); }
  void OnUnavailable(bool may_be_executed) override {
    events_.emplace_back(may_be_executed ? "unavailable, perhaps executed" : "unavailable");
  }
  void DecideHere() { command_.DecideHere(); }

  Handled handled = Handled::kDone;
  bool callers_wait = true;
  bool changes = true;
  bool books = false;

 private:
  std::vector<std::string>& events_;
};

class OptimisticCommandTest : public CommandScene {
 protected:
  // 2001-09-09, as the script reports it.
  static constexpr int64_t kNowUs = 1'000'000'000'000'000;

  RecordedOperation& Make() {
    operation_ = new RecordedOperation(*this, {bucket_}, &events);
    return *operation_;
  }
  void Begin() { BucketOperation::Start(std::unique_ptr<BucketOperation>(operation_)); }
  bool Ended() {
    return Until([&] { return !events.empty() && events.back() == "ended"; });
  }

  // What exchange.lua returns of one bucket.
  static std::string Read(const std::string& state, const std::string& receipts = "",
                          int64_t now_us = kNowUs) {
    return absl::StrCat("*5\r\n:", now_us, "\r\n:0\r\n$", state.size(), "\r\n", state, "\r\n$",
                        receipts.size(), "\r\n", receipts, "\r\n*0\r\n");
  }
  // Waits for one command, which is exchange.lua: "0" reads, "1" replaces.
  bool AskedToExchange(const std::string& replace) {
    if (!Asked(1)) return false;
    const ScriptedServer::Words& words = servers[0].asked[0];
    return words[1] == TextOf(Script::kExchange).sha && words.size() > 8 && words[8] == replace;
  }

  const std::shared_ptr<const Rule> rule_ =
      testing::MakeRule(1, algorithm::MakeTokenBucket({10, 1'000'000'000}, 10, 0).value());
  const Bucket bucket_ = BucketOf(*rule_, "k");
  RecordedOperation* operation_ = nullptr;
  std::vector<std::string> events;
};

TEST_F(OptimisticCommandTest, ScriptDecidesABucketWithoutBookings) {
  Make();
  Begin();
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(servers[0].asked[0][1], TextOf(Script::kQuery).sha);
  servers[0].Answer("*1\r\n:1\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre("script", "ended"));
}

TEST_F(OptimisticCommandTest, ReadsDecidesAndReplacesABucketThatTheScriptRefuses) {
  Make();
  Begin();
  ASSERT_TRUE(Asked(1));
  servers[0].Answer(":-2\r\n");
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read(""));
  ASSERT_TRUE(AskedToExchange("1"));
  EXPECT_EQ(servers[0].asked[0][9], "") << "the state as it was read";
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre(absl::StrCat("decided at ", kNowUs * 1000, " with 10"),
                                  "in force", "ended"));
}

TEST_F(OptimisticCommandTest, IsNotSentAgainWhenNoCallerWaits) {
  Make();
  Begin();
  ASSERT_TRUE(Asked(1));
  servers[0].Answer(":-1\r\n");
  ASSERT_TRUE(AskedToExchange("0"));
  operation_->callers_wait = false;
  servers[0].Answer("-FENCE replaced\r\n");
  ASSERT_TRUE(Ended());
}

TEST_F(OptimisticCommandTest, WritesNothingIfTheDecisionChangedNothing) {
  Make().changes = false;
  operation_->DecideHere();
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read(""));
  ASSERT_TRUE(Ended());
  EXPECT_TRUE(Asked(0));
  EXPECT_THAT(events, ElementsAre(::testing::_, "in force", "ended"));
}

TEST_F(OptimisticCommandTest, RefusedReplacementDecidesAgainByTheBucketOfTheRefusal) {
  Make().DecideHere();
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read(""));
  ASSERT_TRUE(AskedToExchange("1"));
  // Another node took three permits: the bucket is full again in 300 ms.
  const std::string theirs =
      absl::StrCat(bucket_.rule->encoded_parameters, " other.1 ", kNowUs + 300'000, " 0 0");
  servers[0].Answer(Read(theirs));
  ASSERT_TRUE(AskedToExchange("1"));
  EXPECT_EQ(servers[0].asked[0][9], theirs);
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre(absl::StrCat("decided at ", kNowUs * 1000, " with 10"),
                                  absl::StrCat("decided at ", kNowUs * 1000, " with 7"), "in force",
                                  "ended"));
  EXPECT_EQ(counters_.conflicts.value(), 1u);
}

TEST_F(OptimisticCommandTest, GivesUpWhenOthersChangeTheBucketEachTime) {
  Make().DecideHere();
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read(""));
  for (int conflicts = 0; conflicts < 128; ++conflicts) {
    ASSERT_TRUE(Until([&] {
      // It pauses after the first few.
      clock_.Advance(100'000);
      return servers[0].asked.size() == 1;
    })) << conflicts;
    // After a pause it reads first.
    if (servers[0].asked[0][8] == "0") {
      servers[0].Answer(Read(""));
      ASSERT_TRUE(Until([&] { return servers[0].asked.size() == 1; }));
    }
    ASSERT_TRUE(AskedToExchange("1")) << conflicts;
    servers[0].Answer(Read(""));
  }
  ASSERT_TRUE(Ended());
  EXPECT_EQ(events[events.size() - 2], "contended");
}

TEST_F(OptimisticCommandTest, DecisionByAnEarlierFloorIsNotWritten) {
  Make().DecideHere();
  course = [&](const Reply&) { return Course{Course::What::kSendAgain}; };
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read(""));
  ASSERT_TRUE(AskedToExchange("1"));
  token.word_key = "ns:identity:another";
  token.floor_us = kNowUs + 1'000'000;
  servers[0].Answer("-FENCE replaced\r\n");
  ASSERT_TRUE(AskedToExchange("0")) << "reads again instead of writing";
  operation_->callers_wait = false;
  operation_->changes = false;
  servers[0].Answer(Read(""));
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre(absl::StrCat("decided at ", kNowUs * 1000, " with 10"),
                                  absl::StrCat("decided at ", kNowUs * 1000, " with -10"),
                                  "in force", "ended"));
}

TEST_F(OptimisticCommandTest, BookingWaitsUntilItsGrantTimeMayBePromised) {
  Make().DecideHere();
  operation_->books = true;
  may_promise = false;
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  // Read again behind the raise; only then with a pause.
  for (int i = 0; i < 3; ++i) {
    servers[0].Answer(Read(""));
    ASSERT_TRUE(AskedToExchange("0"));
  }
  servers[0].Answer(Read(""));
  EXPECT_TRUE(Asked(0));
  may_promise = true;
  Pass(2 * kRetryNs);
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read(""));
  ASSERT_TRUE(AskedToExchange("1"));
  EXPECT_TRUE(IsBooked(servers[0].asked[0][12])) << "the state to be written";
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_TRUE(open_buckets_.Has(bucket_.keys[0]));
}

TEST_F(OptimisticCommandTest, BucketOfANewerRuleIsDecidedByThatRule) {
  Make().DecideHere();
  auto newer = std::make_shared<Rule>(*rule_);
  newer->parameters = algorithm::MakeTokenBucket({20, 1'000'000'000}, 20, 0).value();
  newer_rule = EntryOf(*newer);
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  const std::string state =
      absl::StrCat(newer_rule->encoded_parameters, " node.2 ", kNowUs + 100'000, " 0 0");
  servers[0].Answer(Read(state));
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read(state));
  ASSERT_TRUE(AskedToExchange("1"));
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre(absl::StrCat("decided at ", kNowUs * 1000, " with 18"),
                                  "in force", "ended"));
}

TEST_F(OptimisticCommandTest, MalformedReplyIsUnavailableAndLogged) {
  Make().handled = BucketOperation::Handled::kMalformed;
  Begin();
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("*0\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(logged, ElementsAre("redis_answer"));
  EXPECT_THAT(events, ElementsAre("script", "unavailable", "ended"));
}

TEST_F(OptimisticCommandTest, KeyOfAnotherProgramIsUnavailableAndLogged) {
  Make().DecideHere();
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read("theirs"));
  ASSERT_TRUE(Ended());
  EXPECT_THAT(logged, ElementsAre("redis_foreign_key"));
  EXPECT_THAT(events, ElementsAre("unavailable", "ended"));
}

TEST_F(OptimisticCommandTest, OnlyALostReadingProvesThatNothingWasExecuted) {
  Make().DecideHere();
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].asked.clear();
  servers[0].HangUp();
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre("unavailable", "ended"));
  Pass(2'000'000'000);
  events.clear();
  Make().DecideHere();
  Begin();
  ASSERT_TRUE(AskedToExchange("0"));
  servers[0].Answer(Read(""));
  ASSERT_TRUE(AskedToExchange("1"));
  servers[0].HangUp();
  ASSERT_TRUE(Ended());
  EXPECT_EQ(events[1], "unavailable, perhaps executed");
}

}  // namespace
}  // namespace sluice::store::redis
