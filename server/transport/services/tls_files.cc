#include "server/transport/services/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <fstream>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"

namespace sluice::transport {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Open(const std::string& path) { return {BIO_new_file(path.c_str(), "r"), &BIO_free}; }

Certificate FirstCertificate(const std::string& path) {
  return {PEM_read_bio_X509(Open(path).get(), nullptr, nullptr, nullptr), &X509_free};
}

Key PrivateKey(const std::string& path) {
  // A key with a passphrase is an error; never ask the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  return {PEM_read_bio_PrivateKey(Open(path).get(), nullptr, no_passphrase, nullptr),
          &EVP_PKEY_free};
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files, std::string_view prefix) {
  if (!files.enabled()) return absl::OkStatus();
  const std::string cert_flag = absl::StrCat("--", common::ToAbsl(prefix), "cert");
  const std::string key_flag = absl::StrCat("--", common::ToAbsl(prefix), "key");
  const std::string ca_flag = absl::StrCat("--", common::ToAbsl(prefix), "client_ca");
  if (files.cert.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(files.cert.empty() ? cert_flag : key_flag,
                                                   ": absent; TLS needs ", cert_flag, " and ",
                                                   key_flag));
  }
  for (const auto& [flag, path] : {std::pair(&cert_flag, &files.cert),
                                   {&key_flag, &files.key},
                                   {&ca_flag, &files.client_ca}}) {
    if (path->empty() || std::ifstream(*path).good()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(*flag, "=", *path, ": cannot be read; name a PEM file"));
  }
  const absl::Cleanup clear_errors = [] { ERR_clear_error(); };
  const Certificate cert = FirstCertificate(files.cert);
  if (cert == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(cert_flag, ": holds no PEM certificate"));
  }
  const Key key = PrivateKey(files.key);
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(key_flag, ": holds no PEM private key without a passphrase"));
  }
  if (X509_check_private_key(cert.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(key_flag, ": is not the private key of the certificate in ", cert_flag));
  }
  if (files.mutual() && FirstCertificate(files.client_ca) == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(ca_flag, ": holds no PEM certificate"));
  }
  return absl::OkStatus();
}

}  // namespace sluice::transport
