#include "common/net/event_loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "tests/unit/common/net/net_testing.h"

namespace sluice::net {
namespace {

class EventLoopTest : public ::testing::Test {
 protected:
  common::SystemClock clock_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(clock_);
};

TEST_F(EventLoopTest, RunsTasksOfEachThreadInOrder) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 5000;
  std::vector<int> last(kThreads, -1);  // the loop's own
  int ran = 0;
  std::thread runner([this] { loop_->Run(); });
  std::vector<std::thread> posters;
  for (int t = 0; t < kThreads; ++t) {
    posters.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        loop_->Post([&, t, i] {
          EXPECT_TRUE(loop_->InLoopThread());
          EXPECT_EQ(last[t], i - 1);
          last[t] = i;
          if (++ran == kThreads * kTasks) loop_->Stop();
        });
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  runner.join();
  EXPECT_EQ(ran, kThreads * kTasks);
}

struct CountingTask final : Task {
  void Run() override {
    if (++runs < 3) loop->Post(*this);
  }
  void Drop() override { ++drops; }
  EventLoop* loop = nullptr;
  int runs = 0;
  int drops = 0;
};

TEST_F(EventLoopTest, TaskThatPostsItselfRunsInTheNextIterationWithoutSleep) {
  CountingTask task;
  task.loop = loop_.get();
  loop_->Post(task);
  for (int i = 1; i <= 3; ++i) {
    loop_->RunOnce(-1);
    EXPECT_EQ(task.runs, i);
  }
}

TEST_F(EventLoopTest, BoundsTasksAndTimersOfAnIteration) {
  common::FakeClock clock;
  const auto loop = *EventLoop::Create(clock);
  constexpr int kMany = 1000;
  struct Counter {
    void OnTimer() { ++*fired; }
    int* fired;
    Timer timer{Timer::To<&Counter::OnTimer>, this};
  };
  int fired = 0;
  std::vector<std::unique_ptr<Counter>> timers;
  std::vector<int> ran;
  for (int i = 0; i < kMany; ++i) {
    timers.push_back(std::unique_ptr<Counter>(new Counter{&fired}));
    loop->Arm(timers.back()->timer, clock.NowNs() + 1'000'000);
    loop->Post([&ran, i] { ran.push_back(i); });
  }
  clock.Advance(2'000'000);
  int iterations = 0;
  size_t ran_before = 0;
  for (int fired_before = 0; fired < kMany || ran.size() < kMany; ++iterations) {
    loop->RunOnce(-1);  // does not sleep
    EXPECT_LE(fired - fired_before, 64);
    EXPECT_LE(ran.size() - ran_before, 128u);
    fired_before = fired;
    ran_before = ran.size();
    if (iterations == 3) timers.erase(timers.begin() + 500, timers.begin() + 510);
    if (iterations == 3) fired += 10;
    fired_before = fired;
  }
  EXPECT_EQ(iterations, 16);
  for (int i = 0; i < kMany; ++i) EXPECT_EQ(ran[i], i);
}

TEST_F(EventLoopTest, FewTimersThatTakeLongFireInAnIteration) {
  common::FakeClock clock;
  const auto loop = *EventLoop::Create(clock);
  struct Slow {
    void OnTimer() {
      ++*fired;
      clock->Advance(100'000);
    }
    common::FakeClock* clock;
    int* fired;
    Timer timer{Timer::To<&Slow::OnTimer>, this};
  };
  int fired = 0;
  std::vector<std::unique_ptr<Slow>> timers;
  for (int i = 0; i < 20; ++i) {
    timers.push_back(std::unique_ptr<Slow>(new Slow{&clock, &fired}));
    loop->Arm(timers.back()->timer, clock.NowNs() + 1'000'000);
  }
  clock.Advance(2'000'000);
  for (const int expected : {8, 16, 20}) {
    loop->RunOnce(-1);
    EXPECT_EQ(fired, expected);
  }
}

TEST_F(EventLoopTest, FewTasksThatTakeLongRunInAnIteration) {
  common::FakeClock clock;
  const auto loop = *EventLoop::Create(clock);
  int ran = 0;
  for (int i = 0; i < 8; ++i) {
    loop->Post([&] {
      ++ran;
      clock.Advance(200'000);
    });
  }
  for (const int expected : {3, 6, 8}) {
    loop->RunOnce(-1);
    EXPECT_EQ(ran, expected);
  }
}

TEST_F(EventLoopTest, CountsTheTimesOfSteps) {
  common::Metrics metrics;
  const auto loop = *EventLoop::Create(clock_, {.metrics = &metrics});
  for (int i = 0; i < 40; ++i) loop->Post([] {});
  loop->Post([&] { loop->Stop(); });
  loop->Run();
  const common::MetricsSnapshot totals = metrics.Snapshot(0);
  // 16, 16, 9; more on a machine that takes long for so many.
  EXPECT_GE(totals.steps[static_cast<size_t>(common::Step::kTask)].count, 3u);
  EXPECT_EQ(totals.steps[static_cast<size_t>(common::Step::kInput)].count, 0u);
}

TEST_F(EventLoopTest, DropsTasksThatDidNotRun) {
  CountingTask task;
  task.loop = loop_.get();
  const auto held = std::make_shared<int>(0);
  loop_->Stop();
  loop_->Run();
  loop_->Post(task);
  loop_->Post([held] {});
  EXPECT_EQ(held.use_count(), 2);
  loop_.reset();
  EXPECT_EQ(task.runs, 0);
  EXPECT_EQ(task.drops, 1);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(EventLoopTest, TimersOnTheRealClockAreNeverEarly) {
  struct Deadline {
    void OnTimer() {
      early = early || clock->NowNs() < at_ns;
      ++*fired;
    }
    common::Clock* clock;
    int* fired;
    int64_t at_ns = 0;
    bool early = false;
    Timer timer{Timer::To<&Deadline::OnTimer>, this};
  };
  int fired = 0;
  std::vector<std::unique_ptr<Deadline>> deadlines;
  const int64_t start_ns = clock_.NowNs();
  for (int i = 0; i < 50; ++i) {
    deadlines.push_back(std::unique_ptr<Deadline>(new Deadline{&clock_, &fired}));
    deadlines.back()->at_ns = start_ns + i * 317'311;
    loop_->Arm(deadlines.back()->timer, deadlines.back()->at_ns);
  }
  while (fired < 50) loop_->RunOnce(-1);
  for (const auto& deadline : deadlines) EXPECT_FALSE(deadline->early);
  // One wake-up for each timer, and at most a few needless ones.
  EXPECT_LE(loop_->counters().iterations.value(), 110u);
}

struct NoOp {
  void OnTimer() {}
  Timer timer{Timer::To<&NoOp::OnTimer>, this};
};

TEST_F(EventLoopTest, DistantTimersDoNotWakeTheLoop) {
  std::vector<std::unique_ptr<NoOp>> timers;
  for (int i = 0; i < 100'000; ++i) {
    timers.push_back(std::make_unique<NoOp>());
    loop_->ArmIn(timers.back()->timer, (int64_t{60} + i % 3600) * 1'000'000'000);
  }
  const int64_t before_ns = clock_.NowNs();
  loop_->RunOnce(30'000'000);
  EXPECT_GE(clock_.NowNs() - before_ns, 30'000'000);  // one wait, to its end
  EXPECT_EQ(loop_->counters().timers.value(), 0u);
}

TEST(EventLoopClockTest, TakesTimeFromTheClock) {
  common::FakeClock clock(1'000'000'000);
  auto loop = *EventLoop::Create(clock);
  struct Flag {
    void OnTimer() { fired = true; }
    bool fired = false;
    Timer timer{Timer::To<&Flag::OnTimer>, this};
  } flag;
  loop->ArmIn(flag.timer, 60'000'000'000);
  loop->RunOnce(0);
  clock.Advance(59'999'000'000);
  loop->RunOnce(0);
  EXPECT_FALSE(flag.fired);
  clock.Advance(2'000'000);
  loop->RunOnce(-1);  // overdue: does not sleep
  EXPECT_TRUE(flag.fired);
  EXPECT_EQ(loop->now_ns(), clock.NowNs());
}

TEST(EventLoopClockTest, EventsOfABusyLoopAreDatedFromItsLastWait) {
  common::FakeClock clock(1'000'000'000);
  auto loop = *EventLoop::Create(clock);
  int64_t first_ns = 0;
  loop->Post([&] {
    first_ns = loop->now_ns();
    clock.Advance(7'000'000);  // work
    loop->Post([] {});
  });
  loop->RunOnce(0);
  loop->RunOnce(0);
  EXPECT_EQ(loop->now_ns(), first_ns + 7'000'000);
  EXPECT_EQ(loop->ready_since_ns(), first_ns);
  EXPECT_EQ(loop->counters().busy_ns.value(), 7'000'000u);
  loop->RunOnce(0);
  EXPECT_EQ(loop->ready_since_ns(), loop->now_ns());
}

struct ChainedHook final : IterationHook {
  void OnIterationEnd() override {
    ++runs;
    if (again-- > 0) loop->AtIterationEnd(*this);
  }
  EventLoop* loop = nullptr;
  int runs = 0;
  int again = 0;
};

TEST_F(EventLoopTest, HookRunsOncePerIterationHoweverOftenScheduled) {
  ChainedHook hook;
  hook.loop = loop_.get();
  loop_->AtIterationEnd(hook);
  loop_->AtIterationEnd(hook);
  loop_->RunOnce(0);
  EXPECT_EQ(hook.runs, 1);
  loop_->RunOnce(0);
  EXPECT_EQ(hook.runs, 1);
}

TEST_F(EventLoopTest, HookThatReschedulesItselfDoesNotBlockTheLoop) {
  ChainedHook hook;
  hook.loop = loop_.get();
  hook.again = 1000;
  loop_->AtIterationEnd(hook);
  loop_->RunOnce(-1);
  EXPECT_LT(hook.runs, 100);
  const int before = hook.runs;
  loop_->RunOnce(-1);  // goes on without sleeping
  EXPECT_GT(hook.runs, before);
  hook.again = 0;
  Settle(*loop_);
}

// A descriptor that is always ready.
struct AlwaysReady final : IoWatcher {
  explicit AlwaysReady(EventLoop& on) : loop(on) {
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(write(ends[1], "x", 1), 1);
    EXPECT_TRUE(loop.Watch(ends[0], EPOLLIN, this).ok());
  }
  ~AlwaysReady() override {
    loop.Unwatch(ends[0], this);
    close(ends[0]);
    close(ends[1]);
  }
  void OnIo(uint32_t) override { ++told; }
  EventLoop& loop;
  int ends[2];
  int told = 0;
};

TEST(EventLoopBeforeSleep, HookWaitsUntilNothingElseIsReady) {
  common::FakeClock clock(1'000'000'000);
  auto loop = *EventLoop::Create(clock);
  ChainedHook hook;
  {
    AlwaysReady ready(*loop);
    loop->BeforeSleep(hook);
    loop->BeforeSleep(hook);
    for (int i = 0; i < 3; ++i) loop->RunOnce(-1);
    EXPECT_EQ(ready.told, 3);
    EXPECT_EQ(hook.runs, 0);
  }
  loop->RunOnce(-1);  // does not sleep
  EXPECT_EQ(hook.runs, 1);
  loop->RunOnce(0);
  EXPECT_EQ(hook.runs, 1);
}

TEST(EventLoopBeforeSleep, HookRunsSoonWhileTheLoopIsBusy) {
  common::FakeClock clock(1'000'000'000);
  auto loop = *EventLoop::Create(clock);
  ChainedHook hook;
  AlwaysReady ready(*loop);
  loop->BeforeSleep(hook);
  clock.Advance(EventLoop::kMostBusyNs - 1);
  loop->RunOnce(-1);
  EXPECT_EQ(hook.runs, 0);
  clock.Advance(1);
  loop->RunOnce(-1);
  EXPECT_EQ(hook.runs, 1);
}

TEST(EventLoopBeforeSleep, HookScheduledByLeavingResidentRuns) {
  struct Last final : LoopResident {
    void OnLoopStop() override {
      if (std::exchange(told, true)) return;
      loop->BeforeSleep(hook);
    }
    EventLoop* loop = nullptr;
    ChainedHook hook;
    bool told = false;
  };
  common::SystemClock clock;
  auto loop = *EventLoop::Create(clock);
  Last last;
  last.loop = loop.get();
  loop->AddResident(last);
  loop->Stop();
  loop->Run();
  EXPECT_EQ(last.hook.runs, 1);
}

struct Remover final : IoWatcher {
  void OnIo(uint32_t) override {
    ++told;
    if (other == nullptr || *other == nullptr) return;
    loop->Unwatch(other_fd, other->get());
    other->reset();
  }
  EventLoop* loop = nullptr;
  std::unique_ptr<Remover>* other = nullptr;
  int other_fd = -1;
  int told = 0;
};

TEST_F(EventLoopTest, RemovedWatcherIsNotCalledInTheSameIteration) {
  SocketPair a = UnixPair();
  SocketPair b = UnixPair();
  auto first = std::make_unique<Remover>();
  auto second = std::make_unique<Remover>();
  first->loop = second->loop = loop_.get();
  first->other = &second;
  first->other_fd = b.ours.fd();
  second->other = &first;
  second->other_fd = a.ours.fd();
  ASSERT_TRUE(loop_->Watch(a.ours.fd(), EPOLLIN, first.get()).ok());
  ASSERT_TRUE(loop_->Watch(b.ours.fd(), EPOLLIN, second.get()).ok());
  a.peer.Send("x");
  b.peer.Send("x");
  loop_->RunOnce(-1);
  // The first watcher destroyed the other; ASan would detect its use.
  EXPECT_NE(first == nullptr, second == nullptr);
  EXPECT_EQ((first != nullptr ? first : second)->told, 1);
}

struct SlowEnd final : EndingHook {
  void OnIterationEnd() override { loop->EndInTurn(*this); }
  void OnTurnToEnd() override {
    ended->push_back(number);
    clock->Advance(300'000);
  }
  EventLoop* loop = nullptr;
  common::FakeClock* clock = nullptr;
  std::vector<int>* ended = nullptr;
  int number = 0;
};

TEST_F(EventLoopTest, FewStreamsThatTakeLongEndInAnIteration) {
  common::FakeClock clock;
  const auto loop = *EventLoop::Create(clock);
  std::vector<int> ended;
  std::vector<SlowEnd> hooks(5);
  for (int i = 0; i < 5; ++i) {
    hooks[i].loop = loop.get();
    hooks[i].clock = &clock;
    hooks[i].ended = &ended;
    hooks[i].number = i;
    if (i == 0) loop->AtIterationEnd(hooks[i]);
    loop->EndInTurn(hooks[i]);
    loop->EndInTurn(hooks[i]);
  }
  loop->RunOnce(-1);  // does not sleep
  EXPECT_EQ(ended, (std::vector<int>{1, 2}));
  loop->RunOnce(-1);
  loop->RunOnce(-1);
  EXPECT_EQ(ended, (std::vector<int>{1, 2, 3, 4, 0}));
}

}  // namespace
}  // namespace sluice::net
