// The life of an HTTP connection: order of answers, streams, time-outs, bounds, drain.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/memory_account.h"
#include "common/net/event_loop.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/token_guesses.h"
#include "server/transport/http1/background.h"
#include "server/transport/http1/request.h"
#include "server/transport/http1/request_parser.h"
#include "tests/support/http_peer.h"

namespace sluice::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

namespace bounds = common::bounds;
constexpr int64_t kSecond = 1'000'000'000;

std::string Get(const std::string& target) {
  return "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n";
}

class ConnectionTest : public ::testing::Test {
 protected:
  HttpUnderTest server_;
};

TEST_F(ConnectionTest, DecodesTargetAndBody) {
  HttpPeer peer(server_);
  peer.Feed(
      "POST /ec%68o?key=a%26b&&empty=&none&c=+%2B HTTP/1.1\r\nHost: a\r\n"
      "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n");
  EXPECT_THAT(peer.Take(), EndsWith("\r\n\r\nPOST /echo key=a&b empty= none= c=++ hello"));
}

TEST(SharedBytesTest, CountsAllOfTheBodyUntilItIsGone) {
  http1::SharedBytes body = http1::SharedBytes::Of(std::string(1000, 'b'));
  body.Consume(990);
  EXPECT_EQ(body.size(), 10u);
  EXPECT_GE(body.memory(), 1000u);
  EXPECT_EQ(http1::SharedBytes::Constant("constant").memory(), 0u);
}

// As much as a turn pays for at a time, though the peer takes it at once.
TEST_F(ConnectionTest, SendsALargeAnswerInTurns) {
  HttpPeer peer(server_);
  peer.FeedOnce(Get("/held"));
  server_.held.Answer(http1::SharedBytes::Of(std::string(8 << 20, 'b')));
  EXPECT_LT(peer.stream.output.size(), size_t{4} << 20);
  peer.RunTurns();
  EXPECT_GT(peer.stream.output.size(), size_t{8} << 20);
}

TEST_F(ConnectionTest, AnswersHeadWithoutBody) {
  HttpPeer peer(server_);
  peer.Feed("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n" + Get("/echo"));
  const std::string output = peer.Take();
  EXPECT_THAT(output, StartsWith("HTTP/1.1 200 OK\r\ndate: "));
  EXPECT_THAT(StatusesOf(output.substr(0, output.find("\r\n\r\n") + 4), true), ElementsAre("200"));
  EXPECT_THAT(output, EndsWith("GET /echo "));
}

TEST_F(ConnectionTest, AnswersInOrderWhenTheFirstIsLate) {
  HttpPeer peer(server_);
  peer.Feed(Get("/held") + Get("/echo"));
  EXPECT_THAT(peer.Take(), IsEmpty());
  server_.held.Answer();
  peer.RunTurns();
  const std::string output = peer.Take();
  EXPECT_THAT(StatusesOf(output), ElementsAre("200", "200"));
  EXPECT_LT(output.find("late"), output.find("GET /echo"));
}

TEST_F(ConnectionTest, RefusesCallThatWaitedTooLongForItsTurn) {
  HttpPeer peer(server_);
  peer.stream.ready_since = server_.clock.NowNs() - 101'000'000;
  peer.Feed(Get("/call"));
  const std::string output = peer.Take();
  EXPECT_THAT(StatusesOf(output), ElementsAre("503"));
  EXPECT_THAT(output, HasSubstr("the server sheds load"));
  EXPECT_EQ(server_.metrics.Snapshot(0).transports[0].sheds, 1u);
  peer.Feed(Get("/echo"));
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200")) << "an operator's request is served";
  peer.stream.ready_since = server_.clock.NowNs() - 99'000'000;
  peer.Feed(Get("/call"));
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
}

// Takes each request for one with a wrong token.
class WrongTokenGate final : public http1::Gate {
 public:
  std::optional<http1::Problem> Check(const http1::Exchange&) const override {
    http1::Problem problem = http1::Problem::Http(401, "wrong");
    problem.wrong_token = true;
    return problem;
  }
};

