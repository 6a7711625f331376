#include "server/state/state_keeper.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/full_disk.h"
#include "tests/unit/config/temp_dir.h"
#include "tests/unit/state/state_scene.h"

namespace sluice::state {
namespace {

using algorithm::Kind;
using testing::Acquired;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kDayNs = 24 * 3600 * kSecondNs;

class StateKeeperTest : public ::testing::Test {
 protected:
  StateKeeperTest() { options_.limits = {TokenLimit("daily", 5)}; }

  // Starts a process; the one before it must have ended.
  Process& Start() {
    process_.reset();
    process_ = std::make_unique<Process>(folder_, machine_, options_);
    EXPECT_TRUE(process_->status().ok()) << process_->status();
    return *process_;
  }
  Process& Restart() {
    const absl::Status saved = process_->Drain();
    EXPECT_TRUE(saved.ok()) << saved;
    return Start();
  }
  Process& CrashAndStart() { return Start(); }

  std::string StateBytes() const {
    std::ifstream file(folder_ + "/state", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void SetStateBytes(const std::string& bytes) const {
    std::ofstream(folder_ + "/state", std::ios::binary) << bytes;
  }
  // The files of states that were moved aside.
  std::vector<std::string> MovedAside() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("state.unusable-")) names.push_back(name);
    }
    return names;
  }

