// Messages about an unusable Redis or URL: at the start, and in the log.
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/server/server_test.h"
#include "tests/support/free_port.h"
#include "tests/support/redis_server.h"
#include "tests/support/test_certificates.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RedisRefusalsTest : public ServerTest {
 protected:
  struct Ended {
    int exit_code = 0;
    std::string log;
  };

  // Runs a server that must not start.
  static Ended Refused(const std::string& store, std::vector<std::string> flags = {}) {
    ServerProcess::Options options;
    options.flags = {"--store=" + store, "--redis_budget=2s"};
    for (std::string& flag : flags) options.flags.push_back(std::move(flag));
    options.may_fail = true;
    ServerProcess server(options);
    EXPECT_FALSE(server.ready()) << store;
    if (server.ready()) return {};
    Ended ended;
    ended.exit_code = server.WaitForExit();
    ended.log = server.log();
    return ended;
  }

  // Starts a server whose problem shows only in use.
  void Serve(const std::string& store, const std::string& limits,
             std::vector<std::string> flags = {}) {
    ServerProcess::Options options;
    options.limits = limits;
    options.flags = {"--store=" + store, "--redis_budget=2s"};
    for (std::string& flag : flags) options.flags.push_back(std::move(flag));
    Start(options);
    ASSERT_TRUE(server_->ready()) << server_->log();
  }
};

TEST_F(RedisRefusalsTest, InvalidUrlsExitWithTwo) {
  const struct {
    const char* url;
    const char* says;
  } cases[] = {
      {"localhost:6379", "redis://"},
      {"http://localhost", "redis://"},
      {"redis://", "--store"},
      {"redis://h:99999", "99999"},
      {"redis://h/first", "database"},
      {"redis://node@h", "password"},
      {"redis://h?password_file=/nowhere", "/nowhere"},
      {"redis://h?ca=/a.pem", "rediss://"},
      {"redis://h?timeout=1", "timeout"},
      {"unix://relative", "slash"},
      {"rediss://h?ca=/nowhere/ca.pem", "/nowhere/ca.pem"},
  };
  for (const auto& one : cases) {
    const Ended ended = Refused(one.url);
    EXPECT_EQ(ended.exit_code, 2) << one.url << ": " << ended.log;
    EXPECT_THAT(ended.log, AllOf(HasSubstr("--store"), HasSubstr(one.says))) << one.url;
  }
}

// The server starts, and logs that its store is unavailable.
TEST_F(RedisRefusalsTest, UnreachableAddressesAreLogged) {
  for (const std::string store : {"redis://127.0.0.1:1", "redis-cluster://127.0.0.1:1",
                                  "redis-sentinel://127.0.0.1:1/primary"}) {
    Serve(store, "limits: [{name: api, rate: 5/h}]");
    EXPECT_THAT(server_->log(), AllOf(HasSubstr("redis_unavailable"), HasSubstr("127.0.0.1:1"),
                                      HasSubstr("or write into --store where")));
    EXPECT_EQ(Acquire(Request("api", "k")).error_code(), grpc::StatusCode::UNAVAILABLE);
    grpc::ClientContext context;
    v1::ConfigStatus status;
    ASSERT_TRUE(admin_->GetConfigStatus(&context, v1::GetConfigStatusRequest(), &status).ok());
    EXPECT_EQ(status.store().state(), v1::StoreStatus::STATE_UNAVAILABLE) << store;
    EXPECT_THAT(status.store().last_error(), HasSubstr("127.0.0.1:1"));
  }
}

TEST_F(RedisRefusalsTest, WrongOrMissingPasswordsAreRefused) {
  RedisServer server({"--requirepass", "secret"});
  const Ended wrong = Refused("unix://:hunter2@" + server.socket_path());
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.log, AllOf(HasSubstr("refuses user or password"), HasSubstr("WRONGPASS"),
                               Not(HasSubstr("hunter2"))));
  const Ended none = Refused(server.url());
  EXPECT_THAT(none.log, HasSubstr("asks for a password; write it into the URL, or "
                                  "?password_file=FILE"));
}

