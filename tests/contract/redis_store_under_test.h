// A RedisStore whose scripts use the test's clock.
#ifndef SLUICE_TESTS_CONTRACT_REDIS_STORE_UNDER_TEST_H_
#define SLUICE_TESTS_CONTRACT_REDIS_STORE_UNDER_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/store/redis/redis_store.h"
#include "server/store/redis/wire/open_bucket.h"
#include "tests/contract/store_contract.h"
#include "tests/support/redis_node.h"

namespace sluice::testing {

// Redis has one clock, so the wall clock is the same.
class RedisStoreUnderTest final : public StoreUnderTest {
 public:
  explicit RedisStoreUnderTest(const std::string& url, std::string_view hash_tag = "")
      : hash_tag_(hash_tag), loop_(std::move(net::EventLoop::Create(system_clock_)).value()) {
    store::RedisStoreOptions options = PatientOptions();
    options.url = store::redis::RedisUrl::Parse(url).value();
    options.test_time = &clock_;
    // A slow reply on a busy machine must not open the circuit breaker.
    options.budget_ns = 10'000'000'000;
    net::EventLoop* const loops[] = {loop_.get()};
    store_ =
        std::move(store::RedisStore::Create(clock_, loops, *resolver_, options, nullptr)).value();
    thread_ = std::thread([this] { loop_->Run(); });
    const absl::Status connected = store_->AwaitFirstConnections();
    EXPECT_TRUE(connected.ok()) << connected;
  }

  ~RedisStoreUnderTest() override {
    loop_->Stop();
    thread_.join();
    store_.reset();
    resolver_.reset();
  }

  store::Store& store() override { return *store_; }
  int64_t NowNs() override { return clock_.NowNs(); }
  void Advance(int64_t by_ns) override { clock_.Advance(by_ns); }
  void AdvanceWallOnly(int64_t by_ns) override { clock_.SetNow(clock_.NowNs() + by_ns); }
  int64_t WallNs() override { return clock_.NowNs(); }
  bool bounded() const override { return false; }
  uint64_t max_bookings() const override { return store::redis::kMaxBookingsInRedis; }
  bool knows_what_it_holds() const override { return false; }
  bool forgets_by_test_clock() const override { return false; }
  std::string_view hash_tag() const override { return hash_tag_; }

 private:
  const std::string_view hash_tag_;  // a literal
  common::SystemClock system_clock_;
  common::FakeClock clock_{1'700'000'000'000'000'000};
  std::unique_ptr<net::EventLoop> loop_;
  std::unique_ptr<net::Resolver> resolver_ = std::make_unique<net::Resolver>();
  std::unique_ptr<store::RedisStore> store_;
  std::thread thread_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_CONTRACT_REDIS_STORE_UNDER_TEST_H_
