#include "common/net/tls_context.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::net {
namespace {

// Sessions may be resumed for this long, without a new check of the client's certificate.
constexpr long kSessionSeconds = 3600;

// Bytes of a client's chain of certificates. OpenSSL takes the memory when they are announced.
constexpr long kMaxChainBytes = 32 << 10;

// The ciphers that HTTP/2 allows with TLS 1.2 (RFC 9113, 9.2.2): ephemeral keys and AEAD.
constexpr char kTls12Ciphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";

// The key exchanges of a server, of which every client of TLS 1.3 has the second (RFC 8446, 9.1).
// Each takes about 0.1 ms. OpenSSL's own list goes up to ffdhe8192, which takes 100 ms.
constexpr char kServerGroups[] = "X25519:P-256";

// This thread's error: the system's, if there is one, else the last.
std::string OpenSslError() {
  std::string what = "unknown error";
  while (const unsigned long error = ERR_get_error()) {
    if (ERR_SYSTEM_ERROR(error)) {
      what = std::strerror(ERR_GET_REASON(error));
      break;
    }
    const char* const reason = ERR_reason_error_string(error);
    what = reason != nullptr ? reason : absl::StrCat("OpenSSL error ", error);
  }
  ERR_clear_error();
  return what;
}

absl::Status BadFile(absl::string_view what, const std::string& file) {
  return absl::InvalidArgumentError(absl::StrCat(what, " \"", file, "\": ", OpenSslError()));
}

// A key with a passphrase is an error; OpenSSL must not prompt on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

// `in`: the names of the client's protocols, each after a byte with its length. `options`: the
// TlsOptions.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* in, unsigned int in_size, void* options) {
  const absl::string_view ours = static_cast<const TlsOptions*>(options)->protocol;
  absl::string_view offered(reinterpret_cast<const char*>(in), in_size);
  while (!offered.empty()) {
    const absl::string_view one = offered.substr(1, static_cast<unsigned char>(offered[0]));
    if (one == ours) {
      *out = reinterpret_cast<const unsigned char*>(one.data());
      *out_size = static_cast<unsigned char>(one.size());
      return SSL_TLSEXT_ERR_OK;
    }
    offered.remove_prefix(std::min(one.size() + 1, offered.size()));
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

int64_t NotAfter(const SSL_CTX* ctx) {
  const X509* const certificate = SSL_CTX_get0_certificate(ctx);
  tm time = {};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &time) != 1) {
    return 0;
  }
  return timegm(&time);
}

}  // namespace

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Create(Role role, TlsOptions options) {
  const bool has_certificate = !options.certificate_chain_file.empty();
  if (has_certificate != !options.private_key_file.empty()) {
    return absl::InvalidArgumentError(
        "TLS needs a certificate and its private key; one of the two files is not given");
  }
  if (role == Role::kServer && !has_certificate) {
    return absl::InvalidArgumentError("a TLS server needs a certificate and its private key");
  }
  std::shared_ptr<TlsContext> context(new TlsContext(role, std::move(options)));
  absl::Status loaded = context->Reload();
  if (!loaded.ok()) return loaded;
  return context;
}

