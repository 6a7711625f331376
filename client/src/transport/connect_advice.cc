#include "client/src/transport/connect_advice.h"

#include <fstream>
#include <sstream>
#include <utility>

namespace sluice::client_internal {

std::string WithAdvice(const std::string& cause, const TlsOptions& tls, const char* server_option) {
  const auto says = [&](const char* text) { return cause.find(text) != std::string::npos; };
  std::string advice;
  // It does not say why.
  const bool hung_up = says(kServerHungUp) || says("Socket closed") ||
                       says("Endpoint read failed") || says("Connection reset") ||
                       says("Broken pipe");
  if (says("Connection refused") || says("No such file or directory")) {
    advice = std::string("start sluiced there, or name the server in ") + server_option;
  } else if (!tls.in_use()) {
    if (hung_up) advice = "if the server uses TLS, set TlsOptions::ca_file (--tls-ca)";
  } else if (says("wrong version number")) {
    advice = "the port does not use TLS: connect without TLS, or to the port that uses it";
  } else if (says("certificate verify failed")) {
    advice = tls.ca_file.empty()
                 ? "no root certificate of the system has issued the server's certificate: set "
                   "TlsOptions::ca_file (--tls-ca) to the certificate of its issuer"
                 : "the server's certificate has expired, or was not issued by a certificate in "
                   "TlsOptions::ca_file (--tls-ca) " +
                       tls.ca_file;
  } else if (says(kNameNotInCertificate)) {
    advice =
        "connect to a name that is in the server's certificate, or set "
        "TlsOptions::server_name (--tls-server-name) to one that is";
  } else if (hung_up && tls.cert_file.empty()) {
    advice =
        "the server may require a client certificate: set TlsOptions::cert_file and "
        "key_file (--tls-cert, --tls-key)";
  } else if (hung_up) {
    advice = "the server may have rejected the certificate in TlsOptions::cert_file (--tls-cert) " +
             tls.cert_file +
             ": it must not have expired, and its issuer must be trusted by the server";
  } else if (says("empty address list") || says("key values mismatch")) {
    advice =
        "TlsOptions::key_file (--tls-key) may not be the key of the certificate in "
        "cert_file (--tls-cert)";
  }
  return advice.empty() ? cause : cause + "; " + advice;
}

Result<std::string> ReadTlsFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in.is_open() || in.bad() || text.str().empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "TLS: cannot read \"" + path + "\", or it is empty");
  }
  return text.str();
}

Status CheckTlsFiles(const TlsOptions& tls) {
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "TLS: cert_file and key_file go together; only one is set");
  }
  for (const std::string* path : {&tls.ca_file, &tls.cert_file, &tls.key_file}) {
    if (path->empty()) continue;
    const Result<std::string> text = ReadTlsFile(*path);
    if (!text.ok()) return text.status();
    const bool is_key = path == &tls.key_file;
    if (text->find(is_key ? "PRIVATE KEY-----" : "CERTIFICATE-----") == std::string::npos) {
      return Status(StatusCode::kInvalidArgument, "TLS: \"" + *path + "\" contains no PEM " +
                                                      (is_key ? "private key" : "certificate"));
    }
  }
  return Status();
}

}  // namespace sluice::client_internal
