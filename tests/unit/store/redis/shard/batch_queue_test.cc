#include "server/store/redis/shard/batch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/number_codec.h"
#include "tests/unit/store/redis/command_scene.h"

namespace sluice::store::redis {
namespace {

using ::testing::ElementsAre;

constexpr size_t kMaxGathered = 3;

class BatchQueuesTest : public CommandScene {
 protected:
  struct Call final : AcquireOperation {
    void Done() override { done = true; }
    Charge charge;
    ChargeResult result;
    Acquisition acquisition;
    bool done = false;
  };

  BatchQueuesTest() {
    on_unavailable = [this](Endpoint& endpoint) { queues_->OnUnavailable(endpoint); };
  }
  Call& Add(const std::string& key, int64_t deadline_ns = kNoDeadline) {
    Call& call = *calls_.emplace_back(MakeCall(key, deadline_ns));
    Enqueue(call);
    return call;
  }
  std::unique_ptr<Call> MakeCall(const std::string& key, int64_t deadline_ns) {
    auto made = std::make_unique<Call>();
    Call& call = *made;
    call.charge = {rule_.get(), *keys_.insert(keys_.end(), key), 1};
    call.acquisition.charges = absl::MakeConstSpan(&call.charge, 1);
    call.acquisition.results = &call.result;
    call.acquisitions = absl::MakeSpan(&call.acquisition, 1);
    call.deadline_ns = deadline_ns;
    return made;
  }
  PendingAcquire* Enqueue(Call& call) {
    PendingAcquire* const pending = acquires_.Begin(&call, /*receipt_id=*/0);
    queues_->Add(acquires_.Add(pending, call.acquisition));
    return pending;
  }
  // Takes the room at the server.
  void FillServer() {
    Add("in flight");
    ASSERT_TRUE(Asked(1));
  }
  // Lets time pass in steps that are shorter than the pauses between looks. All together less than
  // the budget.
  static constexpr int64_t kStepNs = 100'000;
  void Step() {
    clock_.Advance(kStepNs);
    loop_->RunOnce(0);
  }
  // The i-th caller has the key key_of(i). The deadlines of few of many pass, one in each step.
  void ExpectNoLookAtOthers(const std::function<std::string(size_t)>& key_of) {
    constexpr size_t kPatient = 20'000;
    constexpr size_t kLate = 150;
    FillServer();
    const int64_t start_ns = clock_.NowNs();
    const int64_t far_ns = start_ns + int64_t{3'600} * 1'000'000'000;
    std::vector<PendingAcquire*> patient;
    for (size_t i = 0; i < kPatient; ++i) {
      calls_.push_back(MakeCall(key_of(i), far_ns));
      patient.push_back(Enqueue(*calls_.back()));
    }
    std::vector<const Call*> late;
    for (size_t i = 0; i < kLate; ++i) {
      late.push_back(&Add(key_of(kPatient + i), start_ns + static_cast<int64_t>(i + 1) * kStepNs));
    }
    Settle();
    // A look at one of them would find that it is late.
    for (PendingAcquire* const pending : patient) pending->deadline_ns = 0;
    for (size_t i = 0; i < kLate + 2; ++i) {
      Step();
      if (i < 2) continue;
      ASSERT_TRUE(late[i - 2]->done) << i;
      EXPECT_EQ(late[i - 2]->acquisition.outcome, Outcome::kDeadlineExceeded);
    }
    EXPECT_EQ(acquires_.waiting(), kPatient + 1);
    for (PendingAcquire* const pending : patient) pending->deadline_ns = far_ns;
  }
  // How many callers the oldest command decides. REQUIRES: of one bucket.
  int64_t Callers() {
    constexpr size_t kHeader = 10;  // numbers before the runs (acquire_token_buckets.lua)
    return UnpackNumber(servers[0].asked[0][5], kHeader + 4).value_or(-1);
  }
  // The same of acquire.lua, with so many charges each.
  size_t CallersOfScriptForAll(size_t charges) {
    const ScriptedServer::Words& words = servers[0].asked[0];
    EXPECT_EQ(words[1], TextOf(Script::kAcquire).sha);
    const size_t before = 3 + std::stoul(words[2]) + 2 + 12 * charges;
    return (words.size() - before) / (2 + 5 * charges);
  }
  // The buckets of the oldest command.
  std::vector<std::string> KeysAsked() {
    const ScriptedServer::Words& words = servers[0].asked[0];
    const size_t count = std::stoul(words[2]) - 1;
    return {words.begin() + 3, words.begin() + 3 + static_cast<ptrdiff_t>(count)};
  }
  std::string StateKey(const std::string& key) { return BucketOf(*rule_, key).keys[0]; }
  // Answers the oldest command with these numbers after the time.
  void Reply(const std::vector<int64_t>& numbers) {
    std::string packed;
    PackNumbers({1'000'000'000'000'000, 0}, &packed);
    for (const int64_t number : numbers) PackNumbers({number}, &packed);
    servers[0].Answer(absl::StrCat("$", packed.size(), "\r\n", packed, "\r\n"));
  }
  // Waits for one command, which is exchange.lua: "0" reads, "1" replaces.
  bool AskedToExchange(const std::string& replace) {
    if (!Asked(1)) return false;
    const ScriptedServer::Words& words = servers[0].asked[0];
    return words[1] == TextOf(Script::kExchange).sha && words.size() > 8 && words[8] == replace;
  }
  // The bucket that is read does not exist.
  void AnswerEmpty() {
    servers[0].Answer("*5\r\n:1000000000000000\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n*0\r\n");
  }
  // Grants the first `granted` callers of the oldest command.
  void Grant(int64_t granted) { Reply({0, 0, granted}); }
  bool Done(const Call& call) {
    return Until([&] { return call.done; });
  }

  const std::shared_ptr<const Rule> rule_ =
      testing::MakeRule(1, algorithm::MakeTokenBucket({10, 1'000'000'000}, 10, 0).value());
  std::deque<std::string> keys_;
  std::deque<std::unique_ptr<Call>> calls_;
  std::unique_ptr<BatchQueues> queues_ = std::make_unique<BatchQueues>(*this, kMaxGathered);
};

TEST_F(BatchQueuesTest, CallersOfOneIterationGoAsOneCommandInTheirOrder) {
  const Call& first = Add("k");
  const Call& second = Add("k");
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(Callers(), 2);
  Grant(1);
  ASSERT_TRUE(Done(first) && Done(second));
  EXPECT_EQ(first.acquisition.outcome, Outcome::kGranted);
  EXPECT_EQ(second.acquisition.outcome, Outcome::kDenied);
}

TEST_F(BatchQueuesTest, GathersCallersWhileACommandIsInFlight) {
  Add("k");
  ASSERT_TRUE(Asked(1));
  Add("k");
  const Call& last = Add("k");
  EXPECT_TRUE(Asked(1)) << "one at a time";
  Grant(1);
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(Callers(), 2);
  Grant(2);
  ASSERT_TRUE(Done(last));
}

TEST_F(BatchQueuesTest, OneCommandHasABoundedNumberOfCallers) {
  for (size_t i = 0; i < kMaxGathered + 2; ++i) Add("k");
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(Callers(), static_cast<int64_t>(kMaxGathered));
  Grant(3);
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(Callers(), 2);
  Grant(2);
  ASSERT_TRUE(Done(*calls_.back()));
}

TEST_F(BatchQueuesTest, BucketsGoTogetherInTheOrderInWhichTheyWereAsked) {
  const Call& first = Add("a");
  const Call& second = Add("b");
  const Call& third = Add("a");
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey("a"), StateKey("b")));
  Reply({0, 0, 1, 0, 0, 1});
  ASSERT_TRUE(Done(first) && Done(second) && Done(third));
  EXPECT_EQ(first.acquisition.outcome, Outcome::kGranted);
  EXPECT_EQ(second.acquisition.outcome, Outcome::kGranted);
  EXPECT_EQ(third.acquisition.outcome, Outcome::kDenied);
}

// The second would be decided by what the script read before it wrote the first.
TEST_F(BatchQueuesTest, ScriptHasABucketOfTwoRulesOnce) {
  const std::shared_ptr<const Rule> reloaded = testing::MakeRule(1, rule_->parameters);
  const Call& before = Add("a");
  calls_.push_back(MakeCall("a", kNoDeadline));
  calls_.back()->charge.rule = reloaded.get();
  Enqueue(*calls_.back());
  const Call& after = *calls_.back();
  const Call& other = Add("b");
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey("a"), StateKey("b")));
  Reply({0, 0, 1, 0, 0, 1});
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey("a")));
  Grant(0);
  ASSERT_TRUE(Done(before) && Done(after) && Done(other));
  EXPECT_EQ(before.acquisition.outcome, Outcome::kGranted);
  EXPECT_EQ(after.acquisition.outcome, Outcome::kDenied);
  EXPECT_EQ(other.acquisition.outcome, Outcome::kGranted);
}

TEST_F(BatchQueuesTest, ScriptHasABoundedNumberOfBuckets) {
  const size_t most = endpoints[0]->script_units();
  ASSERT_GT(most, 1u);
  for (size_t i = 0; i <= most; ++i) Add(absl::StrCat("key", i));
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(KeysAsked().size(), most);
  std::vector<int64_t> granted;
  for (size_t i = 0; i < most; ++i) granted.insert(granted.end(), {0, 0, 1});
  Reply(granted);
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey(absl::StrCat("key", most))));
}

