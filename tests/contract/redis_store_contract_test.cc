#include <memory>
#include <thread>

#include "server/common/clock.h"
#include "server/net/event_loop.h"
#include "server/net/resolver.h"
#include "server/store/redis/redis_store.h"
#include "tests/contract/store_contract.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

// One for all tests, each of which begins with an empty one.
RedisServer* server = nullptr;

class StartRedis final : public ::testing::Environment {
 public:
  void SetUp() override { server = new RedisServer; }
  void TearDown() override { delete server; }
};
const ::testing::Environment* const start_redis =
    ::testing::AddGlobalTestEnvironment(new StartRedis);

// The scripts are told the test's time; Redis has one clock, so the wall's is the same.
class RedisStoreUnderTest final : public StoreUnderTest {
 public:
  RedisStoreUnderTest() : loop_(std::move(net::EventLoop::Create(system_clock_)).value()) {
    RedisCalls(*server).Call({"FLUSHALL"});
    store::RedisStoreOptions options;
    options.url = store::redis::RedisUrl::Parse(server->url()).value();
    options.test_time = &clock_;
    // The machine may be busy: what is slow is not away.
    options.budget_ns = 10'000'000'000;
    net::EventLoop* const loops[] = {loop_.get()};
    store_ = std::move(store::RedisStore::Create(clock_, loops, *resolver_, options, nullptr))
                 .value();
    thread_ = std::thread([this] { loop_->Run(); });
    const absl::Status connected = store_->AwaitFirstConnection();
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
  bool knows_what_it_holds() const override { return false; }

 private:
  common::SystemClock system_clock_;
  common::FakeClock clock_{1'700'000'000'000'000'000};
  std::unique_ptr<net::EventLoop> loop_;
  std::unique_ptr<net::Resolver> resolver_ = std::make_unique<net::Resolver>();
  std::unique_ptr<store::RedisStore> store_;
  std::thread thread_;
};

std::unique_ptr<StoreUnderTest> MakeRedisStore(const StoreOptions&) {
  return std::make_unique<RedisStoreUnderTest>();
}

INSTANTIATE_TEST_SUITE_P(Redis, StoreContractTest, ::testing::Values(&MakeRedisStore));

TEST_P(StoreContractTest, DoesNotBookAheadAndSaysSo) {
  const auto rule = TokenBucket(1, 1, 1);
  const Acquired acquired = Acquire(store(), *rule, "k", 1, {.max_wait_ns = kSecond});
  EXPECT_EQ(acquired.outcome, store::Outcome::kUnsupported);
  EXPECT_EQ(Remaining(*rule, "k"), 1);
}

}  // namespace
}  // namespace sluice::testing
