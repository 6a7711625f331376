// Floods: much work for few bytes, or responses that the peer does not read. The server closes each
// connection after a bounded number of frames.
#include "tests/security/attack.h"

namespace sluice::testing {
namespace {

using FloodTest = AttackTest;

TEST_F(FloodTest, ClosesConnectionOnPingFlood) {
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

TEST_F(FloodTest, ClosesConnectionOnPingAckFlood) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_PING, 1, 0, "12345678"), 100'000), 300);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, ClosesConnectionOnSettingsFlood) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_SETTINGS, 0, 0), 100'000), 100);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, ClosesConnectionOnSettingsAckFlood) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_SETTINGS, 1, 0), 100'000), 100);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, ClosesConnectionOnSettingsWithTooManyEntries) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  std::string entries;
  for (int i = 0; i < 2000; ++i) entries += std::string("\x00\x04\x00\x00\xFF\xFF", 6);
  connection.Feed(Frame(NGHTTP2_SETTINGS, 0, 0, entries));
  EXPECT_TRUE(connection.ended());
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, ClosesConnectionOnPriorityFlood) {
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

TEST_F(FloodTest, ClosesConnectionOnUnknownFrameFlood) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(0xBE, 0, 0, "?"), 100'000), 300);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, ClosesConnectionOnEmptyDataFlood) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Stream")));
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_DATA, 0, 1), 100'000), 300);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, ClosesConnectionOnFloodOfDataWithOnlyPadding) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 4, 1, RequestHeaders("/t.T/Stream")));
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_DATA, 8, 1, std::string(1, '\0')), 100'000),
            300);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, ClosesConnectionOnWindowUpdateFlood) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, std::string("\0\0\0\1", 4)),
                         100'000),
            1100);
  ExpectOthersUnharmed();
}

// Clients enlarge the window of each stream, and thousands may wait before the first response.
TEST_F(FloodTest, AcceptsWindowUpdatesOfManyHeldCalls) {
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
  // The budget is still a few updates per stream.
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, more), 100'000), 1100);
}

TEST_F(FloodTest, ClosesConnectionOnContinuationFlood) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 0, 1, "\x83"));
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_CONTINUATION, 0, 1, Literal("x", "y")), 100'000),
            10);
  EXPECT_LT(Memory(), size_t{300} << 10);
  ExpectOthersUnharmed();
}

TEST_F(FloodTest, ClosesConnectionOnEmptyContinuationFlood) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.Feed(Frame(NGHTTP2_HEADERS, 0, 1, "\x83"));
  EXPECT_LE(FeedUntilEnd(connection, Frame(NGHTTP2_CONTINUATION, 0, 1), 100'000), 10);
  ExpectOthersUnharmed();
}

// CVE-2023-44487: calls that are reset as soon as the server has started them.
TEST_F(FloodTest, ClosesConnectionOnResetFlood) {
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

TEST_F(FloodTest, AcceptsAnyNumberOfCancelledHeldCalls) {
  H2Connection connection(*server_);  // of a proxy with thousands of clients
  connection.Feed(kGreeting);
  const std::string headers = RequestHeaders("/t.T/Held");
  uint32_t id = 1;
  for (int round = 0; round < 40; ++round) {
    const uint32_t first = id;
    for (int i = 0; i < 1000; ++i, id += 2) {
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

// Streams that the client makes the server reset count as its own resets.
TEST_F(FloodTest, ClosesConnectionOnFloodOfStreamErrors) {
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

TEST_F(FloodTest, BoundsMemoryWhenResponsesAreNotRead) {
  H2Connection connection(*server_);
  connection.Feed(kGreeting);
  connection.stream.stalled = true;
  const std::string headers = RequestHeaders("/t.T/None");  // answered at once
  uint32_t id = 1;
  for (int i = 0; i < 20'000 && !connection.ended(); ++i, id += 2) {
    connection.Feed(Frame(NGHTTP2_HEADERS, 5, id, headers));
  }
  // The output is bounded; a real stream would have stopped reading by then.
  EXPECT_LE(connection.stream.most_output, size_t{600} << 10);
  EXPECT_LT(Memory(), size_t{16} << 20);
  ExpectOthersUnharmed();
}

}  // namespace
}  // namespace sluice::testing