  config::TempDir dir_;
  const std::string folder_ = dir_.Path("state");
  Machine machine_;
  ProcessOptions options_;
  std::unique_ptr<Process> process_;
};

TEST_F(StateKeeperTest, KeepsBucketsOverADrain) {
  Process& first = Start();
  EXPECT_THAT(first.log(), HasSubstr("event=state_new"));
  EXPECT_EQ(first.Remaining("daily", "k"), 5);
  ASSERT_TRUE(first.Take("daily", "k", 3).granted());
  Process& second = Restart();
  EXPECT_EQ(second.Remaining("daily", "k"), 2);
  EXPECT_EQ(second.Remaining("daily", "other"), 5);
  EXPECT_THAT(second.log(), HasSubstr("event=state_loaded buckets=1"));
  EXPECT_THAT(second.log(), Not(HasSubstr("unclean_stop")));
}

TEST_F(StateKeeperTest, MakesTheFolderForItsOwnerAlone) {
  Start();
  ASSERT_TRUE(process_->Drain().ok());
  struct stat info = {};
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat((folder_ + "/state").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "it has the key of receipts";
}

TEST_F(StateKeeperTest, CountsTheTimeBetweenByBoottimeInTheSameBoot) {
  Start().Take("daily", "k", 5);
  ASSERT_TRUE(process_->Drain().ok());
  machine_.Advance(kDayNs / 5);
  // Set by an admin: no matter.
  machine_.time.wall_ns += 300 * kDayNs;
  EXPECT_EQ(Start().Remaining("daily", "k"), 1);
}

TEST_F(StateKeeperTest, CountsTheTimeBetweenByTheWallClockInAnotherBoot) {
  Start().Take("daily", "k", 5);
  ASSERT_TRUE(process_->Drain().ok());
  machine_.Reboot(2 * kDayNs / 5);
  EXPECT_EQ(Start().Remaining("daily", "k"), 2);
  // The clock goes on from there.
  machine_.Advance(kDayNs / 5);
  EXPECT_EQ(process_->Remaining("daily", "k"), 3);
  ASSERT_TRUE(process_->Drain().ok());
  machine_.Advance(kDayNs / 5);
  EXPECT_EQ(Start().Remaining("daily", "k"), 4);
}

TEST_F(StateKeeperTest, TimeDoesNotRunBackwards) {
  Start().Take("daily", "k", 5);
  const int64_t before_ns = process_->clock.NowNs();
  ASSERT_TRUE(process_->Drain().ok());
  machine_.Reboot(-100 * kDayNs);
  EXPECT_EQ(Start().Remaining("daily", "k"), 0);
  EXPECT_EQ(process_->clock.NowNs(), before_ns);
}

TEST_F(StateKeeperTest, ABoottimeThatRanBackwardsIsOfAnotherBoot) {
  Start().Take("daily", "k", 5);
  ASSERT_TRUE(process_->Drain().ok());
  machine_.time.boottime_ns -= kSecondNs;
  machine_.time.wall_ns += kDayNs / 5;
  EXPECT_EQ(Start().Remaining("daily", "k"), 1);
}

TEST_F(StateKeeperTest, RefusesAClockThatHasRunForMoreThanEightYears) {
  Start().Take("daily", "k", 5);
  ASSERT_TRUE(process_->Drain().ok());
  machine_.Reboot(9 * 365 * kDayNs);
  Start();
  EXPECT_THAT(process_->log(), HasSubstr("check the clock of this machine"));
  EXPECT_EQ(MovedAside().size(), 1u);
}

// ---- After a crash

TEST_F(StateKeeperTest, StartsEmptyAfterACrash) {
  options_.limits = {TokenLimit("tokens", 5), LimitOf(Kind::kSlidingLog, "log", 5),
                     LimitOf(Kind::kSlidingWindow, "window", 5),
                     LimitOf(Kind::kFixedWindow, "fixed", 5),
                     LimitOf(Kind::kConcurrency, "slots", 5, 60 * kSecondNs)};
  options_.limits[0].debt = 2;
  Start();
  CrashAndStart();
  EXPECT_THAT(process_->log(), HasSubstr("event=unclean_stop"));
  for (const char* limit : {"log", "window", "fixed", "slots"}) {
    EXPECT_EQ(process_->Remaining(limit, "any"), 0) << limit;
    testing::AcquireOptions options{.want_receipt = true};
    EXPECT_FALSE(process_->Take(limit, "any", 1, options).granted()) << limit;
    EXPECT_FALSE(process_->Take(limit, "another", 1, options).granted()) << limit;
  }
  EXPECT_EQ(process_->Remaining("tokens", "any"), -2) << "all debt is owed";
  EXPECT_FALSE(process_->Take("tokens", "any").granted());
  machine_.Advance(60 * kSecondNs);
  EXPECT_EQ(process_->Remaining("slots", "any"), 5);
  EXPECT_EQ(process_->Remaining("slots", "a third"), 5);
  machine_.Advance(kDayNs / 5 * 3);
  EXPECT_EQ(process_->Remaining("tokens", "any"), 1);
  EXPECT_EQ(process_->Remaining("tokens", "a third"), 1);
  // A sliding window of 10 counts for 11 tenths of its period.
  machine_.Advance(2 * kDayNs);
  for (const char* limit : {"tokens", "log", "window", "fixed"}) {
    EXPECT_EQ(process_->Remaining(limit, "any"), 5) << limit;
    EXPECT_EQ(process_->Remaining(limit, "a fourth"), 5) << limit;
    EXPECT_TRUE(process_->Take(limit, "any", 5).granted()) << limit;
  }
}

TEST_F(StateKeeperTest, AResetDoesNotFillABucketFurtherThanSinceTheCrash) {
  options_.limits = {TokenLimit("tokens", 10), LimitOf(Kind::kSlidingLog, "log", 10)};
  Start();
  CrashAndStart();
  machine_.Advance(kDayNs / 10);
  for (const char* limit : {"tokens", "log"}) {
    process_->Take(limit, "k");
    testing::Reset(process_->store(), process_->Rule(limit), "k");
  }
  EXPECT_EQ(process_->Remaining("tokens", "k"), 1);
  EXPECT_EQ(process_->Remaining("log", "k"), 0);
}

TEST_F(StateKeeperTest, BucketsThatWereNotUsedSinceACrashStayEmptyOverADrain) {
  Start();
  CrashAndStart();
  machine_.Advance(kDayNs / 5);
  Restart();
  EXPECT_THAT(process_->log(), HasSubstr("event=state_loaded buckets=0"));
  EXPECT_EQ(process_->Remaining("daily", "never used"), 1);
}

TEST_F(StateKeeperTest, ASecondCrashEmptiesAgain) {
  Start();
  CrashAndStart();
  machine_.Advance(kDayNs / 5 * 2);
  EXPECT_EQ(process_->Remaining("daily", "k"), 2);
  CrashAndStart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 0);
}

// A thread logs it.
void AwaitLog(Process& process, const std::string& text) {
  for (int i = 0; i < 2000 && process.log().find(text) == std::string::npos; ++i) usleep(10'000);
  ASSERT_THAT(process.log(), HasSubstr(text));
}

// Waits for the first copy, which is written at the start.
void AwaitCopy(Process& process) { AwaitLog(process, "event=state_copied"); }

TEST_F(StateKeeperTest, TrustLoadsTheLastCopyAfterACrash) {
  options_.after_crash = AfterCrash::kTrust;
  Start().Take("daily", "k", 3);
  Restart();
  AwaitCopy(*process_);
  ASSERT_TRUE(process_->Take("daily", "k", 2).granted());
  CrashAndStart();
  EXPECT_THAT(process_->log(), HasSubstr("buckets start as in the last copy"));
  EXPECT_EQ(process_->Remaining("daily", "k"), 2) << "what was taken since is lost";
  EXPECT_EQ(process_->Remaining("daily", "other"), 5);
}

TEST_F(StateKeeperTest, ReceiptsThatWereIssuedAfterTheCopyDoNotRefundOthers) {
  options_.after_crash = AfterCrash::kTrust;
  Start();
  AwaitCopy(*process_);
  const testing::AcquireOptions receipt{.want_receipt = true};
  const Acquired lost = process_->Take("daily", "k", 2, receipt);
  CrashAndStart();
  const Acquired mine = process_->Take("daily", "k", 2, receipt);
  ASSERT_TRUE(mine.granted());
  const std::vector<store::Charge> charges = {{&process_->Rule("daily"), "k", 2}};
  EXPECT_EQ(testing::Refund(process_->store(), lost.receipt_id, charges).outcome,
            store::RefundOutcome::kExpired);
  EXPECT_EQ(process_->Remaining("daily", "k"), 3);
}

TEST_F(StateKeeperTest, TrustStartsEmptyIfTheCrashedRunWroteNoCopies) {
  Start().Take("daily", "k", 3);
  Restart();
  options_.after_crash = AfterCrash::kTrust;
  CrashAndStart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 0) << "the state is that of an older run";
}

TEST_F(StateKeeperTest, TrustLoadsWhatTheCrashedRunLoadedIfItWroteNoCopy) {
  Start().Take("daily", "k", 3);
  options_.after_crash = AfterCrash::kTrust;
  options_.copies = false;
  Restart();
  CrashAndStart();
  EXPECT_THAT(process_->log(), HasSubstr("buckets start as in the last copy"));
  EXPECT_EQ(process_->Remaining("daily", "k"), 2);
  CrashAndStart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 2);
}

