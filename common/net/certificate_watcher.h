// CertificateWatcher: reloads TLS contexts when their files change, on a thread of its own, since
// reading files blocks. It looks at the files' metadata at intervals, following symbolic links: a
// Kubernetes Secret is swapped by a link, which inotify on the file does not see.
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
  // Told what came of a change: OK, new certificates are in use; else why the old ones stay.
  // Called on the watcher's thread.
  using Report = std::function<void(const TlsContext&, const absl::Status&)>;

  // Starts the thread.
  CertificateWatcher(std::vector<std::shared_ptr<TlsContext>> contexts,
                     std::chrono::milliseconds interval, Report report);
  // Ends the thread; waits for a look that is under way.
  ~CertificateWatcher();
  CertificateWatcher(const CertificateWatcher&) = delete;
  CertificateWatcher& operator=(const CertificateWatcher&) = delete;

  // Looks now instead of at the next interval. Any thread; does not wait for the outcome.
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
  std::thread thread_;  // last: it uses all the above
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_CERTIFICATE_WATCHER_H_
