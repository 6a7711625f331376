// Many threads use one throttler: their results add up in any order.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "sluice/embedded.h"
#include "sluice/throttler.h"
#include "tests/support/window_checker.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

struct Tally {
  std::atomic<int> ran{0};
  std::atomic<int> ok{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> other{0};

  void Count(const Status& status) {
    if (status.ok()) {
      ok.fetch_add(1);
    } else if (status.code() == StatusCode::kCancelled) {
      cancelled.fetch_add(1);
    } else {
      other.fetch_add(1);
    }
  }
};

std::vector<LimitInfo> Limits(uint64_t overall) {
  return {{.name = "overall", .algorithm = "sliding_log", .rate = {overall, seconds(1)}},
          {.name = "a", .rate = {60, seconds(1)}, .charges = {"overall"}},
          {.name = "b", .rate = {20, seconds(1)}, .charges = {"overall"}}};
}

// Producers submit, block, try and cancel on three channels, while the clock advances and limits
// change. Then the test waits for the remaining functions.
TEST(ThrottlerThreadsTest, AnswersEveryFunctionOnceUnderManyProducers) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 150;
  const auto clock = std::make_shared<VirtualClock>();
  const auto embedded = Embedded::Create(Limits(100), {.clock = clock}).value();
  Tally tally;
  std::atomic<int> submitted{0};
  {
    Throttler throttler = Throttler::Create(embedded, {.limit = "overall"}).value();
    const std::vector<ThrottlerChannel> channels = {throttler, throttler.Channel("a").value(),
                                                    throttler.Channel("b").value()};
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        std::vector<std::future<Status>> futures;
        for (int i = 0; i < kRounds; ++i) {
          const ThrottlerChannel& channel = channels[random() % channels.size()];
          std::stop_source stop;
          const auto count = [&tally] { tally.ran.fetch_add(1); };
          switch (random() % 4) {
            case 0:
              submitted.fetch_add(1);
              tally.Count(channel.Run(count));
              break;
            case 1:
              submitted.fetch_add(1);
              futures.push_back(channel.Submit(count, {.cancel = stop.get_token()}));
              stop.request_stop();
              break;
            default:
              submitted.fetch_add(1);
              futures.push_back(channel.Submit(count));
          }
        }
        for (auto& future : futures) tally.Count(future.get());
        ended.fetch_add(1);
      });
    }
    uint64_t turns = 0;
    while (ended.load() < kThreads) {
      if (!clock->AdvanceToNext()) clock->Advance(milliseconds(1));
      if (++turns % 64 == 0) {
        ASSERT_TRUE(embedded->SetLimits(Limits(80 + turns % 50)).ok());
      }
      std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
    const ThrottlerStats stats = throttler.stats();
    EXPECT_EQ(stats.waiting, 0u);
    EXPECT_EQ(stats.refused + stats.denied, 0u);
  }
  EXPECT_EQ(tally.other.load(), 0);
  EXPECT_EQ(tally.ok.load() + tally.cancelled.load(), submitted.load());
  EXPECT_EQ(tally.ran.load(), tally.ok.load());
}

// Each producer's functions run in its order, and no window exceeds the limit.
TEST(ThrottlerThreadsTest, KeepsOrderAndWindowsUnderManyProducers) {
  constexpr int kThreads = 6;
  constexpr int kEach = 200;
  const auto clock = std::make_shared<VirtualClock>();
  const auto embedded = Embedded::Create(Limits(50), {.clock = clock}).value();
  struct Ran {
    int thread;
    int number;
    nanoseconds at;
  };
  std::vector<Ran> ran;  // appended by one thread at a time
  {
    Throttler throttler =
        Throttler::Create(embedded,
                          {.limit = "overall", .executor = std::make_shared<InlineExecutor>()})
            .value();
    std::vector<std::thread> threads;
    std::atomic<int> ended{0};
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          static_cast<void>(
              throttler.Submit([&ran, &clock, t, i] { ran.push_back({t, i, clock->Now()}); }));
        }
        ended.fetch_add(1);
      });
    }
    while (ended.load() < kThreads || throttler.stats().waiting != 0) {
      if (!clock->AdvanceToNext()) std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
  }
  ASSERT_EQ(ran.size(), static_cast<size_t>(kThreads * kEach));
  std::vector<int> next(kThreads, 0);
  std::vector<test_support::Grant> history;
  for (const Ran& one : ran) {
    EXPECT_EQ(one.number, next[static_cast<size_t>(one.thread)]++);
    history.push_back({one.at.count(), 1});
  }
  EXPECT_EQ(test_support::CheckCountInEveryWindow(history, 1'000'000'000, 50), "");
}

// Stored permits are reserved for a caller that waits for more permits than are stored. They stay
// reserved while a change of limits books that caller again: TryStart never gets them.
TEST(ThrottlerThreadsTest, GrantsNoneInBetweenDuringARebooking) {
  const auto limits = [](uint64_t others) -> std::vector<LimitInfo> {
    return {{.name = "overall", .rate = {1, seconds(1)}, .burst = 10},
            {.name = "other", .rate = {others, seconds(1)}, .charges = {"overall"}}};
  };
  const auto clock = std::make_shared<VirtualClock>();
  const auto embedded = Embedded::Create(limits(1000), {.clock = clock}).value();
  Throttler throttler = Throttler::Create(embedded, {.limit = "overall"}).value();
  const ThrottlerChannel other = throttler.Channel("other").value();
  ASSERT_EQ(throttler.TryStart(7).value(), nanoseconds(0));
  std::future<Status> waits = throttler.Submit([] {}, {.permits = 5});
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> tries{0};
  std::atomic<int> slipped_in{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        if (other.TryStart().value() == nanoseconds(0)) slipped_in.fetch_add(1);
        tries.fetch_add(1);
      }
    });
  }
  for (uint64_t i = 0; i < 2000 || tries.load() < 2000; ++i) {
    ASSERT_TRUE(embedded->SetLimits(limits(1000 + i % 2)).ok());
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(slipped_in.load(), 0);
  clock->Advance(seconds(2));
  EXPECT_TRUE(waits.get().ok()) << "at its grant time";
}

TEST(ThrottlerThreadsTest, ShutsDownWhileManySubmit) {
  for (int round = 0; round < 20; ++round) {
    const auto embedded = Embedded::Create(Limits(50)).value();
    std::optional<Throttler> throttler =
        Throttler::Create(embedded, {.limit = "overall", .at_destruction = AtShutdown::kDrop})
            .value();
    const ThrottlerChannel channel = throttler->Channel("a").value();
    Tally tally;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        std::vector<std::future<Status>> futures;
        for (int i = 0; i < 40; ++i) {
          futures.push_back(channel.Submit([&tally] { tally.ran.fetch_add(1); }));
        }
        for (auto& future : futures) tally.Count(future.get());
      });
    }
    throttler.reset();
    const int ran = tally.ran.load();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(tally.ran.load(), ran) << "nothing runs after it was destroyed";
    EXPECT_EQ(tally.ok.load(), ran);
    EXPECT_EQ(tally.ok.load() + tally.cancelled.load() + tally.other.load(), 160);
  }
}

}  // namespace
}  // namespace sluice