TEST_F(StateKeeperTest, TrustDoesNotLoadAStateFromABackup) {
  options_.after_crash = AfterCrash::kTrust;
  Start();
  Restart();
  const std::string of_an_older_run = StateBytes();
  std::string of_this_run;
  {
    options_.copy_every_ns = 1'000'000;
    Restart();
    AwaitCopy(*process_);
    of_this_run = StateBytes();
    ASSERT_TRUE(process_->Take("daily", "k", 5).granted());
    std::string text = of_this_run;
    for (int copies = 0; copies < 3;) {
      const std::string now = StateBytes();
      copies += now != text;
      text = now;
    }
    options_.copy_every_ns = 3600 * kSecondNs;
  }
  for (const std::string& backup : {of_this_run, of_an_older_run}) {
    process_.reset();
    SetStateBytes(backup);
    Start();
    EXPECT_THAT(process_->log(), HasSubstr("buckets start empty"));
    EXPECT_EQ(process_->Remaining("daily", "k"), 0);
    AwaitCopy(*process_);
  }
}

TEST_F(StateKeeperTest, ACopyThatIsTooOldIsMovedAside) {
  options_.after_crash = AfterCrash::kTrust;
  Start();
  AwaitCopy(*process_);
  std::filesystem::create_directory(folder_ + "/state.new");  // nothing can be written
  options_.copy_every_ns = 1'000'000;
  CrashAndStart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 5);
  AwaitLog(*process_, "after a crash buckets start empty");
  EXPECT_THAT(process_->log(), HasSubstr("the copy before it stays"));
  EXPECT_EQ(MovedAside().size(), 1u);
  std::filesystem::remove(folder_ + "/state.new");
  AwaitCopy(*process_);
  CrashAndStart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 5) << "a new copy is loaded again";
}

TEST_F(StateKeeperTest, CountsFailedCopiesOverCrashes) {
  options_.after_crash = AfterCrash::kTrust;
  Start();
  AwaitCopy(*process_);
  std::filesystem::create_directory(folder_ + "/state.new");  // nothing can be written
  int loaded = 0;
  for (; loaded < 100; ++loaded) {
    CrashAndStart();
    if (process_->Remaining("daily", "k") == 0) break;
    ASSERT_TRUE(process_->Take("daily", "k", 5).granted());
    AwaitLog(*process_, "event=state_copy_failed");
  }
  EXPECT_EQ(loaded, 5) << "each crash and each copy that failed counts";
  EXPECT_THAT(process_->log(), HasSubstr("buckets start empty"));
  std::filesystem::remove(folder_ + "/state.new");
  CrashAndStart();
  AwaitCopy(*process_);
  CrashAndStart();
  EXPECT_THAT(process_->log(), HasSubstr("buckets start as in the last copy"));
}

TEST_F(StateKeeperTest, NotesThatACopySucceededOnceThatCanBeWritten) {
  const std::string failed = folder_ + "/failed";
  const std::string blocked = folder_ + "/blocked";
  const auto exchange = [&] {
    ASSERT_EQ(renameat2(AT_FDCWD, failed.c_str(), AT_FDCWD, blocked.c_str(), RENAME_EXCHANGE), 0);
  };
  const auto noted = [&] {
    std::string text;
    std::getline(std::ifstream(failed), text);
    return text;
  };
  options_.after_crash = AfterCrash::kTrust;
  Start();
  AwaitCopy(*process_);
  options_.copies = false;
  options_.copy_every_ns = 1'000'000;
  CrashAndStart();
  ASSERT_EQ(noted(), "01");
  std::filesystem::create_directory(blocked);
  exchange();
  process_->keeper().StartCopies();
  AwaitCopy(*process_);
  exchange();
  for (int i = 0; i < 2000 && noted() != "00"; ++i) usleep(10'000);
  EXPECT_EQ(noted(), "00");
}

TEST_F(StateKeeperTest, ACopyIsNotLoadedAfterTenCrashesWithoutANewOne) {
  options_.after_crash = AfterCrash::kTrust;
  Start();
  AwaitCopy(*process_);
  options_.copies = false;
  for (int crash = 0; crash < 10; ++crash) {
    CrashAndStart();
    EXPECT_EQ(process_->Remaining("daily", "k"), 5) << crash;
  }
  CrashAndStart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 0);
}

