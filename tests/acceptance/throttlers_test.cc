// The scenarios of the throttlers that Sluice replaces, through the embedded throttler, on a clock
// that stands still until it is told to move (but for the one that says otherwise).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sluice/throttler.h"
#include "tests/support/window_checker.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using test_support::CheckCountInEveryWindow;
using test_support::Grant;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMillisecond = 1'000'000;

ThrottleLimit Log(std::string name, uint64_t permits, nanoseconds period = seconds(1)) {
  return {.name = std::move(name),
          .algorithm = ThrottleAlgorithm::kSlidingLog,
          .permits = permits,
          .period = period};
}

struct Ran {
  int task;
  std::string channel;
  int64_t at_ns;
};

// A throttler on virtual time, which writes down what runs when.
class Throttlers : public ::testing::Test {
 protected:
  void Create(std::vector<ThrottleLimit> limits) {
    ThrottlerOptions options;
    options.limits = std::move(limits);
    options.clock = &clock_;
    options.executor = [](std::function<void()> run) { run(); };
    options.finish_on_destruction = false;
    auto created = Throttler::Embedded(std::move(options));
    ASSERT_TRUE(created.ok()) << created.status().message();
    throttler_ = *std::move(created);
    start_ns_ = clock_.NowNs();
  }
  // Overall 2 a second; CHANNEL1 3 and CHANNEL2 1, under it.
  void CreateChannels() {
    ThrottleLimit one = Log("CHANNEL1", 3);
    ThrottleLimit two = Log("CHANNEL2", 1);
    one.charges = two.charges = {"overall"};
    Create({Log("overall", 2), one, two});
  }
  void At(int64_t ms) {
    clock_.Advance(nanoseconds(start_ns_ + ms * kMillisecond - clock_.NowNs()));
  }
  void Submit(const std::string& channel, uint64_t permits = 1) {
    const int task = ++submitted_;
    auto future = throttler_->Submit(
        channel,
        [this, task, channel] { ran_.push_back({task, channel, clock_.NowNs() - start_ns_}); },
        permits);
    ASSERT_TRUE(future.ok()) << future.status().message();
  }
  size_t RunBy(int64_t ms) {
    At(ms);
    return ran_.size();
  }
  std::vector<int> Tasks(const std::string& channel = "") const {
    std::vector<int> tasks;
    for (const Ran& ran : ran_) {
      if (channel.empty() || ran.channel == channel) tasks.push_back(ran.task);
    }
    return tasks;
  }
  // Those of one channel; or, of all of them, as the overall limit sees them.
  std::string CheckWindows(const std::string& channel, uint64_t most,
                           int64_t period_ns = kSecond) const {
    std::vector<Grant> grants;
    for (const Ran& ran : ran_) {
      if (channel == "overall" || ran.channel == channel) grants.push_back({ran.at_ns, 1});
    }
    return CheckCountInEveryWindow(grants, period_ns, most);
  }
  void ExpectChannelsKept() const {
    EXPECT_EQ(CheckWindows("overall", 2), "");
    EXPECT_EQ(CheckWindows("CHANNEL1", 3), "");
    EXPECT_EQ(CheckWindows("CHANNEL2", 1), "");
    for (const char* channel : {"CHANNEL1", "CHANNEL2", "overall"}) {
      const std::vector<int> tasks =
          channel == std::string("overall") ? std::vector<int>() : Tasks(channel);
      EXPECT_TRUE(std::is_sorted(tasks.begin(), tasks.end())) << channel;
    }
  }

  VirtualThrottleClock clock_;
  std::unique_ptr<Throttler> throttler_;
  std::vector<Ran> ran_;
  int64_t start_ns_ = 0;
  int submitted_ = 0;
};

// ---- 1. Fixed number of sends in any interval ----

