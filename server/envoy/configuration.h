// Configuration: loads Envoy's rate-limit configuration into the limit registry, from files or from
// trees that xDS receives, and keeps the status of the last attempt.
#ifndef SLUICE_SERVER_ENVOY_CONFIGURATION_H_
#define SLUICE_SERVER_ENVOY_CONFIGURATION_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutex.h"
#include "server/config/file_watcher.h"
#include "server/envoy/descriptor_tree.h"
#include "server/envoy/overrides.h"
#include "server/limits/limit_registry.h"

namespace sluice::envoy {

struct ConfigurationOptions {
  std::string path = {};       // --ratelimit_config: a file or a folder; empty: only Apply
  std::string overrides = {};  // --ratelimit_overrides; empty: none
  Counting counting = {};      // --ratelimit_mode
  bool merge_domains = false;
  bool ignore_dot_files = true;
};

// A configuration as a management server sent it.
struct ReceivedTree {
  DescriptorTree tree;
  std::string version;  // the server's name for it, for people
  std::string sha256;   // of the content: another one may come with the same name
};

// Thread-safe. The arguments outlive this.
class Configuration {
 public:
  Configuration(ConfigurationOptions options, limits::LimitRegistry& registry,
                const common::Clock& clock, common::Log& log);

  // Loads the files and the overrides. Returns their error; then nothing is in force.
  absl::Status Start();
  // Reloads whenever a file changes. Logs what becomes of it.
  void Watch();
  // Stops watching. Idempotent.
  void Stop();

  // Reads the files and the overrides again and swaps the configuration. An error leaves the one in
  // force, and is returned, logged and kept for Status().
  absl::Status Reload();

  // The same for a tree from another source (xDS). Takes milliseconds for thousands of descriptors:
  // not for an event loop that serves requests.
  absl::Status Apply(ReceivedTree received);

  limits::FileStatus Status() const;
  // The last one that Apply put in force.
  std::optional<ReceivedTree> Received() const;

 private:
  absl::Status ReadOverrides() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mu_);
  absl::Status ReloadFiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mu_);
  // Checks and compiles the tree, and brings it into force, unless the one in force has the same
  // content.
  absl::Status Swap(const DescriptorTree& tree, const std::string& version,
                    const std::string& sha256) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mu_);
  // Logs and keeps an error, and returns it.
  absl::Status Failed(absl::Status status);

  const ConfigurationOptions options_;
  limits::LimitRegistry& registry_;
  const common::Clock& clock_;
  common::Log& log_;

  // Held over a whole reload, so that of two reloads the one that read later wins.
  mutable common::Mutex reload_mu_;
  Overrides overrides_ ABSL_GUARDED_BY(reload_mu_);
  std::string overrides_version_ ABSL_GUARDED_BY(reload_mu_);
  // The last one of Apply, for other overrides.
  std::optional<ReceivedTree> received_ ABSL_GUARDED_BY(reload_mu_);
  mutable common::Mutex mu_ ABSL_ACQUIRED_AFTER(reload_mu_);
  limits::FileStatus status_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<config::FileWatcher> watcher_;
  std::unique_ptr<config::FileWatcher> overrides_watcher_;
};

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_CONFIGURATION_H_