TEST_F(StateKeeperTest, ACopyWhoseFailuresCannotBeCountedIsNotLoaded) {
  options_.after_crash = AfterCrash::kTrust;
  Start();
  AwaitCopy(*process_);
  process_.reset();
  std::ofstream(folder_ + "/failed") << "damaged";
  Start();
  EXPECT_EQ(process_->Remaining("daily", "k"), 0);
}

TEST_F(StateKeeperTest, FailuresThatCannotBeReadAreTooMany) {
  Start();
  process_.reset();
  std::filesystem::create_directory(folder_ + "/failed");  // can be opened, and not read
  const auto folder = StateFolder::Open(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ((*folder)->failed_copies(), std::numeric_limits<int>::max());
}

TEST_F(StateKeeperTest, AStartThatCannotCountFailuresDoesNotMakeTheLastStopUnclean) {
  Start().Take("daily", "k", 3);
  ASSERT_TRUE(process_->Drain().ok());
  process_.reset();
  options_.after_crash = AfterCrash::kTrust;
  std::filesystem::create_directory(folder_ + "/failed");
  EXPECT_FALSE(Process(folder_, machine_, options_).status().ok());
  std::filesystem::remove(folder_ + "/failed");
  options_.after_crash = AfterCrash::kEmpty;
  Start();
  EXPECT_THAT(process_->log(), Not(HasSubstr("unclean_stop")));
  EXPECT_EQ(process_->Remaining("daily", "k"), 2);
}

// A number that is too high is only too careful.
TEST_F(StateKeeperTest, ALowerNumberOfFailuresNeedNotBeWrittenAtTheStart) {
  options_.after_crash = AfterCrash::kTrust;
  options_.copies = false;
  Start();
  CrashAndStart();
  ASSERT_TRUE(process_->Drain().ok());
  process_.reset();
  const std::string failed = folder_ + "/failed";
  // It is replaced once the run is noted.
  options_.before_step = [&] {
    if (!std::filesystem::exists(folder_ + "/running.new")) return;
    std::filesystem::remove(failed);
    std::filesystem::create_directory(failed);
  };
  Start();
}

TEST_F(StateKeeperTest, EmptyDoesNotLoadCopies) {
  options_.after_crash = AfterCrash::kTrust;
  Start();
  AwaitCopy(*process_);
  options_.after_crash = AfterCrash::kEmpty;
  CrashAndStart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 0);
}

TEST_F(StateKeeperTest, AStateOfAnOlderRunIsNotTakenForTheLastOne) {
  Start();
  Restart();
  const std::string full = StateBytes();
  process_->Take("daily", "k", 5);
  Restart();
  ASSERT_TRUE(process_->Drain().ok());
  process_.reset();
  SetStateBytes(full);  // from a backup
  Start();
  EXPECT_THAT(process_->log(), HasSubstr("event=unclean_stop"));
  EXPECT_EQ(process_->Remaining("daily", "k"), 0);
}

TEST_F(StateKeeperTest, AStateInAFolderThatNoRunUsedIsNotTakenForTheLastOne) {
  Start().Take("daily", "k", 3);
  ASSERT_TRUE(process_->Drain().ok());
  process_.reset();
  ASSERT_EQ(unlink((folder_ + "/running").c_str()), 0);
  Start();
  EXPECT_THAT(process_->log(), HasSubstr("event=unclean_stop"));
  EXPECT_EQ(process_->Remaining("daily", "k"), 0);
}

// ---- Files that cannot be used

// With the checksum of its head (CRC-32 of "SLUICEST\3\0\0\0").
std::string NewerVersion(const std::string& state) {
  return std::string("SLUICEST\x03\0\0\0", 12) + std::string("\x87\x1e\x73\x25", 4) +
         state.substr(16);
}

