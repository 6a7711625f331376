#include "server/reloads.h"

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

Reloads::Reloads(const Collaborators& with) : with_(with) {
  if (with_.limits != nullptr) Watch(with_.flags.limits, [this] { ReloadLimits(); });
  if (with_.token != nullptr) Watch(with_.flags.admin_token_file, [this] { ReloadToken(); });
  if (with_.clients != nullptr) Watch(with_.flags.clients, [this] { ReloadClients(); });
}

void Reloads::Watch(const std::string& path, std::function<void()> on_change) {
  auto watcher = config::FileWatcher::Start(path, std::move(on_change));
  if (watcher.ok()) {
    watchers_.push_back(*std::move(watcher));
  } else {
    with_.log.Warning("watch_failed", {{"path", path},
                                       {"error", watcher.status().message()},
                                       {"consequence", "only SIGHUP reloads"}});
  }
}

void Reloads::ReloadNow() {
  if (with_.limits != nullptr) ReloadLimits();
  if (with_.token != nullptr) ReloadToken();
  if (with_.clients != nullptr) ReloadClients();
  with_.ports.ReloadCertificates();
}

void Reloads::ReloadLimits() {
  const uint64_t before = with_.limits->Status().reloads;
  const absl::Status status = with_.limits->ReloadNow();
  const limits::FileStatus now = with_.limits->Status();
  if (!status.ok()) {
    with_.log.Error("reload_failed",
                    {{"error", status.message()}, {"active_version", now.version}});
  } else if (now.reloads != before) {
    with_.log.Info("reload", {{"version", now.version},
                              {"limits", with_.registry.Current()->limits().size()}});
  }
}

void Reloads::ReloadToken() {
  const absl::StatusOr<bool> changed = with_.token->Reload();
  if (!changed.ok()) {
    with_.log.Error("admin_token_not_reloaded", {{"error", changed.status().message()}});
  } else if (*changed) {
    with_.log.Info("admin_token_reloaded", {});
    with_.token->WarnIfOthersMayRead(with_.log);
    // Its holder is a client.
    if (with_.clients != nullptr) ReloadClients();
  }
}

void Reloads::ReloadClients() {
  const absl::StatusOr<bool> changed = with_.clients->Reload();
  if (!changed.ok()) {
    with_.log.Error("clients_not_reloaded", {{"error", changed.status().message()}});
  } else if (*changed) {
    with_.log.Info("clients_reloaded", {});
    if (with_.flags.in_redis) with_.clients->WarnOfKeyBounds(with_.log);
  }
}

}  // namespace sluice
