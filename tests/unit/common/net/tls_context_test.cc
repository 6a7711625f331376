#include "common/net/tls_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "tests/support/test_certificates.h"

namespace sluice::net {
namespace {

using ::sluice::testing::TestAuthority;
using ::sluice::testing::TestCertificate;
using ::sluice::testing::TestFiles;
using ::testing::HasSubstr;

class TlsContextTest : public ::testing::Test {
 protected:
  void Install(const TestCertificate& certificate) {
    options_.certificate_chain_file = files_.Write("chain.pem", certificate.chain_pem);
    options_.private_key_file = files_.Write("key.pem", certificate.key_pem);
  }
  absl::StatusOr<std::shared_ptr<TlsContext>> Create() const {
    return TlsContext::Create(TlsContext::Role::kServer, options_);
  }

  TestAuthority authority_;
  TestFiles files_;
  TlsOptions options_;
};

TEST_F(TlsContextTest, LoadsMatchingFiles) {
  Install(authority_.Issue());
  const auto context = Create();
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_NE((*context)->NewSsl(), nullptr);
  EXPECT_GT((*context)->not_after_s(), 0);
  EXPECT_EQ((*context)->generation(), 1u);
}

TEST_F(TlsContextTest, ErrorsNameTheFileAndTheFault) {
  struct Case {
    std::string chain, key, ca, expected;
  };
  const TestCertificate good = authority_.Issue();
  const TestCertificate other = authority_.Issue();
  const TestCertificate expired = authority_.Issue({.from_s = -7200, .to_s = -3600});
  const std::vector<Case> cases = {
      {"", good.key_pem, "", "chain.pem"},
      {"no pem at all", good.key_pem, "", "chain.pem"},
      {good.chain_pem, "", "", "key.pem"},
      {good.chain_pem, other.key_pem, "", "key.pem"},
      {good.chain_pem, good.key_pem, "rubbish", "ca.pem"},
      {expired.chain_pem, expired.key_pem, "", "expired"},
  };
  for (const Case& one : cases) {
    options_ = {};
    Install({one.chain, one.key});
    if (!one.ca.empty()) options_.trusted_ca_file = files_.Write("ca.pem", one.ca);
    const auto context = Create();
    EXPECT_EQ(context.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(context.status().message()), HasSubstr(one.expected));
  }
  options_ = {};
  EXPECT_EQ(Create().status().code(), absl::StatusCode::kInvalidArgument);
  Install(good);
  options_.private_key_file = files_.Path("absent.pem");
  const auto absent = Create();
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("absent.pem"));
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("No such file"));
}

TEST_F(TlsContextTest, EncryptedKeyIsAnErrorWithoutPrompt) {
  TestCertificate certificate = authority_.Issue();
  BIO* const in = BIO_new_mem_buf(certificate.key_pem.data(), -1);
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(in, nullptr, nullptr, nullptr);
  BIO* const out = BIO_new(BIO_s_mem());
  unsigned char passphrase[] = "secret";
  PEM_write_bio_PrivateKey(out, key, EVP_aes_128_cbc(), passphrase, 6, nullptr, nullptr);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out, &data);
  certificate.key_pem.assign(data, size);
  BIO_free(in);
  BIO_free(out);
  EVP_PKEY_free(key);
  Install(certificate);
  EXPECT_EQ(Create().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TlsContextTest, ReloadsOnlyWhenFilesChanged) {
  Install(authority_.Issue());
  const auto context = *Create();
  const int64_t before_s = context->not_after_s();
  EXPECT_FALSE(*context->ReloadIfChanged());
  Install(authority_.Issue({.to_s = 7200}));
  EXPECT_TRUE(*context->ReloadIfChanged());
  EXPECT_GT(context->not_after_s(), before_s);
  EXPECT_EQ(context->generation(), 2u);
  EXPECT_FALSE(*context->ReloadIfChanged());
}

TEST_F(TlsContextTest, InvalidNewFileIsReportedOnceAndKeepsTheOld) {
  Install(authority_.Issue());
  const auto context = *Create();
  const int64_t before_s = context->not_after_s();
  const TestCertificate next = authority_.Issue({.to_s = 7200});
  files_.Write("chain.pem", next.chain_pem);  // its key is not there yet
  EXPECT_FALSE(context->ReloadIfChanged().ok());
  EXPECT_EQ(context->not_after_s(), before_s);
  EXPECT_NE(context->NewSsl(), nullptr);
  EXPECT_FALSE(*context->ReloadIfChanged());
  files_.Write("key.pem", next.key_pem);
  EXPECT_TRUE(*context->ReloadIfChanged());
  EXPECT_GT(context->not_after_s(), before_s);
}

TEST_F(TlsContextTest, WatcherReportsEachReload) {
  Install(authority_.Issue());
  const auto context = *Create();
  std::promise<absl::Status> first, second;
  int reports = 0;  // the watcher's thread alone
  CertificateWatcher watcher({context}, std::chrono::hours(1),
                             [&](const TlsContext&, const absl::Status& status) {
                               (++reports == 1 ? first : second).set_value(status);
                             });
  files_.Write("chain.pem", "rubbish");
  watcher.Wake();
  EXPECT_FALSE(first.get_future().get().ok());
  Install(authority_.Issue());
  watcher.Wake();
  EXPECT_TRUE(second.get_future().get().ok());
  EXPECT_EQ(context->generation(), 2u);
}

}  // namespace
}  // namespace sluice::net
