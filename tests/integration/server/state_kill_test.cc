// --state_dir: a server is killed at each call that changes its folder.
#include <gmock/gmock.h>
#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/integration/server/server_test.h"

namespace sluice::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// No permit comes back while a test runs.
constexpr char kLimits[] = R"(
limits:
  - { name: daily, rate: 100/8784h }
  - { name: slots, algorithm: concurrency, permits: 2, hold_for: 10m }
)";

class StateKillTest : public ServerTest, public ::testing::WithParamInterface<std::string> {
 protected:
  ~StateKillTest() override {
    server_.reset();
    for (const char* name : {"state", "before"}) {
      std::error_code ignored;
      std::filesystem::remove_all(files_.Path(name), ignored);
    }
  }

  std::string folder() const { return files_.Path("state"); }
  bool trusts() const { return GetParam() == "trust"; }

  void StartServer(std::vector<std::string> environment = {}) {
    server_.reset();
    Start({.limits = kLimits,
           .flags = {"--state_dir=" + folder(), "--after_crash=" + GetParam(), "--threads=1"},
           .may_fail = true,
           .environment = std::move(environment)});
  }
  bool Logs(std::string_view text) const { return server_->log().find(text) != std::string::npos; }
  // A server that was killed grants nothing.
  bool Takes(const std::string& limit, uint64_t permits = 1) {
    v1::AcquireResponse response;
    return Acquire(Request(limit, "k", permits), &response).ok() && response.granted();
  }

  // A folder with a state in which 70 of 100 permits, and 1 of 2 slots, are left.
  void PrepareFolder() {
    StartServer();
    ASSERT_TRUE(server_->ready()) << server_->log();
    ASSERT_TRUE(Takes("daily", 30));
    ASSERT_TRUE(Takes("slots"));
    server_->Signal(SIGTERM);
    ASSERT_EQ(server_->WaitForExit(), 0);
    std::filesystem::copy(folder(), files_.Path("before"));
    // So that each run writes it.
    std::filesystem::remove(files_.Path("before") + "/holds");
  }

  struct Run {
    bool killed = false;
    int taken = 0;      // of `daily`
    bool slot = false;  // the second one was taken
  };
  // Runs a server in the prepared folder, to the end of its drain or to its n-th call.
  Run RunServer(int n) {
    server_.reset();  // it may write
    std::filesystem::remove_all(folder());
    std::filesystem::copy(files_.Path("before"), folder());
    StartServer({"LD_PRELOAD=" KILL_AT_STEP_SHIM, "KILL_FOLDER=" + folder(),
                 "KILL_AT=" + std::to_string(n)});
    Run run;
    if (server_->ready()) {
      run.taken += Takes("daily", 10) ? 10 : 0;
      const auto copied = [&] { return Logs("event=state_copied") || !Runs(); };
      EXPECT_TRUE(!trusts() || Eventually(copied)) << n;
      run.taken += Takes("daily", 20) ? 20 : 0;
      run.slot = Takes("slots");
      server_->Signal(SIGTERM);
    }
    run.killed = server_->WaitForExit() != 0;
    return run;
  }
  bool Runs() const { return kill(server_->pid(), 0) == 0 && !IsZombie(); }
  bool IsZombie() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(server_->pid()), &info, WEXITED | WNOHANG | WNOWAIT) ==
               0 &&
           info.si_pid != 0;
  }

  TestFiles files_;
};

TEST_P(StateKillTest, KilledAtEachStepItGrantsNothingTwice) {
  ASSERT_NO_FATAL_FAILURE(PrepareFolder());
  int unclean = 0;
  for (int n = 1;; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    const Run run = RunServer(n);
    StartServer();
    ASSERT_TRUE(server_->ready()) << server_->log();
    EXPECT_THAT(server_->log(), Not(HasSubstr("state_unusable")));
    const int64_t remaining = Remaining("daily", "k");
    EXPECT_FALSE(Takes("daily", static_cast<uint64_t>(remaining) + 1));
    if (!Logs("event=unclean_stop")) {
      EXPECT_THAT(server_->log(), HasSubstr("event=state_loaded"));
      EXPECT_EQ(remaining, 70 - run.taken);
      EXPECT_EQ(Remaining("slots", "k"), run.slot ? 0 : 1);
    } else if (trusts()) {
      ++unclean;
      // As at the start, or as in the copy, which was written while 10 were taken.
      EXPECT_THAT(remaining, AnyOf(70, 60));
    } else {
      ++unclean;
      EXPECT_EQ(remaining, 0);
    }
    EXPECT_TRUE(!run.slot || !Takes("slots")) << "a third hold";
    if (!run.killed) break;
    ASSERT_LT(n, 100);
  }
  EXPECT_GE(unclean, trusts() ? 15 : 8);
}

INSTANTIATE_TEST_SUITE_P(AfterCrash, StateKillTest, ::testing::Values("empty", "trust"));

}  // namespace
}  // namespace sluice::testing