// So that Redis, which decides all that it reads at once, reads few of them.
TEST_F(BatchQueuesTest, ScriptHasBytesInProportionToItsBuckets) {
  for (const size_t count : {size_t{4}, endpoints[0]->script_units()}) {
    for (size_t i = 0; i < count; ++i) Add(absl::StrCat("key", i));
    ASSERT_TRUE(Asked(1));
    size_t bytes = 0;
    for (const std::string& word : servers[0].asked[0]) bytes += word.size() + 8;
    EXPECT_EQ(bytes, count * ScriptSize::kLeastBytes);
    std::vector<int64_t> granted;
    for (size_t i = 0; i < count; ++i) granted.insert(granted.end(), {0, 0, 1});
    Reply(granted);
    ASSERT_TRUE(Done(*calls_.back()));
  }
}

// Each run of callers that want the same is work of its own.
TEST_F(BatchQueuesTest, ScriptHasABoundedNumberOfRuns) {
  queues_ = std::make_unique<BatchQueues>(*this, /*max_gathered=*/1000);
  const size_t most = endpoints[0]->script_units();
  for (size_t i = 0; i < 2 * most; ++i) {
    calls_.push_back(MakeCall("k", kNoDeadline));
    calls_.back()->charge.permits = 1 + i % 2;
    Enqueue(*calls_.back());
  }
  const Call& other = Add("other");
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey("k")));
  std::vector<int64_t> granted = {0, 0};
  granted.insert(granted.end(), most, 1);
  Reply(granted);
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey("other"), StateKey("k")))
      << "other was first to wait";
  EXPECT_FALSE(other.done);
}

