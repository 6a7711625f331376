#include "common/http2/client_session.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/http2_sessions.h"

namespace sluice::http2 {
namespace {

using ::sluice::testing::ClientEnd;
using ::sluice::testing::Entry;
using ::sluice::testing::Frame;
using ::sluice::testing::Literal;
using ::sluice::testing::ParsedFrame;
using ::sluice::testing::ParseFrames;
using ::sluice::testing::ServerEnd;
using ::sluice::testing::Uint32;

constexpr uint8_t kWhole = kEndHeaders | kEndStream;
// 0x88: ":status: 200".
std::string Headers(uint32_t id, uint8_t flags = kEndHeaders, std::string_view block = "\x88") {
  return Frame(FrameType::kHeaders, flags, id, block);
}
std::string Data(uint32_t id, std::string_view bytes, uint8_t flags = 0) {
  return Frame(FrameType::kData, flags, id, bytes);
}

class ClientSessionTest : public ::testing::Test {
 protected:
  ClientSessionTest() {
    client_.Greet();
    client_.events.clear();
  }
  // Opens a stream, the request of which is sent.
  int32_t Request() {
    const int32_t id = client_.Request();
    client_.Take();
    return id;
  }
  ClientEnd client_;
};

TEST_F(ClientSessionTest, GreetsAndSendsRequestInTwoFrames) {
  ClientEnd fresh;
  const int32_t id = fresh.Request();
  const std::string bytes = fresh.Take();
  EXPECT_EQ(bytes.substr(0, kPreface.size()), kPreface);
  const std::vector<ParsedFrame> frames = ParseFrames(bytes);
  ASSERT_EQ(frames.size(), 4u);
  EXPECT_EQ(frames[0].header.type, FrameType::kSettings);
  EXPECT_EQ(frames[1].header.type, FrameType::kWindowUpdate);
  EXPECT_EQ(frames[2].header.type, FrameType::kHeaders);
  EXPECT_EQ(frames[3].header.type, FrameType::kData);
  EXPECT_TRUE(frames[3].header.has(kEndStream));
  EXPECT_EQ(frames[3].payload, "body");
  EXPECT_EQ(id, 1);
  EXPECT_TRUE(fresh.stream(id).begun());
}

TEST_F(ClientSessionTest, OurServerAnswersOurClient) {
  ClientEnd client;
  ServerEnd server;
  server.answer = {{{":status", "200"}}, "answer", {{"grpc-status", "0"}}};
  const int32_t id = client.Request();
  for (int i = 0; i < 3; ++i) {
    server.Feed(client.Take());
    client.Feed(server.Take());
  }
  EXPECT_EQ(client.events,
            (std::vector<std::string>{"settings", "1 :status=200", "1 headers", "1 data answer",
                                      "1 grpc-status=0", "1 end", "1 closed: complete 0"}));
  EXPECT_FALSE(client.HasStream(id));
}

TEST_F(ClientSessionTest, TakesTrailersOnlyResponse) {
  Request();
  client_.Feed(Headers(1, kWhole, "\x88" + Literal("grpc-status", "5")));
  EXPECT_EQ(client_.events, (std::vector<std::string>{"1 :status=200", "1 grpc-status=5",
                                                      "1 headers, end", "1 closed: complete 0"}));
}

TEST_F(ClientSessionTest, SkipsInformationalResponses) {
  Request();
  client_.Feed(Headers(1, kEndHeaders, Literal(":status", "103") + Literal("link", "x")) +
               Headers(1, kWhole));
  EXPECT_EQ(client_.events,
            (std::vector<std::string>{"1 :status=200", "1 headers, end", "1 closed: complete 0"}));
}

TEST_F(ClientSessionTest, EndsOnFloodOfInformationalResponses) {
  Request();
  for (int i = 0; i < 1000 && !client_.session().ended(); ++i) {
    client_.Feed(Headers(1, kEndHeaders, Literal(":status", "100")));
  }
  EXPECT_EQ(client_.error(), ErrorCode::kEnhanceYourCalm);
}

TEST_F(ClientSessionTest, FailsStreamOnMalformedResponse) {
  int32_t id = 1;
  for (const std::string& block :
       {std::string("\x83"), std::string(), std::string("\x88\x88"), Literal(":status", "99"),
        Literal(":status", "2000"), Literal(":status", "101"), Literal("x", "y") + "\x88",
        "\x88" + Literal("connection", "close"), "\x88" + Literal("X", "y"),
        "\x88" + Literal("content-length", "1") + Literal("content-length", "1")}) {
    ASSERT_EQ(Request(), id);
    client_.Feed(Headers(static_cast<uint32_t>(id), kEndHeaders, block));
    const std::vector<ParsedFrame> frames = client_.TakeFrames();
    ASSERT_EQ(frames.size(), 1u) << id;
    EXPECT_EQ(frames[0].payload, Uint32(1));
    EXPECT_EQ(client_.events.back(), std::to_string(id) + " closed: error 1");
    id += 2;
  }
  EXPECT_FALSE(client_.session().ended());
}

TEST_F(ClientSessionTest, FailsStreamOnDataBeforeHeaders) {
  Request();
  client_.Feed(Data(1, "early"));
  client_.Take();
  EXPECT_EQ(client_.events, std::vector<std::string>{"1 closed: error 1"});
  EXPECT_FALSE(client_.session().ended());
}

TEST_F(ClientSessionTest, FailsStreamWhoseBodyDiffersFromContentLength) {
  for (const char* body : {"1234", "123456"}) {
    const auto id = static_cast<uint32_t>(Request());
    client_.Feed(Headers(id, kEndHeaders, "\x88" + Literal("content-length", "5")) +
                 Data(id, body, kEndStream));
    client_.Take();
    EXPECT_EQ(client_.events.back(), std::to_string(id) + " closed: error 1");
  }
}

TEST_F(ClientSessionTest, EndsOnStreamsThatItDidNotOpen) {
  for (const std::string& frame :
       {Headers(1), Data(1, "x"), Headers(2), Data(2, "x"),
        Frame(FrameType::kRstStream, 0, 1, "1234"), Frame(FrameType::kRstStream, 0, 2, "1234"),
        Frame(FrameType::kWindowUpdate, 0, 1, Uint32(1)),
        Frame(FrameType::kPushPromise, kEndHeaders, 1, Uint32(2) + "\x83"),
        Frame(FrameType::kSettings, 0, 0, Entry(Setting::kEnablePush, 1))}) {
    ClientEnd client;
    client.Greet();
    client.Feed(frame);
    EXPECT_EQ(client.error(), ErrorCode::kProtocolError);
  }
}

TEST_F(ClientSessionTest, ResetWithNoErrorAfterTheResponseIsSuccess) {
  Request();
  client_.Feed(Headers(1, kWhole) + Frame(FrameType::kRstStream, 0, 1, Uint32(0)));
  EXPECT_EQ(client_.events.back(), "1 closed: complete 0");
  EXPECT_FALSE(client_.session().ended());
}

TEST_F(ClientSessionTest, ResetBeforeTheResponseIsReported) {
  Request();
  client_.Feed(Headers(1) + Frame(FrameType::kRstStream, 0, 1, Uint32(2)));
  EXPECT_EQ(client_.events.back(), "1 closed: reset by peer 2");
}

TEST_F(ClientSessionTest, ReportsRefusedStreamAsNotProcessed) {
  Request();
  client_.Feed(Frame(FrameType::kRstStream, 0, 1, Uint32(7)));
  EXPECT_EQ(client_.events.back(), "1 closed: not processed 7");
}

TEST_F(ClientSessionTest, GoawayEndsStreamsAboveTheLastOneAsNotProcessed) {
  Request();
  Request();
  Request();
  client_.Feed(Frame(FrameType::kGoaway, 0, 0, Uint32(3) + Uint32(0) + "bye"));
  EXPECT_EQ(client_.events,
            (std::vector<std::string>{"goaway 3 0 bye", "5 closed: not processed 0"}));
  EXPECT_FALSE(client_.session().can_open());
  client_.Feed(Headers(1, kWhole) + Headers(3, kWhole));
  EXPECT_TRUE(client_.session().finished());
}

TEST_F(ClientSessionTest, StopsRequestWhoseResponseIsCompleteEarly) {
  const int32_t id = client_.Request(
      {{{":method", "POST"}, {":scheme", "http"}, {":path", "/"}, {":authority", "a"}},
       std::string(100'000, 'b'),
       {}});
  client_.Take();
  client_.Feed(Headers(static_cast<uint32_t>(id), kWhole));
  EXPECT_EQ(client_.TakeFrames().back().payload, Uint32(0));
  EXPECT_EQ(client_.events.back(), "1 closed: complete 0");
}

TEST_F(ClientSessionTest, ResetStreamGetsNoEventButItsEnd) {
  Request();
  client_.session().Reset(client_.stream(1), ErrorCode::kCancel);
  client_.Feed(Headers(1) + Data(1, "x", kEndStream));
  EXPECT_EQ(client_.TakeFrames().back().payload, Uint32(8));
  EXPECT_EQ(client_.events, std::vector<std::string>{"1 closed: reset 8"});
  client_.Feed(Data(1, "late") + Headers(1, kWhole));
  EXPECT_FALSE(client_.session().ended());
}

TEST_F(ClientSessionTest, SendsNothingOfStreamThatIsResetBeforeItIsSent) {
  client_.Request();
  client_.session().Reset(client_.stream(1), ErrorCode::kCancel);
  EXPECT_EQ(client_.Take(), "");
  EXPECT_EQ(client_.events, std::vector<std::string>{"1 closed: reset 8"});
  Request();
  client_.Feed(Headers(3, kWhole));
  EXPECT_EQ(client_.events.back(), "3 closed: complete 0");
}

TEST_F(ClientSessionTest, OpensNoMoreStreamsThanTheServerAccepts) {
  client_.Feed(Frame(FrameType::kSettings, 0, 0, Entry(Setting::kMaxConcurrentStreams, 2)));
  Request();
  EXPECT_TRUE(client_.session().can_open());
  Request();
  EXPECT_FALSE(client_.session().can_open());
  client_.Feed(Headers(1, kWhole));
  EXPECT_TRUE(client_.session().can_open());
}

TEST_F(ClientSessionTest, ReportsAnswersToPings) {
  client_.session().Ping(0x0102030405060708);
  const std::vector<ParsedFrame> frames = client_.TakeFrames();
  EXPECT_EQ(frames.at(0).payload, "\x01\x02\x03\x04\x05\x06\x07\x08");
  client_.Feed(Frame(FrameType::kPing, kAck, 0, frames[0].payload));
  EXPECT_EQ(client_.events.back(), "ping ack 72623859790382856");
}

TEST_F(ClientSessionTest, ReportsHeaderListsAboveTheBound) {
  Request();
  std::string block = "\x88";
  for (int i = 0; i < 200; ++i) block += Literal("x-" + std::to_string(i), std::string(60, 'v'));
  client_.Feed(Headers(1, kWhole, block));
  EXPECT_EQ(client_.events[client_.events.size() - 3], "1 too large");
}

}  // namespace
}  // namespace sluice::http2
