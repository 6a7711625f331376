// TLS, mutual TLS and the admin port's token.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
  grpc::Status DeleteOn(std::shared_ptr<grpc::Channel> channel, const std::string& limit) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::DeleteLimitRequest request;
    request.set_name(limit);
    v1::DeleteLimitResponse response;
    return v1::LimitAdmin::NewStub(channel)->DeleteLimit(&context, request, &response);
  }
  grpc::Status PutOn(std::shared_ptr<grpc::Channel> channel, const std::string& limit) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::PutLimitRequest request;
    request.mutable_limit()->set_name(limit);
    request.mutable_limit()->mutable_rate()->set_permits(5);
    request.mutable_limit()->mutable_rate()->mutable_period()->set_seconds(1);
    v1::PutLimitResponse response;
    return v1::LimitAdmin::NewStub(channel)->PutLimit(&context, request, &response);
  }
  // Runs a server that must not start.
  void Refuses(std::vector<std::string> flags, const std::string& text) {
    ServerProcess server({.flags = std::move(flags), .may_fail = true});
    EXPECT_FALSE(server.ready());
    EXPECT_EQ(server.WaitForExit(), 2);
    EXPECT_THAT(server.log(), HasSubstr(text));
  }

  TestAuthority authority_;
  TestAuthority stranger_{"Another authority"};
  TestFiles files_;
  std::string cert_;
  std::string key_;
  std::string ca_;
  std::string token_;
};

