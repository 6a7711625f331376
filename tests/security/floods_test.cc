// Floods: much work for few bytes, or answers that nobody reads. Each ends with the connection,
// after a number of frames that does not depend on how many are sent.
#include "tests/security/attack.h"

namespace sluice::testing {
namespace {

using FloodTest = AttackTest;

TEST_F(FloodTest, OfPings) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Take();
  std::string pings;
  for (int i = 0; i < 100; ++i) pings += Frame(NGHTTP2_PING, 0, 0, "12345678");
  connection.Feed(pings);
  EXPECT_TRUE(connection.ended());
  EXPECT_TRUE(HasGoaway(connection.Take(), NGHTTP2_ENHANCE_YOUR_CALM));
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfPingAcks) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_PING, 1, 0, "12345678"), 100'000), 300);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfSettings) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_SETTINGS, 0, 0), 100'000), 100);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfSettingsAcks) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_SETTINGS, 1, 0), 100'000), 100);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfEntriesInOneSettings) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  std::string entries;
  for (int i = 0; i < 2000; ++i) entries += std::string("\x00\x04\x00\x00\xFF\xFF", 6);
  connection.Feed(Frame(NGHTTP2_SETTINGS, 0, 0, entries));
  EXPECT_TRUE(connection.ended());
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfPriorities) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  std::string all;
  for (uint32_t id = 1; id < 200'000; id += 2) {
    connection.Feed(Frame(NGHTTP2_PRIORITY, 0, id, std::string("\0\0\0\0\x10", 5)));
    if (connection.ended()) break;
    ASSERT_LT(id, 2000u);
  }
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfUnknownFrames) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(0xBE, 0, 0, "?"), 100'000), 300);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfEmptyData) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Stream")));
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_DATA, 0, 1), 100'000), 300);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfPaddingAlone) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Stream")));
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_DATA, 8, 1, std::string(1, '\0')), 100'000),
            300);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfWindowUpdates) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, std::string("\0\0\0\1", 4)),
                         100'000),
            1100);
  ExpectOthersUnharmed();
}

// Clients open the window of each stream, and thousands may wait before the first is answered.
TEST_F(FloodTest, OfHeldCallsThatOpenTheirWindowsIsNone) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  const std::string more("\0\0\0\1", 4);
  for (uint32_t id = 1; id < 2000; id += 2) {
    connection.Feed(Frame(NGHTTP2_HEADERS, 4, id, RequestHeaders("/t.T/Held")) +
                    Frame(NGHTTP2_DATA, 1, id, Framed("x")) +
                    Frame(NGHTTP2_WINDOW_UPDATE, 0, id, more) +
                    Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, more));
    connection.Take();
    ASSERT_FALSE(connection.ended()) << id;
  }
  // It is still no more than a few for each.
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, more), 100'000), 1100);
}

TEST_F(FloodTest, OfContinuations) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 0, 1, "\x83"));
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_CONTINUATION, 0, 1, Literal("x", "y")), 100'000),
            10);
  EXPECT_LT(Memory(), size_t{300} << 10);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfEmptyContinuations) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 0, 1, "\x83"));
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_CONTINUATION, 0, 1), 100'000), 10);
  ExpectOthersUnharmed();
}

// CVE-2023-44487. Calls that the server has begun and that are reset at once.
TEST_F(FloodTest, OfResets) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  const std::string headers = RequestHeaders("/t.T/Held");
  uint32_t id = 1;
  int opened = 0;
  for (; opened < 100'000 && !connection.ended(); ++opened, id += 2) {
    connection.Feed(Frame(NGHTTP2_HEADERS, 4, id, headers) +
                    Frame(NGHTTP2_DATA, 1, id, Framed("")) +
                    Frame(NGHTTP2_RST_STREAM, 0, id, std::string("\0\0\0\x8", 4)));
    connection.Take();
  }
  EXPECT_LE(opened, 4100);
  EXPECT_EQ(held_.cancelled, held_.started);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, HonestCallsThatWereHeldMayBeCancelledInAnyNumber) {
  H2Connection connection(*server_);  // a proxy, for thousands of clients
  connection.Feed(kGreeting);
  const std::string headers = RequestHeaders("/t.T/Held");
  uint32_t id = 1;
  for (int round = 0; round < 10; ++round) {
    const uint32_t first = id;
    for (int i = 0; i < 4000; ++i, id += 2) {
      connection.Feed(Frame(NGHTTP2_HEADERS, 4, id, headers) +
                      Frame(NGHTTP2_DATA, 1, id, Framed("")));
    }
    server_->Advance(1'000'000'000);
    std::string resets;
    for (uint32_t reset = first; reset < id; reset += 2) {
      resets += Frame(NGHTTP2_RST_STREAM, 0, reset, std::string("\0\0\0\x8", 4));
    }
    connection.Feed(resets);
    connection.Take();
    ASSERT_FALSE(connection.ended()) << round;
  }
  EXPECT_EQ(held_.cancelled, 40'000);
  ExpectOthersUnharmed();
}

// Making the server reset streams is no cheaper for the client than to do it itself.
TEST_F(FloodTest, OfFaultsThatTheServerMustReset) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  const std::string headers = RequestHeaders("/t.T/Held");
  uint32_t id = 1;
  int opened = 0;
  for (; opened < 100'000 && !connection.ended(); ++opened, id += 2) {
    // A window update of 0 on a stream is a stream error.
    connection.Feed(Frame(NGHTTP2_HEADERS, 4, id, headers) +
                    Frame(NGHTTP2_WINDOW_UPDATE, 0, id, std::string("\0\0\0\0", 4)));
    connection.Take();
  }
  EXPECT_LE(opened, 4100);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, OfRequestsWhoseAnswersAreNotRead) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.stream.stalled = true;
  const std::string headers = RequestHeaders("/t.T/None");  // answered at once
  uint32_t id = 1;
  for (int i = 0; i < 20'000 && !connection.ended(); ++i, id += 2) {
    connection.Feed(Frame(NGHTTP2_HEADERS, 5, id, headers));
  }
  // What the socket was given is bounded; a real stream would have stopped reading by then.
  EXPECT_LE(connection.stream.most_output, size_t{600} << 10);
  EXPECT_LT(Memory(), size_t{16} << 20);
  ExpectOthersUnharmed();
}

}  // namespace
}  // namespace sluice::testing
