#include "server/store/redis/shard/batch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/number_codec.h"
#include "tests/unit/store/redis/command_scene.h"

namespace sluice::store::redis {
namespace {

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
  void Enqueue(Call& call) {
    queues_->Add(acquires_.Add(acquires_.Begin(&call, /*receipt_id=*/0), call.acquisition));
  }
  // How many callers the oldest command decides.
  int64_t Callers() {
    constexpr size_t kHeader = 6;  // numbers before the runs (acquire_token_bucket.lua)
    return UnpackNumber(servers[0].asked[0].back(), kHeader + 4).value_or(-1);
  }
  const std::string& KeyAsked() { return servers[0].asked[0][3]; }
  // Grants the first `granted` callers of the oldest command.
  void Grant(int64_t granted) {
    std::string numbers;
    PackNumbers({1'000'000'000'000'000, 0, 0, 0, granted}, &numbers);
    servers[0].Answer(absl::StrCat("$", numbers.size(), "\r\n", numbers, "\r\n"));
  }
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

// A new connection has room for one command.
TEST_F(BatchQueuesTest, QueuesTakeTurnsForRoom) {
  Add("a");
  Add("b");
  ASSERT_TRUE(Asked(1));
  Add("a");
  const std::string first = KeyAsked();
  Grant(1);
  ASSERT_TRUE(Asked(1));
  EXPECT_NE(KeyAsked(), first) << "b was first to wait";
  Grant(1);
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(KeyAsked(), first);
  Grant(1);
  ASSERT_TRUE(Done(*calls_.back()));
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
  const Call& moved = Add("b");
  ASSERT_TRUE(Asked(1));
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
