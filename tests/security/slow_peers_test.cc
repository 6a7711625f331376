// Slow peers, which try to hold the memory and the connections of the server.
#include "tests/security/attack.h"

namespace sluice::testing {
namespace {

using SlowPeerTest = AttackTest;
constexpr int64_t kSecond = 1'000'000'000;

// Feeds one byte per second. Returns the seconds until the connection ends.
int64_t SecondsUntilEnd(H2Server& server, H2Connection& connection, const std::string& bytes,
                        int64_t most_s) {
  for (int64_t s = 0; s < most_s; ++s) {
    if (static_cast<size_t>(s) < bytes.size()) connection.Feed(bytes.substr(s, 1));
    connection.Take();
    if (connection.ended()) return s;
    server.Advance(kSecond);
    if (connection.ended()) return s + 1;
  }
  return most_s;
}

TEST_F(SlowPeerTest, ClosesConnectionOnSlowPreface) {
  H2Connection connection(*server_);
  EXPECT_LE(SecondsUntilEnd(*server_, connection, kGreeting, 300), 11);
}

TEST_F(SlowPeerTest, ClosesSilentConnection) {
  H2Connection connection(*server_);
  EXPECT_LE(SecondsUntilEnd(*server_, connection, "", 300), 11);
}

TEST_F(SlowPeerTest, ClosesConnectionOnSlowHeaders) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  // Nine seconds for the frame's header, then the frame time-out.
  EXPECT_LE(SecondsUntilEnd(*server_, connection,
                            Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Echo")), 300),
            30);
}

TEST_F(SlowPeerTest, ClosesConnectionOnSlowContinuations) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 0, 1, "\x83"));
  int64_t seconds = 0;
  for (; seconds < 300 && !connection.ended(); ++seconds) {
    if (seconds % 5 == 0) connection.Feed(Frame(NGHTTP2_CONTINUATION, 0, 1, Literal("x", "y")));
    server_->Advance(kSecond);
  }
  EXPECT_LE(seconds, 21);
}

TEST_F(SlowPeerTest, AnswersSlowBodyWithDeadlineExceeded) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Echo")));
  // Complete frames of one byte each: the request does not end.
  bool answered = false;
  for (int s = 0; s < 40 && !answered; ++s) {
    connection.Feed(Frame(NGHTTP2_DATA, 0, 1, std::string(1, '\0')));
    server_->Advance(kSecond);
    const std::string out = connection.Take();
    answered = out.find("grpc-message") != std::string::npos ||
               out.find(std::string("\0\0\4\3", 4)) != std::string::npos;
  }
  EXPECT_TRUE(answered);
  EXPECT_EQ(echo_.calls, 0);
  ExpectOthersUnharmed();
}

TEST_F(SlowPeerTest, ClosesConnectionThatDoesNotReadAndBoundsItsOutput) {
  H2Client client(*server_);
  client.Pump();
  nghttp2_session_set_local_window_size(client.session, 0, 0, 1 << 30);
  client.Pump();
  client.connection.stream.stalled = true;
  for (int i = 0; i < 100; ++i) client.Call("/t.T/Echo", Framed(std::string(60'000, 'x')));
  client.connection.Feed(client.TakeOutput());
  EXPECT_LE(client.connection.stream.most_output, size_t{600} << 10);
  for (int s = 0; s < 90 && !client.connection.ended(); ++s) {
    server_->Advance(kSecond);
    neighbour_->Pump();
  }
  EXPECT_TRUE(client.connection.ended());
  ExpectOthersUnharmed();
}

// 16 KiB of each connection are a frame buffer, of which an idle connection has touched one page:
// about 14 KB are resident (tests/bench/transport measures that).
TEST_F(SlowPeerTest, IdleConnectionsAreSmall) {
  const size_t before = Memory();
  std::vector<std::unique_ptr<H2Client>> idle;
  constexpr size_t kConnections = 2000;
  for (size_t i = 0; i < kConnections; ++i) {
    idle.push_back(std::make_unique<H2Client>(*server_));
    idle.back()->Pump();
  }
  const size_t each = (Memory() - before) / kConnections;
  RecordProperty("bytes_each", static_cast<int>(each));
  EXPECT_LE(each, size_t{28} << 10);
  ExpectOthersUnharmed();
}

}  // namespace
}  // namespace sluice::testing
