// When Redis' clock is set, no window exceeds its limit, by the true time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "server/algorithm/make_parameters.h"
#include "tests/support/pass_time.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// A redis-server whose wall clock is set by the test (wall_clock_shim.cc).
class ClockedRedis {
 public:
  ClockedRedis() {
    char path[] = "/tmp/sluice_offset_XXXXXX";
    fd_ = mkstemp(path);
    path_ = path;
    SetOffset(0);
    WithShim([&] { server_.emplace(); });
  }
  ~ClockedRedis() {
    server_.reset();
    close(fd_);
    unlink(path_.c_str());
  }

  // From now on its clock is ahead by so many seconds.
  void SetOffset(int64_t seconds) {
    ASSERT_EQ(pwrite(fd_, &seconds, sizeof seconds, 0), static_cast<ssize_t>(sizeof seconds));
  }
  void Flush() { RedisCalls(*server_).Call({"FLUSHALL"}); }
  void Kill() { server_->Kill(); }
  void Start() {
    WithShim([&] { server_->Start(); });
  }
  std::string url() const { return server_->url(); }

 private:
  // A program that `start` starts has the shim.
  template <typename Start>
  void WithShim(Start start) {
    setenv("LD_PRELOAD", WALL_CLOCK_SHIM, 1);
    setenv("WALL_OFFSET_FILE", path_.c_str(), 1);
    start();
    unsetenv("LD_PRELOAD");
    unsetenv("WALL_OFFSET_FILE");
  }

  int fd_ = -1;
  std::string path_;
  std::optional<RedisServer> server_;
};

// Callers that take single permits as fast as they can, and when each was granted.
class Load {
 public:
  Load(RedisNode& node, std::shared_ptr<const store::Rule> rule) : node_(node), rule_(rule) {
    node.store().Register(rule);
    thread_ = std::thread([this] {
      while (!stop_.load()) {
        const int64_t sent_ns = clock_.NowNs();
        if (!Acquire(node_.store(), *rule_, "k").granted()) {
          PassTime(std::chrono::milliseconds(2));
          continue;
        }
        common::MutexLock lock(&mu_);
        grants_.push_back({sent_ns, clock_.NowNs()});
      }
    });
  }
  ~Load() { Stop(); }
  void Stop() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  // Each was granted some time from `sent` to `answered`.
  struct Grant {
    int64_t sent_ns;
    int64_t answered_ns;
  };
  std::vector<Grant> grants() const {
    common::MutexLock lock(&mu_);
    return grants_;
  }

 private:
  const common::SystemClock clock_;
  RedisNode& node_;
  const std::shared_ptr<const store::Rule> rule_;
  mutable common::Mutex mu_;
  std::vector<Grant> grants_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Two nodes ask for one token bucket.
class RedisClockTest : public ::testing::Test {
 protected:
  static constexpr int64_t kPermits = 10;  // per second, and the burst

  RedisClockTest() : one_(redis_.url()), two_(redis_.url()) {
    rule_ = MakeRule(1, algorithm::MakeTokenBucket({kPermits, kSecond}, kPermits, 0).value());
    loads_.push_back(std::make_unique<Load>(one_, rule_));
    loads_.push_back(std::make_unique<Load>(two_, rule_));
  }

  size_t Granted() const {
    size_t granted = 0;
    for (const auto& load : loads_) granted += load->grants().size();
    return granted;
  }
  // False: not within a time that is longer than any floor.
  bool AwaitGrants(size_t more) const {
    const size_t enough = Granted() + more;
    for (int i = 0; i < 3000; ++i) {
      if (Granted() >= enough) return true;
      PassTime(std::chrono::milliseconds(10));
    }
    return false;
  }

  // Of all windows, the permits above what the limit allows.
  double MostAbove() {
    std::vector<Load::Grant> grants;
    for (const auto& load : loads_) {
      load->Stop();
      const auto own = load->grants();
      grants.insert(grants.end(), own.begin(), own.end());
    }
    std::sort(grants.begin(), grants.end(),
              [](const auto& a, const auto& b) { return a.answered_ns < b.answered_ns; });
    double most = 0;
    for (const Load::Grant& first : grants) {
      int64_t count = 0;
      for (const Load::Grant& last : grants) {
        if (last.sent_ns < first.sent_ns) continue;
        ++count;
        const double window_s = static_cast<double>(last.answered_ns - first.sent_ns) / kSecond;
        most = std::max(most, static_cast<double>(count) - kPermits - kPermits * window_s);
      }
    }
    return most;
  }

