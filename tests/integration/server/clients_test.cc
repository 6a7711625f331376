// The clients file: who is served over TLS, with a token and on a Unix socket, and what each client
// may do.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "envoy/service/ratelimit/v3/rls.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kuadrant/service/ratelimit/v1/ratelimit.grpc.pb.h"
#include "tests/integration/server/server_test.h"
#include "tests/integration/server/tokens.h"

namespace sluice::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;
namespace v3 = ::envoy::service::ratelimit::v3;

constexpr char kLimits[] = R"(
limits:
  - { name: orders.eu, rate: 1/h, burst: 100, max_owed: 100, charges: [overall] }
  - { name: orders.us, rate: 1/h, burst: 100 }
  - { name: other, rate: 1/h, burst: 100, max_owed: 100 }
  - { name: overall, rate: 1/h, burst: 1000, max_owed: 100 }
  - { name: slots, algorithm: concurrency, permits: 10 }
)";

std::string LastLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::string last;
  while (std::getline(file, line)) last = line;
  return last;
}

class ClientsTest : public ServerTest {
 protected:
  static std::string Checkout(const std::string& lines) {
    return absl::StrCat("  - name: checkout\n    token_sha256: ", Sha256Of("checkout-token"), "\n",
                        lines);
  }
  static std::string Clients(const std::string& more = "") {
    return absl::StrCat("clients:\n",
                        Checkout("    limits: [\"orders.*\", slots]\n    domains: [shop]\n"
                                 "    calls: [acquire, refund, settle, watch]\n"),
                        more);
  }

  void StartWith(const std::string& clients, std::vector<std::string> flags = {}) {
    clients_ = files_.Write("clients.yaml", clients);
    flags.push_back("--clients=" + clients_);
    Start({.limits = kLimits, .flags = std::move(flags)});
    ASSERT_TRUE(server_->ready());
  }

  // Calls method(context) of a stub with a token; empty: without one.
  template <typename Stub, typename Request, typename Response>
  grpc::Status CallWith(const std::string& token, Stub& stub,
                        grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                     Response*),
                        const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    return (stub.*method)(&context, request, response);
  }
  grpc::Status AcquireWith(const std::string& token, const v1::AcquireRequest& request,
                           v1::AcquireResponse* response) {
    return CallWith(token, *data_, &v1::RateLimiter::Stub::Acquire, request, response);
  }
  grpc::Status AcquireWith(const std::string& token, const v1::AcquireRequest& request) {
    v1::AcquireResponse response;
    return AcquireWith(token, request, &response);
  }
  static grpc::Status AcquireOn(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::AcquireResponse response;
    return v1::RateLimiter::NewStub(channel)->Acquire(&context, Request("other", "k"), &response);
  }

  TestFiles files_;
  std::string clients_;
};

TEST_F(ClientsTest, TokenDecidesWhatACallerMayDo) {
  StartWith(Clients());
  EXPECT_TRUE(AcquireWith("checkout-token", Request("orders.eu", "k")).ok());
  grpc::Status status = AcquireWith("checkout-token", Request("other", "k"));
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status.error_message(),
            "charges[0].limit: client \"checkout\" may not use the limit \"other\"; its limits are "
            "slots, orders.*");
  // Also of a limit that does not exist: its name is not told.
  EXPECT_EQ(AcquireWith("checkout-token", Request("none", "k")).error_code(),
            StatusCode::PERMISSION_DENIED);
  v1::QueryRequest query;
  query.add_buckets()->set_limit("orders.eu");
  v1::QueryResponse found;
  status = CallWith("checkout-token", *data_, &v1::RateLimiter::Stub::Query, query, &found);
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status.error_message(),
            "client \"checkout\" may not query; its calls are acquire, refund, settle, watch");
  v1::AcquireRequest forced = Request("orders.eu", "k");
  forced.set_force(true);
  status = AcquireWith("checkout-token", forced);
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("may not force"));
}

TEST_F(ClientsTest, UnknownCallersAreRefusedButProbesAreServed) {
  StartWith(Clients());
  for (const char* token : {"", "checkout-tokem"}) {
    EXPECT_EQ(AcquireWith(token, Request("orders.eu", "k")).error_code(),
              StatusCode::UNAUTHENTICATED);
  }
  v1::ListLimitsResponse listed;
  EXPECT_EQ(
      CallWith("", *admin_, &v1::LimitAdmin::Stub::ListLimits, v1::ListLimitsRequest(), &listed)
          .error_code(),
      StatusCode::UNAUTHENTICATED);
  auto health = grpc::health::v1::Health::NewStub(server_->DataChannel());
  grpc::health::v1::HealthCheckResponse healthy;
  EXPECT_TRUE(CallWith("", *health, &grpc::health::v1::Health::Stub::Check,
                       grpc::health::v1::HealthCheckRequest(), &healthy)
                  .ok());
}

