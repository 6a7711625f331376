#include "common/http2/server_session.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/http2_sessions.h"

namespace sluice::http2 {
namespace {

using ::sluice::testing::Entry;
using ::sluice::testing::Fields;
using ::sluice::testing::Frame;
using ::sluice::testing::kGreeting;
using ::sluice::testing::Literal;
using ::sluice::testing::ParsedFrame;
using ::sluice::testing::ParseFrames;
using ::sluice::testing::RequestHeaders;
using ::sluice::testing::ServerEnd;
using ::sluice::testing::Uint32;

constexpr uint8_t kWhole = kEndHeaders | kEndStream;

std::string Headers(uint32_t id, uint8_t flags = kEndHeaders) {
  return Frame(FrameType::kHeaders, flags, id, RequestHeaders("/p"));
}
std::string Data(uint32_t id, std::string_view bytes, uint8_t flags = 0) {
  return Frame(FrameType::kData, flags, id, bytes);
}

class ServerSessionTest : public ::testing::Test {
 protected:
  ServerSessionTest() {
    server_.answer = {{{":status", "200"}}, "answer", {{"grpc-status", "0"}}};
    server_.Greet();
  }
  // The session ends with this error, and says so.
  void ExpectEnd(const std::string& bytes, ErrorCode code) {
    server_.Feed(bytes);
    EXPECT_TRUE(server_.session().ended());
    EXPECT_EQ(server_.error(), code) << server_.session().error_text();
    const std::vector<ParsedFrame> frames = server_.TakeFrames();
    ASSERT_FALSE(frames.empty());
    EXPECT_EQ(frames.back().header.type, FrameType::kGoaway);
    EXPECT_TRUE(server_.session().finished());
  }
  // The session goes on, and resets the stream with this error.
  void ExpectReset(const std::string& bytes, int32_t id, ErrorCode code) {
    server_.Feed(bytes);
    EXPECT_FALSE(server_.session().ended());
    std::string codes;
    for (const ParsedFrame& frame : server_.TakeFrames()) {
      if (frame.header.type == FrameType::kRstStream && frame.header.stream_id == id) {
        codes += frame.payload;
      }
    }
    EXPECT_EQ(codes, Uint32(static_cast<uint32_t>(code)));
    EXPECT_FALSE(server_.HasStream(id));
  }
  std::string Types(const std::string& bytes) {
    std::string types;
    for (const ParsedFrame& frame : ParseFrames(bytes)) {
      types += std::to_string(static_cast<int>(frame.header.type)) +
               (frame.header.has(kEndStream) ? "! " : " ");
    }
    return types;
  }

  ServerEnd server_;
};

TEST_F(ServerSessionTest, SendsSettingsFirst) {
  ServerEnd fresh;
  const std::vector<ParsedFrame> frames = fresh.TakeFrames();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].header.type, FrameType::kSettings);
  EXPECT_EQ(frames[1].header.type, FrameType::kWindowUpdate);
}

TEST_F(ServerSessionTest, AnswersRequestInThreeFrames) {
  server_.Feed(Headers(1) + Data(1, "question", kEndStream));
  EXPECT_EQ(Types(server_.Take()), "1 0 1! ");
  EXPECT_EQ(server_.events.back(), "1 closed: ");
  EXPECT_EQ(server_.open(), 0u);
}

