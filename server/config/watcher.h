// Watcher: says when a file may have changed, however it was changed: written in place, replaced
// by rename (editors), by a swap of a symlink anywhere on the way to it (a Kubernetes ConfigMap's
// ..data), deleted and made again, its folder too.
//
// It watches, by inotify, every folder through which the path's resolution goes. Each event that
// touches a name on that way, or the file itself, is a possible change; after some quiet time
// `on_change` is called once for all of them. It may be called though nothing changed, and is
// called once after the start, for what changed before the watching began: compare the content
// (Reloader does).
//
// File systems that do not tell of changes made elsewhere (NFS, some container mounts) cannot be
// watched; SIGHUP is for them.
#ifndef SLUICE_SERVER_CONFIG_WATCHER_H_
#define SLUICE_SERVER_CONFIG_WATCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::config {

struct WatcherOptions {
  // on_change is called once nothing happened for `quiet_ns`, or `most_ns` after the first event
  // if it never gets quiet.
  int64_t quiet_ns = 50'000'000;
  int64_t most_ns = 1'000'000'000;
};

class Watcher {
 public:
  // Watches `path` from a thread of its own until the Watcher is destroyed. `on_change` runs on
  // that thread, never twice at once, and may block. The file need not exist.
  //   RESOURCE_EXHAUSTED: no inotify instance or watch is left (fs.inotify.max_user_instances,
  //   fs.inotify.max_user_watches).
  static absl::StatusOr<std::unique_ptr<Watcher>> Start(const std::string& path,
                                                        std::function<void()> on_change,
                                                        WatcherOptions options = {});
  // Stops; waits for an on_change that runs. Not to be called from on_change.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  class Impl;
  explicit Watcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_WATCHER_H_
