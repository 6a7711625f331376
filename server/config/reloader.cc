#include "server/config/reloader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config/load.h"

namespace sluice::config {

Reloader::Reloader(std::string path, limits::LimitRegistry* registry, const common::Clock* clock)
    : path_(std::move(path)), registry_(registry), clock_(clock) {
  status_.path = path_;
}

absl::StatusOr<bool> Reloader::Apply(std::string* version) {
  auto file = LoadFile(path_);
  if (!file.ok()) return file.status();
  *version = file->version;
  auto applied = registry_->ApplyFile(std::move(file->specs), *version);
  if (applied.ok()) return applied;
  return absl::Status(applied.status().code(),
                      absl::StrCat(path_, ": ", applied.status().message()));
}

absl::Status Reloader::ReloadNow() {
  common::MutexLock reload(&reload_mu_);
  std::string version;
  const absl::StatusOr<bool> applied = Apply(&version);
  const int64_t now_ns = clock_->WallNs();
  common::MutexLock lock(&mu_);
  if (!applied.ok()) {
    ++status_.failed_reloads;
    status_.last_error = std::string(applied.status().message());
    status_.last_error_at_wall_ns = now_ns;
    return applied.status();
  }
  status_.last_error.clear();
  status_.last_error_at_wall_ns = 0;
  if (*applied) {
    ++status_.reloads;
    status_.version = std::move(version);
    status_.active_since_wall_ns = now_ns;
  }
  return absl::OkStatus();
}

limits::FileStatus Reloader::Status() const {
  common::MutexLock lock(&mu_);
  return status_;
}

}  // namespace sluice::config