TEST_F(ClientsTest, AnonymousIsServedByItsOwnRules) {
  StartWith(Clients("  - { name: anonymous, limits: [other], calls: [acquire] }\n"));
  EXPECT_TRUE(AcquireWith("", Request("other", "k")).ok());
  EXPECT_EQ(AcquireWith("", Request("orders.eu", "k")).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(AcquireWith("a wrong token", Request("other", "k")).error_code(),
            StatusCode::UNAUTHENTICATED);
}

TEST_F(ClientsTest, BatchIsDeniedPerAcquisition) {
  StartWith(Clients());
  v1::AcquireBatchRequest batch;
  *batch.add_acquisitions() = Request("orders.eu", "k");
  *batch.add_acquisitions() = Request("other", "k");
  *batch.add_acquisitions() = Request("orders.us", "k");
  v1::AcquireBatchResponse decided;
  ASSERT_TRUE(
      CallWith("checkout-token", *data_, &v1::RateLimiter::Stub::AcquireBatch, batch, &decided)
          .ok());
  ASSERT_EQ(decided.results_size(), 3);
  EXPECT_TRUE(decided.results(0).response().granted());
  EXPECT_EQ(decided.results(1).error().code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(decided.results(1).error().message(), HasSubstr("acquisitions[1].charges[0].limit"));
  EXPECT_TRUE(decided.results(2).response().granted());
}

// A receipt names its limits, and those that their `charges` added.
TEST_F(ClientsTest, ReceiptsAreRedeemedOnlyUnderTheClientsLimits) {
  StartWith(Clients(absl::StrCat("  - { name: other, token_sha256: ", Sha256Of("other-token"),
                                 ", limits: [other, overall], calls: [acquire, refund, settle] }\n",
                                 "  - { name: viewer, token_sha256: ", Sha256Of("viewer-token"),
                                 ", limits: [overall], calls: [query] }\n")));
  const auto receipt = [&](const char* limit, bool estimate) {
    v1::AcquireRequest request = Request(limit, "k", 2);
    estimate ? request.mutable_settle_within()->set_seconds(600) : request.set_want_receipt(true);
    v1::AcquireResponse response;
    EXPECT_TRUE(AcquireWith("checkout-token", request, &response).ok());
    return response.receipt();
  };
  const auto refund = [&](const char* token, const std::string& bytes) {
    v1::RefundRequest request;
    request.set_receipt(bytes);
    v1::RefundResponse response;
    return CallWith(token, *data_, &v1::RateLimiter::Stub::Refund, request, &response);
  };
  const std::string plain = receipt("orders.eu", false);
  const grpc::Status denied = refund("other-token", plain);
  EXPECT_EQ(denied.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(denied.error_message(),
              HasSubstr("receipt: client \"other\" may not use the limit \"orders.eu\""));
  EXPECT_TRUE(refund("checkout-token", plain).ok()) << "its parent needs no permission";

  const auto settle = [&](const char* token, const std::string& bytes) {
    v1::SettleRequest request;
    request.set_receipt(bytes);
    v1::SettleResponse response;
    return CallWith(token, *data_, &v1::RateLimiter::Stub::Settle, request, &response);
  };
  const std::string estimate = receipt("orders.eu", true);
  EXPECT_EQ(settle("other-token", estimate).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(settle("checkout-token", estimate).ok());

  v1::RenewRequest renew;
  renew.add_receipts(receipt("slots", false));
  v1::RenewResponse renewed;
  ASSERT_TRUE(CallWith("other-token", *data_, &v1::RateLimiter::Stub::Renew, renew, &renewed).ok());
  EXPECT_EQ(renewed.results(0).error().code(), StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(
      CallWith("checkout-token", *data_, &v1::RateLimiter::Stub::Renew, renew, &renewed).ok());
  EXPECT_FALSE(renewed.results(0).has_error());

  // 2 of overall were given back, 2 were settled as taken.
  v1::QueryRequest query;
  query.add_buckets()->set_limit("overall");
  v1::QueryResponse found;
  ASSERT_TRUE(CallWith("viewer-token", *data_, &v1::RateLimiter::Stub::Query, query, &found).ok());
  EXPECT_EQ(found.buckets(0).remaining(), 998);
}

TEST_F(ClientsTest, CertificateIsRecognisedByEachOfItsNames) {
  const TestAuthority authority;
  const TestCertificate server = authority.Issue();
  StartWith(
      "clients:\n"
      "  - { name: a, spiffe_id: \"spiffe://test/a\", limits: [other], calls: [acquire] }\n"
      "  - { name: b, dns_san: b.example, limits: [other], calls: [acquire] }\n"
      "  - { name: c, subject: CN=c, limits: [other], calls: [acquire] }\n"
      "  - { name: d, uri_san: \"urn:d\", limits: [orders.eu], calls: [acquire] }\n",
      {"--tls_cert=" + files_.Write("cert.pem", server.chain_pem),
       "--tls_key=" + files_.Write("key.pem", server.key_pem),
       "--tls_client_ca=" + files_.Write("ca.pem", authority.certificate_pem())});
  const auto acquire_as = [&](const TestSubject& subject) {
    const TestCertificate client = authority.Issue(subject);
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority.certificate_pem();
    options.pem_cert_chain = client.chain_pem;
    options.pem_private_key = client.key_pem;
    return AcquireOn(server_->DataChannel(grpc::SslCredentials(options)));
  };
  EXPECT_TRUE(acquire_as({.alternative_names = "URI:spiffe://test/a"}).ok());
  EXPECT_TRUE(acquire_as({.alternative_names = "DNS:a.example,DNS:B.example"}).ok());
  EXPECT_TRUE(acquire_as({.common_name = "c"}).ok());
  EXPECT_EQ(acquire_as({.alternative_names = "URI:urn:d"}).error_code(),
            StatusCode::PERMISSION_DENIED);
  const grpc::Status unknown = acquire_as({.common_name = "x", .alternative_names = "URI:urn:x"});
  EXPECT_EQ(unknown.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(unknown.error_message(), "no client has this certificate (URI urn:x)");
}

TEST_F(ClientsTest, UserOfAUnixSocketIsRecognised) {
  const std::string first = files_.Path("first.sock");
  const std::string second = files_.Path("second.sock");
  StartWith(absl::StrCat("clients: [{ name: me, uid: ", getuid(),
                         ", limits: [other], calls: [acquire] }]\n"),
            {"--listen=unix:" + first});
  EXPECT_TRUE(AcquireOn(server_->DataChannel()).ok());
  StartWith(absl::StrCat("clients: [{ name: another, uid: ", getuid() + 1,
                         ", limits: [other], calls: [acquire] }]\n"),
            {"--listen=unix:" + second});
  EXPECT_EQ(AcquireOn(server_->DataChannel()).error_message(),
            absl::StrCat("no client has the uid ", getuid()));
  server_ = nullptr;
  unlink(first.c_str());
  unlink(second.c_str());
}

TEST_F(ClientsTest, AdminCallsNeedTheirRoleOrTheAdminToken) {
  StartWith(Clients(absl::StrCat("  - { name: view, token_sha256: ", Sha256Of("view-token"),
                                 ", calls: [admin_view] }\n", "  - { name: change, token_sha256: [",
                                 Sha256Of("change-token"), ", ", Sha256Of("next-change-token"),
                                 "], calls: [admin_view, admin_change] }\n")),
            {"--admin_token_file=" + files_.Write("token", "0123456789abcdef-admin"),
             "--audit_log=" + files_.Write("audit", "")});
  const auto list = [&](const std::string& token) {
    v1::ListLimitsResponse response;
    return CallWith(token, *admin_, &v1::LimitAdmin::Stub::ListLimits, v1::ListLimitsRequest(),
                    &response)
        .error_code();
  };
  const auto remove = [&](const std::string& token) {
    v1::DeleteLimitRequest request;
    request.set_name("none");
    v1::DeleteLimitResponse response;
    return CallWith(token, *admin_, &v1::LimitAdmin::Stub::DeleteLimit, request, &response)
        .error_code();
  };
  EXPECT_EQ(list("view-token"), StatusCode::OK);
  EXPECT_EQ(remove("view-token"), StatusCode::PERMISSION_DENIED);
  // Refusals are written later, by another thread.
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(LastLineOf(files_.Path("audit")), "\"client\":\"view\""); }));
  for (const auto& [token, client] :
       {std::pair("change-token", "change"), std::pair("next-change-token", "change"),
        std::pair("0123456789abcdef-admin", "admin_token")}) {
    EXPECT_EQ(list(token), StatusCode::OK);
    EXPECT_EQ(remove(token), StatusCode::NOT_FOUND);
    // The line is there when the call is answered.
    EXPECT_THAT(LastLineOf(files_.Path("audit")),
                HasSubstr(absl::StrCat("\"client\":\"", client,
                                       "\",\"actor\":null,\"peer\":\"127.0.0.1:")));
  }
  EXPECT_THAT(LastLineOf(files_.Path("audit")),
              HasSubstr("\"call\":\"DeleteLimit\",\"request\":{\"name\":\"none\"},\"before\":null,"
                        "\"after\":null,\"outcome\":\"NOT_FOUND\""));
  EXPECT_EQ(list("checkout-token"), StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(server_->Logs({"event=admin_call_refused", "client \\\"checkout\\\" may not"}));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(LastLineOf(files_.Path("audit")),
                             "\"call\":\"ListLimits\",\"request\":null,\"before\":null,"
                             "\"after\":null,\"outcome\":\"PERMISSION_DENIED\"");
  }));
  EXPECT_THAT(LastLineOf(files_.Path("audit")),
              HasSubstr("\"client\":\"checkout\",\"actor\":null,\"peer\":\"127.0.0.1:"));
  EXPECT_EQ(list("wrong"), StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(LastLineOf(files_.Path("audit")),
                             "\"outcome\":\"UNAUTHENTICATED\",\"error\":\"authorization: no "
                             "client has this token\"");
  }));
}

