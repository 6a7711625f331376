// FileWatcher: calls back when a file may have changed, by whatever means: written in place,
// replaced by rename (editors), replaced by a symlink anywhere on its path (the ..data of a
// Kubernetes ConfigMap), or deleted and created again, with or without its folder.
//
// A path that leads to a folder is a change of any of its files (FileWatcherOptions::folder).
//
// It watches, by inotify, every folder that the path leads through. An event on a name of the path,
// or on the file itself, is a possible change. After a quiet time `on_change` is called once for
// all of them. It may be called without a change, and is called once after the start, for changes
// before the watch began: compare the content (Reloader does).
//
// File systems that do not report changes made elsewhere (NFS, some container mounts) cannot be
// watched; use SIGHUP there.
#ifndef SLUICE_SERVER_CONFIG_FILE_WATCHER_H_
#define SLUICE_SERVER_CONFIG_FILE_WATCHER_H_

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::config {

// Inotify watches on every folder and symlink that a path leads through, and on its file. Not
// thread-safe; one thread polls fd() and calls Drain().
class InotifyPath {
 public:
  // `path` is relative to the current folder. RESOURCE_EXHAUSTED: no inotify
  // instance or watch is left.
  // `folder`: if the path leads to a folder, watches all that is in it, and where its symlinks
  // lead.
  static absl::StatusOr<std::unique_ptr<InotifyPath>> Create(const std::string& path,
                                                             bool folder = false);
  ~InotifyPath() { close(fd_); }
  InotifyPath(const InotifyPath&) = delete;
  InotifyPath& operator=(const InotifyPath&) = delete;

  // Readable when there are events.
  int fd() const { return fd_; }

  // Reads all events and follows the path again. Returns true if the file that the path leads to,
  // or its content, may have changed. Does not block.
  bool Drain();

 private:
  InotifyPath(int fd, std::string path, bool folder)
      : fd_(fd), path_(std::move(path)), folder_(folder) {}

  // By watch descriptor: the names to watch in a folder; "" is the watched file itself, "/" any.
  using Watches = std::map<int, std::set<std::string>>;

  // Follows the path and updates the watches. Skips folders that it cannot watch (no permission,
  // deleted meanwhile), since the folders before them report their changes. Returns an error if the
  // system has no watch left.
  absl::Status Follow();
  // Adds the watches of one absolute path to `found`. Returns the folder that it leads to, without
  // symlinks; empty: it leads to a file, or nowhere.
  std::string FollowPath(const std::string& path, Watches* found, absl::Status* status) const;
  // Adds the watches of all that is in a folder, of whose symlinks those to files are followed.
  void FollowFolder(const std::string& folder, Watches* found, absl::Status* status) const;
  void Add(const std::string& path, uint32_t events, const std::string& name, Watches* found,
           absl::Status* status) const;

  const int fd_;
  const std::string path_;  // absolute
  const bool folder_;
  Watches watches_;
};

struct FileWatcherOptions {
  // on_change is called after `quiet_ns` without an event, at the latest `max_delay_ns` after the
  // first event.
  int64_t quiet_ns = 50'000'000;
  int64_t max_delay_ns = 1'000'000'000;
  // If the path leads to a folder, a change of anything in it counts.
  bool folder = false;
};

class FileWatcher {
 public:
  // Watches `path` from a thread of its own, of low priority, until the FileWatcher is destroyed.
  // `on_change` runs on that thread, one call at a time, and may block. The file need not exist.
  //   RESOURCE_EXHAUSTED: no inotify instance or watch is left (fs.inotify.max_user_instances,
  //   fs.inotify.max_user_watches).
  static absl::StatusOr<std::unique_ptr<FileWatcher>> Start(const std::string& path,
                                                            std::function<void()> on_change,
                                                            FileWatcherOptions options = {});
  // Stops; waits for a running on_change. REQUIRES: not called from on_change.
  ~FileWatcher();

 private:
  FileWatcher(std::unique_ptr<InotifyPath> watched, int stop_fd, std::function<void()> on_change,
              FileWatcherOptions options);
  void Run();

  // Used only by the thread.
  const std::unique_ptr<InotifyPath> watched_;
  const std::function<void()> on_change_;
  const FileWatcherOptions options_;
  // An eventfd: synchronizes itself.
  const int stop_fd_;
  // Last: it uses all members above.
  std::thread thread_;
};

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_FILE_WATCHER_H_