TEST_F(Throttlers, FiftyOnePerSecondInEveryWindowThatIsSampled) {
  Create({Log("sends", 51)});
  std::mt19937_64 random(1);
  int64_t now_ms = 0;
  // A producer that keeps a backlog, and pauses at random.
  while (now_ms < 60'000) {
    while (throttler_->waiting() < 100) Submit("sends");
    now_ms += static_cast<int64_t>(random() % 400);
    At(now_ms);
  }
  ran_.erase(std::remove_if(ran_.begin(), ran_.end(),
                            [](const Ran& ran) { return ran.at_ns >= 60 * kSecond; }),
             ran_.end());
  for (int sample = 0; sample < 5000; ++sample) {
    const auto begin_ns = static_cast<int64_t>(random() % (59 * kSecond));
    const auto in_window = std::count_if(ran_.begin(), ran_.end(), [&](const Ran& ran) {
      return ran.at_ns >= begin_ns && ran.at_ns < begin_ns + kSecond;
    });
    ASSERT_LE(in_window, 51);
  }
  EXPECT_EQ(CheckWindows("sends", 51), "");
  EXPECT_GE(ran_.size(), 51u * 60 * 99 / 100);
  EXPECT_LE(ran_.size(), 51u * 60);
}

// ---- 2. Multi-channel asynchronous throttler ----

TEST_F(Throttlers, TwoTasksWithoutAChannel) {
  CreateChannels();
  for (int i = 0; i < 2; ++i) Submit("overall");
  EXPECT_EQ(RunBy(1), 2u);
}

TEST_F(Throttlers, ThreeTasksWithoutAChannel) {
  CreateChannels();
  for (int i = 0; i < 3; ++i) Submit("overall");
  EXPECT_EQ(RunBy(1), 2u);
  EXPECT_EQ(RunBy(999), 2u);
  EXPECT_EQ(RunBy(1001), 3u);
}

TEST_F(Throttlers, FiveTasksWithoutAChannel) {
  CreateChannels();
  for (int i = 0; i < 5; ++i) Submit("overall");
  EXPECT_EQ(RunBy(501), 2u);
  EXPECT_EQ(RunBy(1002), 4u);
  EXPECT_EQ(RunBy(2002), 5u);
}

class OneThenTwoThenOne : public Throttlers,
                          public ::testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(OneThenTwoThenOne, TheOverallLimitRules) {
  CreateChannels();
  const std::vector<std::string>& channels = GetParam();
  Submit(channels[0]);
  At(777);
  Submit(channels[1]);
  Submit(channels[2]);
  At(877);
  Submit(channels[3]);
  EXPECT_EQ(RunBy(877), 2u);
  EXPECT_EQ(RunBy(1001), 3u);
  EXPECT_EQ(RunBy(1778), 4u);
  EXPECT_EQ(CheckWindows("overall", 2), "");
}

INSTANTIATE_TEST_SUITE_P(
    Channels, OneThenTwoThenOne,
    ::testing::Values(std::vector<std::string>{"overall", "overall", "overall", "overall"},
                      std::vector<std::string>{"CHANNEL1", "CHANNEL1", "CHANNEL1", "CHANNEL1"},
                      std::vector<std::string>{"CHANNEL1", "overall", "CHANNEL1", "overall"},
                      std::vector<std::string>{"overall", "CHANNEL1", "overall", "CHANNEL1"}));

TEST_F(Throttlers, ASlowChannelIsPacedByItself) {
  CreateChannels();
  Submit("CHANNEL2");
  At(777);
  Submit("CHANNEL2");
  At(877);
  Submit("CHANNEL2");
  EXPECT_EQ(RunBy(877), 1u);
  EXPECT_EQ(RunBy(1001), 2u);
  EXPECT_EQ(RunBy(2002), 3u);
}

TEST_F(Throttlers, SevenTasksOfTwoChannelsRunInTheOrderOfSubmission) {
  CreateChannels();
  for (const char* channel :
       {"CHANNEL1", "CHANNEL2", "CHANNEL1", "CHANNEL2", "CHANNEL2", "CHANNEL1", "CHANNEL1"}) {
    Submit(channel);
  }
  EXPECT_EQ(RunBy(4000), 7u);
  EXPECT_EQ(Tasks(), (std::vector<int>{1, 2, 3, 4, 5, 6, 7}));
  ExpectChannelsKept();
}

TEST_F(Throttlers, TasksThatComeLaterHoldBothLimitsAndAllHaveRunByFourSeconds) {
  CreateChannels();
  Submit("CHANNEL1");
  At(777);
  Submit("CHANNEL2");
  Submit("CHANNEL1");
  At(877);
  for (const char* channel : {"CHANNEL2", "CHANNEL2", "CHANNEL1", "CHANNEL1"}) Submit(channel);
  EXPECT_EQ(RunBy(4000), 7u);
  ExpectChannelsKept();
}

