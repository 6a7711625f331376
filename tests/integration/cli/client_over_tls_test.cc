// The client and the command with the real sluiced over TLS: with valid files, and the errors for
// invalid ones. Each test issues its certificates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/admin_client.h"
#include "sluice/client.h"
#include "tests/integration/cli/shell.h"
#include "tests/support/server_process.h"
#include "tests/support/test_certificates.h"

namespace sluice {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ServerProcess;
using testing::TestAuthority;
using testing::TestCertificate;

class ClientOverTlsTest : public ::testing::Test {
 protected:
  ClientOverTlsTest() {
    const TestCertificate server = authority_.Issue();
    Write("server", server);
    Write("client", authority_.Issue());
    Write("stranger", stranger_.Issue());
    files_.Write("ca.pem", authority_.certificate_pem());
    files_.Write("stranger_ca.pem", stranger_.certificate_pem());
  }

  void Write(const std::string& name, const TestCertificate& certificate) {
    files_.Write(name + ".pem", certificate.chain_pem);
    files_.Write(name + ".key", certificate.key_pem);
  }
  std::string Path(const std::string& name) { return files_.Path(name); }

  enum class Mode { kPlain, kTls, kMutual };
  void Start(Mode mode) {
    std::vector<std::string> flags;
    for (const std::string prefix : {"", "admin_"}) {
      if (mode == Mode::kPlain) break;
      flags.push_back("--" + prefix + "tls_cert=" + Path("server.pem"));
      flags.push_back("--" + prefix + "tls_key=" + Path("server.key"));
      if (mode == Mode::kMutual) {
        flags.push_back("--" + prefix + "tls_client_ca=" + Path("ca.pem"));
      }
    }
    server_ = std::make_unique<ServerProcess>(
        ServerProcess::Options{.limits = "limits: [{name: api, rate: 1000/h}]", .flags = flags});
  }

  TlsOptions Tls(const std::string& ca, const std::string& certificate = "") {
    TlsOptions tls;
    tls.ca_file = Path(ca);
    if (!certificate.empty()) {
      tls.cert_file = Path(certificate + ".pem");
      tls.key_file = Path(certificate + ".key");
    }
    return tls;
  }
  Result<Client> Connect(const TlsOptions& tls) {
    return Client::Create(
        {.servers = {server_->data_address()}, .tls = tls, .deadline = seconds(20)});
  }

  // Every form of call, also to the admin port.
  void ExpectServed(const TlsOptions& tls) {
    auto client = Connect(tls);
    ASSERT_TRUE(client.ok()) << client.status();
    const auto decision = client->Acquire("api", "k");
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_TRUE(decision->granted) << decision->status;
    EXPECT_TRUE(client->AcquireFuture(Acquisition("api", "k")).get()->granted);
    AcquireStream stream = client->OpenStream();
    EXPECT_TRUE(stream.Submit(Acquisition("api", "k")).get()->granted);
    const std::vector<Bucket> buckets = {{"api", "k"}};
    EXPECT_EQ((*client->Query(buckets))[0].remaining, 997);
    auto admin = AdminClient::Create(
        {.server = server_->admin_address(), .tls = tls, .deadline = seconds(20)});
    ASSERT_TRUE(admin.ok()) << admin.status();
    const auto limits = admin->ListLimits();
    ASSERT_TRUE(limits.ok()) << limits.status();
    EXPECT_EQ(limits->size(), 1u);
  }

  // No call is executed, and each error contains the advice.
  template <typename Matcher>
  void ExpectRefused(const TlsOptions& tls, const Matcher& advice) {
    auto client = Connect(tls);
    ASSERT_TRUE(client.ok()) << client.status();
    const auto decision = client->Acquire("api", "k");
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_FALSE(decision->granted);
    EXPECT_EQ(decision->source, Source::kUnavailable);
    EXPECT_EQ(decision->status.code(), StatusCode::kUnavailable);
    EXPECT_FALSE(decision->status.may_have_executed());
    EXPECT_THAT(decision->status.message(), advice);
    const std::vector<Bucket> buckets = {{"api", "k"}};
    EXPECT_THAT(client->Query(buckets).status().message(), advice);
    auto admin = AdminClient::Create(
        {.server = server_->admin_address(), .tls = tls, .deadline = seconds(20)});
    EXPECT_THAT(admin->ListLimits().status().message(), advice);
  }

