#include "server/envoy/xds/ads_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <list>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/mutex.h"
#include "server/envoy/xds/rate_limit_resources.h"
#include "tests/support/management_server.h"
#include "tests/support/test_certificates.h"
#include "tests/unit/limits/recording_store.h"

// c-ares, by which grpc++ resolves names, leaks some bytes for each; no library of ours is meant.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcares\n"; }

namespace sluice::envoy {
namespace {

namespace discovery = ::envoy::service::discovery::v3;
using discovery::DiscoveryRequest;
using discovery::DiscoveryResponse;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ResponseOf;
using testing::ScriptedManagementServer;

class AdsClientTest : public ::testing::Test {
 protected:
  AdsClientTest() { options_.first_pause = options_.most_pause = milliseconds(20); }
  ~AdsClientTest() override {
    client_.reset();
    close(log_fd_);
  }

  void StartServer() { server_ = std::make_unique<ScriptedManagementServer>("localhost:0"); }

  void StartClient() {
    if (options_.server.empty()) options_.server = server_->address();
    client_ = std::make_unique<AdsClient>(
        options_,
        [this](ReceivedTree received) {
          const auto& domains = received.tree.domains;
          const std::string domain = domains.empty() ? "" : domains[0].name;
          if (domain == "bad") return absl::InvalidArgumentError("xds:bad: no such thing");
          applied_.push_back(received.version + "=" + domain);
          return configuration_.Apply(std::move(received));
        },
        log_);
    client_->Start();
  }

  uint64_t Permits(const std::string& limit) {
    const auto table = registry_.Current();
    const limits::Limit* const found = table->Find(limit);
    return found == nullptr ? 0 : found->spec().rate.permits;
  }

