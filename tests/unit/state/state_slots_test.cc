// Slots after a crash: what was promised since the last write is not known, so their buckets are
// closed until the latest end that may have been promised.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/config/temp_dir.h"
#include "tests/unit/state/state_scene.h"

namespace sluice::state {
namespace {

using algorithm::Kind;
using testing::Acquired;
using ::testing::HasSubstr;

constexpr int64_t kShortNs = 10 * kSecondNs;
constexpr int64_t kLongNs = 600 * kSecondNs;

// Lets the sync of the folder fail at one step: its descriptor is a pipe's by then.
class FolderFault {
 public:
  explicit FolderFault(std::string folder) : folder_(std::move(folder)) {
    EXPECT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
  }
  ~FolderFault() {
    Restore();
    for (const int fd : pipe_) close(fd);
  }
  FolderFault(const FolderFault&) = delete;
  FolderFault& operator=(const FolderFault&) = delete;

  void BeforeStep(int step) {
    Restore();
    if (step != at) return;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      if (std::filesystem::read_symlink(entry.path(), closed) != folder_) continue;
      fd_ = std::stoi(entry.path().filename().string());
    }
    ASSERT_GE(fd_, 0);
    saved_ = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    ASSERT_EQ(dup3(pipe_[0], fd_, O_CLOEXEC), fd_);
  }
  int at = -1;

 private:
  void Restore() {
    if (saved_ < 0) return;
    EXPECT_EQ(dup3(saved_, fd_, O_CLOEXEC), fd_);
    close(std::exchange(saved_, -1));
  }

  const std::string folder_;
  int pipe_[2] = {-1, -1};
  int fd_ = -1;
  int saved_ = -1;
};

class StateSlotsTest : public ::testing::Test {
 protected:
  StateSlotsTest() { SetHoldFor(kLongNs, "v1"); }

  static std::vector<limits::LimitSpec> LimitsWith(int64_t hold_for_ns) {
    return {LimitOf(Kind::kConcurrency, "slots", 2, hold_for_ns),
            LimitOf(Kind::kConcurrency, "other", 2, kShortNs)};
  }
  // Of the next process.
  void SetHoldFor(int64_t hold_for_ns, const std::string& version) {
    options_.limits = LimitsWith(hold_for_ns);
    options_.version = version;
  }
  // Of the running one.
  void Reload(int64_t hold_for_ns, const std::string& version) {
    SetHoldFor(hold_for_ns, version);
    const absl::Status status = process_->Reload(options_.limits, version);
    ASSERT_TRUE(status.ok()) << status;
  }
  // As a disk that is full.
  void RefuseToRecordTerms() { std::filesystem::create_directory(folder_ + "/holds.new"); }
  // Starts a process; one that did not drain has crashed.
  Process& Start() {
    process_.reset();
    process_ = std::make_unique<Process>(folder_, machine_, options_);
    EXPECT_TRUE(process_->status().ok()) << process_->status();
    return *process_;
  }
  Acquired Take(const std::string& key, const std::string& limit = "slots") {
    return process_->Take(limit, key, 1, {.want_receipt = true});
  }
  void ExpectClosedFor(int64_t time_ns, const std::string& limit = "slots") {
    machine_.Advance(time_ns - 1);
    EXPECT_FALSE(Take("k", limit).granted());
    EXPECT_FALSE(Take("never used", limit).granted());
    machine_.Advance(1);
    EXPECT_TRUE(Take("k", limit).granted());
    EXPECT_TRUE(Take("never used", limit).granted());
  }

