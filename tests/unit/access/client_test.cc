// Patterns, sets of calls, and whom a ClientTable finds.
#include "server/access/client.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/access/client_table.h"

namespace sluice::access {
namespace {

TEST(NamePatternsTest, MatchesNamesAndPrefixes) {
  const NamePatterns patterns({"api", "orders.*", "orders.eu.*", "a*z*"});
  for (const char* name : {"api", "orders.", "orders.eu", "orders.eu.1", "orders.us"}) {
    EXPECT_TRUE(patterns.Match(name)) << name;
  }
  for (const char* name : {"", "ap", "apis", "orders", "order.x", "b"}) {
    EXPECT_FALSE(patterns.Match(name)) << name;
  }
}

TEST(NamePatternsTest, WithoutPatternsMatchesNothing) {
  EXPECT_FALSE(NamePatterns().Match(""));
  EXPECT_FALSE(NamePatterns().Match("api"));
}

TEST(NamePatternsTest, StarMatchesEverything) {
  const NamePatterns all({"*", "api"});
  EXPECT_TRUE(all.Match(""));
  EXPECT_TRUE(all.Match("anything"));
  EXPECT_EQ(all.ToString(), "api, *");
}

// Compares with a walk over all patterns, on names of few letters, which often share prefixes.
TEST(NamePatternsTest, AgreesWithAWalkOverAllPatterns) {
  std::mt19937 random(7);
  const auto word = [&random](size_t most) {
    std::string text;
    const size_t size = random() % (most + 1);
    while (text.size() < size) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> patterns;
    const size_t count = random() % 8;
    while (patterns.size() < count) patterns.push_back(word(4) + (random() % 2 == 0 ? "*" : ""));
    const NamePatterns matcher(patterns);
    for (int i = 0; i < 20; ++i) {
      const std::string name = word(5);
      bool expected = false;
      for (const std::string& pattern : patterns) {
        expected |= !pattern.empty() && pattern.back() == '*'
                        ? name.rfind(pattern.substr(0, pattern.size() - 1), 0) == 0
                        : name == pattern;
      }
      ASSERT_EQ(matcher.Match(name), expected) << name << " in " << matcher.ToString();
    }
  }
}

TEST(CallSetTest, NamesEachCallOnce) {
  CallSet calls;
  EXPECT_TRUE(calls.empty());
  for (size_t i = 0; i < kCalls; ++i) {
    const auto call = static_cast<Call>(i);
    ASSERT_EQ(FindCall(CallName(call)), call);
    EXPECT_FALSE(calls.Has(call));
    calls.Add(call);
    EXPECT_TRUE(calls.Has(call));
  }
  EXPECT_EQ(calls.ToString(),
            "acquire, query, refund, settle, force, watch, admin_view, admin_change");
  EXPECT_EQ(FindCall("lease"), std::nullopt);
}

Client Named(const char* name) {
  Client client;
  client.name = name;
  return client;
}

class ClientTableTest : public testing::Test {
 protected:
  static std::vector<Client> Clients() {
    std::vector<Client> clients = {Named("spiffe"),  Named("uri"),   Named("dns"),
                                   Named("subject"), Named("token"), Named("uid")};
    clients[0].known_by.spiffe_ids = {"spiffe://example.org/a"};
    clients[1].known_by.uri_sans = {"urn:a"};
    clients[2].known_by.dns_sans = {"a.example.org"};
    clients[3].known_by.subjects = {"CN=a,O=Example"};
    clients[4].known_by.tokens = {DigestOf("first token"), DigestOf("second token")};
    clients[5].known_by.uids = {1001};
    return clients;
  }
  static std::string NameOf(const Client* client) { return client == nullptr ? "" : client->name; }

  const ClientTable table_{Clients()};
};

TEST_F(ClientTableTest, FindsByEachKindOfCredential) {
  EXPECT_EQ(NameOf(table_.FindByPeer({.uris = {"spiffe://example.org/a"}})), "spiffe");
  EXPECT_EQ(NameOf(table_.FindByPeer({.uris = {"urn:b", "urn:a"}})), "uri");
  EXPECT_EQ(NameOf(table_.FindByPeer({.dns_names = {"b", "A.Example.Org"}})), "dns");
  EXPECT_EQ(NameOf(table_.FindByPeer({.subject = "CN=a,O=Example"})), "subject");
  EXPECT_EQ(NameOf(table_.FindByPeer({.uid = 1001})), "uid");
  EXPECT_EQ(NameOf(table_.FindByToken(DigestOf("first token"))), "token");
  EXPECT_EQ(NameOf(table_.FindByToken(DigestOf("second token"))), "token");
}

TEST_F(ClientTableTest, FindsNobodyByOtherCredentials) {
  EXPECT_EQ(table_.FindByPeer({}), nullptr);
  EXPECT_EQ(table_.FindByPeer({.subject = "CN=a"}), nullptr);
  EXPECT_EQ(table_.FindByPeer({.dns_names = {"x.a.example.org"}}), nullptr);
  EXPECT_EQ(table_.FindByPeer({.uris = {"spiffe://example.org/a/b"}}), nullptr);
  EXPECT_EQ(table_.FindByPeer({.uid = 0}), nullptr);
  EXPECT_EQ(table_.FindByToken(DigestOf("first token ")), nullptr);
}

// A certificate with a SPIFFE ID and another URI is no SVID.
TEST_F(ClientTableTest, SpiffeIdMustBeTheOnlyUri) {
  EXPECT_EQ(NameOf(table_.FindByPeer({.uris = {"spiffe://example.org/a", "urn:a"}})), "uri");
  EXPECT_EQ(table_.FindByPeer({.uris = {"spiffe://example.org/a", "urn:b"}}), nullptr);
}

TEST_F(ClientTableTest, CertificateGoesBeforeTheUser) {
  EXPECT_EQ(NameOf(table_.FindByPeer({.subject = "CN=a,O=Example", .uid = 1001})), "subject");
  EXPECT_EQ(NameOf(table_.FindByPeer({.subject = "CN=b", .uid = 1001})), "uid");
}

TEST(ClientTableAnonymousTest, StandsForAllWithoutAClient) {
  const ClientTable table({Named("anonymous")});
  ASSERT_NE(table.FindByPeer({}), nullptr);
  EXPECT_NE(table.FindByPeer({.subject = "CN=b", .uid = 7}), nullptr);
  EXPECT_EQ(table.FindByToken(DigestOf("a token")), nullptr);
}

}  // namespace
}  // namespace sluice::access