TEST_F(Throttlers, TheSameWithSomeTasksOnNoChannel) {
  CreateChannels();
  Submit("overall");
  At(777);
  Submit("CHANNEL2");
  Submit("overall");
  At(877);
  for (const char* channel : {"CHANNEL2", "overall", "CHANNEL1", "CHANNEL2"}) Submit(channel);
  EXPECT_EQ(RunBy(4000), 7u);
  ExpectChannelsKept();
}

TEST_F(Throttlers, AThousandTasksAtFiftyASecondRunInOrder) {
  Create({Log("tasks", 50)});
  for (int i = 0; i < 1000; ++i) Submit("tasks");
  EXPECT_EQ(RunBy(19'100), 1000u);
  std::vector<int> in_order(1000);
  for (int i = 0; i < 1000; ++i) in_order[i] = i + 1;
  EXPECT_EQ(Tasks(), in_order);
  EXPECT_EQ(CheckWindows("tasks", 50), "");
}

// On the real clock; what the scheduler adds is tolerated, 100 ms, and nothing the other way but
// the difference of two readings.
TEST(ThrottlersOnTheRealClock, SynchronousCallsOnASlowChannelAreSpaced) {
  ThrottleLimit slow = Log("CHANNEL2", 1, milliseconds(250));
  slow.charges = {"overall"};
  auto throttler = Throttler::Embedded({.limits = {Log("overall", 2, milliseconds(250)), slow}});
  ASSERT_TRUE(throttler.ok());
  std::vector<std::chrono::steady_clock::time_point> times;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE((*throttler)
                    ->Run("CHANNEL2", [&] { times.push_back(std::chrono::steady_clock::now()); })
                    .ok());
  }
  // The moments decided are 250 ms apart; the threads ran a little after each.
  EXPECT_GE(times[3] - times[0], milliseconds(3 * 250 - 20));
  EXPECT_LE(times[3] - times[0], milliseconds(3 * 250 + 300));
}

// ---- 3. Start and try-start ----

TEST_F(Throttlers, ATimerThatResetsEachSecondDoesNotLetTwoThousandThrough) {
  Create({Log("calls", 1000)});
  At(750);
  int started = 0;
  for (int i = 0; i < 1500; ++i) started += throttler_->TryStart("calls")->count() == 0 ? 1 : 0;
  EXPECT_EQ(started, 1000);
  At(1250);
  const Result<nanoseconds> sleep = throttler_->TryStart("calls");
  ASSERT_TRUE(sleep.ok());
  EXPECT_GE(*sleep, milliseconds(500));
  EXPECT_LE(*sleep, milliseconds(501));
  clock_.Advance(*sleep - nanoseconds(1));
  EXPECT_NE(throttler_->TryStart("calls")->count(), 0);
  clock_.Advance(nanoseconds(1));
  EXPECT_EQ(throttler_->TryStart("calls")->count(), 0);
}

TEST_F(Throttlers, TenThousandADayInKSubIntervals) {
  Create({{.name = "day",
           .algorithm = ThrottleAlgorithm::kSlidingWindow,
           .permits = 10'000,
           .period = std::chrono::hours(24)}});
  int started = 0;
  for (int i = 0; i < 20'000; ++i) started += throttler_->TryStart("day")->count() == 0 ? 1 : 0;
  EXPECT_EQ(started, 10'000);
  EXPECT_GT(*throttler_->TryStart("day"), std::chrono::hours(24));
}

// ---- 4. Bursty smooth limiter ----

TEST_F(Throttlers, WhatIsStoredWhileIdleIsServedAtOnce) {
  Create({{.name = "calls", .permits = 1}});
  Submit("calls");
  EXPECT_EQ(RunBy(1), 1u);
  At(6300);
  Submit("calls");
  EXPECT_EQ(RunBy(6300), 2u);
}

TEST_F(Throttlers, WhoTakesMoreThanIsStoredIsServedAtOnceAndTheNextWaits) {
  Create({{.name = "calls", .permits = 1, .burst = 1, .debt = 5}});
  Submit("calls", 5);
  EXPECT_EQ(RunBy(0), 1u);
  Submit("calls");
  EXPECT_EQ(RunBy(3999), 1u);
  EXPECT_EQ(RunBy(4000), 2u);
}

TEST_F(Throttlers, SixteenThreadsTimesFiftyAtThreeASecondWithNothingStored) {
  Create({{.name = "calls", .permits = 3, .burst = 0, .debt = 1}});
  std::vector<int64_t> moments;
  std::atomic<int> running{16};
  std::mutex mu;
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(throttler_->Start("calls").ok());
        const std::lock_guard<std::mutex> lock(mu);
        moments.push_back(clock_.NowNs() - start_ns_);
      }
      running.fetch_sub(1);
    });
  }
  // Time moves when all who are left wait.
  while (running.load() > 0) {
    if (throttler_->waiting() >= static_cast<size_t>(running.load()) && throttler_->waiting() > 0) {
      clock_.Advance(milliseconds(1));
    } else {
      clock_.Advance(nanoseconds(0));
      std::this_thread::yield();
    }
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(moments.size(), 800u);
  std::sort(moments.begin(), moments.end());
  // One every third of a second: the clock moves by a millisecond.
  for (size_t i = 0; i < moments.size(); ++i) {
    const auto due_ns = static_cast<int64_t>(i) * kSecond / 3;
    EXPECT_GE(moments[i], due_ns);
    EXPECT_LE(moments[i], due_ns + due_ns / 10'000 + 2 * kMillisecond);
  }
}

TEST_F(Throttlers, TenPermitsEachAtTwoASecondWithNothingStored) {
  Create({{.name = "calls", .permits = 2, .burst = 0, .debt = 10}});
  for (int i = 0; i < 5; ++i) Submit("calls", 10);
  At(30'000);
  ASSERT_EQ(ran_.size(), 5u);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(ran_[static_cast<size_t>(i)].at_ns, i * 5 * kSecond);
  }
}

TEST_F(Throttlers, DebtsWaitAsInGuava) {
  Create({{.name = "calls", .permits = 1, .burst = 0, .debt = 16}});
  const uint64_t costs[] = {1, 1, 2, 4, 8, 1};
  const int64_t waits_s[] = {0, 1, 1, 2, 4, 8};
  int64_t now_ms = 0;
  for (size_t i = 0; i < 6; ++i) {
    Submit("calls", costs[i]);
    if (waits_s[i] > 0) {
      EXPECT_EQ(RunBy(now_ms + waits_s[i] * 1000 - 1), i);
    }
    now_ms += waits_s[i] * 1000;
    EXPECT_EQ(RunBy(now_ms), i + 1);
  }
}

TEST_F(Throttlers, FractionsOfAPermitAreKept) {
  Create({{.name = "calls", .permits = 1, .burst = 10}});
  ASSERT_EQ(throttler_->TryStart("calls", 10)->count(), 0);
  At(2500);
  EXPECT_EQ(throttler_->TryStart("calls", 2)->count(), 0);
  EXPECT_EQ(*throttler_->TryStart("calls", 1), milliseconds(500));
}

TEST_F(Throttlers, NoPermitsAreRefused) {
  Create({{.name = "calls", .permits = 1}});
  EXPECT_EQ(throttler_->TryStart("calls", 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(throttler_->Start("calls", static_cast<uint64_t>(-1)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(throttler_->TryStart("nobody").status().code(), StatusCode::kNotFound);
}

// ---- 5. Limits changed while running ----

TEST_F(Throttlers, LimitsChangeWhileTasksWait) {
  Create({Log("calls", 1)});
  for (int i = 0; i < 11; ++i) Submit("calls");
  EXPECT_EQ(RunBy(500), 1u);
  ASSERT_TRUE(throttler_->SetLimit(Log("calls", 5)).ok());
  EXPECT_EQ(RunBy(501), 5u);
  EXPECT_EQ(CheckWindows("calls", 5), "");
  ASSERT_TRUE(throttler_->SetLimit(Log("calls", 1)).ok());
  const size_t before = ran_.size();
  EXPECT_EQ(RunBy(1500), before);
  At(10'000);
  EXPECT_EQ(ran_.size(), 11u);
  EXPECT_TRUE(std::is_sorted(ran_.begin(), ran_.end(),
                             [](const Ran& a, const Ran& b) { return a.task < b.task; }));
  for (size_t i = before + 1; i < ran_.size(); ++i) {
    EXPECT_GE(ran_[i].at_ns - ran_[i - 1].at_ns, kSecond);
  }
}

TEST_F(Throttlers, NoThreadIsLetThroughTooMuchUnderHighConcurrency) {
  Create({{.name = "calls", .permits = 1000, .burst = 1000}});
  std::atomic<int> started{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        if (throttler_->TryStart("calls")->count() == 0) started.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(started.load(), 1000);
}

// ---- What a program may do wrong ----

TEST_F(Throttlers, AnExceptionReachesItsFutureAndHarmsNothingElse) {
  Create({{.name = "calls", .permits = 10}});
  auto bad = throttler_->Submit("calls", []() -> int { throw std::runtime_error("no"); });
  auto good = throttler_->Submit("calls", [] { return 7; });
  At(1);
  EXPECT_THROW(bad->get(), std::runtime_error);
  EXPECT_EQ(good->get(), 7);
}

TEST_F(Throttlers, WorkMaySubmitToItsOwnThrottler) {
  Create({{.name = "calls", .permits = 1}});
  std::vector<int64_t> at_ms;
  std::function<void()> again = [&] {
    at_ms.push_back((clock_.NowNs() - start_ns_) / kMillisecond);
    if (at_ms.size() < 4) EXPECT_TRUE(throttler_->Submit("calls", again).ok());
  };
  ASSERT_TRUE(throttler_->Submit("calls", again).ok());
  At(10'000);
  EXPECT_EQ(at_ms, (std::vector<int64_t>{0, 1000, 2000, 3000}));
}

TEST_F(Throttlers, CancelledWorkGivesItsPlaceToThoseBehind) {
  Create({{.name = "calls", .permits = 1}});
  Submit("calls");
  CancelToken token;
  auto cancelled = throttler_->Submit("calls", [] {}, 1, &token);
  ASSERT_TRUE(cancelled.ok());
  Submit("calls");
  At(100);
  token.Cancel();
  EXPECT_THROW(cancelled->get(), std::future_error);
  EXPECT_EQ(RunBy(999), 1u);
  EXPECT_EQ(RunBy(1000), 2u);
}

TEST_F(Throttlers, SubmitAfterShutdownIsRefusedAndWhatWaitsIsDroppedOrFinishedAsTold) {
  Create({{.name = "calls", .permits = 1}});
  Submit("calls");
  auto waits = throttler_->Submit("calls", [] {});
  At(1);
  throttler_->Shutdown(/*finish=*/false);
  EXPECT_THROW(waits->get(), std::future_error);
  EXPECT_EQ(throttler_->Submit("calls", [] {}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(throttler_->Start("calls").code(), StatusCode::kFailedPrecondition);
}

TEST(ThrottlersOnTheRealClock, DestructionWaitsForTheRest) {
  std::atomic<int> ran{0};
  {
    auto throttler =
        Throttler::Embedded({.limits = {{.name = "calls", .permits = 100, .burst = 1}}});
    ASSERT_TRUE(throttler.ok());
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE((*throttler)->Submit("calls", [&] { ran.fetch_add(1); }).ok());
    }
  }
  EXPECT_EQ(ran.load(), 10);
}

TEST_F(Throttlers, WhatWaitsIsBounded) {
  ThrottlerOptions options;
  options.limits = {{.name = "calls", .permits = 1}};
  options.clock = &clock_;
  options.executor = [](std::function<void()> run) { run(); };
  options.max_waiting = 3;
  options.max_wait = seconds(100);
  options.finish_on_destruction = false;
  auto throttler = Throttler::Embedded(std::move(options));
  ASSERT_TRUE(throttler.ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE((*throttler)->Submit("calls", [] {}).ok());
  EXPECT_EQ((*throttler)->waiting(), 3u);
  EXPECT_EQ((*throttler)->Submit("calls", [] {}).status().code(), StatusCode::kResourceExhausted);
}

TEST(ThrottlersBadInput, ABadLimitIsNamed) {
  const auto throttler = Throttler::Embedded({.limits = {{.name = "calls", .permits = 0}}});
  ASSERT_FALSE(throttler.ok());
  EXPECT_EQ(throttler.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(throttler.status().message().find("rate"), std::string::npos)
      << throttler.status().message();
}

}  // namespace
}  // namespace sluice