TEST_F(ServerSessionTest, GivesTheSameEventsHoweverInputIsSplit) {
  const std::string bytes =
      kGreeting +
      Frame(FrameType::kHeaders, kEndHeaders | kPadded, 1, "\x03" + RequestHeaders("/p") + "pad") +
      Data(1, "hello") + Data(1, std::string("\x02world..", 8), kPadded) +
      Frame(FrameType::kHeaders, 0, 3, RequestHeaders("/q")) +
      Frame(FrameType::kContinuation, kEndHeaders, 3, Literal("x-more", "1")) +
      Frame(FrameType::kPing, 0, 0, "12345678") +
      Frame(FrameType::kHeaders, kWhole, 1, Literal("trailer", "t")) +
      Data(3, std::string("\0", 1), kPadded | kEndStream);
  ServerEnd whole;
  whole.answer = server_.answer;
  whole.Feed(bytes);
  ASSERT_FALSE(whole.session().ended()) << whole.session().error_text();
  const std::string output = whole.Take();
  ASSERT_EQ(whole.events.back(), "3 closed: ");
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    ServerEnd split;
    split.answer = server_.answer;
    split.Feed(std::string_view(bytes).substr(0, cut));
    split.Feed(std::string_view(bytes).substr(cut));
    EXPECT_EQ(split.Take(), output) << cut;
    EXPECT_EQ(split.events, whole.events) << cut;
  }
  for (size_t piece = 1; piece < 30; ++piece) {
    ServerEnd split;
    split.answer = server_.answer;
    split.FeedInPieces(bytes, piece);
    EXPECT_EQ(split.Take(), output) << piece;
    EXPECT_EQ(split.events, whole.events) << piece;
  }
}

// ---- Connection errors

TEST_F(ServerSessionTest, EndsWithoutPrefaceOrSettings) {
  ServerEnd http1;
  http1.Feed("GET / HTTP/1.1\r\n");
  EXPECT_EQ(http1.error(), ErrorCode::kProtocolError);
  ServerEnd without;
  without.Feed(std::string(kPreface) + Frame(FrameType::kPing, 0, 0, "12345678"));
  EXPECT_EQ(without.error(), ErrorCode::kProtocolError);
}

