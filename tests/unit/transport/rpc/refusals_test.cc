// Callers that may not make a call, and those that guess tokens.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/bounds.h"
#include "gtest/gtest.h"
#include "server/access/caller.h"
#include "server/access/client_table.h"
#include "server/access/token_guesses.h"
#include "server/transport/rpc/rpc_server.h"
#include "tests/support/echo_methods.h"
#include "tests/support/h2_peer.h"

namespace sluice::transport {
namespace {

using ::sluice::testing::EchoMethod;
using ::sluice::testing::EchoStream;
using ::sluice::testing::Framed;
using ::sluice::testing::H2Client;
using ::sluice::testing::H2Server;

constexpr int64_t kIntervalNs = access::TokenGuesses::kIntervalNs;
constexpr int kAtOnce = access::TokenGuesses::kAtOnce;
constexpr int kLate = static_cast<int>(common::bounds::kMaxLateRefusals);
constexpr char kUnauthenticated[] = "16";

// Checks the token itself, as the admin port does without a clients file.
class TokenMethod final : public UnaryMethod {
 public:
  void OnCall(ServerCall& call, absl::Span<const uint8_t>) override {
    call.Refuse(absl::UnauthenticatedError("wrong"), /*wrong_token=*/true);
  }
  void OnCancelled(ServerCall&) override { ++cancelled; }
  int cancelled = 0;
};

class RefusalsTest : public ::testing::Test {
 protected:
  RefusalsTest() {
    RpcServerOptions options;
    options.clients = &clients_;
    options.guesses = &guesses_;
    server_ = std::make_unique<H2Server>(options);
    server_->methods.AddUnary("/t.T/Echo", echo_, {.call = access::Call::kAcquire});
    server_->methods.AddUnary("/t.T/Query", echo_, {.call = access::Call::kQuery});
    server_->methods.AddUnary("/t.T/Token", token_);
    server_->methods.AddStreaming("/t.T/Stream", stream_, {.call = access::Call::kAcquire});
  }

  static std::shared_ptr<const access::ClientTable> Table(
      access::Call call = access::Call::kAcquire) {
    access::Client client;
    client.name = "one";
    client.known_by.tokens.push_back(access::DigestOf("right"));
    client.calls.Add(call);
    std::vector<access::Client> clients;
    clients.push_back(std::move(client));
    return std::make_shared<const access::ClientTable>(std::move(clients));
  }
  static H2Client::Headers Token(const std::string& token) {
    return {{"authorization", "Bearer " + token}};
  }
  int32_t Guess(H2Client& client, const std::string& path = "/t.T/Echo") {
    const int32_t id = client.Call(path, Framed("x"), Token("wrong" + std::to_string(++guessed_)));
    client.Pump();
    return id;
  }
  // Makes guesses whose refusals are sent at once.
  void SpendThoseAtOnce(H2Client& client) {
    for (int i = 0; i < kAtOnce; ++i) {
      EXPECT_EQ(client.calls[Guess(client)].status(), kUnauthenticated);
    }
  }