TEST_F(StateKeeperTest, MovesUnusableFilesAsideAndSaysWhy) {
  Start().Take("daily", "k", 3);
  ASSERT_TRUE(process_->Drain().ok());
  process_.reset();
  const std::string whole = StateBytes();
  std::string changed = whole;
  changed[whole.size() / 2] ^= 1;
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "torn: ends after 0 bytes"},
      {whole.substr(0, whole.size() - 1), "is not whole"},
      {changed, "damaged at byte"},
      {"hello, world, this is a text", "not a state file of Sluice"},
      {NewerVersion(whole), "has version 3 of the format; this server reads versions up to 2"},
  };
  for (const AfterCrash after_crash : {AfterCrash::kEmpty, AfterCrash::kTrust}) {
    options_.after_crash = after_crash;
    for (const auto& [bytes, why] : bad) {
      process_.reset();
      SetStateBytes(bytes);
      for (const std::string& name : MovedAside()) unlink((folder_ + "/" + name).c_str());
      Start();
      EXPECT_THAT(process_->log(), HasSubstr("level=error event=state_unusable")) << why;
      EXPECT_THAT(process_->log(), HasSubstr(why));
      EXPECT_THAT(process_->log(), HasSubstr("event=unclean_stop"));
      EXPECT_EQ(MovedAside().size(), 1u) << why;
      EXPECT_EQ(process_->Remaining("daily", "k"), 0) << why;
    }
  }
}

TEST_F(StateKeeperTest, AStateOfVersion1IsLoaded) {
  store::Once once;
  once.id = {{1, 2}};
  ASSERT_TRUE(Start().Take("daily", "k", 3, {.once = &once}).granted());
  ASSERT_TRUE(process_->Drain().ok());
  process_.reset();
  const std::string state = StateBytes();
  EXPECT_EQ(state.substr(0, 12), std::string("SLUICEST\x02\0\0\0", 12));
  SetStateBytes(std::string("SLUICEST\x01\0\0\0", 12) + std::string("\x0c\xd6\x7a\x8f", 4) +
                state.substr(16));
  Start();
  EXPECT_THAT(process_->log(), Not(HasSubstr("state_unusable")));
  EXPECT_EQ(process_->Remaining("daily", "k"), 2);
  EXPECT_TRUE(process_->Take("daily", "k", 3, {.once = &once}).repeated);
}

TEST_F(StateKeeperTest, ASecondServerIsRefused) {
  Start();
  const Process second(folder_, machine_, options_);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_EQ(second.status().message(), "another server uses it (process " +
                                           std::to_string(getpid()) +
                                           "); give each server a folder of its own");
}

// The machine of a takeover is this one: its clocks are.
TEST_F(StateKeeperTest, AHandedStateIsLoadedInsteadOfTheFolders) {
  machine_.time = MachineTime::Now();
  const auto options = [](int state, int lock) {
    ProcessOptions made{.limits = {TokenLimit("daily", 100)}};
    made.handed_over = "/proc/self/fd/" + std::to_string(state);
    made.lock = lock;
    return made;
  };
  int state = -1;
  int lock = -1;
  {
    Process old(folder_, machine_, {.limits = {TokenLimit("daily", 100)}});
    ASSERT_TRUE(old.Take("daily", "k", 40).granted());
    std::tie(state, lock) = old.HandOver();
  }
  // The folder is locked as long as any process has the lock.
  EXPECT_TRUE(absl::IsFailedPrecondition(StateFolder::Open(folder_).status()));
  {
    Process next(folder_, machine_, options(state, lock));
    ASSERT_TRUE(next.status().ok()) << next.status();
    EXPECT_EQ(next.Remaining("daily", "k"), 60);
  }
  // It crashed. The process that handed over can still go on with what it has.
  {
    Process again(folder_, machine_, options(state, lock));
    ASSERT_TRUE(again.status().ok()) << again.status();
    EXPECT_EQ(again.Remaining("daily", "k"), 60);
    ASSERT_TRUE(again.Drain().ok());
  }
  close(state);
  close(lock);
  {
    Process later(folder_, machine_, {.limits = {TokenLimit("daily", 100)}});
    EXPECT_EQ(later.Remaining("daily", "k"), 60);
    std::tie(state, lock) = later.HandOver();
    close(state);
    close(lock);
  }
  // The state is lost with the process that had it.
  Process crashed(folder_, machine_, {.limits = {TokenLimit("daily", 100)}});
  EXPECT_LE(crashed.Remaining("daily", "k"), 0);
}

// It was stopped while it loaded the state, until the old one went on with it.
TEST_F(StateKeeperTest, AProcessThatIsTooLateToTakeOverDoesNotMakeTheNextStopUnclean) {
  machine_.time = MachineTime::Now();
  int state = -1;
  int lock = -1;
  {
    Start();
    ASSERT_TRUE(process_->Take("daily", "k", 3).granted());
    std::tie(state, lock) = process_->HandOver();
    process_.reset();
  }
  options_.handed_over = "/proc/self/fd/" + std::to_string(state);
  options_.lock = lock;
  Start();
  {
    const Process late(folder_, machine_, options_);
  }
  ASSERT_TRUE(process_->Drain().ok());
  process_.reset();
  options_.handed_over.clear();
  options_.lock = -1;
  close(state);
  close(lock);
  Start();
  EXPECT_THAT(process_->log(), Not(HasSubstr("unclean_stop")));
  EXPECT_EQ(process_->Remaining("daily", "k"), 2);
}

