// FileWatcher on real folders. No test waits for time to pass: each waits until the watcher has
// reported the file's new content, with a time-out that only a failure reaches.
#include "server/config/file_watcher.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <utility>

#include "common/mutex.h"
#include "tests/unit/config/temp_dir.h"

namespace sluice::config {
namespace {

namespace fs = std::filesystem;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) return "(none)";
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Reads the file at each change, as a reload does.
class Follower {
 public:
  explicit Follower(std::string path) : path_(std::move(path)) {
    auto watcher = FileWatcher::Start(path_, [this] { Changed(); },
                                      {.quiet_ns = 1'000'000, .max_delay_ns = 20'000'000});
    EXPECT_TRUE(watcher.ok()) << watcher.status();
    if (watcher.ok()) watcher_ = *std::move(watcher);
  }

  // Waits until the content is `text`.
  bool Sees(const std::string& text) {
    common::MutexLock lock(&mu_);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (last_ != text) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= left.zero()) {
        ADD_FAILURE() << "last seen: " << last_;
        return false;
      }
      changed_.WaitFor(&mu_, left);
    }
    return true;
  }

 private:
  void Changed() {
    std::string text = Read(path_);
    common::MutexLock lock(&mu_);
    last_ = std::move(text);
    changed_.SignalAll();
  }

  const std::string path_;
  common::Mutex mu_;
  common::CondVar changed_;
  std::string last_ ABSL_GUARDED_BY(mu_) = "(not yet)";
  std::unique_ptr<FileWatcher> watcher_;
};

TEST(FileWatcherTest, CallsBackOnceAtTheStart) {
  TempDir dir;
  dir.Write("f", "1");
  Follower follower(dir.Path("f"));
  EXPECT_TRUE(follower.Sees("1"));
}

TEST(FileWatcherTest, CallsBackAtTheLowestPriority) {
  TempDir dir;
  const int own = getpriority(PRIO_PROCESS, 0);
  std::promise<int> priority;
  std::atomic<bool> called{false};
  const auto watcher = FileWatcher::Start(dir.Path("f"),
                                          [&] {
                                            if (!called.exchange(true))
                                              priority.set_value(getpriority(PRIO_PROCESS, 0));
                                          },
                                          {.quiet_ns = 1'000'000});
  ASSERT_TRUE(watcher.ok()) << watcher.status();
  EXPECT_EQ(priority.get_future().get(), 19);
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own) << "of the watcher's thread alone";
}

TEST(FileWatcherTest, SeesAFileWrittenInPlace) {
  TempDir dir;
  dir.Write("f", "1");
  Follower follower(dir.Path("f"));
  ASSERT_TRUE(follower.Sees("1"));
  dir.Write("f", "2");
  EXPECT_TRUE(follower.Sees("2"));
  dir.Write("f", "3");
  EXPECT_TRUE(follower.Sees("3"));
}

TEST(FileWatcherTest, SeesAFileReplacedByRename) {
  TempDir dir;
  dir.Write("f", "1");
  Follower follower(dir.Path("f"));
  ASSERT_TRUE(follower.Sees("1"));
  for (const char* text : {"2", "3"}) {
    dir.Write("f.tmp", text);
    dir.Rename("f.tmp", "f");
    EXPECT_TRUE(follower.Sees(text));
  }
  // The new file, which is another inode, written in place.
  dir.Write("f", "4");
  EXPECT_TRUE(follower.Sees("4"));
}

TEST(FileWatcherTest, SeesAFileMovedAwayAndCreatedAgain) {
  // As an editor with backups does.
  TempDir dir;
  dir.Write("f", "1");
  Follower follower(dir.Path("f"));
  ASSERT_TRUE(follower.Sees("1"));
  dir.Rename("f", "f~");
  EXPECT_TRUE(follower.Sees("(none)"));
  dir.Write("f", "2");
  EXPECT_TRUE(follower.Sees("2"));
}

TEST(FileWatcherTest, SeesAFileCreatedLaterAndDeleted) {
  TempDir dir;
  Follower follower(dir.Path("f"));
  ASSERT_TRUE(follower.Sees("(none)"));
  dir.Write("f", "1");
  EXPECT_TRUE(follower.Sees("1"));
  fs::remove(dir.Path("f"));
  EXPECT_TRUE(follower.Sees("(none)"));
  dir.Write("f", "2");
  EXPECT_TRUE(follower.Sees("2"));
}

TEST(FileWatcherTest, SeesAConfigMapSwappedByKubernetes) {
  // f -> ..data/f, ..data -> ..v1. A new version is a new folder, and ..data is renamed over.
  TempDir dir;
  const auto version = [&](const std::string& name, const std::string& text) {
    fs::create_directory(dir.Path(name));
    dir.Write(name + "/f", text);
    fs::create_directory_symlink(name, dir.Path("..data_tmp"));
    dir.Rename("..data_tmp", "..data");
  };
  version("..v1", "1");
  fs::create_symlink("..data/f", dir.Path("f"));
  Follower follower(dir.Path("f"));
  ASSERT_TRUE(follower.Sees("1"));
  version("..v2", "2");
  EXPECT_TRUE(follower.Sees("2"));
  fs::remove_all(dir.Path("..v1"));
  version("..v3", "3");
  EXPECT_TRUE(follower.Sees("3"));
}