TEST_F(BatchQueuesTest, RefusedBucketIsDecidedAloneAndOthersAreAnswered) {
  const Call& first = Add("a");
  const Call& refused = Add("b");
  const Call& last = Add("c");
  ASSERT_TRUE(Asked(1));
  Reply({0, 0, 1, -1, 0, 0, 1});
  ASSERT_TRUE(Done(first) && Done(last));
  EXPECT_FALSE(refused.done);
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(servers[0].asked[0][1], TextOf(Script::kAcquire).sha);
  EXPECT_EQ(servers[0].asked[0][3], StateKey("b"));
  const Call& later = Add("b");
  EXPECT_TRUE(Asked(1)) << "one at a time";
  // The time; granted; fits, the bucket's numbers.
  std::string reply = "*11\r\n:1000000000\r\n:0\r\n:1\r\n:1\r\n";
  for (int i = 0; i < 7; ++i) reply += ":0\r\n";
  servers[0].Answer(reply);
  ASSERT_TRUE(Done(refused));
  EXPECT_EQ(refused.acquisition.outcome, Outcome::kGranted);
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(servers[0].asked[0][1], TextOf(Script::kAcquireTokenBuckets).sha);
  EXPECT_FALSE(later.done);
}

// The script for all algorithms works for each charge of each caller.
TEST_F(BatchQueuesTest, ScriptForAllAlgorithmsHasABoundedNumberOfCharges) {
  constexpr size_t kCharges = 4;
  struct Several final : AcquireOperation {
    void Done() override {}
    std::vector<Charge> charges;
    std::vector<ChargeResult> results{kCharges};
    Acquisition acquisition;
  };
  queues_ = std::make_unique<BatchQueues>(*this, /*max_gathered=*/1000);
  std::deque<Several> callers(40);
  for (Several& caller : callers) {
    for (const char* const key : {"a", "b", "c", "d"})
      caller.charges.push_back({rule_.get(), key, 1});
    caller.acquisition.charges = caller.charges;
    caller.acquisition.results = caller.results.data();
    caller.acquisitions = absl::MakeSpan(&caller.acquisition, 1);
    caller.deadline_ns = kNoDeadline;
    queues_->Add(acquires_.Add(acquires_.Begin(&caller, /*receipt_id=*/0), caller.acquisition));
  }
  for (const size_t together : {16, 16, 8}) {
    ASSERT_TRUE(Asked(1));
    EXPECT_EQ(CallersOfScriptForAll(kCharges), together);
    servers[0].Answer("-ERR\r\n");
  }
  EXPECT_TRUE(Asked(0));
}

