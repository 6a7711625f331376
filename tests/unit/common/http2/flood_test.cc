// Floods of frames that are cheap to send: each has a budget, which honest peers do not spend.
#include <string>

#include "gtest/gtest.h"
#include "tests/support/http2_sessions.h"

namespace sluice::http2 {
namespace {

using ::sluice::testing::Frame;
using ::sluice::testing::RequestHeaders;
using ::sluice::testing::ServerEnd;
using ::sluice::testing::Uint32;

constexpr int64_t kSecond = 1'000'000'000;
const std::string kPing = Frame(FrameType::kPing, 0, 0, "12345678");

// How many of `frame` are accepted on a connection with an open stream, 1. The peer reads.
int CountUntilRefused(const std::string& frame, int most) {
  ServerEnd server;
  server.Greet();
  server.Feed(Frame(FrameType::kHeaders, kEndHeaders, 1, RequestHeaders("/")));
  for (int i = 0; i < most; ++i) {
    server.Feed(frame);
    server.Take();
    if (server.session().ended()) {
      EXPECT_EQ(server.error(), ErrorCode::kEnhanceYourCalm);
      EXPECT_TRUE(server.session().terminated());
      return i;
    }
  }
  return most;
}

TEST(FloodTest, RefusesEachKindOfFlood) {
  constexpr int kMost = 10'000;
  EXPECT_LE(CountUntilRefused(kPing, kMost), 20);
  EXPECT_LE(CountUntilRefused(Frame(FrameType::kPing, kAck, 0, "12345678"), kMost), 256);
  EXPECT_LE(CountUntilRefused(Frame(FrameType::kSettings, 0, 0), kMost), 64);
  EXPECT_LE(CountUntilRefused(Frame(FrameType::kPriority, 0, 3, "12345"), kMost), 512);
  EXPECT_LE(CountUntilRefused(Frame(FrameType::kWindowUpdate, 0, 0, Uint32(1)), kMost), 1024);
  EXPECT_LE(CountUntilRefused(Frame(FrameType::kData, 0, 1), kMost), 256);
  EXPECT_LE(CountUntilRefused(Frame(FrameType::kData, kPadded, 1, std::string(9, '\x08')), kMost),
            256);
  EXPECT_LE(CountUntilRefused(Frame(FrameType::kGoaway, 0, 0, std::string(8, '\0')), kMost), 256);
  EXPECT_LE(CountUntilRefused(Frame(0x42, 0, 0, "x"), kMost), 256);
}

TEST(FloodTest, RefusesFloodOfContinuations) {
  ServerEnd server;
  server.Greet();
  server.Feed(Frame(FrameType::kHeaders, 0, 1, "\x83"));
  int sent = 0;
  for (; sent < 100 && !server.session().ended(); ++sent) {
    server.Feed(Frame(FrameType::kContinuation, 0, 1, "x"));
  }
  EXPECT_LE(sent, 9);
  EXPECT_EQ(server.error(), ErrorCode::kEnhanceYourCalm);
}

TEST(FloodTest, RefusesHeaderBlocksThatAreFarTooLong) {
  ServerEnd server;
  server.Greet();
  server.Feed(Frame(FrameType::kHeaders, 0, 1, std::string(16'384, '\x83')));
  int sent = 0;
  for (; sent < 100 && !server.session().ended(); ++sent) {
    server.Feed(Frame(FrameType::kContinuation, 0, 1, std::string(16'384, '\x83')));
  }
  EXPECT_EQ(sent, 4);
  EXPECT_LE(server.session().memory(), size_t{160} << 10);
}

TEST(FloodTest, RefusesFramesToAnswerOfPeerThatDoesNotRead) {
  ServerOptions options;
  options.max_concurrent_streams = 0;  // so that each request is refused
  ServerEnd server(options);
  server.Greet();
  uint32_t id = 1;
  for (; id < 100'000 && !server.session().ended(); id += 2) {
    server.now_ns += kSecond / 100;
    server.Feed(Frame(FrameType::kHeaders, kEndHeaders | kEndStream, id, RequestHeaders("/")));
  }
  EXPECT_LE(id, 6000u);
  EXPECT_LE(server.session().memory(), size_t{80} << 10);
}

TEST(FloodTest, AcceptsSlowPings) {
  ServerEnd server;
  server.Greet();
  for (int i = 0; i < 1000; ++i) {
    server.now_ns += 10 * kSecond;
    server.Feed(kPing);
    ASSERT_EQ(server.TakeFrames().size(), 1u) << i;
  }
}

TEST(FloodTest, AcceptsPingsThatFollowData) {
  ServerEnd server;
  server.answer = {{{":status", "200"}}, "data", {}};
  server.Greet();
  for (uint32_t id = 1; id < 20'000; id += 2) {
    server.Feed(Frame(FrameType::kHeaders, kEndHeaders | kEndStream, id, RequestHeaders("/")));
    server.Take();
    server.Feed(kPing);
    server.Take();
    ASSERT_FALSE(server.session().ended()) << id;
  }
}

std::string Opened(uint32_t id) {
  return Frame(FrameType::kHeaders, kEndHeaders, id, RequestHeaders("/"));
}
std::string Cancelled(uint32_t id) { return Frame(FrameType::kRstStream, 0, id, Uint32(8)); }

TEST(FloodTest, RefusesImmediateResetsButNotLateOnes) {
  ServerEnd server;
  server.Greet();
  uint32_t id = 1;
  for (; id < 200'000; id += 2) {
    server.Feed(Opened(id));
    server.now_ns += kSecond / 10;
    server.Feed(Cancelled(id));
    ASSERT_FALSE(server.session().ended());
  }
  const uint32_t first = id;
  for (; !server.session().ended(); id += 2) {
    server.Feed(Opened(id) + Cancelled(id));
    ASSERT_LE(id - first, 8200u);
  }
  EXPECT_EQ(server.error(), ErrorCode::kEnhanceYourCalm);
}

TEST(FloodTest, FinishedCallsRefillTheResetBudget) {
  ServerEnd server;
  server.answer = {{{":status", "200"}}, "", {}};
  server.Greet();
  for (uint32_t id = 1; id < 100'000; id += 4) {
    server.Feed(Opened(id) + Cancelled(id));
    server.Feed(Frame(FrameType::kHeaders, kEndHeaders | kEndStream, id + 2, RequestHeaders("/")));
    server.Take();
    ASSERT_FALSE(server.session().ended()) << id;
  }
}

TEST(FloodTest, RefusesResetsOfClosedStreams) {
  ServerEnd server;
  server.Greet();
  server.Feed(Opened(1) + Cancelled(1));
  int sent = 0;
  for (; sent < 100'000 && !server.session().ended(); ++sent) server.Feed(Cancelled(1));
  EXPECT_LE(sent, 4100);
}

// Feeds HEADERS on streams `id`, `id + step` and so on until they are refused.
void ExpectLateHeadersRefused(ServerEnd& server, uint32_t id, uint32_t step,
                              const std::string& block) {
  for (int sent = 0; sent < 3000 && !server.session().ended(); ++sent, id += step) {
    server.Feed(Frame(FrameType::kHeaders, kEndHeaders | kEndStream, id, block));
  }
  EXPECT_EQ(server.error(), ErrorCode::kEnhanceYourCalm);
  EXPECT_TRUE(server.session().terminated());
  EXPECT_EQ(server.session().error_text(), "too_many_late_headers");
}

TEST(FloodTest, RefusesHeadersOfStreamsThatWereClosedLongAgo) {
  ServerEnd server;
  server.answer = {{{":status", "200"}}, "", {}};
  server.Greet();
  uint32_t id = 1;
  for (; id < 2 * 66; id += 2) {
    server.Feed(Frame(FrameType::kHeaders, kEndHeaders | kEndStream, id, RequestHeaders("/")));
    server.Take();
  }
  // A name of 4064 bytes, which fills the HPACK table. The late HEADERS insert it again and again.
  const std::string insert = "\x40\x7f\xe1\x1e" + std::string(4064, 'n') + std::string("\0", 1);
  server.Feed(
      Frame(FrameType::kHeaders, kEndHeaders | kEndStream, id, RequestHeaders("/") + insert));
  server.Take();
  ASSERT_FALSE(server.session().ended()) << server.session().error_text();
  std::string block;
  for (int i = 0; i < 16; ++i) block.append("\x7e\0", 2);
  ExpectLateHeadersRefused(server, 1, 0, block);
}

TEST(FloodTest, RefusesHeadersOfAStreamThatIsBeingReset) {
  ServerEnd server;
  server.Greet();
  server.Feed(Opened(1));
  server.session().Reset(server.stream(1), ErrorCode::kCancel);
  ExpectLateHeadersRefused(server, 1, 0, RequestHeaders("/"));
}

TEST(FloodTest, RefusesFloodOfRequestsAfterTheFinalGoaway) {
  ServerEnd server;
  server.Greet();
  server.Feed(Opened(1));
  server.session().Drain(server.now_ns);
  server.Feed(Frame(FrameType::kPing, kAck, 0, "draining"));
  server.Take();
  ASSERT_FALSE(server.session().finished());
  ExpectLateHeadersRefused(server, 3, 2, RequestHeaders("/"));
}

TEST(FloodTest, AcceptsTrailersThatCrossedResets) {
  ServerEnd server;
  server.Greet();
  for (uint32_t id = 1; id < 2000; id += 2) {
    server.Feed(Opened(id));
    server.session().Reset(server.stream(static_cast<int32_t>(id)), ErrorCode::kCancel);
    server.Take();
    server.Feed(Frame(FrameType::kHeaders, kEndHeaders | kEndStream, id, RequestHeaders("/")));
    ASSERT_FALSE(server.session().ended()) << id;
  }
}

}  // namespace
}  // namespace sluice::http2