TEST(FileWatcherTest, SeesASymlinkRedirected) {
  TempDir dir;
  fs::create_directories(dir.Path("x/deep"));
  fs::create_directory(dir.Path("y"));
  dir.Write("x/deep/f", "x");
  dir.Write("y/f", "y");
  fs::create_symlink(dir.Path("x/deep/f"), dir.Path("link"));
  Follower follower(dir.Path("link"));
  ASSERT_TRUE(follower.Sees("x"));
  // The target itself, in its own folder.
  dir.Write("x/deep/f", "x2");
  EXPECT_TRUE(follower.Sees("x2"));
  fs::create_symlink("y/f", dir.Path("link.tmp"));
  dir.Rename("link.tmp", "link");
  EXPECT_TRUE(follower.Sees("y"));
  dir.Write("y/f", "y2");
  EXPECT_TRUE(follower.Sees("y2"));
}

TEST(FileWatcherTest, SeesAFolderDeletedAndCreatedAgain) {
  TempDir dir;
  fs::create_directories(dir.Path("a/b"));
  dir.Write("a/b/f", "1");
  Follower follower(dir.Path("a/b/f"));
  ASSERT_TRUE(follower.Sees("1"));
  fs::remove_all(dir.Path("a"));
  EXPECT_TRUE(follower.Sees("(none)"));
  fs::create_directories(dir.Path("a/b"));
  dir.Write("a/b/f", "2");
  EXPECT_TRUE(follower.Sees("2"));
}

TEST(FileWatcherTest, SeesAFolderReplacedByAnother) {
  TempDir dir;
  fs::create_directory(dir.Path("a"));
  fs::create_directory(dir.Path("b"));
  dir.Write("a/f", "1");
  dir.Write("b/f", "2");
  Follower follower(dir.Path("a/f"));
  ASSERT_TRUE(follower.Sees("1"));
  dir.Rename("a", "old");
  dir.Rename("b", "a");
  EXPECT_TRUE(follower.Sees("2"));
}

TEST(FileWatcherTest, FollowsDotsAndRelativeSymlinks) {
  TempDir dir;
  fs::create_directories(dir.Path("a/b"));
  dir.Write("f", "1");
  fs::create_symlink("../.././f", dir.Path("a/b/link"));
  Follower follower(dir.Path("a/../a/./b/link"));
  ASSERT_TRUE(follower.Sees("1"));
  dir.Write("f.tmp", "2");
  dir.Rename("f.tmp", "f");
  EXPECT_TRUE(follower.Sees("2"));
}

TEST(FileWatcherTest, EndsAtALoopOfSymlinks) {
  TempDir dir;
  fs::create_symlink("b", dir.Path("a"));
  fs::create_symlink("a", dir.Path("b"));
  Follower follower(dir.Path("a"));
  ASSERT_TRUE(follower.Sees("(none)"));
  dir.Write("f", "1");
  dir.Rename("f", "a");
  EXPECT_TRUE(follower.Sees("1"));
}

TEST(FileWatcherTest, CallsBackForAFileThatKeepsChanging) {
  TempDir dir;
  dir.Write("f", "1");
  common::Mutex mu;
  common::CondVar changed;
  int calls = 0;
  // The quiet time never passes: only `max_delay_ns` ends the wait.
  auto watcher = FileWatcher::Start(dir.Path("f"),
                                    [&] {
                                      common::MutexLock lock(&mu);
                                      ++calls;
                                      changed.SignalAll();
                                    },
                                    {.quiet_ns = 3'600'000'000'000, .max_delay_ns = 1'000'000});
  ASSERT_TRUE(watcher.ok());
  common::MutexLock lock(&mu);
  while (calls < 1) ASSERT_TRUE(changed.WaitFor(&mu, std::chrono::seconds(30)));
}

TEST(InotifyPathTest, IgnoresOtherFilesOfTheFolder) {
  TempDir dir;
  dir.Write("f", "1");
  auto watched = InotifyPath::Create(dir.Path("f"));
  ASSERT_TRUE(watched.ok());
  EXPECT_FALSE((*watched)->Drain());
  dir.Write("other", "1");
  dir.Rename("other", "another");
  fs::remove(dir.Path("another"));
  EXPECT_FALSE((*watched)->Drain());
  EXPECT_EQ(Read(dir.Path("f")), "1");
  // Reading is no change either: a reload must not cause another.
  EXPECT_FALSE((*watched)->Drain());
  dir.Write("f", "2");
  EXPECT_TRUE((*watched)->Drain());
  EXPECT_FALSE((*watched)->Drain());
}

TEST(InotifyPathTest, IgnoresAFolderThatThePathLeft) {
  TempDir dir;
  fs::create_directory(dir.Path("x"));
  fs::create_directory(dir.Path("y"));
  dir.Write("x/f", "1");
  dir.Write("y/f", "1");
  fs::create_directory_symlink("x", dir.Path("now"));
  auto watched = InotifyPath::Create(dir.Path("now/f"));
  ASSERT_TRUE(watched.ok());
  fs::create_directory_symlink("y", dir.Path("tmp"));
  dir.Rename("tmp", "now");
  EXPECT_TRUE((*watched)->Drain());
  dir.Write("x/f", "2");
  EXPECT_FALSE((*watched)->Drain());
  dir.Write("y/f", "2");
  EXPECT_TRUE((*watched)->Drain());
}

}  // namespace
}  // namespace sluice::config
