#include "server/config/reloader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config/load.h"

namespace sluice::config {

absl::Status Reloader::ReloadNow() {
  common::MutexLock reload(&reload_mu_);
  auto file = LoadFile(path_);
  absl::Status status = file.status();
  bool changed = false;
  if (file.ok()) {
    const auto applied = registry_->ApplyFile(std::move(file->specs), file->version);
    changed = applied.ok() && *applied;
    status = absl::Status(applied.status().code(),
                          absl::StrCat(path_, ": ", applied.status().message()));
  }
  const int64_t now_ns = clock_->WallNs();
  common::MutexLock lock(&mu_);
  status_.last_error = std::string(status.message());
  status_.last_error_at_wall_ns = status.ok() ? 0 : now_ns;
  if (!status.ok()) ++status_.failed_reloads;
  if (changed) {
    ++status_.reloads;
    status_.version = std::move(file->version);
    status_.active_since_wall_ns = now_ns;
  }
  return status;
}

}  // namespace sluice::config
