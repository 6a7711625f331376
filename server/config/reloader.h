// Reloader: brings what the limits file says into the registry, and remembers how that went.
#ifndef SLUICE_SERVER_CONFIG_RELOADER_H_
#define SLUICE_SERVER_CONFIG_RELOADER_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/limits/limit_registry.h"

namespace sluice::config {

struct ConfigStatus {
  std::string version;               // SHA-256 of the active file's bytes, in hex; empty: none yet
  int64_t active_since_wall_ns = 0;  // since 1970 UTC; 0: no file yet
  std::string path;
  std::string last_error;  // why the file as it is now does not run; empty: it runs
  int64_t last_error_at_wall_ns = 0;
  uint64_t reloads = 0;  // changes of the file that took effect, the first load included
  uint64_t failed_reloads = 0;
  uint32_t limits = 0;
  uint32_t admin_changes = 0;  // by PutLimit and DeleteLimit, that still hold
};

// Thread-safe. `registry` and `clock` outlive this.
class Reloader {
 public:
  Reloader(std::string path, limits::LimitRegistry* registry, const common::Clock* clock);

  // Reads the file and swaps the limits. The same content as the running one changes nothing. A
  // bad file leaves the running limits; the error is returned and kept for Status(). Blocks on
  // the disk and on other reloads.
  absl::Status ReloadNow();

  ConfigStatus Status() const;
  const std::string& path() const { return path_; }

 private:
  // The file's version, and whether it is another than the one that ran.
  absl::StatusOr<bool> Apply(std::string* version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mu_);

  const std::string path_;
  limits::LimitRegistry* const registry_;
  const common::Clock* const clock_;

  // Held over a whole reload: of two, the one that read the file later wins.
  common::Mutex reload_mu_;
  mutable common::Mutex mu_ ABSL_ACQUIRED_AFTER(reload_mu_);
  ConfigStatus status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_RELOADER_H_
