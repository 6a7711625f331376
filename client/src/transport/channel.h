// Channel: a connected socket, plain or with TLS. TlsSetup: the certificates for any number of
// them.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_CHANNEL_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_CHANNEL_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/src/transport/server_address.h"
#include "sluice/options.h"
#include "sluice/status.h"

namespace sluice::client_internal {

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

// Immutable and thread-safe.
class TlsSetup {
 public:
  // Reads the files. INVALID_ARGUMENT names the file that cannot be used.
  static Result<std::shared_ptr<const TlsSetup>> Create(const TlsOptions& options,
                                                        const ServerAddress& server);

  // UNAVAILABLE: the private key is not that of the certificate.
  Result<std::unique_ptr<SSL, SslDeleter>> NewSsl() const;

  // The name, or address, that the server's certificate must have.
  const std::string& server_name() const { return server_name_; }

 private:
  TlsSetup() = default;

  std::unique_ptr<SSL_CTX, SslDeleter> context_;
  std::string server_name_;
  bool name_is_ip_ = false;
  Status unusable_;  // why there can be no connection
};

// Owns the socket. Never blocks. Plain: one thread may read while another writes. With TLS its user
// serializes all calls.
class Channel {
 public:
  enum class Io {
    kDone,     // `bytes` were read or written
    kBlocked,  // nothing now: wait until the socket is readable; for Write, writable
    kClosed,   // the peer ended its side, or the connection is broken: see error()
  };
  struct IoResult {
    Io io = Io::kBlocked;
    size_t bytes = 0;
  };

  // Takes a connected, nonblocking socket; `ssl` is null without TLS.
  Channel(int fd, std::unique_ptr<SSL, SslDeleter> ssl);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // TLS's handshake goes on: kDone at its end.
  Io Handshake();
  // Whether the handshake waits to write, not to read.
  bool handshake_writes() const;

  IoResult Read(std::span<uint8_t> to);
  IoResult Write(std::span<const uint8_t> bytes);

  // Wakes a thread that polls the socket. The only call beside others of this channel.
  void ShutDown();

  bool tls() const { return ssl_ != nullptr; }
  int fd() const { return fd_; }
  // Why the last call returned kClosed.
  const std::string& error() const { return error_; }

 private:
  Io Failed(int result);

  const int fd_;
  std::unique_ptr<SSL, SslDeleter> ssl_;
  std::string error_;
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_CHANNEL_H_