TEST_F(BatchQueuesTest, FewOfManyCallersOfARefusedBucketGoToTheScriptForAllAlgorithms) {
  queues_ = std::make_unique<BatchQueues>(*this, /*max_gathered=*/1000);
  for (int i = 0; i < 100; ++i) Add("k");
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(Callers(), 100);
  Reply({-1});
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(CallersOfScriptForAll(1), 64u);
  std::vector<int64_t> numbers = {1'000'000'000, 0};
  for (int i = 0; i < 64; ++i) {
    numbers.insert(numbers.end(), {1, 1});
    numbers.insert(numbers.end(), std::tuple_size_v<BucketNumbers>, 0);
  }
  std::string reply = absl::StrCat("*", numbers.size(), "\r\n");
  for (const int64_t number : numbers) absl::StrAppend(&reply, ":", number, "\r\n");
  servers[0].Answer(reply);
  ASSERT_TRUE(Done(*calls_[63]));
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(Callers(), 36);
  EXPECT_FALSE(calls_[64]->done);
}

TEST_F(BatchQueuesTest, BookedBucketIsReadByThisNodeAlone) {
  const Call& booked = Add("a");
  const Call& other = Add("b");
  ASSERT_TRUE(Asked(1));
  Reply({-2, 0, 0, 1});
  ASSERT_TRUE(Done(other));
  EXPECT_FALSE(booked.done);
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(servers[0].asked[0][1], TextOf(Script::kExchange).sha);
}

TEST_F(BatchQueuesTest, BucketOfASlotThatHasLeftIsSentAgainAlone) {
  splits = true;
  token.as_argument = true;
  const Call& moved = Add("a");
  const Call& other = Add("b");
  ASSERT_TRUE(Asked(1));
  const ScriptedServer::Words words = servers[0].asked[0];
  EXPECT_EQ(words[2], "0") << "in different slots";
  EXPECT_EQ(words[4], StateKey("a"));
  EXPECT_EQ(words[5], StateKey("b"));
  EXPECT_EQ(words.back(), token.word_key);
  Reply({-3, 0, 0, 1});
  ASSERT_TRUE(Done(other));
  EXPECT_FALSE(moved.done);
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey("a"))) << "declared, so that Redis redirects it";
  const Call& later = Add("a");
  EXPECT_TRUE(Asked(1)) << "one at a time";
  Grant(1);
  ASSERT_TRUE(Done(moved));
  EXPECT_EQ(moved.acquisition.outcome, Outcome::kGranted);
  ASSERT_TRUE(Asked(1));
  Grant(1);
  ASSERT_TRUE(Done(later));
}

