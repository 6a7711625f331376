// The life of an HTTP/2 connection: greeting, keepalive, limits, and its graceful end.

#include <string>

#include "gtest/gtest.h"
#include "server/transport/rpc/rpc_server.h"
#include "tests/support/echo_methods.h"
#include "tests/support/h2_peer.h"

namespace sluice::transport {
namespace {

using ::sluice::testing::EchoMethod;
using ::sluice::testing::EchoStream;
using ::sluice::testing::Framed;
using ::sluice::testing::H2Client;
using ::sluice::testing::H2Connection;
using ::sluice::testing::H2Server;
using ::sluice::testing::HeldMethod;

constexpr int64_t kSecond = 1'000'000'000;

class ConnectionLifeTest : public ::testing::Test {
 protected:
  void Begin(const RpcServerOptions& options = {}) {
    server_ = std::make_unique<H2Server>(options);
    server_->methods.AddUnary("/t.T/Echo", echo_);
    server_->methods.AddUnary("/t.T/Held", held_);
    server_->methods.AddStreaming("/t.T/Stream", stream_);
  }
  RpcServerOptions Http2(void (*change)(http2::ServerOptions*)) {
    RpcServerOptions options;
    change(&options.http2);
    return options;
  }

  EchoMethod echo_;
  HeldMethod held_;
  EchoStream stream_;
  std::unique_ptr<H2Server> server_;
};

TEST_F(ConnectionLifeTest, SendsSettingsFirst) {
  Begin();
  H2Connection connection(*server_);
  ASSERT_GE(connection.stream.output.size(), 9u);
  EXPECT_EQ(connection.stream.output[3], NGHTTP2_SETTINGS);
}

TEST_F(ConnectionLifeTest, IsIdleUnlessACallIsOpen) {
  Begin();
  H2Client client(*server_);
  client.Pump();
  EXPECT_TRUE(client.connection.stream.idle);
  client.Call("/t.T/Held", Framed(""));
  client.Pump();
  EXPECT_FALSE(client.connection.stream.idle);
  held_.held[0]->Finish();
  client.Pump();
  EXPECT_TRUE(client.connection.stream.idle);
}

// What a service keeps for a connection, in parts that are over.
class KeptState final : public ConnectionState {
 public:
  size_t memory() const override { return 10'000 * parts; }
  bool ForgetSome(int64_t) override {
    if (parts > 0 && over) --parts;
    return parts > 0 && over;
  }
  size_t parts = 10;
  bool over = false;
};

TEST_F(ConnectionLifeTest, CountsWhatTheServiceKeepsAndLetsItForgetWhenIdle) {
  Begin();
  H2Client client(*server_);
  client.Pump();
  client.Call("/t.T/Held", Framed(""));
  client.Pump();
  const auto state = std::make_shared<KeptState>();
  held_.held[0]->connection_state() = state;
  held_.held[0]->Finish();
  client.Pump();
  EXPECT_GT(server_->server.memory_in_use(), 100'000u);
  EXPECT_EQ(state->parts, 10u);
  state->over = true;
  server_->Advance(61 * kSecond);  // it is sent a PING
  client.connection.RunTurns();
  EXPECT_EQ(state->parts, 0u);
  EXPECT_LT(server_->server.memory_in_use(), 100'000u);
}

TEST_F(ConnectionLifeTest, ClosesConnectionThatDoesNotSpeakHttp2) {
  Begin();
  H2Connection connection(*server_);
  connection.Feed("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(connection.stream.closing);
}

TEST_F(ConnectionLifeTest, ClosesConnectionWithoutGreetingInTime) {
  Begin();
  H2Connection connection(*server_);
  connection.Feed(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").substr(0, 20));
  server_->Advance(9 * kSecond);
  EXPECT_FALSE(connection.ended());
  server_->Advance(2 * kSecond);
  EXPECT_TRUE(connection.ended());
}

TEST_F(ConnectionLifeTest, ClosesConnectionOnUnfinishedHeaderBlock) {
  Begin();
  H2Client client(*server_);
  client.Pump();
  client.Call("/t.T/Echo", Framed("x"));
  const std::string bytes = client.TakeOutput();
  client.connection.Feed(bytes.substr(0, 15));  // in the middle of HEADERS
  server_->Advance(19 * kSecond);
  EXPECT_FALSE(client.connection.ended());
  server_->Advance(2 * kSecond);
  EXPECT_TRUE(client.connection.ended());
}

TEST_F(ConnectionLifeTest, AbortsConnectionThatDoesNotAnswerKeepalivePing) {
  Begin();
  H2Client client(*server_);
  client.Pump();
  server_->Advance(61 * kSecond);
  client.Read();
  EXPECT_EQ(client.pings, 1);
  client.Pump();  // answers the PING
  server_->Advance(30 * kSecond);
  EXPECT_FALSE(client.connection.ended());
  server_->Advance(31 * kSecond);  // a second PING, without an answer
  server_->Advance(21 * kSecond);
  EXPECT_TRUE(client.connection.stream.aborted);
}

TEST_F(ConnectionLifeTest, DrainsIdleConnection) {
  Begin(Http2([](http2::ServerOptions* options) {
    options->max_idle_ns = 10 * kSecond;
    options->keepalive_ns = 0;
  }));
  H2Client client(*server_);
  client.Call("/t.T/Held", Framed(""));
  client.Pump();
  server_->Advance(60 * kSecond);  // not idle: a call is open
  client.Pump();
  EXPECT_TRUE(client.goaways.empty());
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
  client.Pump();
  // The session checks at intervals of max_idle.
  for (int i = 0; i < 3; ++i) {
    server_->Advance(10 * kSecond);
    client.Pump();
  }
  ASSERT_FALSE(client.goaways.empty());
  EXPECT_EQ(client.goaways[0].first, uint32_t{NGHTTP2_NO_ERROR});
  EXPECT_TRUE(client.connection.stream.closing);
}

TEST_F(ConnectionLifeTest, DrainsConnectionAtMaxAgeAndAbortsItAfterTheGrace) {
  Begin(Http2([](http2::ServerOptions* options) {
    options->max_age_ns = 100 * kSecond;
    options->max_age_grace_ns = 10 * kSecond;
    options->keepalive_ns = 0;
  }));
  H2Client client(*server_);
  client.Call("/t.T/Held", Framed(""));
  client.Pump();
  server_->Advance(101 * kSecond);
  client.Pump();
  EXPECT_FALSE(client.goaways.empty());
  EXPECT_FALSE(client.connection.ended());
  server_->Advance(11 * kSecond);
  EXPECT_TRUE(client.connection.stream.aborted);
}

TEST_F(ConnectionLifeTest, DrainFinishesOpenCallsAndCallsBetweenTheTwoGoaways) {
  Begin();
  H2Client client(*server_);
  const int32_t held = client.Call("/t.T/Held", Framed("1"));
  client.Pump();
  server_->server.Drain();
  server_->loop->RunOnce(0);
  // The client sends this call before it reads the notice.
  const int32_t late = client.Call("/t.T/Echo", Framed("late"));
  client.connection.Feed(client.TakeOutput());
  client.Read();
  ASSERT_EQ(client.goaways.size(), 1u);
  EXPECT_EQ(client.goaway_last_stream, INT32_MAX);
  client.Pump();  // answers the PING: the final GOAWAY follows
  EXPECT_EQ(client.calls[late].status(), "0");
  ASSERT_EQ(client.goaways.size(), 2u);
  EXPECT_EQ(client.goaway_last_stream, late);
  EXPECT_FALSE(client.connection.ended());
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
  client.Pump();
  EXPECT_EQ(client.calls[held].status(), "0");
  EXPECT_TRUE(client.connection.stream.closing);
  EXPECT_FALSE(client.connection.stream.aborted);
}

TEST_F(ConnectionLifeTest, DrainServesAndNamesCallsThatArriveWithThePingAnswer) {
  Begin();
  H2Client client(*server_);
  client.Pump();
  server_->server.Drain();
  server_->loop->RunOnce(0);
  // One read brings a call before the PING's answer and one after it.
  const int32_t before = client.Call("/t.T/Echo", Framed("before"));
  std::string read = client.TakeOutput();
  const int32_t behind = client.Call("/t.T/Echo", Framed("behind"));
  const std::string call_behind = client.TakeOutput();
  client.Read();  // the notice and the PING
  read += client.TakeOutput() + call_behind;
  client.connection.Feed(read);
  client.Read();
  ASSERT_EQ(client.goaways.size(), 2u);
  EXPECT_EQ(client.goaway_last_stream, behind);
  for (const int32_t id : {before, behind}) {
    EXPECT_EQ(client.calls[id].status(), "0");
    EXPECT_EQ(client.calls[id].error_code, uint32_t{NGHTTP2_NO_ERROR});
  }
  EXPECT_EQ(echo_.calls, 2);
}

TEST_F(ConnectionLifeTest, DrainRefusesCallsAboveTheStreamThatTheFinalGoawayNames) {
  Begin();
  H2Client client(*server_);
  const int32_t held = client.Call("/t.T/Held", Framed(""));
  client.Pump();
  server_->server.Drain();
  server_->loop->RunOnce(0);
  const int32_t whole = client.Call("/t.T/Echo", Framed("late"));
  const int32_t begun = client.Call("/t.T/Echo", "", {}, /*end=*/false);
  const std::string late = client.TakeOutput();
  client.Read();
  client.Continue(begun, Framed("later"), true);
  const std::string later = client.TakeOutput();
  // The client does not answer the PING, so the GOAWAY is due. It does not read either, so the
  // GOAWAY is not sent.
  client.connection.stream.stalled = true;
  client.connection.stream.output.assign(10 << 20, 'x');
  server_->Advance(2 * kSecond);
  client.connection.Feed(late);
  client.connection.stream.stalled = false;
  client.connection.stream.output.clear();
  client.connection.Writable();
  client.connection.Feed(later);
  client.Read();
  EXPECT_EQ(client.calls.count(whole) + client.calls.count(begun), 2u);
  for (const int32_t id : {whole, begun}) {
    EXPECT_EQ(client.calls[id].error_code, uint32_t{NGHTTP2_REFUSED_STREAM});
  }
  EXPECT_EQ(echo_.calls, 0);
  EXPECT_EQ(client.goaway_last_stream, held);
  // The older call is finished.
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
  client.Pump();
  EXPECT_EQ(client.calls[held].status(), "0");
}

TEST_F(ConnectionLifeTest, DrainEndsWithoutAnAnswerToThePing) {
  Begin();
  H2Client client(*server_);
  client.Pump();
  server_->server.Drain();
  server_->loop->RunOnce(0);
  EXPECT_FALSE(client.connection.ended());
  server_->Advance(2 * kSecond);
  EXPECT_TRUE(client.connection.stream.closing);
}

TEST_F(ConnectionLifeTest, AShortNoticeEndsTheDrainOfAnIdleConnectionSoon) {
  Begin();
  H2Client client(*server_);
  client.Pump();
  server_->server.Drain(kSecond / 20);
  server_->loop->RunOnce(0);
  EXPECT_FALSE(client.connection.stream.closing);
  server_->Advance(kSecond / 10);
  EXPECT_TRUE(client.connection.stream.closing);
  EXPECT_EQ(client.connection.stream.linger_ns, kSecond / 20);
}

TEST_F(ConnectionLifeTest, DrainNotifiesStreams) {
  Begin();
  H2Client client(*server_);
  const int32_t id = client.Call("/t.T/Stream", Framed("x"), {}, false);
  client.Pump();
  server_->server.Drain();
  server_->loop->RunOnce(0);
  client.Pump();
  EXPECT_EQ(client.calls[id].status(), "14");
  EXPECT_TRUE(client.connection.stream.closing);
}

TEST_F(ConnectionLifeTest, DrainsConnectionThatOpensDuringADrain) {
  Begin();
  H2Client first(*server_);
  server_->server.Drain();
  server_->loop->RunOnce(0);
  H2Client client(*server_);
  client.Pump();
  EXPECT_FALSE(client.goaways.empty());
}

TEST_F(ConnectionLifeTest, ResetsRequestWhoseBodyDiffersFromContentLength) {
  Begin();
  H2Client client(*server_);
  const std::string body = Framed("four");
  const int32_t right =
      client.Call("/t.T/Echo", body, {{"content-length", std::to_string(body.size())}});
  const int32_t more =
      client.Call("/t.T/Echo", body, {{"content-length", std::to_string(body.size() - 1)}});
  const int32_t less =
      client.Call("/t.T/Echo", body, {{"content-length", std::to_string(body.size() + 1)}});
  const int32_t none = client.Call("/t.T/Echo", "", {{"content-length", "9"}});
  client.Pump();
  EXPECT_EQ(client.calls[right].status(), "0");
  for (const int32_t id : {more, less, none}) {
    EXPECT_EQ(client.calls[id].error_code, uint32_t{NGHTTP2_PROTOCOL_ERROR}) << id;
  }
  EXPECT_EQ(echo_.calls, 1);
  EXPECT_FALSE(client.connection.ended());
}

TEST_F(ConnectionLifeTest, RefusesStreamsAboveMaxConcurrentStreams) {
  Begin(Http2([](http2::ServerOptions* options) { options->max_concurrent_streams = 2; }));
  H2Client client(*server_);
  // The client has not read the server's SETTINGS, so it opens more streams than allowed.
  for (int i = 0; i < 5; ++i) client.Call("/t.T/Held", Framed(""));
  client.connection.Feed(client.TakeOutput());
  EXPECT_EQ(held_.started, 2);
}

TEST_F(ConnectionLifeTest, BoundsOutputForPeerThatDoesNotRead) {
  Begin();
  H2Client client(*server_);
  client.Pump();
  nghttp2_session_set_local_window_size(client.session, 0, 0, 64 << 20);
  client.Pump();
  client.connection.stream.stalled = true;
  const std::string message(16 << 10, 'x');
  for (int i = 0; i < 400; ++i) client.Call("/t.T/Echo", Framed(message));
  // Requests still arrive (the fake stream does not stop reading); the output must not grow.
  client.connection.Feed(client.TakeOutput());
  EXPECT_LE(client.connection.stream.most_output, size_t{600} << 10);
  EXPECT_LE(echo_.calls, 400);
  client.connection.stream.stalled = false;
  client.connection.Writable();
  client.Pump();
  EXPECT_EQ(echo_.calls, 400);
  for (const auto& [id, call] : client.calls) EXPECT_EQ(call.messages().size(), 1u) << id;
}

}  // namespace
}  // namespace sluice::transport
