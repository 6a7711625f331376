// TLS, mutual TLS and the admin port's token.
#include <string>

#include "tests/integration/server/server_test.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class SecurityTest : public ServerTest {
 protected:
  SecurityTest() {
    const TestCertificate server = authority_.Issue();
    cert_ = files_.Write("cert.pem", server.chain_pem);
    key_ = files_.Write("key.pem", server.key_pem);
    ca_ = files_.Write("ca.pem", authority_.certificate_pem());
    token_ = files_.Write("token", "0123456789abcdef-secret\n");
  }

  // A client's credentials: trusting our authority, with a certificate or without.
  std::shared_ptr<grpc::ChannelCredentials> Tls() { return Tls(nullptr); }
  std::shared_ptr<grpc::ChannelCredentials> Tls(const TestAuthority* issuer) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.certificate_pem();
    if (issuer != nullptr) {
      const TestCertificate client = issuer->Issue();
      options.pem_cert_chain = client.chain_pem;
      options.pem_private_key = client.key_pem;
    }
    return grpc::SslCredentials(options);
  }

  grpc::Status AcquireOn(std::shared_ptr<grpc::Channel> channel) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::AcquireResponse response;
    return v1::RateLimiter::NewStub(channel)->Acquire(&context, Request("api", "k"), &response);
  }
  grpc::Status ListOn(std::shared_ptr<grpc::Channel> channel, const std::string& authorization) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    v1::ListLimitsResponse response;
    return v1::LimitAdmin::NewStub(channel)->ListLimits(&context, v1::ListLimitsRequest(),
                                                        &response);
  }
  // Starts what must not come up.
  void Refuses(std::vector<std::string> flags, const std::string& text) {
    ServerProcess server({.flags = std::move(flags), .transport = GetParam(), .may_fail = true});
    EXPECT_FALSE(server.ready());
    EXPECT_EQ(server.WaitForExit(), 2);
    EXPECT_THAT(server.log(), HasSubstr(text));
  }

  TestAuthority authority_;
  TestAuthority stranger_{"Somebody else"};
  TestFiles files_;
  std::string cert_;
  std::string key_;
  std::string ca_;
  std::string token_;
};

TEST_P(SecurityTest, TlsServesThoseWhoTrustItAndNoPlaintext) {
  Start({.flags = {"--tls_cert=" + cert_, "--tls_key=" + key_}});
  EXPECT_TRUE(AcquireOn(server_->DataChannel(Tls())).ok());
  EXPECT_EQ(AcquireOn(server_->DataChannel()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_P(SecurityTest, MutualTlsServesOnlyCertificatesOfItsAuthority) {
  Start({.flags = {"--tls_cert=" + cert_, "--tls_key=" + key_, "--tls_client_ca=" + ca_}});
  EXPECT_TRUE(AcquireOn(server_->DataChannel(Tls(&authority_))).ok());
  EXPECT_EQ(AcquireOn(server_->DataChannel(Tls())).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(AcquireOn(server_->DataChannel(Tls(&stranger_))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_P(SecurityTest, TheAdminPortHasTlsOfItsOwn) {
  Start({.flags = {"--admin_tls_cert=" + cert_, "--admin_tls_key=" + key_,
                   "--admin_tls_client_ca=" + ca_}});
  EXPECT_TRUE(ListOn(server_->AdminChannel(Tls(&authority_)), "").ok());
  EXPECT_FALSE(ListOn(server_->AdminChannel(Tls()), "").ok());
  EXPECT_FALSE(ListOn(server_->AdminChannel(), "").ok());
  EXPECT_TRUE(AcquireOn(server_->DataChannel()).ok()) << "the data port stays as it was";
}

TEST_P(SecurityTest, TheAdminPortAsksForItsTokenAlsoOnLoopback) {
  Start({.flags = {"--admin_token_file=" + token_}});
  const auto channel = server_->AdminChannel();
  EXPECT_TRUE(ListOn(channel, "Bearer 0123456789abcdef-secret").ok());
  for (const char* wrong :
       {"", "Bearer ", "Bearer 0123456789abcdef-secreT", "Bearer 0123456789abcdef-secret2",
        "0123456789abcdef-secret", "Basic 0123456789abcdef-secret"}) {
    EXPECT_EQ(ListOn(channel, wrong).error_code(), grpc::StatusCode::UNAUTHENTICATED) << wrong;
  }
  EXPECT_TRUE(AcquireOn(server_->DataChannel()).ok());
  EXPECT_THAT(server_->log(), HasSubstr("event=admin_call_refused"));
  EXPECT_THAT(server_->log(), ::testing::Not(HasSubstr("-secret")));
}

TEST_P(SecurityTest, TheAdminPortLeavesLoopbackOnlyWithMutualTlsOrAToken) {
  Refuses({"--admin_listen=0.0.0.0:0"}, "--admin_listen=0.0.0.0:0: leaves this machine");
  Refuses({"--admin_listen=0.0.0.0:0", "--admin_tls_cert=" + cert_, "--admin_tls_key=" + key_},
          "leaves this machine");
  Start({.flags = {"--admin_listen=0.0.0.0:0", "--admin_token_file=" + token_}});
  EXPECT_TRUE(server_->ready());
  Start({.flags = {"--admin_listen=[::1]:0"}});
  EXPECT_TRUE(server_->ready());
}

TEST_P(SecurityTest, BadFilesEndWithTwoAndNameTheFlag) {
  Refuses({"--tls_cert=" + cert_}, "--tls_key: absent");
  Refuses({"--tls_key=" + key_}, "--tls_cert: absent");
  Refuses({"--tls_cert=/none", "--tls_key=" + key_}, "--tls_cert=/none: cannot be read");
  Refuses({"--tls_cert=" + key_, "--tls_key=" + key_}, "--tls_cert: holds no PEM certificate");
  Refuses({"--tls_cert=" + cert_, "--tls_key=" + cert_}, "--tls_key: holds no PEM private key");
  Refuses({"--tls_cert=" + ca_, "--tls_key=" + key_}, "--tls_key: is not the private key of");
  Refuses({"--tls_cert=" + cert_, "--tls_key=" + key_, "--tls_client_ca=" + key_},
          "--tls_client_ca: holds no PEM certificate");
  Refuses({"--admin_token_file=/none"}, "--admin_token_file=/none: cannot be read");
  Refuses({"--admin_token_file=" + files_.Write("short", "abc")}, "a token of 3 bytes");
}

SLUICE_ON_EVERY_TRANSPORT(SecurityTest);

}  // namespace
}  // namespace sluice::testing
