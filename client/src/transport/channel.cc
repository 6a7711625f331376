#include "client/src/transport/channel.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "client/src/transport/connect_advice.h"

namespace sluice::client_internal {
namespace {

std::string ErrnoText(int error) { return std::strerror(error); }

// The first queued error of OpenSSL; empties the queue.
std::string SslErrorText() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown TLS error" : reason;
}

// ---- A BIO on a socket. OpenSSL's own raises SIGPIPE.

int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int BioWrite(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = send(FdOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int BioRead(BIO* bio, char* to, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = recv(FdOf(bio), to, static_cast<size_t>(size), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}

long BioControl(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* SocketBio() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "sluice");
    BIO_meth_set_write(made, BioWrite);
    BIO_meth_set_read(made, BioRead);
    BIO_meth_set_ctrl(made, BioControl);
    return made;
  }();
  return method;
}

bool IsIp(const std::string& name) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, name.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, name.c_str(), bytes) == 1;
}

Status Unusable(const std::string& path, const std::string& what) {
  const std::string why = SslErrorText();
  return Status(StatusCode::kInvalidArgument,
                "TLS: \"" + path + "\" is not a valid " + what + ": " + why);
}

}  // namespace

Result<std::shared_ptr<const TlsSetup>> TlsSetup::Create(const TlsOptions& options,
                                                         const ServerAddress& server) {
  if (Status bad = CheckTlsFiles(options); !bad.ok()) return bad;
  const std::shared_ptr<TlsSetup> setup(new TlsSetup());
  setup->server_name_ = options.server_name;
  if (setup->server_name_.empty()) {
    setup->server_name_ = server.is_unix() ? "localhost" : server.host;
  }
  setup->name_is_ip_ = IsIp(setup->server_name_);
  ERR_clear_error();
  setup->context_.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = setup->context_.get();
  if (context == nullptr) {
    return Status(StatusCode::kInternal, "TLS: OpenSSL cannot start: " + SslErrorText());
  }
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  static constexpr unsigned char kProtocols[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context, kProtocols, sizeof(kProtocols));
  if (options.ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(context);
  } else if (SSL_CTX_load_verify_file(context, options.ca_file.c_str()) != 1) {
    return Unusable(options.ca_file, "list of certificates");
  }
  if (!options.cert_file.empty()) {
    if (SSL_CTX_use_certificate_chain_file(context, options.cert_file.c_str()) != 1) {
      return Unusable(options.cert_file, "certificate");
    }
    if (SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
      const bool mismatch = ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_VALUES_MISMATCH;
      if (!mismatch) return Unusable(options.key_file, "private key");
      setup->unusable_ = Status(StatusCode::kUnavailable, "TLS: " + SslErrorText());
    }
  }
  ERR_clear_error();
  return std::shared_ptr<const TlsSetup>(setup);
}

Result<std::unique_ptr<SSL, SslDeleter>> TlsSetup::NewSsl() const {
  if (!unusable_.ok()) return unusable_;
  std::unique_ptr<SSL, SslDeleter> ssl(SSL_new(context_.get()));
  if (ssl == nullptr) return Status(StatusCode::kUnavailable, "TLS: out of memory");
  SSL_set_connect_state(ssl.get());
  X509_VERIFY_PARAM* const verify = SSL_get0_param(ssl.get());
  if (name_is_ip_) {
    X509_VERIFY_PARAM_set1_ip_asc(verify, server_name_.c_str());
  } else {
    X509_VERIFY_PARAM_set_hostflags(verify, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    X509_VERIFY_PARAM_set1_host(verify, server_name_.c_str(), server_name_.size());
    SSL_set_tlsext_host_name(ssl.get(), server_name_.c_str());
  }
  return ssl;
}

Channel::Channel(int fd, std::unique_ptr<SSL, SslDeleter> ssl) : fd_(fd), ssl_(std::move(ssl)) {
  if (ssl_ == nullptr) return;
  BIO* const bio = BIO_new(SocketBio());
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
}

Channel::~Channel() {
  // Both sides of a fork may have the socket: closing alone would leave it open.
  ShutDown();
  close(fd_);
}

void Channel::ShutDown() { shutdown(fd_, SHUT_RDWR); }

Channel::Io Channel::Failed(int result) {
  const int system_error = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return Io::kBlocked;
    case SSL_ERROR_ZERO_RETURN:
      error_ = kServerHungUp;
      return Io::kClosed;
    case SSL_ERROR_SYSCALL:
      error_ = std::string(kServerHungUp) +
               (result < 0 && system_error != 0 ? ": " + ErrnoText(system_error) : "");
      return Io::kClosed;
    default:
      break;
  }
  const long verified = SSL_get_verify_result(ssl_.get());
  const unsigned long code = ERR_peek_error();
  const std::string reason = SslErrorText();
  if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    const char* const name = SSL_get_servername(ssl_.get(), TLSEXT_NAMETYPE_host_name);
    error_ =
        std::string(name == nullptr ? "the server's address" : name) + " " + kNameNotInCertificate;
  } else if (verified != X509_V_OK) {
    error_ = reason + ": " + X509_verify_cert_error_string(verified);
  } else if (ERR_GET_REASON(code) > SSL_AD_REASON_OFFSET ||
             ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    // An alert of the server.
    error_ = std::string(kServerHungUp) + ": " + reason;
  } else {
    error_ = reason;
  }
  return Io::kClosed;
}

Channel::Io Channel::Handshake() {
  if (ssl_ == nullptr) return Io::kDone;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) return Failed(result);
  const unsigned char* protocol = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &protocol, &size);
  if (size == 2 && std::memcmp(protocol, "h2", 2) == 0) return Io::kDone;
  error_ = "the server does not speak HTTP/2 on this TLS port (ALPN h2)";
  return Io::kClosed;
}

bool Channel::handshake_writes() const { return ssl_ != nullptr && SSL_want_write(ssl_.get()); }

Channel::IoResult Channel::Read(std::span<uint8_t> to) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const int n =
        SSL_read(ssl_.get(), to.data(), static_cast<int>(std::min<size_t>(to.size(), INT_MAX)));
    if (n > 0) return {Io::kDone, static_cast<size_t>(n)};
    return {Failed(n)};
  }
  while (true) {
    const ssize_t n = recv(fd_, to.data(), to.size(), MSG_DONTWAIT);
    if (n > 0) return {Io::kDone, static_cast<size_t>(n)};
    if (n == 0) {
      error_ = kServerHungUp;
      return {Io::kClosed};
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return {Io::kBlocked};
    error_ = ErrnoText(errno);
    return {Io::kClosed};
  }
}

Channel::IoResult Channel::Write(std::span<const uint8_t> bytes) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const int n = SSL_write(ssl_.get(), bytes.data(),
                            static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
    if (n > 0) return {Io::kDone, static_cast<size_t>(n)};
    return {Failed(n)};
  }
  while (true) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return {Io::kDone, static_cast<size_t>(n)};
    if (errno == EINTR) continue;
    // Not error_: another thread may read it.
    return {errno == EAGAIN ? Io::kBlocked : Io::kClosed};
  }
}

}  // namespace sluice::client_internal
