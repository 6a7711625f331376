#include "server/store/redis/commands/open_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::store::redis {
namespace {

class OpenCacheTest : public ::testing::Test {
 protected:
  struct Waiter final : OpenCache::Turn {
    void OnTurn() override { turn = true; }
    bool turn = false;
    std::vector<Bucket> buckets;
  };

  Waiter& Enter(const std::vector<std::string>& names) {
    Waiter& waiter = *waiters_.emplace_back(std::make_unique<Waiter>());
    for (const std::string& name : names) {
      waiter.buckets.push_back({nullptr, {name, absl::StrCat(name, ":runs"), name}});
    }
    waiter.turn = cache_.Enter(waiter, waiter.buckets);
    return waiter;
  }
  void Leave(Waiter& waiter) {
    cache_.Leave(waiter, waiter.buckets, *loop_);
    loop_->RunOnce(0);
  }

  common::FakeClock clock_{0, 0};
  std::unique_ptr<net::EventLoop> loop_ = *net::EventLoop::Create(clock_);
  OpenCache cache_;
  std::vector<std::unique_ptr<Waiter>> waiters_;
};

TEST_F(OpenCacheTest, CommandsTakeTurnsInTheOrderInWhichTheyCame) {
  Waiter& a = Enter({"x"});
  Waiter& b = Enter({"x", "y"});
  Waiter& c = Enter({"y"});
  Waiter& d = Enter({"z"});
  EXPECT_TRUE(a.turn);
  EXPECT_FALSE(b.turn);
  EXPECT_FALSE(c.turn) << "b came first, and waits for x";
  EXPECT_TRUE(d.turn);
  Leave(a);
  EXPECT_TRUE(b.turn);
  EXPECT_FALSE(c.turn);
  Leave(b);
  EXPECT_TRUE(c.turn);
  Leave(c);
  EXPECT_TRUE(Enter({"x", "y"}).turn);
}

TEST_F(OpenCacheTest, CommandThatStopsWaitingLetsOthersPass) {
  Waiter& a = Enter({"x"});
  Waiter& b = Enter({"x", "y"});
  Waiter& c = Enter({"y"});
  Leave(b);
  EXPECT_TRUE(c.turn);
  EXPECT_FALSE(b.turn);
  Leave(a);
  EXPECT_FALSE(b.turn);
}

TEST_F(OpenCacheTest, CommandThatEndsBeforeItsTurnIsCalledIsNotCalled) {
  Waiter& a = Enter({"x"});
  Waiter& b = Enter({"x"});
  Waiter& c = Enter({"x"});
  cache_.Leave(a, a.buckets, *loop_);
  cache_.Leave(b, b.buckets, *loop_);
  loop_->RunOnce(0);
  EXPECT_FALSE(b.turn);
  EXPECT_TRUE(c.turn);
}

TEST_F(OpenCacheTest, OneCommandOnTheSameBucketTwiceDoesNotWaitForItself) {
  Waiter& a = Enter({"x", "x"});
  EXPECT_TRUE(a.turn);
  Waiter& b = Enter({"x", "x"});
  Leave(a);
  EXPECT_TRUE(b.turn);
}

TEST_F(OpenCacheTest, BucketThatIsInUseIsKnownToHaveBookings) {
  const algorithm::Parameters parameters = *algorithm::MakeTokenBucket({1, 1'000'000'000}, 1, 0);
  cache_.Put("x", *OpenBucket::Read(parameters, "", "", {}, 0));
  EXPECT_TRUE(cache_.Has("x"));
  Waiter& a = Enter({"x", "y"});
  EXPECT_TRUE(cache_.Take("x").has_value());
  EXPECT_FALSE(cache_.Take("y").has_value());
  EXPECT_TRUE(cache_.Has("x"));
  EXPECT_FALSE(cache_.Has("y"));
  Leave(a);
  EXPECT_FALSE(cache_.Has("x"));
}

}  // namespace
}  // namespace sluice::store::redis