TEST_F(StateKeeperTest, AProcessThatTookItsStateBackGoesOnWithoutRoomOnTheDisk) {
  machine_.time = MachineTime::Now();
  options_.copies = false;
  for (const AfterCrash after_crash : {AfterCrash::kEmpty, AfterCrash::kTrust}) {
    for (const bool crashes : {false, true}) {
      SCOPED_TRACE(crashes);
      process_.reset();
      std::filesystem::remove_all(folder_);
      options_.after_crash = after_crash;
      Start();
      ASSERT_TRUE(process_->Take("daily", "k", 1).granted());
      Restart();
      ASSERT_TRUE(process_->Take("daily", "k", 1).granted());
      const auto [state, lock] = process_->HandOver();
      process_.reset();
      options_.handed_over = "/proc/self/fd/" + std::to_string(state);
      options_.lock = lock;
      {
        const testing::FullDisk full;
        EXPECT_FALSE(Process(folder_, machine_, options_).status().ok());
        options_.taken_back = true;
        Start();
      }
      EXPECT_EQ(process_->Remaining("daily", "k"), 3);
      ASSERT_TRUE(process_->Take("daily", "k", 1).granted());
      if (!crashes) {
        EXPECT_TRUE(process_->Drain().ok());
      }
      options_.handed_over.clear();
      options_.taken_back = false;
      options_.lock = -1;
      close(state);
      close(lock);
      Start();
      // The state that it loaded first is its last copy.
      const int64_t after = after_crash == AfterCrash::kTrust ? 4 : 0;
      EXPECT_EQ(process_->Remaining("daily", "k"), crashes ? after : 2);
    }
  }
}