void TlsContext::UseAlgorithms(SSL_CTX* server) {
  struct {
    const char* suite;
    const char* group;
    int version;
  } constexpr kUses[] = {{"TLS_AES_128_GCM_SHA256", "X25519", TLS1_3_VERSION},
                         {"TLS_AES_256_GCM_SHA384", "P-256", TLS1_3_VERSION},
                         {"TLS_CHACHA20_POLY1305_SHA256", "X25519", TLS1_3_VERSION},
                         {"", "P-256", TLS1_2_VERSION}};
  for (const auto& use : kUses) {
    const CtxPtr client(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_max_proto_version(client.get(), use.version);
    SSL_CTX_set_ciphersuites(client.get(), use.suite);
    SSL_CTX_set1_groups_list(client.get(), use.group);
    const SslPtr from(SSL_new(client.get()));
    const SslPtr to(SSL_new(server));
    BIO* near = nullptr;
    BIO* far = nullptr;
    BIO_new_bio_pair(&near, 0, &far, 0);
    SSL_set_bio(from.get(), near, near);
    SSL_set_bio(to.get(), far, far);
    SSL_set_connect_state(from.get());
    SSL_set_accept_state(to.get());
    for (int flight = 0; flight < 3; ++flight) {
      SSL_do_handshake(from.get());
      SSL_do_handshake(to.get());
    }
  }
}

absl::StatusOr<TlsContext::CtxPtr> TlsContext::Load() const {
  ERR_clear_error();
  const bool server = role_ == Role::kServer;
  CtxPtr ctx(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method()));
  if (ctx == nullptr) return absl::InternalError(absl::StrCat("OpenSSL: ", OpenSslError()));
  SSL_CTX_set_min_proto_version(ctx.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(ctx.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(ctx.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_cipher_list(ctx.get(), kTls12Ciphers);
  SSL_CTX_set_default_passwd_cb(ctx.get(), &NoPassphrase);
  // Tickets contain all data that a resumption needs; a cache would only use memory.
  SSL_CTX_set_session_cache_mode(ctx.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_timeout(ctx.get(), kSessionSeconds);
  if (server) {
    SSL_CTX_set_max_cert_list(ctx.get(), kMaxChainBytes);
    if (SSL_CTX_set1_groups_list(ctx.get(), kServerGroups) != 1) {
      return absl::InternalError(absl::StrCat("OpenSSL: ", OpenSslError()));
    }
  }

  if (!options_.certificate_chain_file.empty()) {
    if (SSL_CTX_use_certificate_chain_file(ctx.get(), options_.certificate_chain_file.c_str()) !=
        1) {
      return BadFile("certificate chain", options_.certificate_chain_file);
    }
    if (SSL_CTX_use_PrivateKey_file(ctx.get(), options_.private_key_file.c_str(),
                                    SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(ctx.get()) != 1) {
      return BadFile("private key", options_.private_key_file);
    }
    if (X509_cmp_current_time(X509_get0_notAfter(SSL_CTX_get0_certificate(ctx.get()))) < 0) {
      return absl::InvalidArgumentError(absl::StrCat("certificate chain \"",
                                                     options_.certificate_chain_file,
                                                     "\": the certificate has expired"));
    }
  }
  if (!options_.trusted_ca_file.empty()) {
    if (SSL_CTX_load_verify_file(ctx.get(), options_.trusted_ca_file.c_str()) != 1) {
      return BadFile("trusted certificates", options_.trusted_ca_file);
    }
  } else if (!server) {
    SSL_CTX_set_default_verify_paths(ctx.get());
  }
  if (server) {
    static constexpr unsigned char kSessionContext[] = "sluice";
    SSL_CTX_set_session_id_context(ctx.get(), kSessionContext, sizeof(kSessionContext) - 1);
    SSL_CTX_set_num_tickets(ctx.get(), 1);
    if (!options_.trusted_ca_file.empty()) {
      SSL_CTX_set_client_CA_list(ctx.get(),
                                 SSL_load_client_CA_file(options_.trusted_ca_file.c_str()));
      SSL_CTX_set_verify(ctx.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    // The streams keep this context, and thereby the options, alive.
    SSL_CTX_set_alpn_select_cb(ctx.get(), &SelectProtocol, const_cast<TlsOptions*>(&options_));
    UseAlgorithms(ctx.get());
  } else {
    SSL_CTX_set_verify(ctx.get(), SSL_VERIFY_PEER, nullptr);
  }
  ERR_clear_error();
  return ctx;
}

std::string TlsContext::FileVersions() const {
  std::string versions;
  for (const std::string* file :
       {&options_.certificate_chain_file, &options_.private_key_file, &options_.trusted_ca_file}) {
    struct stat now;
    if (file->empty()) continue;
    if (stat(file->c_str(), &now) != 0) {
      absl::StrAppend(&versions, "absent;");
      continue;
    }
    absl::StrAppend(&versions, now.st_dev, ",", now.st_ino, ",", now.st_size, ",",
                    now.st_ctim.tv_sec, ".", now.st_ctim.tv_nsec, ";");
  }
  return versions;
}

absl::Status TlsContext::Reload() {
  // Before the files are read: a change during Load is detected at the next check.
  std::string versions = FileVersions();
  absl::StatusOr<CtxPtr> loaded = Load();
  common::MutexLock lock(&mu_);
  tried_ = std::move(versions);
  if (!loaded.ok()) return loaded.status();
  not_after_s_ = NotAfter(loaded->get());
  ctx_.swap(*loaded);
  ++generation_;
  return absl::OkStatus();
}

absl::StatusOr<bool> TlsContext::ReloadIfChanged() {
  const std::string versions = FileVersions();
  {
    common::MutexLock lock(&mu_);
    if (versions == tried_) return false;
  }
  absl::Status loaded = Reload();
  if (!loaded.ok()) return loaded;
  return true;
}

TlsContext::SslPtr TlsContext::NewSsl() const {
  common::MutexLock lock(&mu_);
  return SslPtr(SSL_new(ctx_.get()));
}

int64_t TlsContext::not_after_s() const {
  common::MutexLock lock(&mu_);
  return not_after_s_;
}

uint64_t TlsContext::generation() const {
  common::MutexLock lock(&mu_);
  return generation_;
}

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
