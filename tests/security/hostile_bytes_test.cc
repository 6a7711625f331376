// Malformed and deceptive bytes: they cost little, and affect no other connection.
#include <random>

#include "tests/security/attack.h"

namespace sluice::testing {
namespace {

using HostileBytesTest = AttackTest;

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// An HPACK bomb: one large field enters the table, and then 16,000 bytes refer to it: 64 MiB of
// headers in a frame of 16 KiB.
TEST_F(HostileBytesTest, DoesNotDecodeHpackBomb) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  std::string value(4000, 'v');
  // Literal with incremental indexing, new name "x", a value of 4000 bytes.
  std::string first = RequestHeaders("/t.T/Echo") + "\x40\x01x";
  first += "\x7F\xA1\x1E";  // 4000 as an HPACK integer: 127 + 33 + 30 * 128
  first += value;
  connection.Feed(Frame(NGHTTP2_HEADERS, 5, 1, first));
  const double before = CpuSeconds();
  uint32_t id = 3;
  int sent = 0;
  for (; sent < 1000 && !connection.ended(); ++sent, id += 2) {
    const std::string head = RequestHeaders("/t.T/Echo");
    connection.Feed(
        Frame(NGHTTP2_HEADERS, 5, id, head + std::string(16'384 - head.size(), '\xBE')));
    connection.Take();
  }
  EXPECT_LE(sent, 250);
  // A full decoding would take about 18 ms each.
  RecordProperty("cpu_ms_each", static_cast<int>(1000 * (CpuSeconds() - before) / sent));
  EXPECT_LT(Memory(), size_t{1} << 20);
  ExpectOthersUnharmed();
}

TEST_F(HostileBytesTest, AnswersHeaderListsAboveTheBound) {
  H2Client client(*server_);
  client.Pump();
  H2Client::Headers many;
  for (int i = 0; i < 300; ++i) many.push_back({"x-" + std::to_string(i), std::string(40, 'v')});
  const int32_t id = client.Call("/t.T/Echo", Framed(""), many);
  client.Pump();
  EXPECT_EQ(client.calls[id].status(), "8");
  EXPECT_EQ(echo_.calls, 0);
  ExpectOthersUnharmed();
}

// References to table entries that do not exist, and other invalid blocks.
TEST_F(HostileBytesTest, ClosesConnectionOnBrokenHpack) {
  for (const std::string block :
       {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF", "\xBF", "\x80", "\x7F", "\x3F\xFF\xFF\xFF\xFF\x0F"}) {
    H2Connection connection(*server_);
    connection.Feed(kGreeting);
    connection.Feed(Frame(NGHTTP2_HEADERS, 5, 1, block));
    EXPECT_TRUE(connection.ended());
  }
  ExpectOthersUnharmed();
}

TEST_F(HostileBytesTest, AnnouncedMessageOf4GiBTakesNoMemory) {
  const size_t before = Memory();
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  for (uint32_t id = 1; id < 2000; id += 2) {
    connection.Feed(Frame(NGHTTP2_HEADERS, 4, id, RequestHeaders("/t.T/Echo")) +
                    Frame(NGHTTP2_DATA, 0, id, std::string("\0\xFF\xFF\xFF\xFF", 5)));
    connection.Take();
  }
  EXPECT_LT(Memory() - before, size_t{200} << 10);
  EXPECT_EQ(echo_.calls, 0);
  ExpectOthersUnharmed();
}

// Each message has the largest allowed size, and none is completed.
TEST_F(HostileBytesTest, BoundsUnfinishedMessagesPerConnection) {
  transport::RpcServerOptions options;
  options.max_connection_buffered_bytes = 1 << 20;
  Begin(options);
  H2Client client(*server_);
  client.Pump();
  const std::string part = std::string("\0\x00\x3F\xFF\xFF", 5) + std::string(200'000, 'x');
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(client.Call("/t.T/Echo", part, {}, false));
  client.Pump();
  int refused = 0;
  for (const int32_t id : ids) refused += client.calls[id].status() == "8";
  EXPECT_GE(refused, 34);
  EXPECT_LT(refused, 40);
  ExpectOthersUnharmed();
}

TEST_F(HostileBytesTest, ClosesConnectionOnWindowOverflow) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  const std::string most("\x7F\xFF\xFF\xFF", 4);
  connection.Feed(Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, most) +
                  Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, most));
  EXPECT_TRUE(connection.ended());
  EXPECT_TRUE(HasGoaway(connection.Take(), NGHTTP2_FLOW_CONTROL_ERROR));
  H2Connection zero(*server_);
  zero.Feed(kGreeting);
  zero.Feed(Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, std::string(4, '\0')));
  EXPECT_TRUE(HasGoaway(zero.Take(), NGHTTP2_PROTOCOL_ERROR));
  ExpectOthersUnharmed();
}

// The connection breaks, or its peer closes it, after each byte of an exchange.
TEST_F(HostileBytesTest, ConnectionEndAtAnyByteLeavesNothing) {
  const std::string bytes = kGreeting + Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Held")) +
                            Frame(NGHTTP2_DATA, 1, 1, Framed("held")) +
                            Frame(NGHTTP2_HEADERS, 4, 3, RequestHeaders("/t.T/Stream")) +
                            Frame(NGHTTP2_DATA, 0, 3, Framed("one") + Framed("two")) +
                            Frame(NGHTTP2_HEADERS, 5, 5, RequestHeaders("/t.T/None")) +
                            Frame(NGHTTP2_PING, 0, 0, "12345678") +
                            Frame(NGHTTP2_RST_STREAM, 0, 1, std::string("\0\0\0\x8", 4)) +
                            Frame(NGHTTP2_GOAWAY, 0, 0, std::string(8, '\0'));
  const size_t before = Memory();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    for (const bool half_close : {false, true}) {
      H2Connection connection(*server_);
      connection.Feed(std::string_view(bytes).substr(0, cut));
      if (half_close && !connection.ended()) connection.PeerEnds();
      connection.Close();
    }
  }
  EXPECT_EQ(held_.cancelled, held_.started);
  EXPECT_TRUE(held_.held.empty());
  EXPECT_EQ(Memory(), before);
  EXPECT_EQ(server_->server.connections(), 1u);
  ExpectOthersUnharmed();
}

// Valid input with a few changed bytes, in pieces of any size.
TEST_F(HostileBytesTest, CorruptedBytesDoNotAffectOtherConnections) {
  std::mt19937 random(3);
  const std::string honest = kGreeting + Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Echo")) +
                             Frame(NGHTTP2_DATA, 1, 1, Framed("hello")) +
                             Frame(NGHTTP2_HEADERS, 4, 3, RequestHeaders("/t.T/Stream")) +
                             Frame(NGHTTP2_DATA, 0, 3, Framed("one")) +
                             Frame(NGHTTP2_DATA, 1, 3, Framed("two"));
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = honest;
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      bytes[24 + random() % (bytes.size() - 24)] = static_cast<char>(random());
    }
    H2Connection connection(*server_);
    connection.FeedInPieces(bytes, 1 + random() % bytes.size());
  }
  ExpectOthersUnharmed();
}