  TestAuthority authority_;
  TestAuthority stranger_{"Another authority"};
  testing::TestFiles files_;
  std::unique_ptr<ServerProcess> server_;
};

TEST_F(ClientOverTlsTest, TlsServesClientsThatTrustTheServer) {
  Start(Mode::kTls);
  ExpectServed(Tls("ca.pem"));
}

TEST_F(ClientOverTlsTest, MutualTlsServesClientsWithACertificate) {
  Start(Mode::kMutual);
  ExpectServed(Tls("ca.pem", "client"));
}

TEST_F(ClientOverTlsTest, ErrorNamesAnUntrustedAuthority) {
  Start(Mode::kTls);
  ExpectRefused(Tls("stranger_ca.pem"), AllOf(HasSubstr("was not issued by a certificate in"),
                                              HasSubstr("stranger_ca.pem"), HasSubstr("--tls-ca")));
  // The system does not trust the test's authority.
  ExpectRefused({.enabled = true},
                AllOf(HasSubstr("no root certificate of the system"), HasSubstr("--tls-ca")));
}

TEST_F(ClientOverTlsTest, ErrorSuggestsAClientCertificate) {
  Start(Mode::kMutual);
  ExpectRefused(Tls("ca.pem"),
                AllOf(HasSubstr("may require a client certificate"), HasSubstr("--tls-cert")));
}

TEST_F(ClientOverTlsTest, ErrorNamesARejectedClientCertificate) {
  Start(Mode::kMutual);
  ExpectRefused(Tls("ca.pem", "stranger"),
                AllOf(HasSubstr("may have rejected the certificate"), HasSubstr("stranger.pem")));
}

TEST_F(ClientOverTlsTest, ErrorReportsANameThatIsNotInTheCertificate) {
  Start(Mode::kTls);
  TlsOptions tls = Tls("ca.pem");
  tls.server_name = "example.org";
  ExpectRefused(tls, AllOf(HasSubstr("example.org"), HasSubstr("--tls-server-name")));
  tls.server_name = "localhost";
  ExpectServed(tls);
}

TEST_F(ClientOverTlsTest, ErrorReportsTlsOnOneSideOnly) {
  Start(Mode::kTls);
  ExpectRefused({}, AllOf(HasSubstr("if the server uses TLS"), HasSubstr("--tls-ca")));
  Start(Mode::kPlain);
  ExpectRefused(Tls("ca.pem"), HasSubstr("the port does not use TLS"));
}

TEST_F(ClientOverTlsTest, RejectsInvalidFilesBeforeAnyCall) {
  Start(Mode::kTls);
  TlsOptions swapped = Tls("ca.pem", "client");
  std::swap(swapped.cert_file, swapped.key_file);
  EXPECT_THAT(Connect(swapped).status().message(), HasSubstr("contains no PEM certificate"));
  TlsOptions key = Tls("ca.pem", "client");
  key.key_file = Path("client.pem");
  EXPECT_THAT(Connect(key).status().message(),
              HasSubstr("client.pem\" contains no PEM private key"));
  EXPECT_THAT(Connect(Tls("absent.pem")).status().message(), HasSubstr("absent.pem"));
  // The key of another certificate: grpc++ reports it when it connects.
  TlsOptions mixed = Tls("ca.pem", "client");
  mixed.key_file = Path("server.key");
  ExpectRefused(mixed, HasSubstr("--tls-key"));
}

TEST_F(ClientOverTlsTest, CommandUsesTls) {
  Start(Mode::kMutual);
  setenv("SLUICE_SERVER", server_->data_address().c_str(), 1);
  setenv("SLUICE_ADMIN", server_->admin_address().c_str(), 1);
  const std::string files = " --deadline 20s --tls-ca " + Path("ca.pem");
  const std::string all =
      files + " --tls-cert " + Path("client.pem") + " --tls-key " + Path("client.key");
  EXPECT_EQ(testing::Shell("$SLUICE acquire api" + all).exit_code, 0);
  EXPECT_EQ(testing::Shell("$SLUICE limits list" + all).exit_code, 0);
  EXPECT_EQ(testing::Shell("$SLUICE health" + all).out, "SERVING\n");
  EXPECT_EQ(testing::Shell("$SLUICE health --admin-port" + all).out, "SERVING\n");
  for (const std::string command : {"health", "health --admin-port", "limits list"}) {
    const testing::Outcome refused = testing::Shell("$SLUICE " + command + files);
    EXPECT_EQ(refused.exit_code, 3) << command;
    EXPECT_THAT(refused.err, HasSubstr("may require a client certificate")) << command;
    // One line: without grpc++'s own log.
    EXPECT_EQ(refused.err.find('\n'), refused.err.size() - 1) << refused.err;
  }
}

}  // namespace
}  // namespace sluice
