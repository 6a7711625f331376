// CertificateWatcher: reloads TLS contexts when their files change, on its own thread, since
// reading files blocks. It polls the files' metadata and follows symbolic links: Kubernetes
// replaces a Secret by changing a link, which inotify on the file does not report.
#ifndef SLUICE_COMMON_NET_CERTIFICATE_WATCHER_H_
#define SLUICE_COMMON_NET_CERTIFICATE_WATCHER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/net/tls_context.h"

namespace sluice::net {

class CertificateWatcher {
 public:
  // Receives the result of each change: OK: new certificates are in use; else the reason why the
  // old ones stay in use. Called on the watcher's thread.
  using Report = std::function<void(const TlsContext&, const absl::Status&)>;

  // Starts the thread.
  CertificateWatcher(std::vector<std::shared_ptr<TlsContext>> contexts,
                     std::chrono::milliseconds interval, Report report);
  // Ends the thread; waits for a running check.
  ~CertificateWatcher();
  CertificateWatcher(const CertificateWatcher&) = delete;
  CertificateWatcher& operator=(const CertificateWatcher&) = delete;

  // Checks now instead of at the next interval. Thread-safe; does not wait for the result.
  void Wake();

 private:
  void Run();

  const std::vector<std::shared_ptr<TlsContext>> contexts_;
  const std::chrono::milliseconds interval_;
  const Report report_;
  common::Mutex mu_;
  common::CondVar woken_;
  bool wake_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_CERTIFICATE_WATCHER_H_
