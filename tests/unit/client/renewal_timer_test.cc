// RenewalTimer: its thread, its alarms, and its ends.
#include "client/src/renewal_timer.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/threads_named.h"

// All processes have the same id, as the first ones of PID namespaces.
extern "C" pid_t getpid() noexcept { return 1; }

namespace {
std::atomic<time_t> suspended_seconds{0};
}

// The machine can be suspended: CLOCK_BOOTTIME alone goes on.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_BOOTTIME) now->tv_sec += suspended_seconds;
  return result;
}

namespace sluice::client_internal {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

using Alarm = RenewalTimer::Alarm;

size_t Threads() { return testing::ThreadsNamed("sluice-renew"); }

// A thread that has ended for the program ends a moment later for the kernel.
void AwaitNoThread() {
  while (Threads() != 0) std::this_thread::yield();
}

// An alarm that is closed at the end, as that of a client. Declare it after what its function uses.
class ScopedAlarm {
 public:
  ~ScopedAlarm() { Close(); }
  bool RunAfter(nanoseconds delay, std::function<void()> fn) {
    return RenewalTimer::OfProgram().RunAfter(alarm_, delay, std::move(fn));
  }
  void Close() { RenewalTimer::OfProgram().Close(alarm_); }

 private:
  const std::shared_ptr<Alarm> alarm_ = std::make_shared<Alarm>();
};

TEST(RenewalTimerTest, RunsTheFunctionsOfAllClientsOnOneThread) {
  AwaitNoThread();
  std::promise<std::thread::id> ran[3];
  ScopedAlarm alarms[3];
  for (int i = 0; i < 3; ++i) {
    alarms[i].RunAfter(milliseconds(i),
                       [&ran, i] { ran[i].set_value(std::this_thread::get_id()); });
  }
  const std::thread::id thread = ran[0].get_future().get();
  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_EQ(ran[1].get_future().get(), thread);
  EXPECT_EQ(ran[2].get_future().get(), thread);
  EXPECT_EQ(Threads(), 1u);
}

TEST(RenewalTimerTest, StartsWithTheFirstClientAndEndsWithTheLast) {
  AwaitNoThread();
  for (int round = 0; round < 3; ++round) {
    ScopedAlarm first;
    ScopedAlarm last;
    EXPECT_EQ(Threads(), 0u);
    first.RunAfter(hours(1), [] {});
    last.RunAfter(hours(1), [] {});
    EXPECT_EQ(Threads(), 1u);
    first.Close();
    EXPECT_EQ(Threads(), 1u);
    last.Close();
    AwaitNoThread();
  }
}

TEST(RenewalTimerTest, RunsTheEarlierOfTwoFunctions) {
  std::promise<int> ran;
  ScopedAlarm alarm;
  alarm.RunAfter(hours(2), [&] { ran.set_value(2); });
  alarm.RunAfter(milliseconds(1), [&] { ran.set_value(1); });
  alarm.RunAfter(hours(1), [&] { ran.set_value(3); });
  EXPECT_EQ(ran.get_future().get(), 1);
}

TEST(RenewalTimerTest, RunsSoonAfterTheMachineWasSuspended) {
  std::promise<void> ran;
  ScopedAlarm alarm;
  alarm.RunAfter(hours(1), [&] { ran.set_value(); });
  suspended_seconds += 3600;
  EXPECT_EQ(ran.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(RenewalTimerTest, AFunctionMaySetTheNext) {
  std::promise<void> third;
  std::function<void(int)> run;
  ScopedAlarm alarm;
  run = [&](int round) {
    if (round == 3) return third.set_value();
    alarm.RunAfter(nanoseconds(0), [&run, round] { run(round + 1); });
  };
  run(0);
  third.get_future().wait();
}

TEST(RenewalTimerTest, CloseWaitsForTheFunctionThatRuns) {
  ScopedAlarm alarm;
  std::promise<void> begun;
  std::promise<void> may_end;
  std::atomic<bool> ended{false};
  alarm.RunAfter(nanoseconds(0), [&] {
    begun.set_value();
    may_end.get_future().wait();
    ended = true;
  });
  begun.get_future().wait();
  std::thread closer([&] {
    alarm.Close();
    EXPECT_TRUE(ended);
  });
  may_end.set_value();
  closer.join();
}

TEST(RenewalTimerTest, RunsNothingAfterClose) {
  ScopedAlarm other;
  ScopedAlarm closed;
  other.RunAfter(hours(1), [] {});
  auto used = std::make_shared<int>();
  closed.RunAfter(hours(1), [used] { ADD_FAILURE(); });
  EXPECT_EQ(used.use_count(), 2);
  closed.Close();
  EXPECT_EQ(used.use_count(), 1);
  EXPECT_TRUE(closed.RunAfter(nanoseconds(0), [used] { ADD_FAILURE(); }));
  EXPECT_EQ(used.use_count(), 1);
}

TEST(RenewalTimerTest, TheLastClientMayBeClosedOnItsThread) {
  for (int round = 0; round < 100; ++round) {
    std::promise<void> closed;
    ScopedAlarm alarm;
    alarm.RunAfter(nanoseconds(0), [&] {
      alarm.Close();
      closed.set_value();
    });
    closed.get_future().wait();
    // Another client may begin at once.
    std::promise<void> ran;
    ScopedAlarm next;
    next.RunAfter(nanoseconds(0), [&] { ran.set_value(); });
    ran.get_future().wait();
  }
  AwaitNoThread();
}

TEST(RenewalTimerTest, ManyThreadsSetAndClose) {
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        std::promise<void> ran;
        ScopedAlarm alarm;
        alarm.RunAfter(nanoseconds(0), [&] { ran.set_value(); });
        if ((i + t) % 2 == 0) continue;
        ran.get_future().wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitNoThread();
}

// ThreadSanitizer starts no threads in the child of a fork.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMayStartThreadsInChild = false;
#elif defined(__has_feature)
constexpr bool kMayStartThreadsInChild = !__has_feature(thread_sanitizer);
#else
constexpr bool kMayStartThreadsInChild = true;
#endif

TEST(RenewalTimerTest, TheChildOfAForkHasATimerOfItsOwn) {
  if (!kMayStartThreadsInChild) GTEST_SKIP() << "ThreadSanitizer does not allow it";
  ScopedAlarm before;
  RenewalTimer& of_parent = RenewalTimer::OfProgram();
  const auto parents = std::make_shared<Alarm>();
  before.RunAfter(hours(1), [] {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (of_parent.RunAfter(parents, nanoseconds(0), [] {})) _exit(1);
    of_parent.Close(parents);
    {
      std::promise<void> ran;
      ScopedAlarm alarm;
      if (!alarm.RunAfter(nanoseconds(0), [&] { ran.set_value(); })) _exit(2);
      ran.get_future().wait();
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(RenewalTimerTest, ClientsMayBeDestroyedWithTheProgram) {
  if (!kMayStartThreadsInChild) GTEST_SKIP() << "ThreadSanitizer does not allow it";
  EXPECT_EXIT(
      {
        static ScopedAlarm alarm;
        alarm.RunAfter(hours(1), [] {});
        exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::client_internal