class WrongTokenTest : public ::testing::Test {
 protected:
  WrongTokenTest() {
    server_.routes.Add("/gated", server_.held,
                       {.methods = {http1::Method::kPost}, .max_body_bytes = 1, .gate = &gate_});
  }
  static http1::ServerOptions Options(access::TokenGuesses* guesses) {
    http1::ServerOptions options;
    options.guesses = guesses;
    return options;
  }
  static std::string Guess(size_t body = 0) {
    return absl::StrCat("POST /gated HTTP/1.1\r\nHost: a\r\nContent-Length: ", body, "\r\n\r\n",
                        std::string(body, 'b'));
  }

  WrongTokenGate gate_;
  access::TokenGuesses guesses_;
  HttpUnderTest server_{Options(&guesses_)};
};

TEST_F(WrongTokenTest, AnswersAFewAtOnceAndTheOthersLate) {
  HttpPeer peer(server_);
  std::string requests;
  for (int i = 0; i < 7; ++i) requests += Guess(i);
  peer.Feed(requests + Get("/echo"));
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("401", "401", "401", "401", "401"));
  HttpPeer other(server_);
  other.Feed(Get("/echo"));
  EXPECT_THAT(StatusesOf(other.Take()), ElementsAre("200"));
  server_.Advance(99'000'000);
  peer.RunTurns();
  EXPECT_THAT(peer.Take(), IsEmpty());
  server_.Advance(2'000'000);
  peer.RunTurns();
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("401"));
  server_.Advance(100'000'000);
  peer.RunTurns();
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("401", "200"));
  EXPECT_EQ(server_.held.cancelled, 0);
}

TEST_F(WrongTokenTest, ClosesTheConnectionWhenTooManyAnswersWait) {
  std::vector<std::unique_ptr<HttpPeer>> peers;
  for (size_t i = 0; i < 5 + bounds::kMaxLateRefusals + 3; ++i) {
    peers.push_back(std::make_unique<HttpPeer>(server_));
    peers.back()->Feed(Guess());
  }
  size_t closed = 0;
  for (const auto& peer : peers) closed += peer->ended() ? 1 : 0;
  EXPECT_EQ(closed, 3u);
  EXPECT_THAT(peers.back()->Take(), IsEmpty());
  for (size_t i = 0; i <= bounds::kMaxLateRefusals; ++i) server_.Advance(100'000'000);
  size_t answered = 0;
  for (const auto& peer : peers) answered += peer->Take().substr(0, 12) == "HTTP/1.1 401" ? 1 : 0;
  EXPECT_EQ(answered, 5 + bounds::kMaxLateRefusals);
}