TEST_F(ClientsTest, ReplacedAdminTokenIsWorthNothingAlsoWhileTheClientsFileIsBad) {
  StartWith(Clients(), {"--admin_token_file=" + files_.Write("token", "0123456789abcdef-admin")});
  const auto list = [this](const std::string& token) {
    v1::ListLimitsResponse response;
    return CallWith(token, *admin_, &v1::LimitAdmin::Stub::ListLimits, v1::ListLimitsRequest(),
                    &response)
        .error_code();
  };
  ASSERT_EQ(list("0123456789abcdef-admin"), StatusCode::OK);
  files_.Write("clients.yaml", "clients: [{ name: x }]\n");
  ASSERT_TRUE(server_->Logs({"event=clients_not_reloaded"}));
  files_.Write("token", "fedcba9876543210-admin");
  EXPECT_TRUE(Eventually([&] { return list("fedcba9876543210-admin") == StatusCode::OK; }));
  EXPECT_EQ(list("0123456789abcdef-admin"), StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(AcquireWith("checkout-token", Request("orders.eu", "k")).ok());
}

TEST_F(ClientsTest, ReloadTakesRightsFromOpenConnectionsStreamsAndWatches) {
  StartWith(Clients());
  ASSERT_TRUE(AcquireWith("checkout-token", Request("orders.eu", "k")).ok());
  grpc::ClientContext stream_context;
  stream_context.AddMetadata("authorization", "Bearer checkout-token");
  auto stream = data_->AcquireStream(&stream_context);
  v1::AcquireBatchRequest batch;
  *batch.add_acquisitions() = Request("orders.eu", "k");
  v1::AcquireBatchResponse decided;
  ASSERT_TRUE(stream->Write(batch) && stream->Read(&decided));
  grpc::ClientContext watch_context;
  watch_context.AddMetadata("authorization", "Bearer checkout-token");
  v1::WatchRequest watched;
  watched.add_buckets()->set_limit("orders.eu");
  auto watch = data_->Watch(&watch_context, watched);
  v1::QueryResponse update;
  ASSERT_TRUE(watch->Read(&update));

  // A bad file changes nothing.
  files_.Write("clients.yaml", "clients: [{ name: x }]\n");
  ASSERT_TRUE(server_->Logs({"event=clients_not_reloaded", "no caller can be recognised"}));
  EXPECT_TRUE(AcquireWith("checkout-token", Request("orders.eu", "k")).ok());

  files_.Write("clients.yaml", "clients:\n" + Checkout("    calls: [admin_view]\n"));
  server_->Signal(SIGHUP);
  ASSERT_TRUE(server_->Logs({"event=clients_reloaded"}));
  EXPECT_EQ(AcquireWith("checkout-token", Request("orders.eu", "k")).error_code(),
            StatusCode::PERMISSION_DENIED);
  stream->Write(batch);
  EXPECT_FALSE(stream->Read(&decided));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::PERMISSION_DENIED);
  while (watch->Read(&update)) {
  }
  EXPECT_EQ(watch->Finish().error_code(), StatusCode::PERMISSION_DENIED);
}