  access::Clients clients_{Table()};
  access::TokenGuesses guesses_;
  EchoMethod echo_;
  TokenMethod token_;
  EchoStream stream_;
  std::unique_ptr<H2Server> server_;
  int guessed_ = 0;
};

TEST_F(RefusalsTest, AnswersWrongTokensLateAndRightOnesAtOnce) {
  H2Client client(*server_);
  SpendThoseAtOnce(client);
  const int32_t first = Guess(client);
  const int32_t second = Guess(client, "/t.T/Stream");
  const int32_t served = client.Call("/t.T/Echo", Framed("x"), Token("right"));
  const int32_t unknown = client.Call("/t.T/Echo", Framed("x"));
  const int32_t forbidden = client.Call("/t.T/Query", Framed("x"), Token("right"));
  client.Pump();
  EXPECT_EQ(client.calls[served].status(), "0");
  EXPECT_EQ(client.calls[unknown].status(), kUnauthenticated) << "no token is no guess";
  EXPECT_EQ(client.calls[forbidden].status(), "7");
  EXPECT_FALSE(client.calls[first].closed);
  server_->Advance(kIntervalNs - 1'000'000);
  client.Pump();
  EXPECT_FALSE(client.calls[first].closed);
  server_->Advance(2'000'000);
  client.Pump();
  EXPECT_EQ(client.calls[first].status(), kUnauthenticated);
  EXPECT_EQ(client.calls[first].Header("grpc-message"), "authorization: no client has this token");
  EXPECT_FALSE(client.calls[second].closed);
  server_->Advance(kIntervalNs);
  client.Pump();
  EXPECT_EQ(client.calls[second].status(), kUnauthenticated);
  EXPECT_EQ(echo_.calls, 1);
}

TEST_F(RefusalsTest, TheFirstTokenOfACallCounts) {
  H2Client client(*server_);
  const auto call = [&](const std::string& first, const std::string& second) {
    const int32_t id = client.Request({{":method", "POST"},
                                       {":scheme", "http"},
                                       {":path", "/t.T/Echo"},
                                       {":authority", "test"},
                                       {"te", "trailers"},
                                       {"content-type", "application/grpc"},
                                       {"authorization", "Bearer " + first},
                                       {"authorization", "Bearer " + second}},
                                      Framed("x"), /*end=*/true);
    client.Pump();
    return client.calls[id].status();
  };
  EXPECT_EQ(call("right", "wrong"), "0");
  EXPECT_EQ(call("wrong", "right"), kUnauthenticated);
}

TEST_F(RefusalsTest, RightsAreCheckedAgainWhenTheMessageIsComplete) {
  H2Client client(*server_);
  const std::string message = Framed("x");
  const auto begin = [&] {
    const int32_t id = client.Call("/t.T/Echo", message.substr(0, 3), Token("right"), false);
    client.Pump();
    return id;
  };
  const auto end = [&](int32_t id) {
    client.Continue(id, message.substr(3), true);
    client.Pump();
    return client.calls[id].status();
  };
  const int32_t forbidden = begin();
  clients_.Replace(Table(access::Call::kQuery));
  EXPECT_EQ(end(forbidden), "7");
  clients_.Replace(Table());
  const int32_t unknown = begin();
  clients_.Replace(std::make_shared<const access::ClientTable>(std::vector<access::Client>{}));
  EXPECT_EQ(end(unknown), kUnauthenticated);
  clients_.Replace(Table());
  EXPECT_EQ(end(begin()), "0");
  EXPECT_EQ(echo_.calls, 1);
}

TEST_F(RefusalsTest, ClosesTheConnectionWhenTooManyAnswersWait) {
  H2Client client(*server_);
  H2Client honest(*server_);
  for (int i = 0; i < kAtOnce + kLate; ++i) Guess(client);
  EXPECT_FALSE(client.connection.ended());
  Guess(client);
  EXPECT_TRUE(client.connection.ended());
  ASSERT_EQ(client.goaways.size(), 1u);
  EXPECT_EQ(client.goaways[0].first, uint32_t{NGHTTP2_ENHANCE_YOUR_CALM});
  EXPECT_EQ(client.goaways[0].second, "too many wrong tokens");
  // From the same address.
  const int32_t served = honest.Call("/t.T/Echo", Framed("x"), Token("right"));
  honest.Pump();
  EXPECT_EQ(honest.calls[served].status(), "0");
  server_->Advance(10 * kIntervalNs);
}

TEST_F(RefusalsTest, ARefusalThatWaitsIgnoresInputAndEndsWithItsCaller) {
  H2Client client(*server_);
  SpendThoseAtOnce(client);
  const int32_t open = client.Call("/t.T/Stream", Framed("one"), Token("wrong"), /*end=*/false);
  const int32_t reset = client.Call("/t.T/Echo", Framed("x"), Token("wrong"), /*end=*/false);
  client.Pump();
  client.Continue(open, Framed("two"), true);
  client.Reset(reset);
  client.Pump();
  EXPECT_FALSE(client.calls[open].closed);
  server_->Advance(3 * kIntervalNs);
  client.Pump();
  EXPECT_EQ(client.calls[open].status(), kUnauthenticated);
  EXPECT_TRUE(client.calls[open].messages().empty());
  EXPECT_EQ(client.calls[reset].error_code, uint32_t{NGHTTP2_CANCEL});

  Guess(client);
  Guess(client);
  client.connection.Close();
  server_->Advance(30 * kIntervalNs);
}

TEST_F(RefusalsTest, AHandlerThatRefusesForgetsTheCall) {
  H2Client client(*server_);
  SpendThoseAtOnce(client);
  const int32_t late = Guess(client, "/t.T/Token");
  const int32_t reset = Guess(client, "/t.T/Token");
  client.Reset(reset);
  client.Pump();
  EXPECT_FALSE(client.calls[late].closed);
  server_->Advance(kIntervalNs + 1'000'000);
  client.Pump();
  EXPECT_EQ(client.calls[late].status(), kUnauthenticated);
  EXPECT_EQ(client.calls[late].Header("grpc-message"), "wrong");
  EXPECT_EQ(token_.cancelled, 0);
}

}  // namespace
}  // namespace sluice::transport
