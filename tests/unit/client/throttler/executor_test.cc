#include "sluice/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

namespace sluice {
namespace {

TEST(InlineExecutorTest, RunsWithinTheCall) {
  InlineExecutor executor;
  bool ran = false;
  executor.Execute([&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(ThreadExecutorTest, RunsInOrderOnOneThread) {
  std::vector<int> ran;
  {
    ThreadExecutor executor;
    for (int i = 0; i < 1000; ++i) executor.Execute([&ran, i] { ran.push_back(i); });
  }
  ASSERT_EQ(ran.size(), 1000u) << "what was given is run before it goes";
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(ThreadExecutorTest, RunsInParallelOnSeveralThreads) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::atomic<int> inside{0};
  std::promise<void> all;
  ThreadExecutor executor(3);  // destroyed first, which ends its threads
  for (int i = 0; i < 3; ++i) {
    executor.Execute([&] {
      if (inside.fetch_add(1) + 1 == 3) all.set_value();
      gone.wait();
    });
  }
  all.get_future().wait();
  go.set_value();
}

TEST(ThreadExecutorTest, CanBeDestroyedByItsOwnThread) {
  auto executor = std::make_unique<ThreadExecutor>();
  ThreadExecutor* const raw = executor.get();
  // The thread continues after the destructor, so it shares ownership of its data.
  const auto done = std::make_shared<std::promise<void>>();
  std::future<void> ended = done->get_future();
  std::promise<void> all_given;
  raw->Execute([&, given = all_given.get_future().share()] {
    given.wait();
    executor.reset();
  });
  raw->Execute([done] { done->set_value(); });
  all_given.set_value();
  ended.wait();
}

}  // namespace
}  // namespace sluice
