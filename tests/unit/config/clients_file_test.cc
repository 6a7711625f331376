// Clients files, good and bad. Errors: file, line, column, field, value, remedy.
#include "server/config/clients_file.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "common/strings.h"
#include "tests/unit/config/temp_dir.h"

namespace sluice::config {
namespace {

using access::Call;

constexpr char kHash[] = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";  // foo

TEST(ClientsFileTest, ReadsAllFields) {
  const auto clients = ParseClients(std::string(R"(clients:
  - name: checkout
    spiffe_id: spiffe://example.org/checkout
    dns_san: [Checkout.example.org, c2.example.org]
    uri_san: urn:example:checkout
    subject: CN=checkout,O=Example
    token_sha256:
      - )") + kHash + R"(
    uid: [0, 1001]
    limits: [api, "orders.*"]
    domains: mesh
    calls: [acquire, query, refund, settle, force]
    max_calls_per_second: 5000
    max_held_calls: 100
    max_streams: 0
    max_new_keys_per_minute: 10000000
    max_table_share: 25
  - name: anonymous
    limits: "public.*"
    calls: acquire
)",
                                    "f.yaml");
  ASSERT_TRUE(clients.ok()) << clients.status();
  ASSERT_EQ(clients->size(), 2);
  const access::Client& checkout = (*clients)[0];
  EXPECT_EQ(checkout.name, "checkout");
  EXPECT_EQ(checkout.known_by.spiffe_ids,
            std::vector<std::string>{"spiffe://example.org/checkout"});
  EXPECT_EQ(checkout.known_by.dns_sans,
            (std::vector<std::string>{"checkout.example.org", "c2.example.org"}));
  EXPECT_EQ(checkout.known_by.uri_sans, std::vector<std::string>{"urn:example:checkout"});
  EXPECT_EQ(checkout.known_by.subjects, std::vector<std::string>{"CN=checkout,O=Example"});
  EXPECT_EQ(checkout.known_by.tokens, std::vector<access::TokenDigest>{access::DigestOf("foo")});
  EXPECT_EQ(checkout.known_by.uids, (std::vector<uint32_t>{0, 1001}));
  EXPECT_EQ(checkout.limits.ToString(), "api, orders.*");
  EXPECT_EQ(checkout.domains.ToString(), "mesh");
  EXPECT_EQ(checkout.calls.ToString(), "acquire, query, refund, settle, force");
  using access::ClientBound;
  EXPECT_EQ(checkout.bounds.Of(ClientBound::kCallsPerSecond), 5000);
  EXPECT_EQ(checkout.bounds.Of(ClientBound::kHeldCalls), 100);
  EXPECT_EQ(checkout.bounds.Of(ClientBound::kStreams), 0);
  EXPECT_EQ(checkout.bounds.Of(ClientBound::kNewKeysPerMinute), 10'000'000);
  EXPECT_EQ(checkout.bounds.Of(ClientBound::kTableShare), 25);
  EXPECT_FALSE((*clients)[1].bounds.any());
  EXPECT_TRUE((*clients)[1].known_by.empty());
  EXPECT_TRUE((*clients)[1].limits.Match("public.a"));
}

TEST(ClientsFileTest, EmptyListRefusesAll) {
  const auto clients = ParseClients("clients: []", "f.yaml");
  ASSERT_TRUE(clients.ok()) << clients.status();
  EXPECT_TRUE(clients->empty());
}

TEST(ClientsFileTest, LoadsAFileWithItsVersion) {
  const TempDir dir;
  dir.Write("clients.yaml", "clients:\n- { name: a, uid: 7, limits: [x], calls: [acquire] }\n");
  const auto loaded = LoadClients(dir.Path("clients.yaml"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->clients.size(), 1);
  EXPECT_EQ(loaded->version.size(), 64);
  EXPECT_EQ(LoadClients(dir.Path("none")).status().code(), absl::StatusCode::kNotFound);
}

struct BadCase {
  std::string_view name;
  std::string text;
  std::string_view message;
};

void PrintTo(const BadCase& c, std::ostream* out) { *out << c.name; }

// A client with these lines instead of its credential.
std::string Client(std::string_view lines) {
  return "clients:\n  - name: a\n    " + std::string(lines) + "\n";
}

// A client that is complete, with one more line.
std::string Good(std::string_view line) {
  return Client("uid: 1\n    limits: x\n    calls: acquire\n    " + std::string(line));
}

const BadCase kCases[] = {
    {"Empty", "", "f.yaml:1:1: begin the file with clients:, a list of callers"},
    {"AList", "- name: a\n", "f.yaml:1:1: begin the file with clients:, a list of callers"},
    {"UnknownTopField", "client: []\n",
     "f.yaml:1:1: \"client\": no field has that name; did you mean clients?"},
    {"NoList", "clients: none\n",
     "f.yaml:1:10: clients: say a list, each client after a dash; [] refuses all callers"},
    {"NoMap", "clients: [a]\n",
     "f.yaml:1:11: clients[0]: say a map with name, a credential, limits and calls"},
    {"UnknownField", Client("token: x"),
     "f.yaml:3:5: clients[0]: \"token\": no field has that name; there are name, spiffe_id, "
     "dns_san, uri_san, subject, token_sha256, uid, limits, domains, calls, max_calls_per_second, "
     "max_held_calls, max_streams, max_new_keys_per_minute and max_table_share"},
    {"NearField", Client("limit: x"),
     "f.yaml:3:5: clients[0]: \"limit\": no field has that name; did you mean limits?"},
    {"NoName", "clients:\n- { uid: 1 }\n", "f.yaml:2:3: clients[0].name: give the client a name"},
    {"BadName", "clients:\n- { name: \"a b\" }\n",
     "f.yaml:2:11: clients[0].name: \"a b\": say a name of 1 to 128 letters, digits and - _ . : / "
     "@"},
    {"NameTwice",
     "clients:\n- { name: a, uid: 1, calls: admin_view }\n- { name: a, uid: 2, calls: query }\n",
     "f.yaml:3:11: clients[1].name: \"a\": is also the name of the client in line 2; give each "
     "client its own"},
    {"NoCredential", Client("calls: admin_view"),
     "f.yaml:2:5: clients[0]: no caller can be recognised as this client; add spiffe_id, dns_san, "
     "uri_san, subject, token_sha256 or uid"},
    {"AnonymousWithCredential", "clients:\n- { name: anonymous, uid: 1, calls: admin_view }\n",
     "f.yaml:2:3: clients[0]: anonymous stands for callers without credentials; give the client "
     "another name, or take its credentials out"},
    {"AnonymousChanges", "clients:\n- { name: anonymous, calls: admin_change }\n",
     "f.yaml:2:29: clients[0].calls: anonymous may not have admin_change; say who may, in a client "
     "with credentials"},
    {"BadSpiffeId", Client("spiffe_id: https://example.org"),
     "f.yaml:3:16: clients[0].spiffe_id: \"https://example.org\": say a SPIFFE ID, e.g. "
     "spiffe://example.org/checkout"},
    {"WildcardDnsName", Client("dns_san: [a.b, \"*.b\"]"),
     "f.yaml:3:20: clients[0].dns_san[1]: \"*.b\": say a DNS name without wildcards, e.g. "
     "checkout.example.org"},
    {"BadUri", Client("uri_san: checkout"),
     "f.yaml:3:14: clients[0].uri_san: \"checkout\": say a URI, e.g. urn:example:checkout"},
    {"BadSubject", Client("subject: checkout"),
     "f.yaml:3:14: clients[0].subject: \"checkout\": say a subject as `openssl x509 -noout "
     "-subject -nameopt RFC2253` prints it, e.g. CN=checkout,O=Example"},
    // The token itself, by mistake.
    {"TokenIsNotShown", Client("token_sha256: open-sesame"),
     "f.yaml:3:19: clients[0].token_sha256: 11 characters: say the SHA-256 of the token as 64 hex "
     "digits (printf %s TOKEN | sha256sum)"},
    {"BadUid", Client("uid: root"),
     "f.yaml:3:10: clients[0].uid: \"root\": say the number of a user (id -u NAME)"},
    {"NobodysUid", Client("uid: 4294967295"),
     "f.yaml:3:10: clients[0].uid: \"4294967295\": say the number of a user (id -u NAME)"},
    {"EmptyCredential", Client("uid:"),
     "f.yaml:3:5: clients[0].uid: say the number of a user, or a list of them"},
    {"NoCredentials", Client("uid: []"),
     "f.yaml:3:10: clients[0].uid: has 0 entries; say the number of a user, or a list of them, at "
     "most 1000"},
    {"CredentialTwice",
     "clients:\n- { name: a, dns_san: X.y, calls: admin_view }\n- { name: b, dns_san: x.y }\n",
     "f.yaml:3:23: clients[1].dns_san: \"x.y\": is also in line 2; a credential stands for one "
     "client"},
    {"NoCalls", Client("uid: 1"),
     "f.yaml:2:5: clients[0].calls: is missing; say a list of acquire, query, refund, settle, "
     "force, watch, admin_view and admin_change"},
    {"UnknownCall", Client("uid: 1\n    calls: [aquire]"),
     "f.yaml:4:13: clients[0].calls[0]: \"aquire\": no call has that name; did you mean acquire?"},
    {"ForceWithoutAcquire", Client("uid: 1\n    limits: x\n    calls: [query, force]"),
     "f.yaml:5:12: clients[0].calls: force is an option of acquire; add acquire"},
    {"CallsWithoutLimits", Client("uid: 1\n    calls: acquire"),
     "f.yaml:4:12: clients[0].calls: name the limits that they are for: limits: [\"*\"] for all, "
     "or domains"},
    {"StarInTheMiddle", Client("uid: 1\n    limits: a*b"),
     "f.yaml:4:13: clients[0].limits: \"a*b\": say a limit's name, or a prefix with * at the end"},
    {"NoCallsPerSecond", Good("max_calls_per_second: 0"),
     "f.yaml:6:27: clients[0].max_calls_per_second: \"0\": say a whole number from 1 to 10000000, "
     "or leave the field out for no bound"},
    {"TooManyStreams", Good("max_streams: 10000001"),
     "f.yaml:6:18: clients[0].max_streams: \"10000001\": say a whole number from 0 to 10000000, "
     "or leave the field out for no bound"},
    {"FractionOfACall", Good("max_held_calls: 1.5"),
     "f.yaml:6:21: clients[0].max_held_calls: \"1.5\": say a whole number from 0 to 10000000, or "
     "leave the field out for no bound"},
    {"NegativeKeys", Good("max_new_keys_per_minute: -1"),
     "f.yaml:6:30: clients[0].max_new_keys_per_minute: \"-1\": say a whole number from 0 to "
     "10000000, or leave the field out for no bound"},
    {"ShareBeyondTheWhole", Good("max_table_share: 101"),
     "f.yaml:6:22: clients[0].max_table_share: \"101\": say a whole number from 0 to 100 "
     "(percent), "
     "or leave the field out for no bound"},
    {"BoundWithoutValue", Good("max_streams:"),
     "f.yaml:6:5: clients[0].max_streams: say a whole number from 0 to 10000000, or leave the "
     "field "
     "out for no bound"},
    {"BoundIsAList", Good("max_streams: [1]"),
     "f.yaml:6:18: clients[0].max_streams: say a whole number from 0 to 10000000, or leave the "
     "field "
     "out for no bound"},
    {"MistypedBound", Good("max_stream: 1"),
     "f.yaml:6:5: clients[0]: \"max_stream\": no field has that name; did you mean max_streams?"},
    {"NameOfTheAdminTokensHolder", "clients:\n- { uid: 1, name: admin_token, calls: admin_view }\n",
     "f.yaml:2:19: clients[0].name: \"admin_token\": stands for the holder of --admin_token_file; "
     "give the client another name"},
    {"HashOfAnEmptyToken",
     Client("token_sha256: E3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
     "f.yaml:3:19: clients[0].token_sha256: 64 characters: is the SHA-256 of an empty token; hash "
     "the token itself (printf %s TOKEN | sha256sum)"},
    {"EmptyDomain", Client("uid: 1\n    domains: [\"\"]"),
     "f.yaml:4:15: clients[0].domains[0]: \"\": say a domain's name, or a prefix with * at the "
     "end"},
};

class BadClientsTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadClientsTest, IsRefusedWithItsPlaceAndRemedy) {
  const auto clients = ParseClients(GetParam().text, "f.yaml");
  ASSERT_FALSE(clients.ok());
  EXPECT_EQ(clients.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(common::ToStd(clients.status().message()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(All, BadClientsTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::config
