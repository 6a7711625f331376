#include "sluice/fake_connection.h"

#include <gtest/gtest.h>

#include "sluice/client.h"

namespace sluice {
namespace {

using std::chrono::seconds;

class FakeConnectionTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakeConnection> fake_ = std::make_shared<FakeConnection>();
  Client client_{fake_};
};

TEST_F(FakeConnectionTest, GrantsByDefault) {
  EXPECT_TRUE(client_.Acquire("anything", "at all")->granted);
}

TEST_F(FakeConnectionTest, TakesPermitsThatWereSet) {
  fake_->SetPermits("api", "a", 3);
  EXPECT_TRUE(client_.Acquire("api", "a", 2)->granted);
  const auto denied = client_.Acquire("api", "a", 2);
  EXPECT_FALSE(denied->granted);
  EXPECT_EQ(denied->charges[0].remaining, 1);
  EXPECT_EQ(denied->charges[0].capacity, 3u);
  EXPECT_EQ(denied->charges[0].reason, Reason::kNotEnough);
}

TEST_F(FakeConnectionTest, AddsUpChargesOnTheSameBucket) {
  fake_->SetPermits("api", "a", 3);
  EXPECT_FALSE(client_.Acquire(Acquisition({{"api", "a", 2}, {"api", "a", 2}}))->granted);
  EXPECT_TRUE(client_.Acquire(Acquisition({{"api", "a", 2}, {"api", "a", 1}}))->granted);
}

TEST_F(FakeConnectionTest, FollowsTheScriptInOrder) {
  fake_->DenyNext(seconds(2));
  fake_->GrantNext();
  fake_->FailNext({StatusCode::kNotFound, "gone"});
  EXPECT_FALSE(client_.Acquire("api", "")->granted);
  EXPECT_TRUE(client_.Acquire("api", "")->granted);
  EXPECT_FALSE(client_.Acquire("api", "").ok());
  EXPECT_TRUE(client_.Acquire("api", "")->granted);
}

TEST_F(FakeConnectionTest, RunsTimersInOrderWhenTheClockAdvances) {
  std::vector<int> ran;
  fake_->RunAfter(seconds(2), [&] { ran.push_back(2); });
  fake_->RunAfter(seconds(1), [&] { ran.push_back(1); });
  fake_->Advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(ran, (std::vector<int>{1}));
  fake_->Shutdown();
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace sluice
