// TlsFiles: the PEM files of one port, as the flags name them.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_TLS_FILES_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_TLS_FILES_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sluice::transport {

// All empty: plaintext.
struct TlsFiles {
  std::string cert;
  std::string key;
  // Not empty: clients must show a certificate that one of these authorities signed (mTLS).
  std::string client_ca;

  bool enabled() const { return !cert.empty() || !key.empty() || !client_ca.empty(); }
  bool mutual() const { return !client_ca.empty(); }
};

// Checks the files before anything is started, with errors that name the flag; `prefix` begins the
// flags' names ("tls_"). INVALID_ARGUMENT: the certificate or the key is missing, a file cannot be
// read or has no PEM of its kind, or the key does not belong to the certificate.
absl::Status CheckTlsFiles(const TlsFiles& files, std::string_view prefix);

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_TLS_FILES_H_
