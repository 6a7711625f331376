// WatchedPath: inotify watches on everything that decides what a path leads to. Not thread-safe;
// one thread polls fd() and calls Drain().
#ifndef SLUICE_SERVER_CONFIG_WATCHED_PATH_H_
#define SLUICE_SERVER_CONFIG_WATCHED_PATH_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::config {

class WatchedPath {
 public:
  // `path` is taken relative to the folder that is current now. RESOURCE_EXHAUSTED: no inotify
  // instance or watch is left.
  static absl::StatusOr<std::unique_ptr<WatchedPath>> Create(const std::string& path);
  ~WatchedPath();
  WatchedPath(const WatchedPath&) = delete;
  WatchedPath& operator=(const WatchedPath&) = delete;

  // Readable when there are events.
  int fd() const { return fd_; }

  // Reads all events; watches what the path leads through now. True: one of them may have changed
  // what the path leads to, or its content. Does not block.
  bool Drain();

 private:
  explicit WatchedPath(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  // Follows the path and brings the watches into line. Errors of single folders (no right to read
  // them, gone meanwhile) are passed over, since the folders before them still tell of changes;
  // answers that no watch was left for one.
  absl::Status Follow();

  const int fd_;
  const std::string path_;  // absolute
  // By watch descriptor the names that matter in a folder; "" is the watched thing itself.
  std::map<int, std::set<std::string>> watches_;
};

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_WATCHED_PATH_H_