// A protocol error does not undo the calls before it in the same read. The GOAWAY names the last of
// them, so that the client knows that it may have been executed.
TEST_F(HostileBytesTest, DecidesAndNamesCallBeforeProtocolErrorInTheSameRead) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Take();
  connection.Feed(Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Echo")) +
                  Frame(NGHTTP2_DATA, 1, 1, Framed("x")) + Frame(NGHTTP2_DATA, 0, 0, "breach") +
                  Frame(NGHTTP2_HEADERS, 4, 3, RequestHeaders("/t.T/Echo")) +
                  Frame(NGHTTP2_DATA, 1, 3, Framed("y")));
  EXPECT_TRUE(connection.ended());
  EXPECT_EQ(echo_.calls, 1);
  const std::string output = connection.Take();
  EXPECT_TRUE(HasGoaway(output, NGHTTP2_PROTOCOL_ERROR));
  const size_t goaway = output.rfind(std::string("\x07\0\0\0\0\0", 6));
  ASSERT_NE(goaway, std::string::npos);
  EXPECT_EQ(output.substr(goaway + 6, 4), std::string("\0\0\0\x01", 4)) << "the last stream";
  ExpectOthersUnharmed();
}

// CVE-2023-32732: a "-bin" value that is not base64. CVE-2023-33953: many small headers.
// CVE-2023-1428: an invalid method with a header list that is too large. None may end the
// connection.
TEST_F(HostileBytesTest, SurvivesHeadersOfKnownVulnerabilities) {
  H2Client client(*server_);
  client.Pump();
  client.Call("/t.T/Echo", Framed(""), {{"x-bin", "!!not base64!!"}});
  H2Client::Headers many;
  for (int i = 0; i < 400; ++i) many.push_back({"x" + std::to_string(i), ""});
  client.Call("/t.T/Echo", Framed(""), many);
  client.Call("/t.T/Echo", Framed(""),
              {{":method", "BREW"}, {"x-large", std::string(20'000, 'x')}});
  client.Pump();
  const int32_t id = client.Call("/t.T/Echo", Framed("alive"));
  client.Pump();
  EXPECT_EQ(client.calls[id].status(), "0");
  EXPECT_TRUE(client.goaways.empty());
  ExpectOthersUnharmed();
}

}  // namespace
}  // namespace sluice::testing