TEST_F(BatchQueuesTest, CommandsOfTheirOwnKeepTheirPlaceBetweenScripts) {
  Add("in flight");
  ASSERT_TRUE(Asked(1));
  for (const char* const key : {"receipt 1", "receipt 2"}) {
    calls_.push_back(MakeCall(key, kNoDeadline));
    calls_.back()->acquisition.want_receipt = true;
    Enqueue(*calls_.back());
  }
  Add("a");
  Settle();
  Grant(1);
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(KeysAsked()[0], StateKey("receipt 1"));
  Add("b");
  Settle();
  servers[0].Answer("-ERR\r\n");
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(servers[0].asked[0][3], StateKey("receipt 2"));
  servers[0].Answer("-ERR\r\n");
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey("a"), StateKey("b")));
}

TEST_F(BatchQueuesTest, MalformedReplyAnswersAllBuckets) {
  const Call& first = Add("a");
  const Call& second = Add("b");
  ASSERT_TRUE(Asked(1));
  Grant(1);
  ASSERT_TRUE(Done(first) && Done(second));
  EXPECT_EQ(first.acquisition.outcome, Outcome::kUnavailable);
  EXPECT_EQ(second.acquisition.outcome, Outcome::kUnavailable);
  EXPECT_TRUE(second.acquisition.may_be_debited);
  EXPECT_THAT(logged, ElementsAre("redis_answer"));
}

// Its callers are sent again without those that were answered meanwhile.
TEST_F(BatchQueuesTest, CommandThatWasNotExecutedIsSentAgainForThoseThatStillWait) {
  const Call& late = Add("a", clock_.NowNs() + 2'000'000);
  const Call& patient = Add("b");
  ASSERT_TRUE(Asked(1));
  Pass(4'000'000);
  ASSERT_TRUE(late.done);
  servers[0].Answer("-NOSCRIPT flushed\r\n");
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(KeysAsked(), ElementsAre(StateKey("b")));
  Grant(1);
  ASSERT_TRUE(Done(patient));
  EXPECT_EQ(patient.acquisition.outcome, Outcome::kGranted);
}

TEST_F(BatchQueuesTest, PassedDeadlineIsAnsweredAtOnce) {
  const int64_t deadline_ns = clock_.NowNs() + 2'000'000;
  const Call& sent = Add("k", deadline_ns);
  ASSERT_TRUE(Asked(1));
  const Call& gathered = Add("k", deadline_ns);
  Pass(4'000'000);
  ASSERT_TRUE(sent.done && gathered.done);
  EXPECT_EQ(sent.acquisition.outcome, Outcome::kUnavailable);
  EXPECT_TRUE(sent.acquisition.may_be_debited);
  EXPECT_EQ(gathered.acquisition.outcome, Outcome::kDeadlineExceeded);
  EXPECT_FALSE(gathered.acquisition.may_be_debited);
  Grant(1);
  EXPECT_TRUE(Asked(0)) << "no caller is left";
}

TEST_F(BatchQueuesTest, PassedDeadlineCostsNoLookAtOtherQueues) {
  ExpectNoLookAtOthers([](size_t i) { return absl::StrCat("key", i); });
}

