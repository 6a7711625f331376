// The store's connection over TCP and TLS, with a real redis-server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make.h"
#include "tests/support/free_port.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"
#include "tests/support/test_certificates.h"

namespace sluice::testing {
namespace {

class RedisTlsTest : public ::testing::Test {
 protected:
  // A server that shows `certificate` and wants one from its clients.
  void Start(const TestCertificate& certificate) {
    port_ = FreePort();
    ca_ = files_.Write("ca.pem", authority_.certificate_pem());
    server_ = std::make_unique<RedisServer>(std::vector<std::string>{
        "--tls-port", absl::StrCat(port_), "--tls-cert-file",
        files_.Write("server.pem", certificate.chain_pem), "--tls-key-file",
        files_.Write("server.key", certificate.key_pem), "--tls-ca-cert-file", ca_});
    const TestCertificate own = authority_.Issue();
    own_ = absl::StrCat("&cert=", files_.Write("own.pem", own.chain_pem),
                        "&key=", files_.Write("own.key", own.key_pem));
  }
  std::string Url(const std::string& host, const std::string& options) const {
    return absl::StrCat("rediss://", host, ":", port_, "/?", options);
  }
  static absl::Status Connected(const std::string& url) { return RedisNode(url).connected(); }

  TestFiles files_;
  TestAuthority authority_;
  std::string ca_, own_;
  int port_ = 0;
  std::unique_ptr<RedisServer> server_;
};

TEST_F(RedisTlsTest, DecidesOverMutualTls) {
  Start(authority_.Issue());
  RedisNode node(Url("127.0.0.1", "ca=" + ca_ + own_));
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = MakeRule(1, algorithm::MakeTokenBucket({1, 3'600'000'000'000}, 2, 0).value());
  node.store().Register(rule);
  EXPECT_TRUE(Acquire(node.store(), *rule, "k", 2).granted());
  EXPECT_FALSE(Acquire(node.store(), *rule, "k").granted());
}

TEST_F(RedisTlsTest, RefusesACertificateThatIsNotForItOrNotValid) {
  Start(authority_.Issue({.alternative_names = "DNS:another.example"}));
  EXPECT_EQ(Connected(Url("127.0.0.1", "ca=" + ca_ + own_)).code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(
      Connected(Url("127.0.0.1", "ca=" + ca_ + own_ + "&server_name=another.example")).ok());

  Start(authority_.Issue({.from_s = -7200, .to_s = -3600}));
  EXPECT_EQ(Connected(Url("127.0.0.1", "ca=" + ca_ + own_)).code(),
            absl::StatusCode::kUnauthenticated);

  Start(authority_.Issue());
  const TestAuthority other;
  const std::string other_ca = files_.Write("other.pem", other.certificate_pem());
  EXPECT_EQ(Connected(Url("127.0.0.1", "ca=" + other_ca + own_)).code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(RedisTlsTest, ServesNobodyWithoutTheCertificateThatRedisWants) {
  Start(authority_.Issue());
  EXPECT_FALSE(Connected(Url("127.0.0.1", "ca=" + ca_)).ok());
}

TEST_F(RedisTlsTest, DecidesOverTcp) {
  const int port = FreePort();
  RedisServer server({"--port", absl::StrCat(port)});
  RedisNode node(absl::StrCat("redis://localhost:", port));
  EXPECT_TRUE(node.connected().ok()) << node.connected();
}

}  // namespace
}  // namespace sluice::testing