TEST_F(ClientsTest, EnvoysAndKuadrantsCallersAreCheckedByDomain) {
  const std::string config =
      files_.Write("ratelimit.yaml",
                   "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: year, "
                   "requests_per_unit: 3 }\n");
  StartWith(Clients(absl::StrCat("  - { name: bank, token_sha256: ", Sha256Of("bank-token"),
                                 ", domains: [bank], calls: [acquire] }\n")),
            {"--ratelimit_config=" + config});
  auto envoy = v3::RateLimitService::NewStub(server_->DataChannel());
  const auto ask = [&](const std::string& token, const std::string& domain) {
    v3::RateLimitRequest request;
    request.set_domain(domain);
    auto* const entry = request.add_descriptors()->add_entries();
    entry->set_key("user");
    entry->set_value("42");
    v3::RateLimitResponse response;
    return CallWith(token, *envoy, &v3::RateLimitService::Stub::ShouldRateLimit, request,
                    &response);
  };
  EXPECT_TRUE(ask("checkout-token", "shop").ok());
  const grpc::Status denied = ask("checkout-token", "bank");
  EXPECT_EQ(denied.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(denied.error_message(),
            "domain: client \"checkout\" may not use the domain \"bank\"; its domains are shop");
  EXPECT_EQ(ask("", "shop").error_code(), StatusCode::UNAUTHENTICATED);

  namespace kuadrant = ::kuadrant::service::ratelimit::v1;
  auto other = kuadrant::RateLimitService::NewStub(server_->DataChannel());
  v3::RateLimitRequest request;
  request.set_domain("shop");
  request.add_descriptors()->add_entries()->set_key("user");
  v3::RateLimitResponse response;
  // A check takes nothing: it is a query, which checkout may not make.
  EXPECT_EQ(CallWith("checkout-token", *other, &kuadrant::RateLimitService::Stub::CheckRateLimit,
                     request, &response)
                .error_code(),
            StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(CallWith("checkout-token", *other, &kuadrant::RateLimitService::Stub::Report, request,
                       &response)
                  .ok());
  const auto reserve = [&](const std::string& token, const std::string& domain) {
    kuadrant::ReserveRequest asked;
    asked.set_domain(domain);
    asked.add_descriptors()->add_entries()->set_key("user");
    asked.set_amount(1);
    kuadrant::ReserveResponse reserved;
    const grpc::Status status =
        CallWith(token, *other, &kuadrant::RateLimitService::Stub::Reserve, asked, &reserved);
    return std::pair(status, reserved.reservation_id());
  };
  const auto commit = [&](const std::string& token, const std::string& id) {
    kuadrant::CommitRequest asked;
    asked.set_domain("shop");
    asked.add_descriptors()->add_entries()->set_key("user");
    asked.set_reservation_id(id);
    asked.set_actual_amount(1);
    kuadrant::CommitResponse committed;
    return CallWith(token, *other, &kuadrant::RateLimitService::Stub::Commit, asked, &committed);
  };
  EXPECT_EQ(reserve("checkout-token", "bank").first.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(reserve("", "shop").first.error_code(), StatusCode::UNAUTHENTICATED);
  const auto [status, id] = reserve("checkout-token", "shop");
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(id.empty());
  EXPECT_EQ(commit("", id).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(commit("bank-token", id).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(commit("checkout-token", id).ok());
}

TEST_F(ClientsTest, BadFileExitsWithTwo) {
  for (const auto& [text, said] :
       {std::pair("clients: [{ name: x }]\n", "clients.yaml:1:11: clients[0]: no caller can be"),
        std::pair("", "clients.yaml:1:1: begin the file with clients:")}) {
    ServerProcess server(
        {.flags = {"--clients=" + files_.Write("clients.yaml", text)}, .may_fail = true});
    EXPECT_EQ(server.WaitForExit(), 2);
    EXPECT_THAT(server.log(), HasSubstr(said));
  }
  ServerProcess server({.flags = {"--clients=/none"}, .may_fail = true});
  EXPECT_EQ(server.WaitForExit(), 2);
  EXPECT_THAT(server.log(), HasSubstr("--clients: /none"));
}

}  // namespace
}  // namespace sluice::testing
