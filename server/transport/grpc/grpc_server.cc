#include "server/transport/grpc/grpc_server.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bounds.h"

namespace sluice::transport {
namespace {

absl::StatusOr<std::string> ReadPem(const std::string& flag, const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", path, ": cannot be read; name a PEM file"));
  }
  return content.str();
}

std::unique_ptr<BIO, decltype(&BIO_free)> Memory(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free};
}

// What grpc++ would only say by failing every handshake.
absl::Status CheckPair(const std::string& cert_flag, const std::string& cert_pem,
                       const std::string& key_flag, const std::string& key_pem) {
  const std::unique_ptr<X509, decltype(&X509_free)> cert(
      PEM_read_bio_X509(Memory(cert_pem).get(), nullptr, nullptr, nullptr), &X509_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(Memory(key_pem).get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
  absl::Status status;
  if (cert == nullptr) {
    status =
        absl::InvalidArgumentError(absl::StrCat("--", cert_flag, ": holds no PEM certificate"));
  } else if (key == nullptr) {
    status = absl::InvalidArgumentError(
        absl::StrCat("--", key_flag, ": holds no PEM private key without a passphrase"));
  } else if (X509_check_private_key(cert.get(), key.get()) != 1) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "--", key_flag, ": is not the private key of the certificate in --", cert_flag));
  }
  ERR_clear_error();
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<::grpc::ServerCredentials>> MakeCredentials(const TlsFiles& files,
                                                                           const char* prefix) {
  if (!files.enabled()) return ::grpc::InsecureServerCredentials();
  const std::string cert_flag = absl::StrCat(prefix, "cert");
  const std::string key_flag = absl::StrCat(prefix, "key");
  const std::string ca_flag = absl::StrCat(prefix, "client_ca");
  if (files.cert.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", files.cert.empty() ? cert_flag : key_flag,
                                                   ": absent; TLS needs --", cert_flag, " and --",
                                                   key_flag));
  }
  auto cert = ReadPem(cert_flag, files.cert);
  if (!cert.ok()) return cert.status();
  auto key = ReadPem(key_flag, files.key);
  if (!key.ok()) return key.status();
  if (absl::Status status = CheckPair(cert_flag, *cert, key_flag, *key); !status.ok()) {
    return status;
  }
  ::grpc::SslServerCredentialsOptions options(
      files.mutual() ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                     : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_key_cert_pairs.push_back({*std::move(key), *std::move(cert)});
  if (files.mutual()) {
    auto ca = ReadPem(ca_flag, files.client_ca);
    if (!ca.ok()) return ca.status();
    const std::unique_ptr<X509, decltype(&X509_free)> first(
        PEM_read_bio_X509(Memory(*ca).get(), nullptr, nullptr, nullptr), &X509_free);
    ERR_clear_error();
    if (first == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("--", ca_flag, ": holds no PEM certificate"));
    }
    options.pem_root_certs = *std::move(ca);
  }
  return ::grpc::SslServerCredentials(options);
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const ListenAddress& address, std::shared_ptr<::grpc::ServerCredentials> credentials,
    const std::vector<::grpc::Service*>& services) {
  // grpc++ logs why it cannot bind, and returns nothing but failure.
  if (absl::Status status = ProbeBind(address); !status.ok()) return status;
  ::grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address.ToString(), std::move(credentials), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(common::bounds::kMaxStreamsPerConnection));
  builder.SetMaxReceiveMessageSize(static_cast<int>(common::bounds::kMaxRequestBytes));
  for (::grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<GrpcServer> server(new GrpcServer());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || (!address.is_unix() && port == 0)) {
    return absl::UnavailableError("cannot listen there");
  }
  server->address_ = address;
  if (!address.is_unix()) server->address_.port = static_cast<uint16_t>(port);
  return server;
}

void GrpcServer::Shutdown(absl::Time deadline) { server_->Shutdown(absl::ToChronoTime(deadline)); }

}  // namespace sluice::transport