TEST_F(StateKeeperTest, ProbeSaysWhetherTheFolderCanBeWrittenTo) {
  EXPECT_TRUE(StateFolder::Probe(folder_).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  const testing::FullDisk full;
  EXPECT_FALSE(StateFolder::Probe(folder_).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(StateKeeperTest, TrustLoadsACopyOfTheProcessThatHandedOver) {
  machine_.time = MachineTime::Now();
  options_.after_crash = AfterCrash::kTrust;
  int state = -1;
  int lock = -1;
  Start().Take("daily", "k", 3);
  Restart();
  AwaitCopy(*process_);
  std::tie(state, lock) = process_->HandOver();
  process_.reset();
  options_.handed_over = "/proc/self/fd/" + std::to_string(state);
  options_.lock = lock;
  options_.copies = false;
  Start();
  options_.handed_over.clear();
  options_.lock = -1;
  close(state);
  close(lock);
  CrashAndStart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 2);
}

TEST_F(StateKeeperTest, AFolderThatCannotBeMadeIsAnError) {
  const Process in_nothing(folder_ + "/a/b", machine_, options_);
  EXPECT_TRUE(absl::IsNotFound(in_nothing.status())) << in_nothing.status();
  dir_.Write("file", "text");
  const Process on_a_file(dir_.Path("file"), machine_, options_);
  EXPECT_FALSE(on_a_file.status().ok());
}

// ---- What else is kept

TEST_F(StateKeeperTest, ReceiptsAreRefundedAfterTheRestart) {
  const Acquired got = Start().Take("daily", "k", 3, {.want_receipt = true});
  const Acquired refunded = process_->Take("daily", "k", 1, {.want_receipt = true});
  const auto refund = [&](uint64_t id, uint64_t permits) {
    return testing::Refund(process_->store(), id, {{&process_->Rule("daily"), "k", permits}});
  };
  EXPECT_EQ(refund(refunded.receipt_id, 1).outcome, store::RefundOutcome::kRefunded);
  Restart();
  EXPECT_EQ(process_->keeper().receipt_key(), "key");
  EXPECT_EQ(refund(got.receipt_id, 3).outcome, store::RefundOutcome::kRefunded);
  EXPECT_EQ(process_->Remaining("daily", "k"), 5);
  EXPECT_EQ(refund(got.receipt_id, 3).outcome, store::RefundOutcome::kAlreadyRefunded);
  EXPECT_EQ(refund(refunded.receipt_id, 1).outcome, store::RefundOutcome::kAlreadyRefunded);
  EXPECT_GT(process_->Take("daily", "k", 1, {.want_receipt = true}).receipt_id,
            refunded.receipt_id);
}

TEST_F(StateKeeperTest, GrantsAreRepeatedByTheirRequestIds) {
  store::Once once;
  once.id = {{1, 2}};
  once.fingerprint = 77;
  testing::AcquireOptions options;
  options.once = &once;
  ASSERT_TRUE(Start().Take("daily", "k", 2, options).granted());
  Restart();
  EXPECT_TRUE(process_->Take("daily", "k", 2, options).repeated);
  EXPECT_EQ(process_->Remaining("daily", "k"), 3);
  Restart();
  machine_.Advance(61 * kSecondNs);
  EXPECT_FALSE(process_->Take("daily", "k", 2, options).repeated) << "it is kept for a minute";
}

TEST_F(StateKeeperTest, RepeatedForcedGrantSaysWhatWasForgivenBeforeTheRestart) {
  options_.limits = {TokenLimit("tokens", 10, 10 * kSecondNs)};
  options_.limits[0].max_owed = 5;
  store::Once once;
  once.id = {{1, 2}};
  const testing::AcquireOptions options = {.debit = store::Debit::kForced, .once = &once};
  ASSERT_EQ(Start().Take("tokens", "k", 20, options).charges[0].forgiven, 5u);
  Restart();
  const Acquired again = process_->Take("tokens", "k", 20, options);
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.charges[0].forgiven, 5u);
}

TEST_F(StateKeeperTest, BookingsEstimatesAndSlotsAreKept) {
  options_.limits = {TokenLimit("tokens", 10, 10 * kSecondNs),
                     LimitOf(Kind::kConcurrency, "slots", 2, 60 * kSecondNs)};
  options_.limits[0].max_owed = 5;
  Start();
  const Acquired estimate = process_->Take("tokens", "k", 10, {.settle_within_ns = 60 * kSecondNs});
  const Acquired booked = process_->Take("tokens", "k", 2, {.max_wait_ns = 10 * kSecondNs});
  ASSERT_TRUE(booked.granted());
  EXPECT_EQ(booked.wait_ns, 2 * kSecondNs);
  const Acquired slot = process_->Take("slots", "k", 1, {.want_receipt = true});
  machine_.Advance(kSecondNs);
  Restart();
  EXPECT_EQ(process_->Take("tokens", "k", 1, {.max_wait_ns = 10 * kSecondNs}).wait_ns,
            2 * kSecondNs)
      << "behind the booking";
  const std::vector<store::Charge> booking = {{&process_->Rule("tokens"), "k", 2}};
  EXPECT_EQ(testing::Refund(process_->store(), booked.receipt_id, booking, booked.grant_time_ns())
                .outcome,
            store::RefundOutcome::kRefunded);
  EXPECT_EQ(testing::Settle(process_->store(), estimate.receipt_id,
                            {{&process_->Rule("tokens"), "k", 10}}, {4})
                .outcome,
            store::SettleOutcome::kSettled);
  EXPECT_EQ(process_->Remaining("slots", "k"), 1);
  EXPECT_EQ(
      testing::Refund(process_->store(), slot.receipt_id, {{&process_->Rule("slots"), "k", 1}})
          .outcome,
      store::RefundOutcome::kRefunded);
  EXPECT_EQ(process_->Remaining("slots", "k"), 2);
}

TEST_F(StateKeeperTest, ChangedParametersConvertBucketsAsAReloadDoes) {
  Start().Take("daily", "k", 3);
  options_.limits = {TokenLimit("daily", 10)};
  options_.version = "v2";
  Restart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 4) << "two fifths of 10";
  options_.limits = {LimitOf(Kind::kSlidingLog, "daily", 10)};
  options_.version = "v3";
  Restart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 4);
}

TEST_F(StateKeeperTest, BucketsOfALimitThatIsGoneWaitForIt) {
  Start().Take("daily", "k", 3);
  const std::vector<limits::LimitSpec> before = options_.limits;
  options_.limits = {TokenLimit("another", 7)};
  options_.version = "v2";
  Restart();
  EXPECT_EQ(process_->Remaining("another", "k"), 7);
  options_.limits = before;
  options_.version = "v3";
  Restart();
  EXPECT_EQ(process_->Remaining("daily", "k"), 2);
}

TEST_F(StateKeeperTest, OverridesOfKeysKeepTheirBuckets) {
  options_.limits[0].keys = {{"vip", algorithm::Rate{100, kDayNs}, 100, {}}};
  Start().Take("daily", "vip", 60);
  process_->Take("daily", "k", 1);
  Restart();
  EXPECT_EQ(process_->Remaining("daily", "vip"), 40);
  EXPECT_EQ(process_->Remaining("daily", "k"), 4);
}

