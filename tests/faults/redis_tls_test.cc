// The store's connection over TCP and TLS, with a real redis-server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/support/free_port.h"
#include "tests/support/redis_cluster.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"
#include "tests/support/test_certificates.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class RedisTlsTest : public ::testing::Test {
 protected:
  // Starts a server with `certificate` that requires client certificates.
  void Start(const TestCertificate& certificate) {
    port_ = FreePort();
    std::vector<std::string> arguments = Arguments(certificate);
    arguments.insert(arguments.end(), {"--tls-port", absl::StrCat(port_)});
    server_ = std::make_unique<RedisServer>(arguments);
  }
  // Arguments for a server with that certificate.
  std::vector<std::string> Arguments(const TestCertificate& certificate) {
    const std::string name = absl::StrCat("server", ++servers_);
    return {"--tls-cert-file",    files_.Write(name + ".pem", certificate.chain_pem),
            "--tls-key-file",     files_.Write(name + ".key", certificate.key_pem),
            "--tls-ca-cert-file", ca_};
  }
  TestCertificate OfAnother() const {
    return authority_.Issue({.alternative_names = "DNS:another.example"});
  }
  TestCertificate Expired() const { return authority_.Issue({.from_s = -7200, .to_s = -3600}); }
  std::string Url(const std::string& host, const std::string& options) const {
    return absl::StrCat("rediss://", host, ":", port_, "/?", options);
  }
  static absl::Status Connected(const std::string& url) {
    // Sentinels watch this server, which has no replicas here.
    store::RedisStoreOptions options = PatientOptions();
    options.allow_unguarded = true;
    return RedisNode(url, options).connected();
  }

  TestFiles files_;
  TestAuthority authority_;
  const TestCertificate client_ = authority_.Issue();
  const std::string ca_ = files_.Write("ca.pem", authority_.certificate_pem());
  const std::string own_ = absl::StrCat("&cert=", files_.Write("own.pem", client_.chain_pem),
                                        "&key=", files_.Write("own.key", client_.key_pem));
  const std::string options_ = "?ca=" + ca_ + own_;
  int servers_ = 0;
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

TEST_F(RedisTlsTest, RefusesForeignOrInvalidCertificate) {
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

TEST_F(RedisTlsTest, NeedsClientCertificateIfRedisWantsOne) {
  Start(authority_.Issue());
  EXPECT_FALSE(Connected(Url("127.0.0.1", "ca=" + ca_)).ok());
}

// Redis takes the ClientHello for the start of a line, and waits for the rest.
TEST_F(RedisTlsTest, SuggestsPlaintextIfServerDoesNotSpeakTls) {
  port_ = FreePort();
  RedisServer plain({"--port", absl::StrCat(port_)});
  const absl::Status status = Connected(Url("127.0.0.1", "ca=" + ca_ + own_));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(absl::StrCat("rediss://127.0.0.1:", port_, "/0: the TLS handshake")),
                    EndsWith("if the server does not speak TLS there, write redis://")));
}

TEST_F(RedisTlsTest, SuggestsTlsIfServerSpeaksOnlyTls) {
  Start(authority_.Issue());
  const absl::Status status = Connected(absl::StrCat("redis://127.0.0.1:", port_));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(absl::StrCat("redis://127.0.0.1:", port_, "/0: ")),
                    EndsWith("if the server speaks TLS there, write rediss://")));
}

// The server did not answer, so that nothing is known about TLS.
TEST_F(RedisTlsTest, DoesNotBlameTlsIfConnectionIsRefused) {
  port_ = FreePort();
  const absl::Status status = Connected(Url("127.0.0.1", "ca=" + ca_ + own_));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("127.0.0.1:", port_)), HasSubstr("start Redis there"),
                    Not(HasSubstr("TLS"))));
}

TEST_F(RedisTlsTest, DecidesOnEachServerOfCluster) {
  RedisCluster cluster({.tls = Arguments(authority_.Issue())});
  RedisNode node(cluster.url() + options_);
  ASSERT_TRUE(node.connected().ok()) << node.connected();
  const auto rule = MakeRule(2, algorithm::MakeTokenBucket({1, 3'600'000'000'000}, 2, 0).value());
  node.store().Register(rule);
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(Acquire(node.store(), *rule, std::to_string(i)).granted()) << i;
  }
  // Also on a server that a redirection names.
  const uint16_t slot =
      store::redis::SlotOf(store::redis::KeysOf("sluice", rule->limit_name, "0")[0]);
  const size_t from = cluster.OwnerOf(slot);
  cluster.Move(slot, from, (from + 1) % 3);
  EXPECT_EQ(Acquire(node.store(), *rule, "0").charges[0].level.remaining, 0);
}

TEST_F(RedisTlsTest, RefusesClusterServerWithForeignOrExpiredCertificate) {
  RedisCluster another({.primaries = 1, .tls = Arguments(OfAnother())});
  EXPECT_EQ(Connected(another.url() + options_).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(Connected(another.url() + options_ + "&server_name=another.example").ok());
  RedisCluster expired({.primaries = 1, .tls = Arguments(Expired())});
  EXPECT_EQ(Connected(expired.url() + options_).code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(RedisTlsTest, AsksSentinelsOverTls) {
  Start(authority_.Issue());
  RedisSentinel sentinel(port_, Arguments(authority_.Issue()));
  const std::string at = absl::StrCat("127.0.0.1:", sentinel.port(), "/primary");
  absl::Status status = Connected("rediss-sentinel://" + at + options_);
  EXPECT_TRUE(status.ok()) << status;
  // Not in plaintext.
  EXPECT_FALSE(Connected("rediss-sentinel://" + at + options_ + "&sentinel_tls=no").ok());
  // The Sentinel without TLS, its primary with TLS.
  RedisSentinel plain(port_);
  status = Connected(absl::StrCat("rediss-sentinel://127.0.0.1:", plain.port(), "/primary",
                                  options_, "&sentinel_tls=no"));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(RedisTlsTest, RefusesSentinelOrPrimaryWithForeignOrExpiredCertificate) {
  Start(authority_.Issue());
  for (const TestCertificate& certificate : {OfAnother(), Expired()}) {
    RedisSentinel sentinel(port_, Arguments(certificate));
    EXPECT_EQ(Connected(absl::StrCat("rediss-sentinel://127.0.0.1:", sentinel.port(), "/primary",
                                     options_))
                  .code(),
              absl::StatusCode::kUnauthenticated);
  }
  for (const TestCertificate& certificate : {OfAnother(), Expired()}) {
    Start(certificate);
    RedisSentinel sentinel(port_, Arguments(authority_.Issue()));
    EXPECT_EQ(Connected(absl::StrCat("rediss-sentinel://127.0.0.1:", sentinel.port(), "/primary",
                                     options_))
                  .code(),
              absl::StatusCode::kUnauthenticated);
  }
}

TEST_F(RedisTlsTest, DecidesOverTcp) {
  const int port = FreePort();
  RedisServer server({"--port", absl::StrCat(port)});
  RedisNode node(absl::StrCat("redis://localhost:", port));
  EXPECT_TRUE(node.connected().ok()) << node.connected();
}

}  // namespace
}  // namespace sluice::testing