TEST_F(WrongTokenTest, ALateAnswerEndsWithItsConnection) {
  auto peer = std::make_unique<HttpPeer>(server_);
  for (int i = 0; i < 5; ++i) peer->Feed(Guess());
  EXPECT_EQ(StatusesOf(peer->Take()).size(), 5u);
  // A body that is not worth waiting for: the answer comes late, and the connection is closed.
  peer->Feed("POST /gated HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbody");
  EXPECT_THAT(peer->Take(), IsEmpty());
  server_.Advance(101'000'000);
  peer->RunTurns();
  EXPECT_THAT(StatusesOf(peer->Take()), ElementsAre("401"));
  EXPECT_TRUE(peer->ended());
  peer = std::make_unique<HttpPeer>(server_);
  peer->Feed(Guess());
  peer->Feed(Guess());
  peer->PeerEnds();
  EXPECT_FALSE(peer->ended()) << "it may wait for its answers";
  peer->Close();
  server_.Advance(1'000'000'000);
  EXPECT_EQ(server_.held.cancelled, 0);
  peer = std::make_unique<HttpPeer>(server_);
  for (int i = 0; i < 6; ++i) peer->Feed(Guess());
  EXPECT_EQ(StatusesOf(peer->Take()).size(), 5u);
  server_.server.Drain();
  peer->RunTurns();
  EXPECT_FALSE(peer->ended()) << "its answer is under way";
  server_.Advance(101'000'000);
  peer->RunTurns();
  EXPECT_THAT(StatusesOf(peer->Take()), ElementsAre("401"));
  EXPECT_TRUE(peer->ended());
}

// Serves until the test says otherwise.
class ChangingGate final : public http1::Gate {
 public:
  std::optional<http1::Problem> Check(const http1::Exchange&) const override {
    return open ? std::nullopt : std::optional(http1::Problem::Http(403, "no longer"));
  }
  bool open = true;
};

TEST_F(ConnectionTest, RightsAreCheckedAgainWhenTheBodyIsComplete) {
  ChangingGate gate;
  server_.routes.Add("/gated", server_.held,
                     {.methods = {http1::Method::kPost}, .max_body_bytes = 100, .gate = &gate});
  HttpPeer peer(server_);
  const std::string head = "POST /gated HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n";
  peer.Feed(head + "bo");
  gate.open = false;
  peer.Feed("dy");
  EXPECT_THAT(server_.held.held, IsEmpty());
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("403"));
  gate.open = true;
  peer.Feed(head);
  peer.Feed("body");
  ASSERT_EQ(server_.held.held.size(), 1u) << "the connection goes on";
  server_.held.Answer();
}

TEST_F(ConnectionTest, ServesCallThatWaitedBehindAnEarlierOneOfItsConnection) {
  HttpPeer peer(server_);
  peer.stream.ready_since = server_.clock.NowNs();
  peer.Feed(Get("/held") + Get("/call"));
  server_.Advance(kSecond);
  server_.held.Answer();
  peer.RunTurns();
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200", "200"));
}

TEST_F(ConnectionTest, RefusesOnlyASmallPartOfLastingOverload) {
  HttpPeer peer(server_);
  int refused = 0;
  int refused_later = 0;
  constexpr int kCalls = 4000;
  for (int i = 0; i < kCalls; ++i) {
    server_.Advance(kSecond);
    peer.stream.ready_since = server_.clock.NowNs() - 101'000'000;
    peer.Feed(Get("/call"));
    if (StatusesOf(peer.Take())[0] != "503") continue;
    ++refused;
    refused_later += i >= kCalls / 2 ? 1 : 0;
  }
  EXPECT_GE(refused, 1000);
  EXPECT_LE(refused_later, kCalls / 2 / 30);
}

TEST_F(ConnectionTest, StopsReadingWhatIsSentAhead) {
  HttpPeer peer(server_);
  peer.Feed(Get("/held"));
  for (size_t sent = 0; sent < bounds::kMaxPipelinedBytes; sent += 1000) {
    EXPECT_FALSE(peer.stream.paused);
    peer.Feed(std::string(1000, 'x'));
  }
  EXPECT_TRUE(peer.stream.paused);
}

TEST_F(ConnectionTest, ReadsOnOnceThePipelineIsAnswered) {
  HttpPeer peer(server_);
  std::string many;
  while (many.size() < 2 * bounds::kMaxPipelinedBytes) many += Get("/echo");
  peer.Feed(Get("/held") + many);
  EXPECT_TRUE(peer.stream.paused);
  server_.held.Answer();
  peer.RunTurns();
  EXPECT_FALSE(peer.stream.paused);
  EXPECT_EQ(StatusesOf(peer.Take()).size(), 1 + many.size() / Get("/echo").size());
}

TEST_F(ConnectionTest, CancelsExchangeWhenThePeerIsGone) {
  HttpPeer peer(server_);
  peer.Feed(Get("/held"));
  peer.Close();
  EXPECT_EQ(server_.held.cancelled, 1);
}

class SlowPage final : public http1::BackgroundHandler {
 public:
  using BackgroundHandler::BackgroundHandler;
  int made = 0;

