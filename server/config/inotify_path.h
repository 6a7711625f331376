// InotifyPath: inotify watches on every folder and symlink that a path leads through, and on its
// file. Not thread-safe; one thread polls fd() and calls Drain().
#ifndef SLUICE_SERVER_CONFIG_INOTIFY_PATH_H_
#define SLUICE_SERVER_CONFIG_INOTIFY_PATH_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::config {

class InotifyPath {
 public:
  // `path` is relative to the current folder. RESOURCE_EXHAUSTED: no inotify
  // instance or watch is left.
  static absl::StatusOr<std::unique_ptr<InotifyPath>> Create(const std::string& path);
  ~InotifyPath();
  InotifyPath(const InotifyPath&) = delete;
  InotifyPath& operator=(const InotifyPath&) = delete;

  // Readable when there are events.
  int fd() const { return fd_; }

  // Reads all events and follows the path again. Returns true if the file that the path leads to,
  // or its content, may have changed. Does not block.
  bool Drain();

 private:
  explicit InotifyPath(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  // Follows the path and updates the watches. Skips folders that it cannot watch (no permission,
  // deleted meanwhile), since the folders before them report their changes. Returns an error if the
  // system has no watch left.
  absl::Status Follow();

  const int fd_;
  const std::string path_;  // absolute
  // By watch descriptor: the names to watch in a folder; "" is the watched file itself.
  std::map<int, std::set<std::string>> watches_;
};

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_INOTIFY_PATH_H_