// Answers each connection that a password is required, and closes it, as Redis does if a client
// that is not authenticated sends an argument of more than 16 KiB. Keeps the first bytes it
// received.
class HangsUp {
 public:
  HangsUp() {
    char folder[] = "/tmp/sluice_hangs_up_XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    listener_ = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~HangsUp() { Stop(); }
  HangsUp(const HangsUp&) = delete;
  HangsUp& operator=(const HangsUp&) = delete;

  std::string path() const { return folder_ + "/redis.sock"; }
  // The bytes that each connection sent before the answer.
  std::vector<std::string> Stop() {
    if (thread_.joinable()) {
      shutdown(listener_, SHUT_RDWR);  // ends accept
      thread_.join();
      close(listener_);
      std::filesystem::remove_all(folder_);
    }
    return first_;
  }

 private:
  void Run() {
    for (int peer; (peer = accept(listener_, nullptr, nullptr)) >= 0; close(peer)) {
      std::string data(size_t{1} << 20, '\0');
      const ssize_t n = recv(peer, data.data(), data.size(), 0);
      data.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
      first_.push_back(data);
      constexpr std::string_view kAnswer = "-NOAUTH Authentication required.\r\n";
      send(peer, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
    }
  }

  std::string folder_;
  int listener_ = -1;
  std::vector<std::string> first_;  // used by the thread until it is joined
  std::thread thread_;
};

TEST_F(RedisRefusalsTest, SendsNoLongArgumentBeforeAuthentication) {
  HangsUp redis;
  const Ended none = Refused("unix://" + redis.path());
  EXPECT_THAT(none.log, HasSubstr("asks for a password"));
  const std::vector<std::string> first = redis.Stop();
  EXPECT_FALSE(first.empty());
  for (const std::string& words : first) EXPECT_EQ(words, "*1\r\n$4\r\nINFO\r\n");
}

TEST_F(RedisRefusalsTest, NamesTheCommandThatTheAclLacks) {
  RedisServer server;
  RedisCalls calls(server);
  calls.Call({"ACL", "SETUSER", "blind", "on", ">p", "~sluice:*", "+info"});
  const Ended blind = Refused("unix://blind:p@" + server.socket_path());
  EXPECT_EQ(blind.exit_code, 1);
  EXPECT_THAT(blind.log, AllOf(HasSubstr("NOPERM"), HasSubstr("the ACL user needs +info +ping")));
  // A permission that scripts lack shows when they run. Nothing is granted.
  calls.Call({"ACL", "SETUSER", "mute", "on", ">p", "~sluice:*", "+info", "+ping", "+select",
              "+script|load", "+evalsha", "+time", "+get"});
  Serve("unix://mute:p@" + server.socket_path(), "limits: [{name: api, rate: 5/h}]");
  EXPECT_EQ(Acquire(Request("api", "k")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(server_->Logs({"redis_unavailable", "the ACL user lacks a command"}));
}

TEST_F(RedisRefusalsTest, NamesTheKeysThatTheAclLacks) {
  RedisServer server;
  RedisCalls(server).Call({"ACL", "SETUSER", "elsewhere", "on", ">p", "~other:*", "+@all"});
  Serve("unix://elsewhere:p@" + server.socket_path(), "limits: [{name: api, rate: 5/h}]");
  EXPECT_EQ(Acquire(Request("api", "k")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(server_->Logs({"NOPERM", "~sluice:*"}));
}

TEST_F(RedisRefusalsTest, PlaintextToATlsServerSuggestsRediss) {
  TestFiles files;
  TestAuthority authority;
  const TestCertificate certificate = authority.Issue({});
  const int port = FreePort();
  RedisServer server({"--tls-port", absl::StrCat(port), "--tls-auth-clients", "no",
                      "--tls-cert-file", files.Write("server.pem", certificate.chain_pem),
                      "--tls-key-file", files.Write("server.key", certificate.key_pem),
                      "--tls-ca-cert-file", files.Write("ca.pem", authority.certificate_pem())});
  Serve(absl::StrCat("redis://127.0.0.1:", port), "limits: [{name: api, rate: 5/h}]");
  EXPECT_TRUE(server_->Logs({"write rediss://"}));
}

// Answers like a Redis of a given version.
class OldRedis {
 public:
  explicit OldRedis(std::string version)
      : version_(std::move(version)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    listen(listener_, 4);
    socklen_t size = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~OldRedis() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string url() const { return absl::StrCat("redis://127.0.0.1:", port_); }

 private:
  void Run() {
    while (true) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      const std::string info =
          absl::StrCat("redis_version:", version_, "\r\nrole:master\r\nmaxmemory:0\r\n");
      const std::string answer = absl::StrCat("$", info.size(), "\r\n", info, "\r\n");
      char buffer[4096];
      // INFO comes first; later commands are not answered.
      if (read(fd, buffer, sizeof(buffer)) > 0) {
        send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
        while (read(fd, buffer, sizeof(buffer)) > 0) {
        }
      }
      close(fd);
    }
  }

  const std::string version_;
  const int listener_;
  int port_ = 0;
  std::thread thread_;
};

TEST_F(RedisRefusalsTest, RefusesRedisThatIsTooOld) {
  for (const char* version : {"6.0.16", "5.0.14", "2.8.4"}) {
    OldRedis old(version);
    const Ended ended = Refused(old.url());
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.log,
                HasSubstr(absl::StrCat("is Redis ", version, "; 6.2 or newer is needed")));
  }
}

TEST_F(RedisRefusalsTest, RefusesAReplica) {
  RedisServer replica({"--replicaof", "127.0.0.1", "1"});
  const Ended ended = Refused(replica.url());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.log, AllOf(HasSubstr("is a replica"), HasSubstr("127.0.0.1:1")));
}

TEST_F(RedisRefusalsTest, RefusesEvictionUnlessAllowed) {
  RedisServer evicting({"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"});
  const Ended ended = Refused(evicting.url());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.log, AllOf(HasSubstr("allkeys-lru"), HasSubstr("set noeviction"),
                               HasSubstr("--redis_allow_eviction")));
  Serve(evicting.url(), "limits: [{name: api, rate: 5/h}]", {"--redis_allow_eviction"});
  EXPECT_TRUE(Granted("api", "k"));
}

TEST_F(RedisRefusalsTest, KeyOfAnotherProgramIsReported) {
  RedisServer server;
  RedisCalls calls(server);
  calls.Call({"RPUSH", "sluice:{3:api:list}", "theirs"});
  calls.Call({"SET", "sluice:{3:api:text}", "theirs"});
  Serve(server.url(), "limits: [{name: api, rate: 5/h}]");
  EXPECT_EQ(Acquire(Request("api", "list")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(server_->Logs({"WRONGTYPE"}));
  EXPECT_EQ(Acquire(Request("api", "text")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(server_->Logs({"redis_foreign_key", "sluice:{3:api:text}"}));
  EXPECT_EQ(calls.Call({"GET", "sluice:{3:api:text}"}).text, "theirs");
  EXPECT_TRUE(Granted("api", "other"));
}

TEST_F(RedisRefusalsTest, RefusesExpiredCertificatesAndOtherNames) {
  TestFiles files;
  TestAuthority authority;
  const std::string ca = files.Write("ca.pem", authority.certificate_pem());
  const auto refusal = [&](const TestCertificate& certificate) {
    const int port = FreePort();
    RedisServer server({"--tls-port", absl::StrCat(port), "--tls-auth-clients", "no",
                        "--tls-cert-file", files.Write("server.pem", certificate.chain_pem),
                        "--tls-key-file", files.Write("server.key", certificate.key_pem),
                        "--tls-ca-cert-file", ca});
    const Ended ended = Refused(absl::StrCat("rediss://127.0.0.1:", port, "/?ca=", ca));
    EXPECT_EQ(ended.exit_code, 1) << ended.log;
    return ended.log;
  };
  EXPECT_THAT(refusal(authority.Issue({.from_s = -7200, .to_s = -3600})), HasSubstr("expired"));
  // The expected name, and the parameter that changes it.
  EXPECT_THAT(refusal(authority.Issue({.alternative_names = "DNS:another.example"})),
              AllOf(HasSubstr("mismatch"), HasSubstr("for \"127.0.0.1\" (?server_name=NAME"),
                    HasSubstr("an authority in " + ca)));
}

TEST_F(RedisRefusalsTest, NamespacesSeparateDeployments) {
  RedisServer server;
  Serve(server.url(), "limits: [{name: api, rate: 5/h}]", {"--redis_namespace=ours"});
  ServerProcess::Options options;
  options.limits = "limits: [{name: api, rate: 2/h}]";
  options.flags = {"--store=" + server.url(), "--redis_budget=2s", "--redis_namespace=theirs"};
  ServerProcess theirs(options);
  const auto data = v1::RateLimiter::NewStub(theirs.DataChannel());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(GrantedBy(*data, Request("api", "k")));
    EXPECT_EQ(Remaining("api", "k"), 5 - i);
    EXPECT_TRUE(Granted("api", "k"));
  }
  EXPECT_EQ(Remaining("api", "k"), 3);
}

TEST_F(RedisRefusalsTest, NodesReportDifferentParametersOfALimit) {
  RedisServer server;
  Serve(server.url(), "limits: [{name: api, rate: 100/h}, {name: same, rate: 90/h}]");
  ServerProcess::Options options;
  options.limits = "limits: [{name: api, rate: 50/h}, {name: same, rate: 90/h}]";
  options.flags = {"--store=" + server.url(), "--redis_budget=2s"};
  ServerProcess theirs(options);
  const auto data = v1::RateLimiter::NewStub(theirs.DataChannel());
  const auto differing = [&] {
    grpc::ClientContext context;
    v1::ConfigStatus response;
    EXPECT_TRUE(admin_->GetConfigStatus(&context, v1::GetConfigStatusRequest(), &response).ok());
    return response.store().differing();
  };
  for (int i = 0; i < 5; ++i) {
    // The first conversion of a bucket is not reported: a limit may have changed.
    EXPECT_EQ(differing().empty(), i < 3) << i;
    for (const char* limit : {"api", "same"}) {
      EXPECT_TRUE(Granted(limit, "k"));
      EXPECT_TRUE(GrantedBy(*data, Request(limit, "k")));
    }
  }
  ASSERT_EQ(differing().size(), 1);
  const v1::StoreStatus::DifferingLimit one = differing()[0];
  EXPECT_EQ(one.limit(), "api");
  EXPECT_EQ(one.ours(), "token_bucket 100 per 1h, burst 100");
  EXPECT_EQ(one.theirs(), "token_bucket 50 per 1h, burst 50");
  EXPECT_GE(one.times(), 2u);
  EXPECT_GT(one.last_at().seconds(), 0);
  EXPECT_TRUE(server_->Logs({"event=redis_limit_differs limit=api", "burst 50"}));
}

}  // namespace
}  // namespace sluice::testing