  std::string LogText() {
    std::ifstream file(files_.Path("log"));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  testing::TestFiles files_;
  const int log_fd_ = open(files_.Write("log", "").c_str(), O_WRONLY | O_APPEND);
  const common::SystemClock clock_;
  common::Log log_{clock_, common::LogLevel::kInfo, log_fd_};
  limits::RecordingStore store_;
  limits::LimitRegistry registry_{&store_};
  Configuration configuration_{{}, registry_, clock_, log_};
  std::unique_ptr<ScriptedManagementServer> server_;
  AdsOptions options_;
  // Versions and domains. Written on the client's thread, read after the server has its answer.
  std::vector<std::string> applied_;
  std::unique_ptr<AdsClient> client_;
};

TEST_F(AdsClientTest, AsksForAllConfigurationsOfItsNode) {
  options_.node = "envoy-ratelimit";
  StartServer();
  StartClient();
  const DiscoveryRequest request = server_->Next();
  EXPECT_EQ(request.node().id(), "envoy-ratelimit");
  EXPECT_EQ(request.type_url(),
            "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig");
  EXPECT_EQ(request.resource_names_size(), 0);
  EXPECT_EQ(request.version_info() + request.response_nonce(), "");
  EXPECT_FALSE(client_->AwaitConfiguration(milliseconds(0)));
}

TEST_F(AdsClientTest, AcceptsConfiguration) {
  StartServer();
  StartClient();
  server_->Next();
  server_->Send(ResponseOf("7", "eg"));
  const DiscoveryRequest accepted = server_->Next();
  EXPECT_EQ(accepted.version_info(), "7");
  EXPECT_EQ(accepted.response_nonce(), "nonce of 7");
  EXPECT_FALSE(accepted.has_error_detail());
  EXPECT_TRUE(client_->AwaitConfiguration(milliseconds(0)));
  EXPECT_THAT(applied_, ElementsAre("7=eg"));
}

TEST_F(AdsClientTest, RefusesBadConfigurationAndTakesTheNextOne) {
  StartServer();
  StartClient();
  server_->Next();
  server_->Send(ResponseOf("1", "eg"));
  server_->Next();
  server_->Send(ResponseOf("2", "bad"));
  const DiscoveryRequest refused = server_->Next();
  EXPECT_EQ(refused.version_info(), "1");
  EXPECT_EQ(refused.response_nonce(), "nonce of 2");
  EXPECT_EQ(refused.error_detail().code(), 3);
  EXPECT_EQ(refused.error_detail().message(), "xds:bad: no such thing");
  server_->Send(ResponseOf("3", "eg"));
  EXPECT_EQ(server_->Next().version_info(), "3");
  EXPECT_THAT(applied_, ElementsAre("1=eg", "3=eg"));
}

TEST_F(AdsClientTest, FirstConfigurationThatIsRefusedIsNone) {
  StartServer();
  StartClient();
  server_->Next();
  server_->Send(ResponseOf("1", "bad"));
  EXPECT_EQ(server_->Next().version_info(), "");
  EXPECT_FALSE(client_->AwaitConfiguration(milliseconds(0)));
}

TEST_F(AdsClientTest, RefusesResponseOfOtherType) {
  StartServer();
  StartClient();
  server_->Next();
  DiscoveryResponse response = ResponseOf("1", "eg");
  response.set_type_url("type.googleapis.com/envoy.Cluster");
  server_->Send(response);
  EXPECT_THAT(server_->Next().error_detail().message(),
              HasSubstr("type_url is \"type.googleapis.com/envoy.Cluster\"; send type.google"));
}

TEST_F(AdsClientTest, LongReasonIsCutBetweenCharacters) {
  StartServer();
  StartClient();
  server_->Next();
  DiscoveryResponse response = ResponseOf("1", "eg");
  std::string type;
  for (int i = 0; i < 3000; ++i) type += "\u00e4";
  response.mutable_resources(0)->set_type_url(type);
  server_->Send(response);
  // A message that is not UTF-8 would end the stream.
  EXPECT_THAT(server_->Next().error_detail().message(), ::testing::EndsWith("\u00e4..."));
}

TEST_F(AdsClientTest, NewStreamAsksForEverythingAgain) {
  StartServer();
  StartClient();
  server_->Next();
  server_->Send(ResponseOf("1", "eg"));
  server_->Next();
  server_->EndStream();
  const DiscoveryRequest first = server_->Next();
  EXPECT_EQ(first.version_info() + first.response_nonce(), "");
  EXPECT_EQ(first.node().id(), "default");
  server_->Send(ResponseOf("1", "other"));
  EXPECT_EQ(server_->Next().version_info(), "1");
  EXPECT_THAT(applied_, ElementsAre("1=eg", "1=other"));
}

TEST_F(AdsClientTest, AppliesOtherContentUnderTheNameOfTheVersionInForce) {
  StartServer();
  StartClient();
  server_->Next();
  server_->Send(ResponseOf("1", "eg", 100));
  EXPECT_EQ(server_->Next().version_info(), "1");
  const auto table = registry_.Current();
  server_->Send(ResponseOf("1", "eg", 100));
  EXPECT_EQ(server_->Next().version_info(), "1");
  EXPECT_EQ(registry_.Current(), table) << "the same content changes nothing";
  server_->Send(ResponseOf("1", "eg", 5));
  EXPECT_EQ(server_->Next().version_info(), "1");
  EXPECT_EQ(Permits("eg//k"), 5u);
  // And under another name: nothing is applied, but the name is known.
  server_->Send(ResponseOf("2", "eg", 5));
  EXPECT_EQ(server_->Next().version_info(), "2");
  EXPECT_EQ(Permits("eg//k"), 5u);
  EXPECT_EQ(configuration_.Status().version, "2");
}

TEST_F(AdsClientTest, TheSameResourcesInAnotherOrderChangeNothing) {
  StartServer();
  StartClient();
  server_->Next();
  DiscoveryResponse response = ResponseOf("1", "eg", 100);
  *response.add_resources() = ResponseOf("1", "other", 50).resources(0);
  server_->Send(response);
  EXPECT_EQ(server_->Next().version_info(), "1");
  limits::LimitSpec change = registry_.Current()->Find("eg//k")->spec();
  change.rate.permits = 7;
  ASSERT_TRUE(registry_.Put(change).ok());
  server_->EndStream();
  server_->Next();
  response.mutable_resources()->SwapElements(0, 1);
  server_->Send(response);
  EXPECT_EQ(server_->Next().version_info(), "1");
  EXPECT_EQ(Permits("eg//k"), 7u) << "the admin's change stays";
}

TEST_F(AdsClientTest, ConnectsOnceTheServerListens) {
  options_.server = "unix:" + files_.Path("socket");
  StartClient();
  while (LogText().find("xds_disconnected") == std::string::npos) usleep(1000);
  server_ = std::make_unique<ScriptedManagementServer>(options_.server);
  server_->Next();
  server_->Send(ResponseOf("1", "eg"));
  server_->Next();
  EXPECT_THAT(applied_, ElementsAre("1=eg"));
}

TEST_F(AdsClientTest, StopsWhileItPauses) {
  options_.first_pause = options_.most_pause = std::chrono::hours(1);
  options_.server = "unix:" + files_.Path("socket");
  StartClient();
  while (LogText().find("xds_disconnected") == std::string::npos) usleep(1000);
  client_->Stop();
}

TEST_F(AdsClientTest, HoldsBackRepeatedRefusalOfOneVersion) {
  options_.first_pause = options_.most_pause = std::chrono::hours(1);
  StartServer();
  StartClient();
  server_->Next();
  server_->Send(ResponseOf("1", "bad"));
  server_->Next();
  server_->Send(ResponseOf("1", "bad"));
  const auto refusals = [this] {
    const std::string text = LogText();
    const size_t first = text.find("xds_configuration_refused");
    return text.find("xds_configuration_refused", first + 1) != std::string::npos;
  };
  while (!refusals()) usleep(1000);
  client_->Stop();
}

TEST_F(AdsClientTest, LogsWhichFlagLetsLargerMessagesIn) {
  options_.max_message_bytes = 1000;
  StartServer();
  StartClient();
  server_->Next();
  server_->Send(ResponseOf("1", std::string(2000, 'a')));
  server_->Next();  // of the next stream
  EXPECT_THAT(LogText(), HasSubstr("raise --ratelimit_xds_max_bytes (now 1000)"));
}

// ---- TLS ----

class AdsClientTlsTest : public AdsClientTest {
 protected:
  // The server requires a certificate of `clients`.
  void StartServerWithTls(const testing::TestAuthority& clients) {
    const testing::TestCertificate own = authority_.Issue();
    grpc::SslServerCredentialsOptions tls(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = clients.certificate_pem();
    tls.pem_key_cert_pairs.push_back({own.key_pem, own.chain_pem});
    server_ =
        std::make_unique<ScriptedManagementServer>("localhost:0", grpc::SslServerCredentials(tls));
    const testing::TestCertificate mine = authority_.Issue();
    options_.tls = true;
    options_.ca = files_.Write("ca.pem", authority_.certificate_pem());
    options_.cert = files_.Write("cert.pem", mine.chain_pem);
    options_.key = files_.Write("key.pem", mine.key_pem);
  }

  const testing::TestAuthority authority_;
};

TEST_F(AdsClientTlsTest, ShowsItsCertificate) {
  StartServerWithTls(authority_);
  StartClient();
  server_->Next();
  server_->Send(ResponseOf("1", "eg"));
  EXPECT_EQ(server_->Next().version_info(), "1");
}

TEST_F(AdsClientTlsTest, ReadsChangedFilesForTheNextConnection) {
  StartServerWithTls(authority_);
  options_.ca = files_.Write("ca.pem", testing::TestAuthority().certificate_pem());
  StartClient();
  while (LogText().find("xds_disconnected") == std::string::npos) usleep(1000);
  files_.Write("ca.pem", authority_.certificate_pem());
  server_->Next();
}

TEST_F(AdsClientTlsTest, ServerNameMustBeInTheCertificate) {
  StartServerWithTls(authority_);
  options_.server_name = "other.example";
  StartClient();
  while (LogText().find("xds_disconnected") == std::string::npos) usleep(1000);
  EXPECT_FALSE(client_->AwaitConfiguration(milliseconds(0)));
}

TEST_F(AdsClientTlsTest, NamesFilesThatCannotBeUsed) {
  AdsOptions options;
  options.ca = "/nowhere/ca.pem";
  EXPECT_TRUE(AdsClient::CheckFiles(options).ok());
  options.tls = true;
  EXPECT_EQ(AdsClient::CheckFiles(options).message(),
            "--ratelimit_xds_tls_ca=/nowhere/ca.pem: the file cannot be read; name a PEM file");
  options.ca = files_.Write("ca.pem", "text");
  EXPECT_THAT(std::string(AdsClient::CheckFiles(options).message()), HasSubstr("has no PEM in it"));
  options.ca = files_.Write("ca.pem", authority_.certificate_pem());
  EXPECT_TRUE(AdsClient::CheckFiles(options).ok());
  options.cert = options.ca;
  EXPECT_THAT(std::string(AdsClient::CheckFiles(options).message()), HasSubstr("set both or none"));
}

}  // namespace
}  // namespace sluice::envoy