TEST_F(SecurityTest, TlsPortRefusesPlaintext) {
  Start({.flags = {"--tls_cert=" + cert_, "--tls_key=" + key_}});
  EXPECT_TRUE(AcquireOn(server_->DataChannel(Tls())).ok());
  EXPECT_EQ(AcquireOn(server_->DataChannel()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(SecurityTest, MutualTlsAcceptsOnlyCertificatesOfItsAuthority) {
  Start({.flags = {"--tls_cert=" + cert_, "--tls_key=" + key_, "--tls_client_ca=" + ca_}});
  EXPECT_TRUE(AcquireOn(server_->DataChannel(Tls(&authority_))).ok());
  EXPECT_EQ(AcquireOn(server_->DataChannel(Tls())).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(AcquireOn(server_->DataChannel(Tls(&stranger_))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(SecurityTest, AdminPortHasItsOwnTls) {
  Start({.flags = {"--admin_tls_cert=" + cert_, "--admin_tls_key=" + key_,
                   "--admin_tls_client_ca=" + ca_}});
  EXPECT_TRUE(ListOn(server_->AdminChannel(Tls(&authority_)), "").ok());
  EXPECT_FALSE(ListOn(server_->AdminChannel(Tls()), "").ok());
  EXPECT_FALSE(ListOn(server_->AdminChannel(), "").ok());
  EXPECT_TRUE(AcquireOn(server_->DataChannel()).ok()) << "the data port stays as it was";
}

TEST_F(SecurityTest, AdminPortRequiresItsTokenOnLoopbackToo) {
  const std::string audit = files_.Write("audit", "");
  Start({.flags = {"--admin_token_file=" + token_, "--audit_log=" + audit}});
  const auto channel = server_->AdminChannel();
  EXPECT_TRUE(ListOn(channel, "Bearer 0123456789abcdef-secret").ok());
  for (const char* wrong :
       {"", "Bearer", "Bearer 0123456789abcdef-secreT", "Bearer 0123456789abcdef-secret2",
        "0123456789abcdef-secret", "Basic 0123456789abcdef-secret"}) {
    EXPECT_EQ(ListOn(channel, wrong).error_code(), grpc::StatusCode::UNAUTHENTICATED) << wrong;
  }
  // HTTP/2 does not allow a value that ends with a space.
  EXPECT_EQ(ListOn(channel, "Bearer ").error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_TRUE(AcquireOn(server_->DataChannel()).ok());
  EXPECT_TRUE(server_->Logs({"event=admin_call_refused", "call=ListLimits"}));
  EXPECT_TRUE(Eventually([&] {
    std::ifstream lines(audit);
    int refused = 0;
    for (std::string line; std::getline(lines, line);) {
      refused += absl::StrContains(line, "\"outcome\":\"UNAUTHENTICATED\"") ? 1 : 0;
    }
    return refused == 6;
  }));
  EXPECT_THAT(server_->log(), ::testing::Not(HasSubstr("-secret")));
}

// Without a clients file.
TEST_F(SecurityTest, AuditLogHasTheActorThatTheConnectionProves) {
  const std::string audit = files_.Path("audit");
  const auto last_line = [&] {
    std::ifstream lines(audit);
    std::string last;
    for (std::string line; std::getline(lines, line);) last = line;
    return last;
  };
  Start({.flags = {"--admin_tls_cert=" + cert_, "--admin_tls_key=" + key_,
                   "--admin_tls_client_ca=" + ca_, "--audit_log=" + audit}});
  const TestCertificate client = authority_.Issue({.common_name = "ops"});
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority_.certificate_pem();
  options.pem_cert_chain = client.chain_pem;
  options.pem_private_key = client.key_pem;
  EXPECT_EQ(DeleteOn(server_->AdminChannel(grpc::SslCredentials(options)), "none").error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(last_line(), HasSubstr("\"client\":null,\"actor\":\"subject CN=ops"));
  EXPECT_TRUE(
      server_->Logs({"event=admin_change call=DeleteLimit client=none actor=\"subject CN=ops"}));

  const std::string socket = files_.Path("admin.sock");
  Start({.flags = {"--admin_listen=unix:" + socket, "--audit_log=" + audit}});
  EXPECT_EQ(DeleteOn(server_->AdminChannel(), "none").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(last_line(), HasSubstr(absl::StrCat("\"actor\":\"uid ", getuid(), "\"")));
  server_ = nullptr;
  unlink(socket.c_str());
}

TEST_F(SecurityTest, ChangeThatCannotBeAuditedIsNotMade) {
  const std::string folder = files_.Path("logs");
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  Start({.flags = {"--audit_log=" + folder + "/audit"}});
  std::filesystem::remove_all(folder);
  const grpc::Status refused = DeleteOn(server_->AdminChannel(), "api");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(refused.error_message(), HasSubstr("nothing was done, since --audit_log cannot be"));
  EXPECT_TRUE(server_->Logs({"event=audit_log_failed", "call=DeleteLimit"}));
  EXPECT_TRUE(AcquireOn(server_->DataChannel()).ok()) << "the limit is still there";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  EXPECT_TRUE(PutOn(server_->AdminChannel(), "new").ok());
  std::filesystem::remove_all(folder);
}

// The disk is full: that is known only when the line is written.
TEST_F(SecurityTest, ChangeIsNotMadeIfItsLineIsNotWritten) {
  Start({.flags = {"--audit_log=/dev/full"}});
  const grpc::Status refused = DeleteOn(server_->AdminChannel(), "api");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(refused.error_message(), HasSubstr("nothing was done, since --audit_log cannot be"));
  EXPECT_TRUE(server_->Logs({"event=audit_log_failed", "call=DeleteLimit"}));
  EXPECT_TRUE(AcquireOn(server_->DataChannel()).ok()) << "the limit is still there";
}

TEST_F(SecurityTest, ChangeInForceHasALineIfTheDiskFillsUpMeanwhile) {
  // The log, which has the same limit of bytes, stays smaller.
  const std::string audit = files_.Write("audit", std::string(1 << 20, ' ') + "\n");
  const auto lines = [&] {
    std::vector<std::string> found;
    std::ifstream file(audit);
    for (std::string line; std::getline(file, line);) found.push_back(line);
    return found;
  };
  Start({.flags = {"--audit_log=" + audit}});
  ASSERT_TRUE(PutOn(server_->AdminChannel(), "new1").ok());
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_THAT(lines()[1], HasSubstr("\"outcome\":\"STARTED\""));
  EXPECT_THAT(lines()[2], HasSubstr("\"outcome\":\"OK\""));

  // Room for the line before the change, and for a part of the one after it.
  const size_t room = lines()[1].size() + 50;
  rlimit before;
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_FSIZE, nullptr, &before), 0);
  const rlimit full = {std::filesystem::file_size(audit) + room, before.rlim_max};
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_FSIZE, &full, nullptr), 0);
  const grpc::Status failed = PutOn(server_->AdminChannel(), "new2");
  EXPECT_EQ(failed.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(failed.error_message(),
              HasSubstr("the call was executed, but could not be written to --audit_log"));
  ASSERT_EQ(lines().size(), 5u);
  EXPECT_THAT(lines()[3], HasSubstr("new2"));
  EXPECT_THAT(lines()[3], HasSubstr("\"outcome\":\"STARTED\""));

  // From now on no line has room.
  EXPECT_THAT(DeleteOn(server_->AdminChannel(), "new2").error_message(),
              HasSubstr("nothing was done"));
  EXPECT_THAT(PutOn(server_->AdminChannel(), "new3").error_message(),
              HasSubstr("nothing was done"));
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_FSIZE, &before, nullptr), 0);
  EXPECT_TRUE(DeleteOn(server_->AdminChannel(), "new2").ok());
  EXPECT_EQ(DeleteOn(server_->AdminChannel(), "new3").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(SecurityTest, AdminPortLeavesLoopbackOnlyWithMutualTlsOrToken) {
  Refuses({"--admin_listen=0.0.0.0:0"}, "--admin_listen=0.0.0.0:0: leaves this machine");
  Refuses({"--admin_listen=0.0.0.0:0", "--admin_tls_cert=" + cert_, "--admin_tls_key=" + key_},
          "leaves this machine");
  Start({.flags = {"--admin_listen=0.0.0.0:0", "--admin_token_file=" + token_}});
  EXPECT_TRUE(server_->ready());
  Start({.flags = {"--admin_listen=[::1]:0"}});
  EXPECT_TRUE(server_->ready());
}

TEST_F(SecurityTest, WarnsOfAnAdminPortThatEveryLocalUserMayUse) {
  Start({});
  EXPECT_TRUE(server_->Logs({"level=warning event=admin_port_open", "can change limits"}));
  const std::string socket = "--admin_listen=unix:" + files_.Path("admin.sock");
  const std::vector<std::vector<std::string>> closed = {
      {"--admin_token_file=" + token_},
      {"--admin_tls_cert=" + cert_, "--admin_tls_key=" + key_, "--admin_tls_client_ca=" + ca_},
      {socket},
      {"--admin_listen=none"}};
  for (const std::vector<std::string>& flags : closed) {
    ServerProcess server({.flags = flags});
    ASSERT_TRUE(server.Logs({"event=started"})) << flags[0];
    EXPECT_THAT(server.log(), ::testing::Not(HasSubstr("admin_port_open"))) << flags[0];
  }
}

TEST_F(SecurityTest, WarnsOfATokenThatEveryLocalUserMayRead) {
  chmod(token_.c_str(), 0640);
  Start({.flags = {"--admin_token_file=" + token_}});
  ASSERT_TRUE(server_->Logs({"event=started"}));
  EXPECT_THAT(server_->log(), ::testing::Not(HasSubstr("admin_token_exposed")));
  // Also when the file is replaced.
  token_ = files_.Write("token", "another-0123456789abcdef\n");
  chmod(token_.c_str(), 0644);
  server_->Signal(SIGHUP);
  EXPECT_TRUE(server_->Logs(
      {"level=warning event=admin_token_exposed path=" + token_, "mode=0644", "chmod 0600"}));
  Start({.flags = {"--admin_token_file=" + token_}});
  EXPECT_TRUE(server_->Logs({"event=admin_token_exposed"}));
}

TEST_F(SecurityTest, BadFilesExitWithTwoAndNameTheFlag) {
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

TEST_F(SecurityTest, ReplacedCertificatesOfBothPortsAreUsedAfterSighup) {
  Start({.flags = {"--tls_cert=" + cert_, "--tls_key=" + key_, "--admin_tls_cert=" + cert_,
                   "--admin_tls_key=" + key_}});
  ASSERT_TRUE(AcquireOn(server_->DataChannel(Tls())).ok());
  ASSERT_TRUE(ListOn(server_->AdminChannel(Tls()), "").ok());
  const auto fails = [&] {
    return AcquireOn(server_->DataChannel(Tls())).error_code() == grpc::StatusCode::UNAVAILABLE &&
           ListOn(server_->AdminChannel(Tls()), "").error_code() == grpc::StatusCode::UNAVAILABLE;
  };

  // Bad files: the old certificates stay in use, and the log names the port.
  files_.Write("cert.pem", "not a certificate");
  server_->Signal(SIGHUP);
  ASSERT_TRUE(server_->Logs(
      {"event=certificates_not_reloaded port=data", "event=certificates_not_reloaded port=admin"}));
  EXPECT_TRUE(AcquireOn(server_->DataChannel(Tls())).ok());
  EXPECT_TRUE(ListOn(server_->AdminChannel(Tls()), "").ok());

  // Certificates of an authority that the client does not trust.
  const TestCertificate other = stranger_.Issue();
  files_.Write("cert.pem", other.chain_pem);
  files_.Write("key.pem", other.key_pem);
  server_->Signal(SIGHUP);
  EXPECT_TRUE(Eventually(fails)) << server_->log();
  // A port logs after its new certificates are in use.
  EXPECT_TRUE(server_->Logs(
      {"event=certificates_reloaded port=data", "event=certificates_reloaded port=admin"}));
}

TEST_F(SecurityTest, ReplacedAdminTokenIsUsed) {
  Start({.flags = {"--admin_token_file=" + token_}});
  const auto channel = server_->AdminChannel();
  const auto accepts = [&](const std::string& token) {
    return ListOn(channel, "Bearer " + token).ok();
  };
  ASSERT_TRUE(accepts("0123456789abcdef-secret"));

  // A token that is too short: the old one stays in use.
  files_.Write("token", "short");
  ASSERT_TRUE(server_->Logs({"event=admin_token_not_reloaded"}));
  EXPECT_TRUE(accepts("0123456789abcdef-secret"));

  files_.Write("token", "fedcba9876543210-secret");
  EXPECT_TRUE(Eventually([&] { return accepts("fedcba9876543210-secret"); })) << server_->log();
  EXPECT_FALSE(accepts("0123456789abcdef-secret"));

  // SIGHUP reloads it too.
  files_.Write("token", "third-0123456789-secret");
  server_->Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return accepts("third-0123456789-secret"); })) << server_->log();
  EXPECT_TRUE(server_->Logs({"event=admin_token_reloaded"}));
  EXPECT_THAT(server_->log(), ::testing::Not(HasSubstr("-secret")));
}

}  // namespace
}  // namespace sluice::testing
