#include "common/net/certificate_watcher.h"

#include <utility>

namespace sluice::net {

CertificateWatcher::CertificateWatcher(std::vector<std::shared_ptr<TlsContext>> contexts,
                                       std::chrono::milliseconds interval, Report report)
    : contexts_(std::move(contexts)),
      interval_(interval),
      report_(std::move(report)),
      thread_([this] { Run(); }) {}

CertificateWatcher::~CertificateWatcher() {
  {
    common::MutexLock lock(&mu_);
    stop_ = true;
  }
  woken_.Signal();
  thread_.join();
}

void CertificateWatcher::Wake() {
  {
    common::MutexLock lock(&mu_);
    wake_ = true;
  }
  woken_.Signal();
}

void CertificateWatcher::Run() {
  for (;;) {
    {
      common::MutexLock lock(&mu_);
      while (!wake_ && !stop_ && woken_.WaitFor(&mu_, interval_)) {
      }
      if (stop_) return;
      wake_ = false;
    }
    for (const auto& context : contexts_) {
      const absl::StatusOr<bool> changed = context->ReloadIfChanged();
      if (!changed.ok() || *changed) report_(*context, changed.status());
    }
  }
}

}  // namespace sluice::net
