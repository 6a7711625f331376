#include "client/src/retry_policy.h"

#include <gtest/gtest.h>

namespace sluice::client_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

const Status kNotSent(StatusCode::kUnavailable, "connection refused");
const Status kBroken = Status::MaybeExecuted(StatusCode::kUnavailable, "connection reset");

class RetryPolicyTest : public ::testing::Test {
 protected:
  const RetryPolicy policy_{
      {.max_attempts = 3, .initial_backoff = milliseconds(20), .max_backoff = milliseconds(50)}, 1};
};

TEST_F(RetryPolicyTest, RetriesACallThatWasNotSent) {
  EXPECT_EQ(policy_.Pause(Operation::kAcquire, kNotSent, 1, seconds(1), 0.5), milliseconds(20));
}

TEST_F(RetryPolicyTest, NeverRetriesAnAcquisitionThatMayHaveBeenExecuted) {
  EXPECT_EQ(policy_.Pause(Operation::kAcquire, kBroken, 1, seconds(1), 0.5), std::nullopt);
}

TEST_F(RetryPolicyTest, RetriesWhatIsExecutedOnceUntilItsDeadline) {
  const auto once = [&](const RetryPolicy& policy, const Status& status, int attempts,
                        nanoseconds left) {
    return policy.Pause(Operation::kAcquireOnce, status, attempts, left, 0.5).has_value();
  };
  EXPECT_TRUE(once(policy_, kBroken, 1, seconds(1)));
  EXPECT_TRUE(once(policy_, kBroken, 100, seconds(1)));
  EXPECT_TRUE(
      once(policy_, Status::MaybeExecuted(StatusCode::kDeadlineExceeded, ""), 1, seconds(1)));
  EXPECT_FALSE(once(policy_, kBroken, 100, milliseconds(50))) << "the pause is as long";
  EXPECT_FALSE(once(policy_, Status(StatusCode::kResourceExhausted, ""), 1, seconds(1)));
  EXPECT_FALSE(once(policy_, Status(StatusCode::kInvalidArgument, ""), 1, seconds(1)));
  EXPECT_TRUE(once(policy_, kBroken, 2, nanoseconds::max())) << "a call without a deadline";
  EXPECT_FALSE(once(policy_, kBroken, 3, nanoseconds::max()));
  const RetryPolicy never({.max_attempts = 1}, 1);
  EXPECT_FALSE(once(never, kBroken, 1, seconds(1)));
}

TEST_F(RetryPolicyTest, LeavesTimeForTheOtherServersToWhatIsExecutedOnce) {
  const RetryPolicy two({}, 2);
  EXPECT_EQ(two.TimeOf(Operation::kAcquireOnce, 1, seconds(1)), milliseconds(500));
  EXPECT_EQ(two.TimeOf(Operation::kAcquireOnce, 2, seconds(1)), seconds(1));
  EXPECT_EQ(two.TimeOf(Operation::kAcquire, 1, seconds(1)), seconds(1));
  EXPECT_EQ(policy_.TimeOf(Operation::kAcquireOnce, 1, seconds(1)), seconds(1));
}

TEST_F(RetryPolicyTest, RetriesQueriesAndRefundsThatMayHaveBeenExecuted) {
  EXPECT_NE(policy_.Pause(Operation::kQuery, kBroken, 1, seconds(1), 0.5), std::nullopt);
  EXPECT_NE(policy_.Pause(Operation::kRefund, kBroken, 1, seconds(1), 0.5), std::nullopt);
}

TEST_F(RetryPolicyTest, RetriesOnlyUnavailable) {
  for (int code = 1; code <= 16; ++code) {
    if (static_cast<StatusCode>(code) == StatusCode::kUnavailable) continue;
    const Status status(static_cast<StatusCode>(code), "");
    for (const Operation operation : {Operation::kAcquire, Operation::kQuery, Operation::kRefund}) {
      EXPECT_EQ(policy_.Pause(operation, status, 1, seconds(1), 0.5), std::nullopt) << status;
    }
  }
}

TEST_F(RetryPolicyTest, EndsAfterMaxAttempts) {
  EXPECT_NE(policy_.Pause(Operation::kQuery, kNotSent, 2, seconds(1), 0.5), std::nullopt);
  EXPECT_EQ(policy_.Pause(Operation::kQuery, kNotSent, 3, seconds(1), 0.5), std::nullopt);
}

TEST_F(RetryPolicyTest, DoublesThePauseUpToItsBound) {
  EXPECT_EQ(policy_.Backoff(1), milliseconds(20));
  EXPECT_EQ(policy_.Backoff(2), milliseconds(40));
  EXPECT_EQ(policy_.Backoff(3), milliseconds(50));
  EXPECT_EQ(policy_.Backoff(1000), milliseconds(50));
}

TEST_F(RetryPolicyTest, RandomizesThePauseByHalfEitherWay) {
  EXPECT_EQ(policy_.Pause(Operation::kAcquire, kNotSent, 1, seconds(1), 0.0), milliseconds(10));
  EXPECT_LT(*policy_.Pause(Operation::kAcquire, kNotSent, 1, seconds(1), 0.999), milliseconds(30));
}

TEST_F(RetryPolicyTest, DoesNotPauseBeyondTheDeadline) {
  EXPECT_EQ(policy_.Pause(Operation::kAcquire, kNotSent, 1, milliseconds(20), 0.5), std::nullopt);
  EXPECT_EQ(policy_.Pause(Operation::kAcquire, kNotSent, 1, nanoseconds(-1), 0.5), std::nullopt);
}

TEST_F(RetryPolicyTest, PausesOnlyAfterAllServersWereTried) {
  const RetryPolicy three({.max_attempts = 10, .initial_backoff = milliseconds(20)}, 3);
  EXPECT_EQ(three.Pause(Operation::kAcquire, kNotSent, 1, seconds(1), 0.5), nanoseconds(0));
  EXPECT_EQ(three.Pause(Operation::kAcquire, kNotSent, 2, seconds(1), 0.5), nanoseconds(0));
  EXPECT_EQ(three.Pause(Operation::kAcquire, kNotSent, 3, seconds(1), 0.5), milliseconds(20));
  EXPECT_EQ(three.Pause(Operation::kAcquire, kNotSent, 4, seconds(1), 0.5), milliseconds(40));
}

TEST(RandomTest, ReturnsNumbersFromZeroToOne) {
  for (int i = 0; i < 1000; ++i) {
    const double random = Random();
    EXPECT_GE(random, 0.0);
    EXPECT_LT(random, 1.0);
  }
}

}  // namespace
}  // namespace sluice::client_internal
