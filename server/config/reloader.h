// Reloader: loads the limits file into the registry and keeps the status of the last attempt.
#ifndef SLUICE_SERVER_CONFIG_RELOADER_H_
#define SLUICE_SERVER_CONFIG_RELOADER_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/limits/limit_registry.h"

namespace sluice::config {

// Thread-safe. `registry` and `clock` outlive this.
class Reloader {
 public:
  Reloader(std::string path, limits::LimitRegistry* registry, const common::Clock* clock)
      : path_(std::move(path)), registry_(registry), clock_(clock) {}

  // Reads the file and swaps the limits. Content that is already active changes nothing. A bad file
  // leaves the active limits; the error is returned and kept for Status(). Blocks on the disk and
  // on other reloads.
  absl::Status ReloadNow();

  limits::FileStatus Status() const {
    common::MutexLock lock(&mu_);
    return status_;
  }

 private:
  const std::string path_;
  limits::LimitRegistry* const registry_;
  const common::Clock* const clock_;

  // Held over a whole reload, so that of two reloads the one that read the file later wins.
  common::Mutex reload_mu_;
  mutable common::Mutex mu_ ABSL_ACQUIRED_AFTER(reload_mu_);
  limits::FileStatus status_ ABSL_GUARDED_BY(mu_){.path = path_};
};

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_RELOADER_H_