TEST_F(BatchQueuesTest, PassedDeadlineCostsNoLookAtOthersOfItsQueue) {
  ExpectNoLookAtOthers([](size_t) { return "k"; });
  Grant(1);
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(Callers(), static_cast<int64_t>(kMaxGathered));
}

TEST_F(BatchQueuesTest, AnswersManyLateCallersAFewAtATime) {
  FillServer();
  const int64_t deadline_ns = clock_.NowNs() + kStepNs;
  for (size_t i = 0; i < 1000; ++i) Add("k", deadline_ns);
  Settle();
  clock_.Advance(kStepNs);
  Step();
  EXPECT_EQ(acquires_.waiting(), 1 + 1000 - GatheredCallers::kLateAtOnce);
  for (size_t i = 0; i < 1000 / GatheredCallers::kLateAtOnce; ++i) Step();
  EXPECT_EQ(acquires_.waiting(), 1u);
}

// Each look visits all of them.
TEST_F(BatchQueuesTest, LooksForLateCallersInFlightNowAndThen) {
  constexpr size_t kLate = 100;
  queues_ = std::make_unique<BatchQueues>(*this, /*max_gathered=*/1000);
  const int64_t start_ns = clock_.NowNs();
  for (size_t i = 0; i < kLate; ++i) Add("k", start_ns + static_cast<int64_t>(i + 1) * kStepNs);
  ASSERT_TRUE(Asked(1));
  ASSERT_EQ(Callers(), static_cast<int64_t>(kLate));
  const uint64_t looks = loop_->counters().timers.value();
  for (size_t i = 0; i < kLate + 50; ++i) Step();
  EXPECT_LT(loop_->counters().timers.value() - looks, 20u);
  EXPECT_EQ(acquires_.waiting(), 0u);
  for (const auto& call : calls_) EXPECT_TRUE(call->acquisition.may_be_debited);
}

// They wait again, some of them in places of others.
TEST_F(BatchQueuesTest, AnswersLateCallersOfARefusedBucket) {
  queues_ = std::make_unique<BatchQueues>(*this, /*max_gathered=*/1000);
  const int64_t deadline_ns = clock_.NowNs() + 20 * kStepNs;
  for (int i = 0; i < 100; ++i) Add("k", i < 90 ? kNoDeadline : deadline_ns);
  ASSERT_TRUE(Asked(1));
  Reply({-1});
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(CallersOfScriptForAll(1), 64u);
  for (int i = 0; i < 23; ++i) Step();
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(calls_[i]->done, i >= 90) << i;
  EXPECT_EQ(calls_[99]->acquisition.outcome, Outcome::kDeadlineExceeded);
}

// A replacement that Redis refused waits for room, which another key has taken, when the deadline
// of a caller passes that it grants.
class ReplacementThatWaitsTest : public BatchQueuesTest {
 protected:
  // Its deadline passes. Another caller may stay.
  void Wait(const Call& late) {
    course = [](const redis::Reply&) {
      return Course{Course::What::kSendLater, nullptr, false, kMs};
    };
    ASSERT_TRUE(Asked(1));
    const Call& other = Add("b");
    Reply({-2});
    ASSERT_TRUE(AskedToExchange("0"));
    AnswerEmpty();
    ASSERT_TRUE(AskedToExchange("1"));
    servers[0].Answer("-FENCE replaced\r\n");
    ASSERT_TRUE(Asked(1));
    EXPECT_THAT(servers[0].asked[0][3], ::testing::HasSubstr(":b}")) << "it has the room";
    Pass(8 * kMs);
    ASSERT_TRUE(late.done);
    EXPECT_EQ(late.acquisition.outcome, Outcome::kDeadlineExceeded);
    EXPECT_FALSE(late.acquisition.may_be_debited);
    Grant(1);
    ASSERT_TRUE(Done(other));
  }

  static constexpr int64_t kMs = 1'000'000;
};