 private:
  http1::Answer MakeAnswer(const http1::Request&) override {
    ++made;
    return {};
  }
};

TEST(BackgroundHandlerTest, CountsACancelledRequestUntilItIsDroppedUnanswered) {
  common::MemoryBudget memory(64 << 20);
  http1::ServerOptions options;
  options.memory = &memory;
  HttpUnderTest server(options);
  const std::unique_ptr<net::EventLoop> background = *net::EventLoop::Create(server.clock);
  SlowPage page(*background);
  server.routes.Add("/page", page, {});
  for (int i = 0; i < 20; ++i) {
    HttpPeer peer(server);
    peer.Feed("GET /page HTTP/1.1\r\nHost: a\r\nX-A: " + std::string(10'000, 'a') + "\r\n\r\n");
  }
  EXPECT_GT(memory.held(), 150'000);
  background->RunOnce(0);
  server.loop->RunOnce(0);
  EXPECT_LT(memory.held(), common::MemoryPart::kChunk);
  EXPECT_EQ(page.made, 0);
}

TEST_F(ConnectionTest, AnswersPeerThatEndedItsSide) {
  HttpPeer peer(server_);
  peer.Feed(Get("/held"));
  peer.PeerEnds();
  EXPECT_EQ(server_.held.cancelled, 0);
  server_.held.Answer();
  peer.RunTurns();
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
  EXPECT_TRUE(peer.ended());
}

TEST_F(ConnectionTest, CancelsLongWaitWhenThePeerEndsItsSide) {
  server_.held.ends_with_peer = true;
  HttpPeer peer(server_);
  peer.Feed(Get("/held"));
  peer.PeerEnds();
  EXPECT_EQ(server_.held.cancelled, 1);
  EXPECT_TRUE(peer.ended());
}

// Its work takes the connection's credit of many turns.
class CostlyHandler final : public http1::Handler {
 public:
  void OnRequest(http1::Exchange& exchange) override {
    exchange.Spend(50'000);
    exchange.Finish();
  }
};

TEST_F(ConnectionTest, ClosesAtOnceWhenThePeerEndsItsSideAfterACostlyRequest) {
  CostlyHandler costly;
  server_.routes.Add("/costly", costly, {});
  HttpPeer peer(server_);
  peer.FeedOnce(Get("/costly"));
  EXPECT_FALSE(peer.ended());
  peer.PeerEnds();
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
  EXPECT_TRUE(peer.ended());
}

// What it has sent is still handled in the connection's turns.
TEST_F(ConnectionTest, AnswersAllThatAPeerHasSentBeforeItEndedItsSide) {
  CostlyHandler costly;
  server_.routes.Add("/costly", costly, {});
  HttpPeer peer(server_);
  peer.FeedOnce(Get("/costly") + Get("/costly") + Get("/echo"));
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
  peer.PeerEnds();
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200", "200"));
  EXPECT_TRUE(peer.ended());
}

TEST_F(ConnectionTest, DrainClosesAtOnceWhenThePeerEndsItsSideAfterACostlyRequest) {
  CostlyHandler costly;
  server_.routes.Add("/costly", costly, {});
  HttpPeer peer(server_);
  peer.FeedOnce(Get("/costly"));
  server_.server.Drain();
  server_.loop->RunOnce(0);
  EXPECT_FALSE(peer.ended());
  peer.PeerEnds();
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
  EXPECT_TRUE(peer.ended());
}

TEST_F(ConnectionTest, SendsStreamInChunks) {
  HttpPeer peer(server_);
  peer.Feed(Get("/stream"));
  EXPECT_THAT(peer.Take(), HasSubstr("transfer-encoding: chunked\r\n\r\n"));
  EXPECT_TRUE(server_.stream.open->Write("data: 1\n\n"));
  EXPECT_EQ(peer.Take(), "9\r\ndata: 1\n\n\r\n");
  server_.stream.open->EndStream();
  peer.RunTurns();
  EXPECT_EQ(peer.Take(), "0\r\n\r\n");
  peer.Feed(Get("/echo"));
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
}

TEST_F(ConnectionTest, EndsStreamOfHttp10WithTheConnection) {
  HttpPeer peer(server_);
  peer.Feed("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_THAT(peer.Take(), Not(HasSubstr("transfer-encoding")));
  EXPECT_TRUE(server_.stream.open->Write("one"));
  EXPECT_EQ(peer.Take(), "one");
  server_.stream.open->EndStream();
  EXPECT_TRUE(peer.ended());
}

TEST_F(ConnectionTest, TakesNoMoreEventsOfReaderThatIsBehind) {
  HttpPeer peer(server_);
  peer.Feed(Get("/stream"));
  peer.stream.stalled = true;
  int written = 0;
  while (server_.stream.open->Write(std::string(1000, 'x')) && written < 10'000) ++written;
  EXPECT_NEAR(written, bounds::kMaxStreamUnsentBytes / 1000, 10);
  EXPECT_EQ(server_.stream.writable, 0);
  peer.stream.stalled = false;
  peer.Take();
  peer.Writable();
  EXPECT_EQ(server_.stream.writable, 1);
  EXPECT_TRUE(server_.stream.open->Write("x"));
}

TEST_F(ConnectionTest, DropsReaderThatNeverReads) {
  HttpPeer peer(server_);
  peer.Feed(Get("/stream"));
  peer.stream.stalled = true;
  while (server_.stream.open->Write(std::string(1000, 'x'))) {
  }
  peer.RunTurns();
  for (int s = 0; s < 40 && !peer.ended(); ++s) server_.Advance(kSecond);
  EXPECT_TRUE(peer.stream.aborted);
  EXPECT_EQ(server_.stream.open, nullptr);
}

TEST_F(ConnectionTest, ClosesOnSlowHeaders) {
  HttpPeer peer(server_);
  const std::string request = "GET /echo HTTP/1.1\r\nHost: a\r\nX: " + std::string(100, 'x');
  int seconds = 0;
  for (; seconds < 60 && !peer.ended(); ++seconds) {
    peer.Feed(request.substr(static_cast<size_t>(seconds), 1));
    server_.Advance(kSecond);
  }
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("408"));
  EXPECT_LE(seconds, 11);
}

TEST_F(ConnectionTest, ClosesOnSlowBody) {
  HttpPeer peer(server_);
  peer.Feed("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
  int seconds = 0;
  for (; seconds < 120 && !peer.ended(); ++seconds) {
    peer.Feed("x");
    server_.Advance(kSecond);
  }
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("408"));
  EXPECT_LE(seconds, 31);
}

TEST_F(ConnectionTest, ServesLargeBodiesAfterManyThatFailed) {
  const std::string head = "POST /large HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string chunk = "fa000\r\n" + std::string(0xfa000, 'b') + "\r\n";
  for (size_t bytes = 0; bytes < bounds::kMaxPortRequestBytes + chunk.size();
       bytes += chunk.size()) {
    HttpPeer peer(server_);
    peer.Feed(head + chunk);
    peer.Feed("no chunk\r\n");
    ASSERT_THAT(StatusesOf(peer.Take()), ElementsAre("400"));
  }
  HttpPeer peer(server_);
  peer.Feed(head + chunk);
  peer.Feed("0\r\n\r\n");
  EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
}

// The exchange before was that of a HEAD request.
TEST_F(ConnectionTest, AnswersABadRequestWithItsBody) {
  {
    HttpPeer before(server_);
    before.Feed("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  HttpPeer peer(server_);
  peer.Feed("GET /echo HTTP/1.1\r\nno header\r\n\r\n");
  const std::string output = peer.Take();
  EXPECT_THAT(StatusesOf(output), ElementsAre("400"));
  EXPECT_THAT(output, HasSubstr("\r\n\r\n{"));
}

TEST_F(ConnectionTest, ClosesIdleConnection) {
  HttpPeer peer(server_);
  peer.Feed(Get("/echo"));
  for (int s = 0; s < 119; ++s) server_.Advance(kSecond);
  EXPECT_FALSE(peer.ended());
  for (int s = 0; s < 3; ++s) server_.Advance(kSecond);
  EXPECT_TRUE(peer.ended());
}

TEST_F(ConnectionTest, KeepsConnectionInUse) {
  HttpPeer peer(server_);
  for (int s = 0; s < 600; ++s) {
    if (s % 60 == 0) peer.Feed(Get("/echo"));
    server_.Advance(kSecond);
  }
  EXPECT_FALSE(peer.ended());
  EXPECT_EQ(StatusesOf(peer.Take()).size(), 10);
}

TEST_F(ConnectionTest, BoundsTrailersAndChunkExtensions) {
  for (const std::string& endless :
       {"0\r\nX: " + std::string(1 << 20, 'x'), "1;" + std::string(1 << 20, 'x')}) {
    HttpPeer peer(server_);
    peer.Feed("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    peer.FeedInPieces(endless, 16 << 10);
    EXPECT_TRUE(peer.ended());
    EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("431"));
  }
}

TEST_F(ConnectionTest, SharesTurnsOnPipeliningFlood) {
  HttpPeer flood(server_);
  HttpPeer other(server_);
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += Get("/echo");
  // As one read and one iteration: only a turn's worth is answered in it.
  std::string first;
  flood.Feed(many.substr(0, 64 << 10));
  const size_t answered = StatusesOf(flood.Take()).size();
  EXPECT_GT(answered, 0);
  other.Feed(Get("/echo"));
  EXPECT_THAT(StatusesOf(other.Take()), ElementsAre("200"));
}

TEST(RequestParserTest, CountsWorkThatBytesDoNotShow) {
  http1::RequestParser parser;
  http1::Request request;
  const auto parse = [&](std::string_view text) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
    EXPECT_EQ(parser.Parse({bytes, text.size()}), text.size());
  };
  parser.Begin(&request);
  std::string list = "a";
  for (int i = 0; i < 400; ++i) list += ",a";
  parse("POST / HTTP/1.1\r\nHost: a\r\nX-List: " + list + "\r\nConnection: " + list +
        "\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(parser.TakeUnits(), 100);
  parser.LimitBody(1000, /*discard=*/false);
  std::string chunks;
  for (int i = 0; i < 100; ++i) chunks += "1\r\nx\r\n";
  parse(chunks + "0\r\n\r\n");
  EXPECT_EQ(request.body(), std::string(100, 'x'));
  EXPECT_EQ(parser.TakeUnits(), 50);
  EXPECT_EQ(parser.TakeUnits(), 0);
}

TEST_F(ConnectionTest, SharesTurnsOnFloodOfListsInHeaders) {
  HttpPeer flood(server_);
  std::string list = "a";
  while (list.size() < 15'000) list += ",a";
  const std::string one = "GET /echo HTTP/1.1\r\nHost: a\r\nConnection: " + list + "\r\n\r\n";
  std::string many;
  for (int i = 0; i < 8; ++i) many += one;
  flood.FeedOnce(many);
  EXPECT_LE(StatusesOf(flood.Take()).size(), 3);
  flood.RunTurns();
  EXPECT_GE(StatusesOf(flood.Take()).size(), 5);
}

TEST_F(ConnectionTest, HandlesNoRequestsWhileAnswersAreNotTaken) {
  HttpPeer peer(server_);
  peer.stream.stalled = true;
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += Get("/echo");
  peer.FeedInPieces(many, 16 << 10);
  EXPECT_LT(peer.stream.output.size(), net::StreamOptions().high_water_bytes + (1 << 10));
}

TEST_F(ConnectionTest, IsIdleUnlessARequestIsHandled) {
  HttpPeer peer(server_);
  peer.Feed("GET /held HTTP/1.1\r\n");
  EXPECT_TRUE(peer.stream.idle);
  peer.Feed("Host: a\r\n\r\n");
  EXPECT_FALSE(peer.stream.idle);
  server_.held.Answer();
  peer.RunTurns();
  EXPECT_TRUE(peer.stream.idle);
  peer.Feed(Get("/stream"));
  EXPECT_FALSE(peer.stream.idle);
}

TEST(ConnectionBoundTest, OverMemoryOnlyRequestsOfConnectionsThatHoldMuchAreRefused) {
  // A quarter of the limit is less than a connection takes, or much more.
  for (const auto& [limit, status] : {std::pair(1000, "503"), std::pair(1 << 20, "200")}) {
    common::MemoryBudget memory(limit);
    http1::ServerOptions options;
    options.memory = &memory;
    HttpUnderTest server(options);
    HttpPeer peer(server);
    peer.Feed(Get("/echo"));
    EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("200"));
    common::MemoryPart other(&memory);
    other.Add(4 << 20);
    peer.Feed(Get("/echo"));
    EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre(status));
    // It may hold a hundred times its bytes while it is half done.
    peer.Feed(absl::StrCat("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n",
                           std::string(4000, 'x')));
    EXPECT_THAT(StatusesOf(peer.Take()), ElementsAre("503"));
  }
}

TEST(ConnectionBoundTest, CountsOutputNoLongerOnceItIsTaken) {
  common::MemoryBudget memory(64 << 20);
  http1::ServerOptions options;
  options.memory = &memory;
  HttpUnderTest server(options);
  HttpPeer peer(server);
  peer.Feed(Get("/stream"));
  peer.stream.stalled = true;
  EXPECT_TRUE(server.stream.open->Write(std::string(200'000, 'x')));
  peer.RunTurns();
  EXPECT_GT(memory.held(), 200'000 - common::MemoryPart::kChunk);
  peer.stream.stalled = false;
  for (int s = 0; s < 3; ++s) server.Advance(kSecond);
  EXPECT_LT(memory.held(), common::MemoryPart::kChunk);
}

// Two ports whose connections hold bodies that are not complete.
class MemoryOfPortsTest : public ::testing::Test {
 protected:
  using Peers = std::vector<std::unique_ptr<HttpPeer>>;

  http1::ServerOptions Options() {
    http1::ServerOptions options;
    options.memory = &memory_;
    return options;
  }
  static Peers Senders(HttpUnderTest& port, size_t count, size_t body_bytes) {
    Peers peers;
    for (size_t i = 0; i < count; ++i) {
      peers.push_back(std::make_unique<HttpPeer>(port));
      peers.back()->FeedInPieces(
          absl::StrCat("POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n",
                       std::string(body_bytes, 'b')),
          16 << 10);
    }
    return peers;
  }
  // Bytes that no connection holds, as those of handshakes, until a sixteenth is left.
  void Fill() { rest_.Add(memory_.limit() / 16 * 15 - memory_.held()); }
  void RelieveBoth() {
    first_.server.RelieveMemory();
    second_.server.RelieveMemory();
    first_.loop->RunOnce(0);
    second_.loop->RunOnce(0);
  }
  static size_t Ended(const Peers& peers) {
    size_t ended = 0;
    for (const auto& peer : peers) ended += peer->ended() ? 1 : 0;
    return ended;
  }

  common::MemoryBudget memory_{6 << 20};
  common::MemoryPart rest_{&memory_};
  HttpUnderTest first_{Options()};
  HttpUnderTest second_{Options()};
};

TEST_F(MemoryOfPortsTest, ClosesConnectionsAlsoIfOtherPortsHoldMuch) {
  const Peers large = Senders(first_, 2, 1'000'000);
  const Peers small = Senders(second_, 20, 100'000);
  Fill();
  ASSERT_TRUE(memory_.nearly_over());
  ASSERT_FALSE(memory_.over());
  ASSERT_EQ(Ended(large) + Ended(small), 0u);
  RelieveBoth();
  EXPECT_EQ(Ended(large), 1u);
  // A port gives back its part of what is to be given back: half of 400 KB.
  EXPECT_GE(Ended(small), 1u);
  EXPECT_LE(Ended(small), 2u);
}

TEST_F(MemoryOfPortsTest, ClosesNoSmallConnectionForWhatOtherPortsHold) {
  const Peers large = Senders(first_, 2, 1'000'000);
  const Peers small = Senders(second_, 20, 20'000);
  Fill();
  ASSERT_TRUE(memory_.nearly_over());
  RelieveBoth();
  EXPECT_EQ(Ended(large), 1u);
  EXPECT_EQ(Ended(small), 0u);
}

TEST_F(MemoryOfPortsTest, ClosesAlsoConnectionsWhosePeersTakeTheLastBytesSlowly) {
  HttpPeer slow(first_);
  slow.stream.stalled = true;
  slow.FeedInPieces(absl::StrCat("POST /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                                 "Content-Length: 200000\r\n\r\n",
                                 std::string(200'000, 'b')),
                    16 << 10);
  ASSERT_TRUE(slow.stream.closing);
  Fill();
  RelieveBoth();
  EXPECT_TRUE(slow.stream.aborted);
}

TEST_F(ConnectionTest, DrainClosesIdleAndAnswersBusyConnections) {
  HttpPeer idle(server_);
  HttpPeer busy(server_);
  HttpPeer reader(server_);
  busy.Feed(Get("/held"));
  reader.Feed(Get("/stream"));
  server_.server.Drain();
  server_.loop->RunOnce(0);
  EXPECT_TRUE(reader.ended());
  server_.Advance(2'000'000);
  EXPECT_TRUE(idle.ended());
  EXPECT_THAT(idle.Take(), IsEmpty());
  EXPECT_FALSE(busy.ended());
  server_.held.Answer();
  busy.RunTurns();
  EXPECT_THAT(busy.Take(), HasSubstr("connection: close"));
  EXPECT_TRUE(busy.ended());
}

// Its caller could not know whether it was executed.
TEST_F(ConnectionTest, DrainAnswersRequestsThatHaveArrived) {
  HttpPeer first(server_);
  HttpPeer again(server_);
  HttpPeer part(server_);
  HttpPeer pipeline(server_);
  again.Feed(Get("/echo"));
  EXPECT_THAT(StatusesOf(again.Take()), ElementsAre("200"));
  part.Feed("GET /echo HTT");
  server_.server.Drain();
  server_.loop->RunOnce(0);
  for (HttpPeer* const peer : {&first, &again, &pipeline}) {
    ASSERT_FALSE(peer->ended());
    // The next one is not executed: the answer to the first says that the connection ends.
    peer->Feed(Get("/echo") + (peer == &pipeline ? Get("/held") : ""));
    const std::string output = peer->Take();
    EXPECT_THAT(StatusesOf(output), ElementsAre("200"));
    EXPECT_THAT(output, HasSubstr("connection: close"));
    EXPECT_TRUE(peer->ended());
  }
  EXPECT_THAT(server_.held.held, IsEmpty());
  server_.Advance(2'000'000);
  const std::string output = part.Take();
  EXPECT_THAT(StatusesOf(output), ElementsAre("503"));
  EXPECT_THAT(output, HasSubstr("nothing was done"));
  EXPECT_TRUE(part.ended());
}

TEST_F(ConnectionTest, DrainAnswersTheRequestOfAConnectionThatItAccepts) {
  HttpPeer earlier(server_);
  server_.server.Drain();
  server_.loop->RunOnce(0);
  HttpPeer later(server_);
  later.Feed(Get("/echo"));
  EXPECT_THAT(StatusesOf(later.Take()), ElementsAre("200"));
  EXPECT_TRUE(later.ended());
}

}  // namespace
}  // namespace sluice::testing
