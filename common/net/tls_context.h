// TlsContext: certificates, keys and rules of TLS, for any number of streams (OpenSSL 3).
//
// TLS 1.2 or later; no renegotiation, no compression. A server exchanges keys by X25519 or P-256
// only: others would keep an event loop busy for up to 100 ms. Sessions are resumed by tickets
// whose keys live as long as the loaded certificates: after a reload all clients are verified
// again. A server negotiates its protocol: it refuses a client that offers ALPN without it, and
// accepts one without ALPN. A client offers no ALPN.
#ifndef SLUICE_COMMON_NET_TLS_CONTEXT_H_
#define SLUICE_COMMON_NET_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace sluice::net {

struct TlsOptions {
  // PEM. A server needs both; a client both or neither. The chain starts with our certificate.
  std::string certificate_chain_file;
  std::string private_key_file;
  // PEM: trusted certificate authorities. Server: clients must have a certificate from one of them
  // (mTLS); empty: clients need none. Client: empty means the system's.
  std::string trusted_ca_file;
  // Server: the protocol that it speaks, as ALPN names it.
  std::string protocol = "h2";
};

class TlsContext : public std::enable_shared_from_this<TlsContext> {
 public:
  enum class Role { kServer, kClient };

  // Loads the files. INVALID_ARGUMENT names the file and the error.
  static absl::StatusOr<std::shared_ptr<TlsContext>> Create(Role role, TlsOptions options);

  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Thread-safe; reads files. New streams use the new certificates, open streams do not change. On
  // an error the old certificates stay in use.
  absl::Status Reload();
  // Reloads if a file has changed (inode, size, time of change) since the last try. Returns whether
  // new files are in use. Returns an error once for each change of files.
  absl::StatusOr<bool> ReloadIfChanged();

  // Thread-safe. Creates an SSL of the newest context.
  struct SslDeleter {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  using SslPtr = std::unique_ptr<SSL, SslDeleter>;
  SslPtr NewSsl() const;

  // When the certificate in use expires, seconds since 1970; 0: no certificate. Thread-safe.
  int64_t not_after_s() const;
  // How many times files were loaded. Thread-safe.
  uint64_t generation() const;

  Role role() const { return role_; }

 private:
  struct CtxDeleter {
    void operator()(SSL_CTX* ctx) const { SSL_CTX_free(ctx); }
  };
  using CtxPtr = std::unique_ptr<SSL_CTX, CtxDeleter>;

  TlsContext(Role role, TlsOptions options) : role_(role), options_(std::move(options)) {}

  absl::StatusOr<CtxPtr> Load() const;
  // Does handshakes in memory with each kind of client. OpenSSL looks algorithms up when they are
  // first used, which takes milliseconds: now, and not in a step of an event loop.
  static void UseAlgorithms(SSL_CTX* server);
  // Identifies the present versions of the files.
  std::string FileVersions() const;

  const Role role_;
  const TlsOptions options_;
  mutable common::Mutex mu_;
  CtxPtr ctx_ ABSL_GUARDED_BY(mu_);
  std::string tried_ ABSL_GUARDED_BY(mu_);  // FileVersions at the last try
  int64_t not_after_s_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
};

// Reloads TLS contexts when their files change, on its own thread, since
// reading files blocks. It polls the files' metadata and follows symbolic links: Kubernetes
// replaces a Secret by changing a link, which inotify on the file does not report.
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

#endif  // SLUICE_COMMON_NET_TLS_CONTEXT_H_
