// The process ends at any step that changes the disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "server/state/state_keeper.h"
#include "tests/unit/config/temp_dir.h"
#include "tests/unit/state/state_scene.h"

namespace sluice::state {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Ends a child at its n-th step.
class StateStepsTest : public ::testing::TestWithParam<AfterCrash> {
 protected:
  enum Child { kDone = 10, kDiedAtStart, kDiedLater };

  Child RunChild(int steps) {
    const pid_t child = fork();
    if (child == 0) {
      // Copies are written by another thread.
      std::atomic<int> left = steps;
      std::atomic<bool> began = false;
      options_.before_step = [&] {
        if (left-- == 0) _exit(began ? kDiedLater : kDiedAtStart);
      };
      Process process(folder_, machine_, options_);
      began = true;
      if (!process.status().ok() || !process.Take("daily", "k").granted()) _exit(1);
      if (!process.Drain().ok()) _exit(1);
      _exit(kDone);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    return static_cast<Child>(WEXITSTATUS(status));
  }

  void Start() {
    process_.reset();
    process_ = std::make_unique<Process>(folder_, machine_, options_);
    ASSERT_TRUE(process_->status().ok()) << process_->status();
  }

  config::TempDir dir_;
  const std::string folder_ = dir_.Path("state");
  Machine machine_;
  ProcessOptions options_ = {.limits = {TokenLimit("daily", 5)}};
  std::unique_ptr<Process> process_;
};

TEST_P(StateStepsTest, AStateIsTheOldOneTheNewOneOrThatOfACrash) {
  const bool trusts = GetParam() == AfterCrash::kTrust;
  for (int steps = 0;; ++steps) {
    // A fresh folder, with a state in which 3 of 5 are left.
    process_.reset();
    std::filesystem::remove_all(folder_);
    options_.after_crash = AfterCrash::kEmpty;
    Start();
    ASSERT_TRUE(process_->Take("daily", "k", 2).granted());
    ASSERT_TRUE(process_->Drain().ok());
    process_.reset();

    options_.after_crash = GetParam();
    const Child child = RunChild(steps);
    Start();
    EXPECT_THAT(process_->log(), Not(HasSubstr("state_unusable"))) << steps;
    const int64_t remaining = process_->Remaining("daily", "k");
    if (child == kDone) {
      EXPECT_EQ(remaining, 2);
      EXPECT_GE(steps, 8) << "files, writes, syncs and renames";
      return;
    }
    ASSERT_TRUE(child == kDiedAtStart || child == kDiedLater) << steps << ": " << child;
    if (trusts) {
      // As in the state of the run before, in a copy, or in the new state.
      EXPECT_TRUE(remaining == 3 || (remaining == 2 && child == kDiedLater)) << steps;
    } else if (child == kDiedAtStart) {
      // Nothing was decided yet: the old state may still be the last one.
      EXPECT_TRUE(remaining == 3 || remaining == 0) << steps << ": " << remaining;
    } else {
      EXPECT_TRUE(remaining == 2 || remaining == 0) << steps << ": " << remaining;
    }
    if (steps == 0) {
      EXPECT_EQ(remaining, 3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AfterCrash, StateStepsTest,
                         ::testing::Values(AfterCrash::kEmpty, AfterCrash::kTrust));

}  // namespace
}  // namespace sluice::state