  ClockedRedis redis_;
  RedisNode one_;
  RedisNode two_;
  std::shared_ptr<const store::Rule> rule_;
  std::vector<std::unique_ptr<Load>> loads_;
};

TEST_F(RedisClockTest, SettingItForwardFillsNoBucket) {
  ASSERT_TRUE(AwaitGrants(15));
  for (const int64_t offset : {2, 10, 3600, 90000}) {
    redis_.SetOffset(offset);
    ASSERT_TRUE(AwaitGrants(15)) << offset;
  }
  EXPECT_LT(MostAbove(), 0.1);
}

TEST_F(RedisClockTest, SettingItBackEndsTheCorrection) {
  ASSERT_TRUE(AwaitGrants(15));
  for (int i = 0; i < 2; ++i) {
    redis_.SetOffset(3600);
    ASSERT_TRUE(AwaitGrants(15));
    redis_.SetOffset(0);
    ASSERT_TRUE(AwaitGrants(15));
  }
  EXPECT_LT(MostAbove(), 0.1);
}

TEST_F(RedisClockTest, ANodeThatStartsLaterGoesByTheCorrection) {
  ASSERT_TRUE(AwaitGrants(15));
  redis_.SetOffset(60);
  ASSERT_TRUE(AwaitGrants(5));
  RedisNode late(redis_.url());
  loads_.push_back(std::make_unique<Load>(late, rule_));
  ASSERT_TRUE(AwaitGrants(20));
  EXPECT_LT(MostAbove(), 0.1);
  loads_.pop_back();
}

// Redis may have dropped those that are missing.
TEST_F(RedisClockTest, TokenBucketsStayAndOtherBucketsStartEmpty) {
  for (const auto& load : loads_) load->Stop();
  const auto bucket = MakeRule(2, algorithm::MakeTokenBucket({10, 3600 * kSecond}, 10, 0).value());
  const auto log = MakeRule(3, algorithm::MakeSlidingLog({10, 3600 * kSecond}).value());
  for (const auto& rule : {bucket, log}) {
    one_.store().Register(rule);
    ASSERT_TRUE(Acquire(one_.store(), *rule, "k", 4).granted());
  }
  redis_.SetOffset(300);
  const Acquired kept = Acquire(one_.store(), *bucket, "k");
  EXPECT_TRUE(kept.granted());
  EXPECT_EQ(kept.charges[0].level.remaining, 5);
  EXPECT_EQ(Query(one_.store(), *bucket, "k").level.remaining, 5);
  // With a receipt it is decided by another script.
  EXPECT_TRUE(Acquire(one_.store(), *bucket, "k", 1, {.want_receipt = true}).granted());
  for (const AcquireOptions& options : {AcquireOptions{}, AcquireOptions{.want_receipt = true},
                                        AcquireOptions{.max_wait_ns = 100 * kSecond}}) {
    const Acquired missing = Acquire(one_.store(), *bucket, "new", 1, options);
    EXPECT_EQ(missing.outcome, store::Outcome::kDenied);
    EXPECT_EQ(missing.charges[0].level.remaining, 0);
    EXPECT_GT(missing.retry_after_ns, 200 * kSecond);
    EXPECT_EQ(Acquire(one_.store(), *log, "k", 1, options).outcome, store::Outcome::kDenied);
  }
  EXPECT_EQ(Query(one_.store(), *bucket, "new").level.remaining, 0);
}

TEST_F(RedisClockTest, FlushAfterwardsClosesBucketsByTheCorrectedTime) {
  redis_.SetOffset(3600);
  ASSERT_TRUE(AwaitGrants(15));
  redis_.Flush();
  ASSERT_TRUE(AwaitGrants(15));
  EXPECT_LT(MostAbove(), 0.1);
}

// The clock is set while no connection stands.
TEST_F(RedisClockTest, RestartWithAnotherTimeFillsNoBucket) {
  ASSERT_TRUE(AwaitGrants(15));
  redis_.Kill();
  redis_.SetOffset(3600);
  redis_.Start();
  ASSERT_TRUE(AwaitGrants(15));
  EXPECT_LT(MostAbove(), 0.1);
}

// Grant times stand that were promised before the clock was set.
TEST_F(RedisClockTest, PromisedGrantTimesAreNotGivenAgain) {
  for (const auto& load : loads_) load->Stop();
  const common::SystemClock clock;
  const auto slow = MakeRule(2, algorithm::MakeTokenBucket({1, 2 * kSecond}, 1, 0).value());
  one_.store().Register(slow);
  two_.store().Register(slow);
  std::vector<int64_t> at_ns;
  for (RedisNode* node : {&one_, &two_, &one_}) {
    const Acquired booked = Acquire(node->store(), *slow, "k", 1, {.max_wait_ns = 60 * kSecond});
    ASSERT_TRUE(booked.granted());
    at_ns.push_back(clock.NowNs() + booked.wait_ns);
  }
  redis_.SetOffset(5);
  while (at_ns.size() < 5) {
    const Acquired booked = Acquire(two_.store(), *slow, "k", 1, {.max_wait_ns = 60 * kSecond});
    if (booked.granted()) at_ns.push_back(clock.NowNs() + booked.wait_ns);
    PassTime(std::chrono::milliseconds(5));
  }
  for (size_t i = 1; i < at_ns.size(); ++i) EXPECT_GT(at_ns[i] - at_ns[i - 1], 1.9 * kSecond);
}

}  // namespace
}  // namespace sluice::testing
