// Throttlers with the real server, on the system clock. No function runs early, exactly, since
// grant times count from the arrival of the answer. Functions run late by the delay of the
// scheduler; the tests allow seconds.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sluice/admin_client.h"
#include "sluice/client.h"
#include "sluice/throttler.h"
#include "tests/support/server_process.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::ServerProcess;
using Time = std::chrono::steady_clock;

constexpr char kLimits[] = R"(
limits:
  - { name: overall, algorithm: sliding_log, rate: 2/250ms }
  - { name: CHANNEL1, algorithm: sliding_log, rate: 3/250ms, charges: [overall] }
  - { name: CHANNEL2, algorithm: sliding_log, rate: 1/250ms, charges: [overall] }
  - { name: tasks, algorithm: sliding_log, rate: 50/100ms }
  - { name: even, rate: 30/s, burst: 0, debt: 1 }
  - { name: guava, rate: 10/s, burst: 0, debt: 8 }
  - { name: shared, rate: 1/h, burst: 100, max_wait: 24h }
  - { name: slow, rate: 1/h, max_wait: 24h }
  - { name: indebted, rate: 1/h, burst: 1, debt: 10, max_wait: 24h }
  - { name: tens, rate: 40/s, burst: 0, debt: 10 }
  - { name: window, algorithm: sliding_log, rate: 100/h, max_wait: 24h }
)";

class ThrottlerServerTest : public ::testing::Test {
 protected:
  ThrottlerServerTest() : server_({.limits = kLimits}), client_(Connect()) {}

  Client Connect() {
    return *Client::Create({.servers = {server_.data_address()}, .deadline = seconds(20)});
  }
  Throttler Make(const std::string& limit, AtShutdown at_destruction = AtShutdown::kDrop) {
    return Throttler::Create(client_, {.limit = limit, .at_destruction = at_destruction}).value();
  }

  ServerProcess server_;
  Client client_;
};

TEST_F(ThrottlerServerTest, SynchronousCallsOnChannel2AreSpaced250Milliseconds) {
  const Throttler throttler = Make("overall");
  const ThrottlerChannel channel2 = throttler.Channel("CHANNEL2").value();
  const Time::time_point begin = Time::now();
  for (int i = 0; i < 4; ++i) {
    Time::duration at{};
    const Status status = channel2.Run([&] { at = Time::now() - begin; });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_GE(at, i * milliseconds(250));
    EXPECT_LE(at, i * milliseconds(250) + seconds(5));
  }
}

TEST_F(ThrottlerServerTest, Channels1212211RunInTheOrderOfNumbers) {
  const Throttler throttler = Make("overall");
  const ThrottlerChannel channels[] = {throttler.Channel("CHANNEL1").value(),
                                       throttler.Channel("CHANNEL2").value()};
  std::vector<int> ran;
  std::vector<std::future<Status>> futures;
  const int order[] = {1, 2, 1, 2, 2, 1, 1};
  for (int i = 0; i < 7; ++i) {
    futures.push_back(channels[order[i] - 1].Submit([&ran, i] { ran.push_back(i + 1); }));
  }
  for (auto& future : futures) {
    const Status status = future.get();
    EXPECT_TRUE(status.ok()) << status;
  }
  // Equal grant times arrive in answers that are microseconds apart, so the order is guaranteed
  // only within a channel.
  std::vector<int> one;
  std::vector<int> two;
  for (const int number : ran) (order[number - 1] == 1 ? one : two).push_back(number);
  EXPECT_EQ(one, (std::vector<int>{1, 3, 6, 7}));
  EXPECT_EQ(two, (std::vector<int>{2, 4, 5}));
}

