#include "server/transport/services/health_board.h"

#include <algorithm>
#include <utility>

namespace sluice::transport {

HealthBoard::HealthBoard(std::vector<std::string> services) : services_(std::move(services)) {}

Serving HealthBoard::GetLocked(std::string_view service) const {
  if (!service.empty() &&
      std::find(services_.begin(), services_.end(), service) == services_.end()) {
    return Serving::kServiceUnknown;
  }
  return serving_;
}

Serving HealthBoard::Get(std::string_view service) const {
  common::MutexLock lock(&mu_);
  return GetLocked(service);
}

void HealthBoard::SetAll(Serving serving) {
  std::vector<std::pair<std::shared_ptr<HealthWatcher>, Serving>> told;
  {
    common::MutexLock lock(&mu_);
    if (closed_ || serving_ == serving) return;
    serving_ = serving;
    for (const auto& [_, watched] : watchers_) {
      const Serving now = GetLocked(watched.service);
      if (now != Serving::kServiceUnknown) told.emplace_back(watched.watcher, now);
    }
  }
  for (const auto& [watcher, now] : told) watcher->OnChange(now);
}

void HealthBoard::Close() {
  SetAll(Serving::kNotServing);
  std::vector<std::shared_ptr<HealthWatcher>> told;
  {
    common::MutexLock lock(&mu_);
    closed_ = true;
    for (const auto& [_, watched] : watchers_) told.push_back(watched.watcher);
    watchers_.clear();
  }
  for (const auto& watcher : told) watcher->OnClose();
}

void HealthBoard::Watch(std::string_view service, std::shared_ptr<HealthWatcher> watcher) {
  Serving now;
  bool closed;
  {
    common::MutexLock lock(&mu_);
    now = GetLocked(service);
    closed = closed_;
    if (!closed) watchers_[watcher.get()] = {std::string(service), watcher};
  }
  watcher->OnChange(now);
  if (closed) watcher->OnClose();
}

void HealthBoard::Unwatch(const HealthWatcher* watcher) {
  common::MutexLock lock(&mu_);
  watchers_.erase(watcher);
}

}  // namespace sluice::transport
