// TestTls: TLS for a ScriptedServer, with certificates made at run time, and the files with which a
// client connects to it.
#ifndef SLUICE_TESTS_SUPPORT_TEST_TLS_H_
#define SLUICE_TESTS_SUPPORT_TEST_TLS_H_

#include <openssl/ssl.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "sluice/options.h"
#include "tests/support/test_certificates.h"

namespace sluice::testing {

class TestTls {
 public:
  TestTls() {
    const TestCertificate server = authority_.Issue();
    const TestCertificate client = authority_.Issue();
    files_.Write("ca.pem", authority_.certificate_pem());
    files_.Write("client.pem", client.chain_pem);
    files_.Write("client.key", client.key_pem);
    const std::string chain = files_.Write("server.pem", server.chain_pem);
    const std::string key = files_.Write("server.key", server.key_pem);
    if (SSL_CTX_use_certificate_chain_file(context_, chain.c_str()) != 1 ||
        SSL_CTX_use_PrivateKey_file(context_, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_load_verify_file(context_, files_.Path("ca.pem").c_str()) != 1) {
      std::abort();
    }
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_alpn_select_cb(
        context_,
        [](SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char*, unsigned,
           void*) {
          *chosen = reinterpret_cast<const unsigned char*>("h2");
          *size = 2;
          return SSL_TLSEXT_ERR_OK;
        },
        nullptr);
  }
  ~TestTls() { SSL_CTX_free(context_); }
  TestTls(const TestTls&) = delete;
  TestTls& operator=(const TestTls&) = delete;

  SSL_CTX* context() const { return context_; }
  // With a certificate of its own, which the server requires.
  TlsOptions client_options() const {
    TlsOptions options;
    options.ca_file = files_.Path("ca.pem");
    options.cert_file = files_.Path("client.pem");
    options.key_file = files_.Path("client.key");
    return options;
  }

 private:
  const TestAuthority authority_;
  TestFiles files_;
  SSL_CTX* const context_ = SSL_CTX_new(TLS_server_method());
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_TEST_TLS_H_