  config::TempDir dir_;
  const std::string folder_ = dir_.Path("state");
  Machine machine_;
  ProcessOptions options_;
  std::unique_ptr<Process> process_;
};

TEST_F(StateSlotsTest, AreClosedAlsoIfTheCopyIsTrusted) {
  options_.after_crash = AfterCrash::kTrust;
  options_.copies = false;
  Start();
  const Acquired known = Take("k");
  ASSERT_TRUE(process_->Drain().ok());
  Start();
  ASSERT_TRUE(Take("k").granted());
  // The state that it loaded counts as the last copy.
  Start();
  EXPECT_THAT(process_->log(), HasSubstr("buckets start as in the last copy"));
  EXPECT_FALSE(Take("k").granted());
  // A hold that is known can be ended, but another caller may have its slot since the copy.
  EXPECT_EQ(
      testing::Refund(process_->store(), known.receipt_id, {{&process_->Rule("slots"), "k", 1}})
          .outcome,
      store::RefundOutcome::kRefunded);
  EXPECT_EQ(process_->Remaining("slots", "k"), 0);
  ExpectClosedFor(kLongNs);
}

TEST_F(StateSlotsTest, AreClosedAlsoIfTheLimitHadMoreOfThemThanInTheCopy) {
  options_.after_crash = AfterCrash::kTrust;
  options_.copies = false;
  Start();
  ASSERT_TRUE(Take("k").granted());
  ASSERT_TRUE(process_->Drain().ok());
  Start();
  options_.limits = {LimitOf(Kind::kConcurrency, "slots", 10, kLongNs)};
  options_.version = "v2";
  ASSERT_TRUE(process_->Reload(options_.limits, "v2").ok());
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(Take("k").granted());
  Start();
  ExpectClosedFor(kLongNs);
}

TEST_F(StateSlotsTest, AreClosedAlsoIfTheLimitWasARateInTheCopy) {
  options_.after_crash = AfterCrash::kTrust;
  options_.copies = false;
  options_.limits = {LimitOf(Kind::kTokenBucket, "slots", 2, kLongNs)};
  Start();
  ASSERT_TRUE(Take("k").granted());
  ASSERT_TRUE(process_->Drain().ok());
  Start();
  options_.limits = {LimitOf(Kind::kConcurrency, "slots", 2, kLongNs)};
  options_.version = "v2";
  ASSERT_TRUE(process_->Reload(options_.limits, "v2").ok());
  ASSERT_TRUE(Take("k").granted());
  ASSERT_TRUE(Take("k").granted());
  Start();
  ExpectClosedFor(kLongNs);
}

TEST_F(StateSlotsTest, AreClosedOnceIfAClosedBucketIsTrusted) {
  options_.after_crash = AfterCrash::kTrust;
  options_.copies = false;
  Start();
  ASSERT_TRUE(process_->Drain().ok());
  Start();
  Start();
  ASSERT_FALSE(Take("k").granted());
  ASSERT_TRUE(process_->Drain().ok());
  Start();
  machine_.Advance(kSecondNs);
  Start();
  EXPECT_EQ(process_->Remaining("slots", "k"), 0);
  ExpectClosedFor(kLongNs);
}

TEST_F(StateSlotsTest, StayClosedOverADrain) {
  Start();
  Start();
  machine_.Advance(kSecondNs);
  ASSERT_TRUE(process_->Drain().ok());
  machine_.Advance(kSecondNs);
  Start();
  ExpectClosedFor(kLongNs - 2 * kSecondNs);
}

TEST_F(StateSlotsTest, AreClosedForTheHoldForOfTheCrashedRun) {
  Start();
  SetHoldFor(kShortNs, "v2");
  Start();
  ExpectClosedFor(kShortNs, "other");
  ExpectClosedFor(kLongNs - kShortNs);
}

TEST_F(StateSlotsTest, AreClosedForAHoldForThatWasRaisedInTheCrashedRun) {
  SetHoldFor(kShortNs, "v1");
  Start();
  Reload(kLongNs, "v2");
  SetHoldFor(kShortNs, "v3");
  Start();
  ExpectClosedFor(kLongNs);
}

TEST_F(StateSlotsTest, AreClosedUntilTheEndsByAHoldForThatWasLowered) {
  Start();
  ASSERT_TRUE(Take("k").granted());
  Reload(kShortNs, "v2");
  machine_.Advance(kLongNs / 2);
  Start();
  machine_.Advance(kLongNs / 2 - 1);
  EXPECT_FALSE(Take("k").granted());
  machine_.Advance(kShortNs + 1);
  EXPECT_TRUE(Take("k").granted());
}

TEST_F(StateSlotsTest, AreClosedForALowerHoldForOnceTheEndsBeforeItHavePassed) {
  Start();
  Reload(kShortNs, "v2");
  machine_.Advance(kLongNs + kShortNs);
  Start();
  ExpectClosedFor(kShortNs);
}

TEST_F(StateSlotsTest, AreClosedForALimitThatWasGoneAtTheCrash) {
  Start();
  ASSERT_TRUE(process_->Reload({TokenLimit("tokens", 5)}, "v2").ok());
  machine_.Reboot(kLongNs / 2);
  SetHoldFor(kShortNs, "v3");
  Start();
  machine_.Advance(kLongNs / 2 - 1);
  EXPECT_FALSE(Take("k").granted());
  machine_.Advance(kShortNs + 1);
  EXPECT_TRUE(Take("k").granted());
}

TEST_F(StateSlotsTest, ADamagedRecordOfTheTermsIsReported) {
  Start();
  std::ofstream(folder_ + "/holds", std::ios::binary) << "damaged";
  Start();
  EXPECT_THAT(process_->log(), HasSubstr("level=error event=hold_terms_unusable"));
  ExpectClosedFor(kLongNs);
}

TEST_F(StateSlotsTest, ARaisedHoldForThatCannotBeRecordedIsRefused) {
  SetHoldFor(kShortNs, "v1");
  Start();
  RefuseToRecordTerms();
  const absl::Status reloaded = process_->Reload(LimitsWith(kLongNs), "v2");
  EXPECT_TRUE(absl::IsFailedPrecondition(reloaded)) << reloaded;
  EXPECT_THAT(std::string(reloaded.message()),
              HasSubstr("the hold_for of the limit \"slots\" cannot be recorded in --state_dir"));
  const auto put = process_->registry().Put(LimitsWith(kLongNs)[0]);
  EXPECT_TRUE(absl::IsFailedPrecondition(put.status())) << put.status();
  const auto added = process_->registry().Put(LimitOf(Kind::kConcurrency, "added", 2, kShortNs));
  EXPECT_TRUE(absl::IsFailedPrecondition(added.status())) << added.status();
  ASSERT_TRUE(Take("k").granted());
  machine_.Advance(kShortNs);
  EXPECT_EQ(process_->Remaining("slots", "k"), 2) << "the parameters are those from before";
  Start();
  ExpectClosedFor(kShortNs);
}

TEST_F(StateSlotsTest, ARefusedHoldForIsAcceptedOnceItCanBeRecorded) {
  SetHoldFor(kShortNs, "v1");
  Start();
  RefuseToRecordTerms();
  ASSERT_FALSE(process_->Reload(LimitsWith(kLongNs), "v2").ok());
  std::filesystem::remove(folder_ + "/holds.new");
  Reload(kLongNs, "v2");
  SetHoldFor(kShortNs, "v3");
  Start();
  ExpectClosedFor(kLongNs);
}

TEST_F(StateSlotsTest, ALoweredHoldForThatCannotBeRecordedAppliesAndIsReported) {
  Start();
  RefuseToRecordTerms();
  Reload(kShortNs, "v2");
  EXPECT_THAT(process_->log(), HasSubstr("level=error event=hold_terms_not_saved"));
  ASSERT_TRUE(Take("k").granted());
  machine_.Advance(kShortNs);
  EXPECT_EQ(process_->Remaining("slots", "k"), 2);
  std::filesystem::remove(folder_ + "/holds.new");
  Start();
  ExpectClosedFor(kLongNs);
}

// The rename was done, but it is not known whether it is on the disk.
TEST_F(StateSlotsTest, AHoldForThatIsRaisedAgainIsRecordedAfterAnUnknownOutcome) {
  int steps = 0;
  FolderFault fault(folder_);
  options_.before_step = [&] { fault.BeforeStep(steps++); };
  Start();
  steps = 0;
  Reload(kShortNs, "v2");
  const int last = steps - 1;  // before the folder is synced
  Reload(kLongNs, "v3");
  steps = 0;
  fault.at = last;
  Reload(kShortNs, "v4");
  EXPECT_THAT(process_->log(), HasSubstr("level=error event=hold_terms_not_saved"));
  machine_.Advance(2 * kLongNs);
  // It is not refused only because it can be recorded now.
  RefuseToRecordTerms();
  EXPECT_TRUE(absl::IsFailedPrecondition(process_->Reload(LimitsWith(kLongNs), "v5")));
  std::filesystem::remove(folder_ + "/holds.new");
  Reload(kLongNs, "v6");
  SetHoldFor(kShortNs, "v7");
  Start();
  ExpectClosedFor(kLongNs);
}

// The record of a change that was refused may be on the disk.
TEST_F(StateSlotsTest, ARefusedRaiseOfOneLimitLeavesTheRecordOfAnother) {
  const auto limits = [](int64_t slots_ns, int64_t other_ns) {
    return std::vector{LimitOf(Kind::kConcurrency, "slots", 2, slots_ns),
                       LimitOf(Kind::kConcurrency, "other", 2, other_ns)};
  };
  int steps = 0;
  FolderFault fault(folder_);
  options_.before_step = [&] { fault.BeforeStep(steps++); };
  options_.limits = limits(kShortNs, kLongNs);
  Start();
  steps = 0;
  ASSERT_TRUE(process_->Reload(limits(kShortNs + 1, kLongNs), "v2").ok());
  const int last = steps - 1;  // before the folder is synced
  steps = 0;
  fault.at = last;
  const absl::Status reloaded = process_->Reload(limits(kLongNs, kShortNs), "v3");
  ASSERT_TRUE(absl::IsFailedPrecondition(reloaded)) << reloaded;
  machine_.Advance(2 * kLongNs);
  ASSERT_TRUE(Take("k", "other").granted());
  options_.limits = limits(kShortNs, kShortNs);
  options_.version = "v4";
  Start();
  ExpectClosedFor(kLongNs, "other");
}

TEST_F(StateSlotsTest, ALimitThatIsNewAfterACrashIsOpen) {
  options_.limits = {TokenLimit("tokens", 5)};
  Start();
  SetHoldFor(kLongNs, "v2");
  Start();
  EXPECT_THAT(process_->log(), HasSubstr("event=unclean_stop"));
  EXPECT_TRUE(Take("k").granted());
  options_.limits.push_back(LimitOf(Kind::kConcurrency, "new", 2, kLongNs));
  options_.version = "v3";
  Start();
  EXPECT_TRUE(Take("k", "new").granted());
  ExpectClosedFor(kLongNs);
}

}  // namespace
}  // namespace sluice::state
