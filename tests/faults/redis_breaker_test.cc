// When the circuit breaker opens and closes. The test controls the clock and runs the event loop.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/redis_store.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

constexpr int64_t kMs = 1'000'000;

struct Asked final : store::AcquireOperation {
  explicit Asked(const store::Rule& rule) {
    charge.rule = &rule;
    charge.key = "k";
    acquisition.charges = absl::MakeConstSpan(&charge, 1);
    acquisition.results = &result;
    acquisitions = absl::MakeSpan(&acquisition, 1);
  }
  void Done() override { done = true; }

  store::Charge charge;
  store::Acquisition acquisition;
  store::ChargeResult result;
  bool done = false;
};

class RedisBreakerTest : public ::testing::Test {
 protected:
  RedisBreakerTest() {
    store::RedisStoreOptions options;
    options.url = store::redis::RedisUrl::Parse(server_.url()).value();
    options.budget_ns = 20 * kMs;
    net::EventLoop* const loops[] = {loop_.get()};
    store_ =
        std::move(store::RedisStore::Create(clock_, loops, *resolver_, options, nullptr)).value();
    store_->Register(rule_);
    asked_ = std::make_unique<Asked>(*rule_);
    std::thread asker([this] {
      EXPECT_TRUE(store_->AwaitFirstConnections().ok());
      store_->Acquire(asked_.get());
    });
    Await();
    asker.join();
    EXPECT_EQ(asked_->acquisition.outcome, store::Outcome::kGranted);
  }
  ~RedisBreakerTest() override {
    loop_->Stop();
    loop_->Run();
    store_.reset();
    resolver_.reset();
  }

  void Ask() {
    asked_ = std::make_unique<Asked>(*rule_);
    store_->Acquire(asked_.get());
  }
  void Await() {
    while (!asked_->done) loop_->RunOnce(-1);
  }
  void Turn(int64_t after_ns) {
    clock_.Advance(after_ns);
    loop_->RunOnce(0);
  }

  RedisServer server_;
  common::FakeClock clock_{1'700'000'000'000'000'000};
  std::unique_ptr<net::EventLoop> loop_ = std::move(net::EventLoop::Create(clock_)).value();
  std::unique_ptr<net::Resolver> resolver_ = std::make_unique<net::Resolver>();
  std::shared_ptr<const store::Rule> rule_ =
      MakeRule(1, algorithm::MakeTokenBucket({1'000'000, 1'000'000'000}, 1'000'000, 0).value());
  std::unique_ptr<store::RedisStore> store_;
  std::unique_ptr<Asked> asked_;
};

TEST_F(RedisBreakerTest, OpensWhenBudgetIsSpent) {
  server_.Pause();
  Ask();
  loop_->RunOnce(0);
  for (int i = 0; i < 19; ++i) Turn(kMs);
  EXPECT_FALSE(asked_->done);
  for (int i = 0; i < 5; ++i) Turn(kMs);
  EXPECT_TRUE(asked_->done);
  EXPECT_EQ(asked_->acquisition.outcome, store::Outcome::kUnavailable);
  EXPECT_TRUE(asked_->acquisition.may_be_debited);
  // A later caller is answered at once, and nothing is sent to Redis.
  Ask();
  EXPECT_TRUE(asked_->done);
  EXPECT_EQ(asked_->acquisition.outcome, store::Outcome::kUnavailable);
  EXPECT_FALSE(asked_->acquisition.may_be_debited);
  server_.Resume();
}

TEST_F(RedisBreakerTest, StalledLoopDoesNotOpenBreaker) {
  server_.Pause();
  Ask();
  loop_->RunOnce(0);
  for (int i = 0; i < 3; ++i) Turn(1000 * kMs);
  EXPECT_FALSE(asked_->done);
  server_.Resume();
  Await();
  EXPECT_EQ(asked_->acquisition.outcome, store::Outcome::kGranted);
}

TEST_F(RedisBreakerTest, ClosesWhenProbeIsAnswered) {
  server_.Pause();
  Ask();
  loop_->RunOnce(0);
  while (!asked_->done) Turn(5 * kMs);
  server_.Resume();
  do {
    Turn(0);
    Ask();
  } while (asked_->done);
  Await();
  EXPECT_EQ(asked_->acquisition.outcome, store::Outcome::kGranted);
}

}  // namespace
}  // namespace sluice::testing