TEST_F(ReplacementThatWaitsTest, IsNotWrittenForACallerThatWasAnswered) {
  Wait(Add("k", clock_.NowNs() + 4 * kMs));
  EXPECT_TRUE(Asked(0)) << "no caller is left";
}

TEST_F(ReplacementThatWaitsTest, IsDecidedAgainForTheCallersThatAreLeft) {
  const Call& late = Add("k", clock_.NowNs() + 4 * kMs);
  const Call& patient = Add("k");
  Wait(late);
  ASSERT_TRUE(AskedToExchange("0"));
  AnswerEmpty();
  ASSERT_TRUE(AskedToExchange("1"));
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Done(patient));
  EXPECT_EQ(patient.acquisition.outcome, Outcome::kGranted);
  EXPECT_EQ(patient.result.level.remaining, 9);
}

// Its call serves another acquisition, or is gone, when Redis answers.
TEST_F(BatchQueuesTest, LateReplyDoesNotTouchAForcedCallWhoseDeadlinePassed) {
  const int64_t deadline_ns = clock_.NowNs() + 2'000'000;
  auto late = MakeCall("k", deadline_ns);
  late->acquisition.debit = Debit::kForced;
  Enqueue(*late);
  auto patient = MakeCall("k", clock_.NowNs() + 8'000'000);
  patient->acquisition.debit = Debit::kForced;
  Enqueue(*patient);
  ASSERT_TRUE(Asked(1));
  Pass(4'000'000);
  ASSERT_TRUE(late->done);
  late->acquisition = Acquisition();
  // The time; then for each caller: granted; fits, the bucket's numbers, what was counted.
  std::vector<int64_t> numbers = {1'000'000'000, 0};
  constexpr size_t kOfBucket = std::tuple_size_v<BucketNumbers>;
  for (int caller = 0; caller < 2; ++caller) {
    numbers.insert(numbers.end(), {1, 1});
    numbers.insert(numbers.end(), kOfBucket + 2, 0);
  }
  std::string reply = absl::StrCat("*", numbers.size(), "\r\n");
  for (const int64_t number : numbers) absl::StrAppend(&reply, ":", number, "\r\n");
  servers[0].Answer(reply);
  ASSERT_TRUE(Done(*patient));
  EXPECT_EQ(patient->acquisition.outcome, Outcome::kGranted);
}

TEST_F(BatchQueuesTest, OpenBreakerAnswersTheSentAndTheGathered) {
  const Call& sent = Add("k");
  ASSERT_TRUE(Asked(1));
  const Call& gathered = Add("k");
  Pass(2 * kBudgetNs);
  ASSERT_TRUE(sent.done && gathered.done);
  EXPECT_EQ(sent.acquisition.outcome, Outcome::kUnavailable);
  EXPECT_TRUE(sent.acquisition.may_be_debited);
  EXPECT_EQ(gathered.acquisition.outcome, Outcome::kUnavailable);
  EXPECT_FALSE(gathered.acquisition.may_be_debited);
  const Call& later = Add("k");
  EXPECT_TRUE(later.done) << "without Redis";
  EXPECT_EQ(counters_.denied_unavailable.value(), 3u);
}

TEST_F(BatchQueuesTest, FollowsAKeyThatMovesWhileItWaitsForRoom) {
  Add("a");
  ASSERT_TRUE(Asked(1));
  const Call& moved = Add("b");
  Settle();
  at = endpoints[1].get();
  Grant(1);
  ASSERT_TRUE(Asked(1, /*server=*/1));
  std::string numbers;
  PackNumbers({1'000'000'000'000'000, 0, 0, 0, 1}, &numbers);
  servers[1].Answer(absl::StrCat("$", numbers.size(), "\r\n", numbers, "\r\n"));
  ASSERT_TRUE(Done(moved));
  EXPECT_EQ(moved.acquisition.outcome, Outcome::kGranted);
}

}  // namespace
}  // namespace sluice::store::redis
