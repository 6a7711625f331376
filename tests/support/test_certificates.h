// Certificates for tests, generated at run time so that none expires.
#ifndef SLUICE_TESTS_SUPPORT_TEST_CERTIFICATES_H_
#define SLUICE_TESTS_SUPPORT_TEST_CERTIFICATES_H_

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace sluice::testing {

struct TestCertificate {
  std::string chain_pem;
  std::string key_pem;
};

// The contents of a certificate. Times are seconds from now.
struct TestSubject {
  std::string common_name = "test";
  // In the syntax of OpenSSL: "DNS:localhost,IP:127.0.0.1,URI:spiffe://test/a".
  std::string alternative_names = "DNS:localhost,IP:127.0.0.1,IP:::1";
  long from_s = -3600;
  long to_s = 3600;
};

// A certificate authority with an EC key.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "Test authority")
      : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    TestSubject subject;
    subject.common_name = name;
    subject.alternative_names.clear();
    Fill(certificate_.get(), subject, key_.get());
    AddExtension(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
    AddExtension(certificate_.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
    X509_sign(certificate_.get(), key_.get(), EVP_sha256());
  }

  // Its own certificate, for peers that trust it.
  std::string certificate_pem() const { return Pem(certificate_.get()); }

  TestCertificate Issue(const TestSubject& subject = {}) const {
    std::unique_ptr<EVP_PKEY, Free> key(EVP_EC_gen("P-256"));
    std::unique_ptr<X509, Free> certificate(X509_new());
    Fill(certificate.get(), subject, key.get());
    AddExtension(certificate.get(), NID_ext_key_usage, "serverAuth,clientAuth");
    if (!subject.alternative_names.empty()) {
      AddExtension(certificate.get(), NID_subject_alt_name, subject.alternative_names);
    }
    X509_sign(certificate.get(), key_.get(), EVP_sha256());
    TestCertificate result;
    result.chain_pem = Pem(certificate.get());
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    result.key_pem = Take(bio);
    return result;
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };

  static std::string Take(BIO* bio) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    std::string text(data, size);
    BIO_free(bio);
    return text;
  }

  static std::string Pem(X509* certificate) {
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, certificate);
    return Take(bio);
  }

  void Fill(X509* certificate, const TestSubject& subject, EVP_PKEY* key) const {
    static std::atomic<long> serial{1};
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
    X509_gmtime_adj(X509_getm_notBefore(certificate), subject.from_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), subject.to_s);
    X509_set_pubkey(certificate, key);
    X509_NAME* const name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(subject.common_name.c_str()),
                               -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate_.get()));
  }

  void AddExtension(X509* certificate, int nid, const std::string& value) const {
    X509V3_CTX context;
    X509V3_set_ctx(&context, certificate_.get(), certificate, nullptr, nullptr, 0);
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    if (extension == nullptr) std::abort();
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  std::unique_ptr<EVP_PKEY, Free> key_;
  std::unique_ptr<X509, Free> certificate_;
};

// A temporary folder, removed by the destructor.
class TestFiles {
 public:
  TestFiles() {
    char name[] = "/tmp/sluice-test-XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    folder_ = name;
  }
  ~TestFiles() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(folder_.c_str());
  }
  TestFiles(const TestFiles&) = delete;
  TestFiles& operator=(const TestFiles&) = delete;

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // Writes a temporary file and renames it. Returns the path.
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = Path(name);
    const std::string aside = path + ".new";
    std::FILE* const file = std::fopen(aside.c_str(), "w");
    if (file == nullptr) std::abort();
    std::fwrite(content.data(), 1, content.size(), file);
    std::fclose(file);
    if (std::rename(aside.c_str(), path.c_str()) != 0) std::abort();
    files_.insert(path);
    return path;
  }

 private:
  std::string folder_;
  std::set<std::string> files_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_TEST_CERTIFICATES_H_