TEST_F(ServerSessionTest, EndsOnFrameAboveMaxFrameSizeAtItsHeader) {
  ExpectEnd(Data(1, std::string(16'385, 'x')).substr(0, 9), ErrorCode::kFrameSizeError);
}

TEST_F(ServerSessionTest, EndsOnFramesOfWrongSize) {
  for (const std::string& frame :
       {Frame(FrameType::kPing, 0, 0, "1234567"), Frame(FrameType::kRstStream, 0, 1, "123"),
        Frame(FrameType::kSettings, 0, 0, "1234567"),
        Frame(FrameType::kSettings, kAck, 0, "123456"),
        Frame(FrameType::kWindowUpdate, 0, 0, "123"), Frame(FrameType::kPriority, 0, 1, "123456"),
        Frame(FrameType::kGoaway, 0, 0, "1234567"),
        Frame(FrameType::kHeaders, kEndHeaders | kPriority, 1, "1234")}) {
    ServerEnd server;
    server.Feed(kGreeting + frame);
    EXPECT_EQ(server.error(), ErrorCode::kFrameSizeError) << frame[3];
  }
}

TEST_F(ServerSessionTest, EndsOnFramesThatAreNotAllowed) {
  for (const std::string& frame :
       {Data(0, "x"),
        Data(1, "x"),
        Headers(0),
        Headers(2),
        Frame(FrameType::kPriority, 0, 0, "12345"),
        Frame(FrameType::kRstStream, 0, 0, "1234"),
        Frame(FrameType::kRstStream, 0, 1, "1234"),
        Frame(FrameType::kSettings, 0, 1),
        Frame(FrameType::kPushPromise, kEndHeaders, 1, "1234"),
        Frame(FrameType::kPing, 0, 1, "12345678"),
        Frame(FrameType::kGoaway, 0, 1, "12345678"),
        Frame(FrameType::kWindowUpdate, 0, 0, Uint32(0)),
        Frame(FrameType::kWindowUpdate, 0, 1, Uint32(1)),
        Frame(FrameType::kContinuation, kEndHeaders, 1, "x"),
        Frame(FrameType::kPriority, 0, 3, Uint32(3) + "x"),
        Frame(FrameType::kHeaders, kEndHeaders | kPriority, 1, Uint32(1) + "x"),
        Frame(FrameType::kHeaders, kEndHeaders | kPadded, 1, "\x05xxxx"),
        Frame(FrameType::kHeaders, kEndHeaders | kPadded, 1),
        Headers(1) + Data(1, "\x05xxxx", kPadded),
        Headers(1) + Data(1, "", kPadded),
        Headers(1, 0) + Data(1, "x"),
        Headers(1, 0) + Headers(3),
        Headers(1, 0) + Frame(FrameType::kContinuation, kEndHeaders, 3, ""),
        Frame(FrameType::kSettings, kAck, 0) + Frame(FrameType::kSettings, kAck, 0),
        Frame(FrameType::kSettings, 0, 0, Entry(Setting::kEnablePush, 2)),
        Frame(FrameType::kSettings, 0, 0, Entry(Setting::kMaxFrameSize, 16'383)),
        Frame(FrameType::kSettings, 0, 0, Entry(Setting::kMaxFrameSize, 1 << 24))}) {
    ServerEnd server;
    server.Feed(kGreeting + frame);
    EXPECT_EQ(server.error(), ErrorCode::kProtocolError) << Types(frame);
  }
}

TEST_F(ServerSessionTest, EndsOnBrokenHeaderBlock) {
  ExpectEnd(Frame(FrameType::kHeaders, kWhole, 1, "\x80"), ErrorCode::kCompressionError);
}

TEST_F(ServerSessionTest, DecodesHeadersOfStreamsThatItRefuses) {
  ServerOptions options;
  options.max_concurrent_streams = 1;
  ServerEnd server(options);
  server.Greet();
  // The field enters the table with a stream that is refused; the third refers to it.
  const std::string insert = std::string("\x40\x01") + "k\x01v";
  server.Feed(Headers(1) + Frame(FrameType::kHeaders, kWhole, 3, RequestHeaders("/") + insert));
  EXPECT_EQ(server.TakeFrames().back().payload, Uint32(7));
  server.Feed(Data(1, "", kEndStream));
  server.session().Submit(server.stream(1), false);
  server.Take();
  server.Feed(Frame(FrameType::kHeaders, kWhole, 5, RequestHeaders("/") + "\xBE"));
  EXPECT_FALSE(server.session().ended());
  EXPECT_EQ(server.events[server.events.size() - 2], "5 k=v");
}

// ---- Streams that are closed

TEST_F(ServerSessionTest, AcceptsAnyFirstStreamId) {
  server_.Feed(Headers(13) + Headers(15));
  EXPECT_EQ(server_.open(), 2u);
}

TEST_F(ServerSessionTest, EndsOnHeadersWithSkippedStreamId) {
  ExpectEnd(Headers(5) + Headers(3), ErrorCode::kProtocolError);
}

TEST_F(ServerSessionTest, EndsOnDataAndHeadersOfStreamThatTheClientClosed) {
  const std::string reset = Frame(FrameType::kRstStream, 0, 1, Uint32(8));
  for (const std::string& late : {Data(1, "x"), Headers(1)}) {
    ServerEnd cancelled;
    cancelled.Feed(kGreeting + Headers(1) + reset + late);
    EXPECT_EQ(cancelled.error(), ErrorCode::kStreamClosed);
    ServerEnd answered;
    answered.answer = server_.answer;
    answered.Feed(kGreeting + Headers(1, kWhole));
    answered.Take();
    EXPECT_EQ(answered.open(), 0u);
    answered.Feed(late);
    EXPECT_EQ(answered.error(), ErrorCode::kStreamClosed);
    ServerEnd open;
    open.Feed(kGreeting + Headers(1, kWhole) + late);
    EXPECT_EQ(open.error(), ErrorCode::kStreamClosed);
  }
}

TEST_F(ServerSessionTest, IgnoresFramesOfStreamThatTheServerReset) {
  server_.Feed(Headers(1));
  server_.session().Reset(server_.stream(1), ErrorCode::kCancel);
  server_.Feed(Data(1, "late"));  // the reset is not sent yet
  EXPECT_EQ(server_.TakeFrames().back().payload, Uint32(8));
  server_.Feed(Data(1, "later") + Headers(1, kWhole) +
               Frame(FrameType::kWindowUpdate, 0, 1, Uint32(5)) +
               Frame(FrameType::kRstStream, 0, 1, Uint32(0)));
  EXPECT_FALSE(server_.session().ended()) << server_.session().error_text();
  EXPECT_EQ(server_.events.back(), "1 closed: ");
}

TEST_F(ServerSessionTest, StopsRequestThatIsAnsweredEarly) {
  server_.Feed(Headers(1) + Data(1, "part"));
  server_.session().Submit(server_.stream(1), true);
  EXPECT_EQ(Types(server_.Take()), "1 0 1! 3 ");
  EXPECT_EQ(server_.open(), 0u);
  server_.Feed(Data(1, "more", kEndStream));
  EXPECT_FALSE(server_.session().ended());
}

// ---- Stream errors

TEST_F(ServerSessionTest, ResetsMalformedRequests) {
  ExpectReset(Frame(FrameType::kHeaders, kWhole, 1, "\x83"), 1, ErrorCode::kProtocolError);
  ExpectReset(Frame(FrameType::kHeaders, kWhole, 3, RequestHeaders("/") + Literal("te", "gzip")), 3,
              ErrorCode::kProtocolError);
  // Trailers that do not end the request.
  ExpectReset(Headers(5) + Frame(FrameType::kHeaders, kEndHeaders, 5, Literal("x", "y")), 5,
              ErrorCode::kProtocolError);
}

TEST_F(ServerSessionTest, ResetsStreamOnWindowUpdateOfZeroAndOnOverflow) {
  ExpectReset(Headers(1) + Frame(FrameType::kWindowUpdate, 0, 1, Uint32(0)), 1,
              ErrorCode::kProtocolError);
  ExpectReset(Headers(3) + Frame(FrameType::kWindowUpdate, 0, 3, Uint32(0x7FFFFFFF)), 3,
              ErrorCode::kFlowControlError);
}

TEST_F(ServerSessionTest, ResetsStreamOnDataBeyondItsWindow) {
  ServerOptions options;
  options.stream_window_bytes = kDefaultWindow;
  ServerEnd server(options);
  server.Greet();
  server.Feed(Headers(1));
  for (int i = 0; i < 4; ++i) server.Feed(Data(1, std::string(16'384, 'x')));
  EXPECT_EQ(server.stream(1).received.size(), 3u * 16'384);
  EXPECT_EQ(server.TakeFrames().back().payload, Uint32(3));
  EXPECT_FALSE(server.session().ended());
}

TEST_F(ServerSessionTest, EndsOnDataBeyondTheConnectionsWindow) {
  ServerOptions options;
  options.connection_window_bytes = kDefaultWindow;
  ServerEnd server(options);
  server.Greet();
  server.session().HoldConnectionWindow(true);
  server.Feed(Headers(1));
  for (int i = 0; i < 4; ++i) server.Feed(Data(1, std::string(16'384, 'x')));
  EXPECT_EQ(server.error(), ErrorCode::kFlowControlError);
}

TEST_F(ServerSessionTest, RestoresTheConnectionsWindowForPaddingAndDeadStreams) {
  server_.Feed(Headers(1));
  server_.session().Reset(server_.stream(1), ErrorCode::kCancel);
  server_.Take();
  const std::string padded = Data(1, "\xFF" + std::string(255, '\0'), kPadded);
  int64_t restored = 0;
  const int64_t sent = 5000 * 256;
  for (int i = 0; i < 5000; ++i) {
    if (i % 100 == 0) server_.now_ns += int64_t{60} * 1'000'000'000;  // empty DATA is a flood
    server_.Feed(padded);
    for (const ParsedFrame& frame : server_.TakeFrames()) {
      ASSERT_EQ(frame.header.type, FrameType::kWindowUpdate);
      restored += ReadUint31(reinterpret_cast<const uint8_t*>(frame.payload.data()));
    }
  }
  EXPECT_FALSE(server_.session().ended()) << server_.session().error_text();
  EXPECT_GE(restored, sent - (1 << 19));
  EXPECT_LE(restored, sent);
}

TEST_F(ServerSessionTest, RestoresTheStreamsWindowAsDataIsConsumed) {
  server_.Feed(Headers(1));
  for (int i = 0; i < 8; ++i) server_.Feed(Data(1, std::string(16'384, 'x')));
  EXPECT_EQ(server_.Take(), "");
  server_.session().ConsumeStream(server_.stream(1), size_t{128} << 10);
  const std::vector<ParsedFrame> frames = server_.TakeFrames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].header.stream_id, 1);
  EXPECT_EQ(frames[0].payload, Uint32(128 << 10));
}

// ---- Flow control of what we send

TEST_F(ServerSessionTest, SendsWithinBothWindowsAndSplitsLargeBodies) {
  server_.answer.body = std::string(100'000, 'b');
  server_.Feed(Headers(1, kWhole));
  size_t sent = 0;
  for (const ParsedFrame& frame : server_.TakeFrames()) {
    if (frame.header.type == FrameType::kData) {
      EXPECT_LE(frame.payload.size(), 16'384u);
      sent += frame.payload.size();
    }
  }
  EXPECT_EQ(sent, 65'535u);
  server_.Feed(Frame(FrameType::kWindowUpdate, 0, 1, Uint32(100'000)));
  EXPECT_EQ(server_.Take(), "");  // the connection's window is shut
  server_.Feed(Frame(FrameType::kWindowUpdate, 0, 0, Uint32(10)));
  EXPECT_EQ(server_.TakeFrames().at(0).payload.size(), 10u);
  server_.Feed(Frame(FrameType::kWindowUpdate, 0, 0, Uint32(100'000)));
  EXPECT_EQ(Types(server_.Take()), "0 0 0 1! ");
  EXPECT_EQ(server_.open(), 0u);
}

TEST_F(ServerSessionTest, WindowBecomesNegativeWhenThePeerLowersIt) {
  server_.answer.body = std::string(70'000, 'b');
  server_.Feed(Headers(1, kWhole) + Frame(FrameType::kWindowUpdate, 0, 0, Uint32(1 << 20)));
  server_.Take();
  server_.Feed(Frame(FrameType::kSettings, 0, 0, Entry(Setting::kInitialWindowSize, 100)));
  server_.Take();
  server_.Feed(Frame(FrameType::kWindowUpdate, 0, 1, Uint32(65'435)));
  EXPECT_EQ(server_.Take(), "");  // now 0
  server_.Feed(Frame(FrameType::kWindowUpdate, 0, 1, Uint32(1)));
  EXPECT_EQ(server_.TakeFrames().at(0).payload.size(), 1u);
  server_.Feed(Frame(FrameType::kSettings, 0, 0, Entry(Setting::kInitialWindowSize, 10'000)));
  EXPECT_EQ(server_.open(), 1u);
  server_.Take();
  EXPECT_EQ(server_.open(), 0u);
}

TEST_F(ServerSessionTest, EndsOnSettingThatOverflowsAWindow) {
  ExpectEnd(Headers(1) + Frame(FrameType::kWindowUpdate, 0, 1, Uint32(0x7FFFFFFF - 65'535)) +
                Frame(FrameType::kSettings, 0, 0, Entry(Setting::kInitialWindowSize, 65'536)),
            ErrorCode::kFlowControlError);
}

TEST_F(ServerSessionTest, OnlyTheLastWindowOfASettingsFrameCounts) {
  server_.answer.body = std::string(70'000, 'b');
  server_.Feed(Headers(1, kWhole) + Frame(FrameType::kWindowUpdate, 0, 0, Uint32(1 << 20)) +
               Frame(FrameType::kSettings, 0, 0,
                     Entry(Setting::kInitialWindowSize, 0x7FFFFFFF) +
                         Entry(Setting::kInitialWindowSize, 1000)));
  const auto frames = server_.TakeFrames();
  size_t sent = 0;
  for (const auto& frame : frames) {
    if (frame.header.type == FrameType::kData) sent += frame.payload.size();
  }
  EXPECT_EQ(sent, 1000u);
  EXPECT_EQ(server_.open(), 1u);
}

TEST_F(ServerSessionTest, AnAbandonedSessionTakesNoMoreAnswers) {
  server_.Feed(Headers(1) + Headers(3));
  server_.session().Abandon();
  server_.session().Submit(server_.stream(1), /*has_body=*/true);
  EXPECT_EQ(server_.Take(), "");
  EXPECT_FALSE(server_.session().wants_send());
}

TEST_F(ServerSessionTest, HeadersPassStreamsThatWaitForTheWindow) {
  server_.answer.body = std::string(70'000, 'b');
  server_.Feed(Headers(1, kWhole));
  server_.Take();
  server_.answer = {{{":status", "200"}}, "", {}};
  server_.Feed(Headers(3, kWhole));
  EXPECT_EQ(Types(server_.Take()), "1! ");
}

TEST_F(ServerSessionTest, SendStopsAtItsLimit) {
  for (uint32_t id = 1; id < 21; id += 2) server_.Feed(Headers(id, kWhole));
  EXPECT_EQ(Types(server_.Take(1)), "1 0 1! ");
  EXPECT_TRUE(server_.session().wants_send());
  EXPECT_EQ(server_.open(), 9u);
  server_.Take();
  EXPECT_FALSE(server_.session().wants_send());
}

TEST_F(ServerSessionTest, SplitsLongHeaderListsIntoContinuations) {
  server_.answer.headers.push_back({"long", std::string(40'000, 'l')});
  server_.Feed(Headers(1, kWhole));
  const std::vector<ParsedFrame> frames = server_.TakeFrames();
  ASSERT_EQ(frames.size(), 5u);
  EXPECT_EQ(frames[0].header.type, FrameType::kHeaders);
  EXPECT_FALSE(frames[0].header.has(kEndHeaders));
  EXPECT_EQ(frames[1].header.type, FrameType::kContinuation);
  EXPECT_FALSE(frames[1].header.has(kEndHeaders));
  EXPECT_TRUE(frames[2].header.has(kEndHeaders));
  EXPECT_EQ(frames[3].header.type, FrameType::kData);
}

TEST_F(ServerSessionTest, AnnouncesThatItFollowsALoweredTableSize) {
  server_.answer = {{{":status", "200"}}, "", {}};
  server_.Feed(Frame(FrameType::kSettings, 0, 0, Entry(Setting::kHeaderTableSize, 0)));
  server_.Feed(Headers(1, kWhole));
  EXPECT_EQ(server_.TakeFrames().back().payload.substr(0, 1), std::string("\x20", 1));
}

// ---- Ends

TEST_F(ServerSessionTest, TerminateDropsWhatIsQueued) {
  server_.Feed(Headers(1, kWhole));
  server_.session().Terminate(ErrorCode::kEnhanceYourCalm, "enough");
  const std::vector<ParsedFrame> frames = server_.TakeFrames();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].payload, Uint32(1) + Uint32(11) + "enough");
  EXPECT_TRUE(server_.session().finished());
  server_.Feed(Headers(3, kWhole));
  EXPECT_EQ(server_.Take(), "");
}

TEST_F(ServerSessionTest, FinishesAfterTheClientsGoawayAndTheLastStream) {
  server_.Feed(Headers(1) + Frame(FrameType::kGoaway, 0, 0, std::string(8, '\0')));
  EXPECT_FALSE(server_.session().finished());
  server_.Feed(Data(1, "", kEndStream));
  server_.Take();
  EXPECT_TRUE(server_.session().finished());
}

TEST_F(ServerSessionTest, IdleSessionHoldsLittleMemory) {
  server_.Feed(Headers(1, kWhole));
  server_.Take();
  EXPECT_LE(sizeof(ServerSession) + server_.session().memory(), size_t{4} << 10);
}

}  // namespace
}  // namespace sluice::http2