TEST_F(StateKeeperTest, BucketsWithoutRoomStartEmpty) {
  constexpr int kKeys = 200;
  Start();
  for (int i = 0; i < kKeys; ++i) process_->Take("daily", std::to_string(i), 3);
  options_.max_buckets = 100;
  Restart();
  EXPECT_THAT(process_->log(), HasSubstr("event=state_too_large"));
  int loaded = 0;
  for (int i = 0; i < kKeys; ++i) {
    const int64_t remaining = process_->Remaining("daily", std::to_string(i));
    EXPECT_TRUE(remaining == 0 || remaining == 2) << remaining;
    loaded += remaining == 2;
  }
  EXPECT_EQ(loaded, 100);
  machine_.Advance(2 * kDayNs / 5);
  EXPECT_EQ(process_->Remaining("daily", "new"), 2);
}

TEST_F(StateKeeperTest, RoomOfALimitIsKeptWhenItsParametersHaveChanged) {
  options_.limits = {TokenLimit("daily", 5), TokenLimit("other", 5)};
  options_.limits[0].min_keys = 40;
  options_.max_buckets = 100;
  Start().Take("daily", "k", 3);
  options_.limits[0].rate.permits = 10;
  options_.limits[0].burst = 10;
  options_.version = "v2";
  Restart();
  const auto granted = [this](std::string_view limit) {
    int count = 0;
    for (int i = 0; i < 200; ++i) {
      count += process_->Take(limit, "new" + std::to_string(i), 1).granted();
    }
    return count;
  };
  // What is reserved for it, and all that is not reserved.
  EXPECT_EQ(granted("other"), 10 + 50);
  EXPECT_EQ(granted("daily"), 39);
}

TEST_F(StateKeeperTest, LimitsOfAdminsAreKept) {
  options_.limits.push_back(TokenLimit("deleted", 5));
  Start();
  const auto put = [&](limits::LimitSpec spec) {
    const auto result = process_->registry().Put(std::move(spec));
    ASSERT_TRUE(result.ok()) << result.status();
  };
  put(TokenLimit("made", 7));
  put(TokenLimit("daily", 50));
  limits::LimitSpec charges = TokenLimit("charges", 9);
  charges.charges = {"made"};
  put(charges);
  ASSERT_TRUE(process_->registry().Delete("deleted").ok());
  process_->Take("made", "k", 3);
  Restart();
  EXPECT_EQ(process_->Remaining("made", "k"), 4);
  EXPECT_EQ(process_->Remaining("daily", "k"), 50);
  EXPECT_EQ(process_->registry().Current()->Find("deleted"), nullptr);
  EXPECT_EQ(process_->registry().Current()->Find("charges")->parents().size(), 1u);
  EXPECT_EQ(process_->registry().Current()->admin_changes(), 4u);
  // A file that has changed owns its limits again.
  options_.version = "v2";
  Restart();
  EXPECT_EQ(process_->Remaining("made", "k"), 4);
  EXPECT_EQ(process_->Remaining("daily", "k"), 5);
  EXPECT_NE(process_->registry().Current()->Find("deleted"), nullptr);
}

// A change with an end also outlasts a new file, and then the new file's limit is in force.
TEST_F(StateKeeperTest, AChangeWithAnEndEndsWhenItWouldHave) {
  options_.limits = {TokenLimit("daily", 5)};
  Start();
  limits::LimitSpec change = TokenLimit("daily", 70);
  change.reason = "sale";
  change.ends_at_ns = process_->clock.NowNs() + 60 * kSecondNs;
  ASSERT_TRUE(process_->registry().Put(change).ok());
  options_.limits = {TokenLimit("daily", 6)};
  options_.version = "v2";
  ASSERT_TRUE(process_->Drain().ok());
  machine_.Reboot(59 * kSecondNs);
  Start();
  EXPECT_EQ(process_->Remaining("daily", "k"), 70);
  EXPECT_EQ(process_->registry().Current()->Find("daily")->spec().reason, "sale");
  EXPECT_TRUE(
      absl::IsNotFound(process_->registry().EndTemporary("daily", process_->clock.NowNs())));
  machine_.Advance(kSecondNs);
  ASSERT_TRUE(process_->registry().EndTemporary("daily", process_->clock.NowNs()).ok());
  EXPECT_EQ(process_->Remaining("daily", "k"), 6);
}

TEST_F(StateKeeperTest, ALimitThatNoLongerGoesWithTheFileIsNamed) {
  options_.limits.push_back(TokenLimit("parent", 5));
  Start();
  limits::LimitSpec child = TokenLimit("child", 9);
  child.charges = {"parent"};
  ASSERT_TRUE(process_->registry().Put(child).ok());
  ASSERT_TRUE(process_->registry().Put(TokenLimit("alone", 9)).ok());
  options_.limits.pop_back();
  options_.version = "v2";
  Restart();
  EXPECT_THAT(process_->log(), HasSubstr("level=error event=saved_limit_refused limit=child"));
  EXPECT_EQ(process_->registry().Current()->Find("child"), nullptr);
  EXPECT_NE(process_->registry().Current()->Find("alone"), nullptr);
}

}  // namespace
}  // namespace sluice::state