TEST_F(ThrottlerServerTest, AThousandTasksRunInTheOrderOfSubmission) {
  const Throttler throttler = Make("tasks");
  std::vector<int> ran;
  std::vector<Time::time_point> at;
  std::vector<std::future<Status>> futures;
  const Time::time_point begin = Time::now();
  for (int i = 0; i < 1000; ++i) {
    futures.push_back(throttler.Submit([&, i] {
      ran.push_back(i);
      at.push_back(Time::now());
    }));
  }
  for (auto& future : futures) ASSERT_TRUE(future.get().ok());
  ASSERT_EQ(ran.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
  for (int i = 0; i < 1000; ++i) {
    EXPECT_GE(at[static_cast<size_t>(i)] - begin, (i / 50) * milliseconds(100)) << i;
  }
  EXPECT_EQ(throttler.stats().waiting, 0u);
}

TEST_F(ThrottlerServerTest, SixteenThreadsAtAnEvenPaceWithNothingStored) {
  const Throttler throttler = Make("even");
  std::mutex mu;
  std::vector<Time::time_point> at;
  const Time::time_point begin = Time::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) {
        const Status status = throttler.Run([&] {
          const std::lock_guard<std::mutex> lock(mu);
          at.push_back(Time::now());
        });
        EXPECT_TRUE(status.ok()) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(at.size(), 48u);
  std::sort(at.begin(), at.end());
  for (size_t i = 0; i < at.size(); ++i) {
    EXPECT_GE(at[i] - begin, static_cast<int>(i) * nanoseconds(33'333'333)) << i;
  }
}

TEST_F(ThrottlerServerTest, DebtsAsInGuavaWait0_1_1_2_4_8) {
  const Throttler throttler = Make("guava");
  const Time::time_point begin = Time::now();
  milliseconds until(0);
  for (const int cost : {1, 1, 2, 4, 8, 1}) {
    Time::duration at{};
    const Status status =
        throttler.Run([&] { at = Time::now() - begin; }, {.permits = static_cast<uint64_t>(cost)});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_GE(at, until);
    EXPECT_LE(at, until + seconds(5));
    until += cost * milliseconds(100);
  }
}

TEST_F(ThrottlerServerTest, ManyProgramsShareOneLimit) {
  Client other_client = Connect();
  const Throttler one = Make("shared");
  const Throttler other = Throttler::Create(other_client, {.limit = "shared"}).value();
  int started = 0;
  for (int i = 0; i < 150; ++i) {
    const auto wait = (i % 2 == 0 ? one : other).TryStart();
    ASSERT_TRUE(wait.ok()) << wait.status();
    if (*wait == nanoseconds(0)) ++started;
  }
  EXPECT_EQ(started, 100);
}

TEST_F(ThrottlerServerTest, TryStartRequestReturnsZeroOrHowLongToSleep) {
  const Throttler throttler = Make("slow");
  EXPECT_EQ(throttler.TryStart().value(), nanoseconds(0));
  const nanoseconds sleep = throttler.TryStart().value();
  EXPECT_GT(sleep, seconds(3000));
  EXPECT_LE(sleep, seconds(3600));
}

// The end of an hour does not reset the count: the first permit must be an hour old.
TEST_F(ThrottlerServerTest, HasNoTimerResetBurst) {
  const Throttler throttler = Make("window");
  for (int i = 0; i < 100; ++i) ASSERT_EQ(throttler.TryStart().value(), nanoseconds(0));
  for (int i = 0; i < 100; ++i) ASSERT_GT(throttler.TryStart().value(), seconds(3000));
}

TEST_F(ThrottlerServerTest, FivePermitsAtOnceAreGrantedAndTheNextWaits) {
  const Throttler throttler = Make("indebted");
  EXPECT_EQ(throttler.TryStart(5).value(), nanoseconds(0));
  // One permit was stored; the four owed take four hours.
  EXPECT_GT(throttler.TryStart().value(), std::chrono::minutes(3 * 60 + 50));
}

TEST_F(ThrottlerServerTest, TenPermitsEachWithNothingStoredAreOneGrantEveryTenIntervals) {
  const Throttler throttler = Make("tens");
  std::vector<Time::time_point> at;
  std::vector<std::future<Status>> futures;
  const Time::time_point begin = Time::now();
  for (int i = 0; i < 4; ++i) {
    futures.push_back(throttler.Submit([&at] { at.push_back(Time::now()); }, {.permits = 10}));
  }
  for (auto& future : futures) ASSERT_TRUE(future.get().ok());
  for (int i = 0; i < 4; ++i) {
    EXPECT_GE(at[static_cast<size_t>(i)] - begin, i * milliseconds(250)) << i;
  }
}

TEST_F(ThrottlerServerTest, RejectsZeroPermits) {
  const Throttler throttler = Make("shared");
  EXPECT_EQ(throttler.TryStart(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(throttler.Start({.permits = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(throttler.Submit([] {}, {.permits = 0}).get().code(), StatusCode::kInvalidArgument);
}

TEST_F(ThrottlerServerTest, LosesNoIncrementInRaces) {
  const Throttler throttler = Make("shared");
  std::atomic<int> granted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 40; ++i) {
        if (throttler.TryStart().value() == nanoseconds(0)) granted.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted.load(), 100);
}

TEST_F(ThrottlerServerTest, CancellingRefundsThePermitsAtTheServer) {
  const Throttler throttler = Make("slow");
  ASSERT_TRUE(throttler.Start().ok());
  std::stop_source stop;
  auto cancelled = throttler.Submit([] {}, {.cancel = stop.get_token()});
  const std::vector<Bucket> bucket = {{"slow", ""}};
  while (client_.Query(bucket).value()[0].waiting != 1) std::this_thread::yield();
  stop.request_stop();
  EXPECT_EQ(cancelled.get().code(), StatusCode::kCancelled);
  while (client_.Query(bucket).value()[0].waiting != 0) std::this_thread::yield();
}

TEST_F(ThrottlerServerTest, DestructionRefundsDroppedFunctionsAtTheServer) {
  const std::vector<Bucket> bucket = {{"slow", ""}};
  std::future<Status> dropped;
  {
    const Throttler throttler = Make("slow");
    ASSERT_TRUE(throttler.Start().ok());
    dropped = throttler.Submit([] {});
    while (client_.Query(bucket).value()[0].waiting != 1) std::this_thread::yield();
  }
  EXPECT_EQ(dropped.get().code(), StatusCode::kCancelled);
  while (client_.Query(bucket).value()[0].waiting != 0) std::this_thread::yield();
}

TEST_F(ThrottlerServerTest, RaisedLimitAppliesToLaterCalls) {
  const Throttler throttler = Make("slow");
  ASSERT_TRUE(throttler.Start().ok());
  ASSERT_GT(throttler.TryStart().value(), seconds(3000));
  AdminClient admin = *AdminClient::Create({.server = server_.admin_address()});
  ASSERT_TRUE(
      admin.PutLimit({.name = "slow", .algorithm = "token_bucket", .rate = {1000, seconds(1)}})
          .ok());
  const Status status = throttler.Start({.max_wait = seconds(10)});
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ThrottlerServerTest, PassesOnErrorsOfTheServer) {
  const Throttler unknown = Make("missing");
  EXPECT_EQ(unknown.Start().code(), StatusCode::kNotFound);
  EXPECT_EQ(unknown.TryStart().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(unknown.Submit([] {}).get().code(), StatusCode::kNotFound);
  const Throttler throttler = Make("slow");
  EXPECT_EQ(throttler.Start({.permits = 2}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(throttler.Start().ok());
  EXPECT_EQ(throttler.Start({.max_wait = seconds(1)}).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(throttler.Start({.max_wait = seconds(0)}).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(ThrottlerServerTest, FailsWithUnavailableWithoutAServer) {
  Client client =
      *Client::Create({.servers = {server_.data_address()}, .deadline = milliseconds(500)});
  Throttler throttler = Throttler::Create(client, {.limit = "tasks"}).value();
  ASSERT_TRUE(throttler.Start().ok());
  server_.Kill();
  const Status status = throttler.Start();
  EXPECT_TRUE(status.code() == StatusCode::kUnavailable ||
              status.code() == StatusCode::kDeadlineExceeded)
      << status;
  EXPECT_FALSE(throttler.Submit([] {}).get().ok());
}

}  // namespace
}  // namespace sluice
