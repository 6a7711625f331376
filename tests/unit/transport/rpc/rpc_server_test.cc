// RpcServer, as a client sees it.
#include "server/transport/rpc/rpc_server.h"

#include <memory>
#include <string>
#include <vector>

#include "common/bounds.h"
#include "gtest/gtest.h"
#include "server/transport/rpc/grpc_text.h"
#include "tests/support/echo_methods.h"
#include "tests/support/gzip.h"
#include "tests/support/h2_peer.h"

namespace sluice::transport {
namespace {

using ::sluice::testing::CallResult;
using ::sluice::testing::EchoMethod;
using ::sluice::testing::EchoStream;
using ::sluice::testing::Framed;
using ::sluice::testing::Gzip;
using ::sluice::testing::H2Client;
using ::sluice::testing::H2Server;
using ::sluice::testing::HeldMethod;
using ::sluice::testing::StepMethod;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;

class RpcServerTest : public ::testing::Test {
 protected:
  void Begin(const RpcServerOptions& options = {}) {
    client_.reset();  // before its server
    server_ = std::make_unique<H2Server>(options);
    server_->methods.AddUnary("/t.T/Echo", echo_, {.metadata = {"x-text", "x-data-bin", "x-long"}});
    server_->methods.AddUnary("/t.T/Held", held_);
    server_->methods.AddUnary("/t.T/Small", small_, {.max_request_bytes = 10});
    server_->methods.AddUnary("/t.T/Health", health_, {.exempt_from_shedding = true});
    server_->methods.AddUnary("/t.T/Steps", steps_);
    server_->methods.AddStreaming("/t.T/Stream", stream_);
    client_ = std::make_unique<H2Client>(*server_);
    client_->Pump();
  }
  // Makes a call and waits for its end.
  const CallResult& Do(std::string_view path, std::string body,
                       const H2Client::Headers& headers = {}) {
    const int32_t id = client_->Call(path, std::move(body), headers);
    client_->Pump();
    return client_->calls[id];
  }

  EchoMethod echo_, small_, health_;
  HeldMethod held_;
  StepMethod steps_;
  EchoStream stream_;
  std::unique_ptr<H2Server> server_;
  std::unique_ptr<H2Client> client_;
};

TEST_F(RpcServerTest, AnswersUnaryCall) {
  Begin();
  const CallResult& call = Do("/t.T/Echo", Framed("hello"));
  EXPECT_EQ(call.Header(":status"), "200");
  EXPECT_EQ(call.Header("content-type"), "application/grpc");
  EXPECT_EQ(call.messages(), std::vector<std::string>{"hello"});
  EXPECT_EQ(call.status(), "0");
  EXPECT_TRUE(call.closed);
  EXPECT_EQ(call.error_code, uint32_t{NGHTTP2_NO_ERROR});
}

TEST_F(RpcServerTest, ReadsRequestsHoweverInputIsSplit) {
  for (const size_t piece : {1, 2, 3, 5, 7, 9, 10, 64, 1000}) {
    Begin();
    const int32_t unary = client_->Call("/t.T/Echo", Framed(std::string(300, 'u')));
    const int32_t stream = client_->Call("/t.T/Stream", Framed("a") + Framed("") + Framed("ccc"));
    client_->Pump(piece);
    EXPECT_EQ(client_->calls[unary].messages(), std::vector<std::string>{std::string(300, 'u')});
    EXPECT_EQ(client_->calls[stream].messages(), (std::vector<std::string>{"a", "", "ccc"}));
    EXPECT_EQ(client_->calls[stream].status(), "0");
  }
}

TEST_F(RpcServerTest, ReadsMessagesSplitOverDataFrames) {
  Begin();
  const std::string framed = Framed("split message");
  for (size_t cut = 1; cut < framed.size(); ++cut) {
    for (const char* path : {"/t.T/Echo", "/t.T/Stream"}) {
      const int32_t id = client_->Call(path, framed.substr(0, cut), {}, false);
      client_->Pump();
      client_->Continue(id, framed.substr(cut), true);
      client_->Pump();
      EXPECT_EQ(client_->calls[id].messages(), std::vector<std::string>{"split message"}) << cut;
      EXPECT_EQ(client_->calls[id].status(), "0");
    }
  }
}

TEST_F(RpcServerTest, CarriesLargeMessagesBothWays) {
  Begin();
  const std::string large(3 << 20, 'L');
  const CallResult& call = Do("/t.T/Echo", Framed(large));
  EXPECT_EQ(call.status(), "0");
  ASSERT_EQ(call.messages().size(), 1u);
  EXPECT_EQ(call.messages()[0], large);
}

TEST_F(RpcServerTest, ServesInterleavedStreams) {
  Begin();
  const int32_t first = client_->Call("/t.T/Stream", Framed("1"), {}, false);
  const int32_t second = client_->Call("/t.T/Stream", Framed("2"), {}, false);
  client_->Pump();
  EXPECT_EQ(client_->calls[first].messages().size(), 1u);
  EXPECT_FALSE(client_->calls[first].closed);
  client_->Continue(first, Framed("3"), true);
  client_->Continue(second, Framed("4"), false);
  client_->Pump();
  EXPECT_EQ(client_->calls[first].messages(), (std::vector<std::string>{"1", "3"}));
  EXPECT_EQ(client_->calls[first].status(), "0");
  EXPECT_EQ(client_->calls[second].messages(), (std::vector<std::string>{"2", "4"}));
  EXPECT_FALSE(client_->calls[second].closed);
}

TEST_F(RpcServerTest, AnswersStreamWithoutMessagesWithTrailersOnly) {
  Begin();
  const CallResult& call = Do("/t.T/Stream", "");
  EXPECT_EQ(call.status(), "0");
  EXPECT_TRUE(call.body.empty());
}

TEST_F(RpcServerTest, StopsReadingStreamWhoseResponsesAreUnread) {
  Begin();
  H2Client slow(*server_, /*auto_window=*/false);
  slow.Pump();
  stream_.times = 8;
  std::string requests;
  for (int i = 0; i < 200; ++i) requests += Framed(std::string(4000, 'x'));
  const int32_t id = slow.Call("/t.T/Stream", requests);
  slow.Pump();
  // 64 KiB were sent (the client's window) and some more are queued; then reading stops.
  EXPECT_LT(stream_.messages, 10);
  const int before = stream_.messages;
  for (int i = 0; i < 400 && slow.calls[id].messages().size() < 1600; ++i) {
    nghttp2_session_consume(slow.session, id, 65535);
    slow.Pump();
  }
  EXPECT_GT(stream_.messages, before);
  EXPECT_EQ(stream_.messages, 200);
  EXPECT_GT(stream_.writable, 0);
  EXPECT_EQ(slow.calls[id].status(), "0");
}

TEST_F(RpcServerTest, DeliversNextMessageWhenPausedStreamResumes) {
  Begin();
  stream_.pause_after_each = true;
  const int32_t id = client_->Call("/t.T/Stream", Framed("1") + Framed("2") + Framed("3"));
  client_->Pump();
  EXPECT_EQ(stream_.messages, 1);
  for (int expected = 2; expected <= 3; ++expected) {
    stream_.last->ResumeReading();
    server_->loop->RunOnce(0);
    client_->Pump();
    EXPECT_EQ(stream_.messages, expected);
  }
  EXPECT_FALSE(client_->calls[id].closed);
  stream_.last->ResumeReading();
  server_->loop->RunOnce(0);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "0");
}

TEST_F(RpcServerTest, AnswersCallThatIsFinishedLater) {
  Begin();
  const int32_t id = client_->Call("/t.T/Held", Framed("request"));
  client_->Pump();
  ASSERT_EQ(held_.held.size(), 1u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(held_.requests[0].data()),
                        held_.requests[0].size()),
            "request");
  held_.held[0]->response().Append(std::string_view("later"));
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].messages(), std::vector<std::string>{"later"});
}

// ---- Errors.

TEST_F(RpcServerTest, SendsErrorsAsTrailersOnly) {
  Begin();
  const int32_t id = client_->Call("/t.T/Held", Framed(""));
  client_->Pump();
  held_.held[0]->Finish(absl::StatusCode::kNotFound, "no 100%\nlimit \xE2\x98\xBA");
  server_->loop->RunOnce(0);
  client_->Pump();
  const CallResult& call = client_->calls[id];
  EXPECT_EQ(call.status(), "5");
  EXPECT_EQ(call.Header("grpc-message"), "no 100%25%0Alimit %E2%98%BA");
  EXPECT_TRUE(call.body.empty());
}

TEST_F(RpcServerTest, AnswersUnknownMethodsAndServicesWithUnimplemented) {
  Begin();
  EXPECT_EQ(Do("/t.T/Nothing", Framed("")).status(), "12");
  EXPECT_NE(Do("/t.T/Nothing", Framed("")).Header("grpc-message").find("unknown method"),
            std::string::npos);
  EXPECT_LT(Do("/t.U/" + std::string(10'000, 'u'), Framed("")).Header("grpc-message").size(), 300u);
  EXPECT_NE(Do("/t.U/Echo", Framed("")).Header("grpc-message").find("unknown service"),
            std::string::npos);
  EXPECT_EQ(Do("/", Framed("")).status(), "12");
}

TEST_F(RpcServerTest, EarlyResponseEndsTheRequestWithoutAnError) {
  Begin();
  const int32_t id = client_->Call("/t.T/Nothing", Framed(""), {}, false);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "12");
  EXPECT_TRUE(client_->calls[id].closed);
  EXPECT_EQ(client_->calls[id].error_code, uint32_t{NGHTTP2_NO_ERROR});
  EXPECT_EQ(Do("/t.T/Echo", Framed("x")).status(), "0");
}

TEST_F(RpcServerTest, AnswersHttpErrorsInHttp) {
  Begin();
  EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{":method", "GET"}}).Header(":status"), "405");
  EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{":method", "GET"}}).Header("allow"), "POST");
  for (const char* type : {"text/html", "application/grpc-web", "application/grpcx", "-"}) {
    EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{"content-type", type}}).Header(":status"), "415")
        << type;
  }
  EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{"te", "-"}}).Header(":status"), "400");
  EXPECT_EQ(echo_.calls, 0);
}

TEST_F(RpcServerTest, AcceptsServedContentTypes) {
  Begin();
  for (const char* type : {"application/grpc", "application/grpc+proto", "application/grpc;x=y",
                           "application/grpc+proto;x=y"}) {
    EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{"content-type", type}}).status(), "0") << type;
  }
  EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{"content-type", "application/grpc+json"}}).status(),
            "12");
}

TEST_F(RpcServerTest, UnaryMethodRequiresExactlyOneMessage) {
  Begin();
  EXPECT_EQ(Do("/t.T/Echo", "").status(), "12");
  EXPECT_EQ(Do("/t.T/Echo", Framed("1") + Framed("2")).status(), "12");
  EXPECT_EQ(echo_.calls, 0);
}

TEST_F(RpcServerTest, AnswersBrokenFramingWithInternal) {
  Begin();
  for (const char* path : {"/t.T/Echo", "/t.T/Stream"}) {
    EXPECT_EQ(Do(path, Framed("cut").substr(0, 7)).status(), "13") << path;
    EXPECT_EQ(Do(path, std::string("\x02\0\0\0\0", 5)).status(), "13") << path;
    EXPECT_EQ(Do(path, Framed("not compressed", true)).status(), "13") << path;
  }
}

TEST_F(RpcServerTest, RefusesMessageAboveTheBoundByItsPrefix) {
  Begin();
  EXPECT_EQ(Do("/t.T/Small", Framed("1234567890")).status(), "0");
  EXPECT_EQ(Do("/t.T/Small", Framed("12345678901")).status(), "8");
  EXPECT_EQ(Do("/t.T/Echo", std::string("\0\xFF\xFF\xFF\xFFxyz", 8)).status(), "8");
  EXPECT_EQ(Do("/t.T/Stream", std::string("\0\xFF\xFF\xFF\xFFxyz", 8)).status(), "8");
}

TEST_F(RpcServerTest, RefusesHeadersAboveTheBound) {
  Begin();
  EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{"x-large", std::string(15'000, 'x')}}).status(), "0");
  EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{"x-large", std::string(17'000, 'x')}}).status(), "8");
  EXPECT_EQ(Do("/t.T/Echo", Framed("x")).status(), "0");
}

// ---- Compression.

TEST_F(RpcServerTest, AcceptsGzip) {
  Begin();
  const std::string text(1000, 'z');
  EXPECT_EQ(Do("/t.T/Echo", Framed(Gzip(text), true), {{"grpc-encoding", "gzip"}}).messages(),
            std::vector<std::string>{text});
  EXPECT_EQ(
      Do("/t.T/Stream", Framed(Gzip(text), true) + Framed("plain"), {{"grpc-encoding", "gzip"}})
          .messages(),
      (std::vector<std::string>{text, "plain"}));
}

TEST_F(RpcServerTest, BoundsDecompressedMessages) {
  Begin();
  const std::string bomb = Framed(Gzip(std::string(5 << 20, '0')), true);
  EXPECT_EQ(Do("/t.T/Echo", bomb, {{"grpc-encoding", "gzip"}}).status(), "8");
  EXPECT_EQ(Do("/t.T/Stream", bomb, {{"grpc-encoding", "gzip"}}).status(), "8");
  EXPECT_EQ(Do("/t.T/Echo", Framed("no gzip", true), {{"grpc-encoding", "gzip"}}).status(), "13");
}

TEST_F(RpcServerTest, ListsAcceptedEncodingsForUnsupportedOne) {
  Begin();
  const CallResult& call = Do("/t.T/Echo", Framed("x"), {{"grpc-encoding", "zstd"}});
  EXPECT_EQ(call.status(), "12");
  EXPECT_EQ(call.Header("grpc-accept-encoding"), "identity,gzip");
}

// ---- Metadata.

TEST_F(RpcServerTest, CarriesMetadataBothWays) {
  Begin();
  echo_.on_call = [](ServerCall& call) {
    EXPECT_EQ(call.metadata("x-text"), "value");
    EXPECT_EQ(call.metadata("x-long")->size(), common::bounds::kMaxAuthorizationBytes + 1);
    EXPECT_EQ(call.metadata("x-data-bin"), "AAH/");  // base64, as it came
    EXPECT_FALSE(call.metadata("x-other").has_value());
    EXPECT_EQ(call.peer_address(), "192.0.2.1:999");
    call.AddInitialMetadata("x-first", "1");
    call.AddTrailingMetadata("x-last-bin", "/w");
  };
  const CallResult& call = Do("/t.T/Echo", Framed("x"),
                              {{"x-text", "value"},
                               {"x-other", "dropped"},
                               {"x-data-bin", "AAH/"},
                               {"x-long", std::string(4000, 'v')}});
  EXPECT_EQ(call.Header("x-first"), "1");
  EXPECT_EQ(call.Header("x-last-bin"), "/w");
  EXPECT_EQ(echo_.calls, 1);
}

TEST_F(RpcServerTest, KeepsTheFirstHeaderOfAName) {
  Begin();
  echo_.on_call = [](ServerCall& call) { EXPECT_EQ(call.metadata("x-text"), "first"); };
  const int32_t id = client_->Request({{":method", "POST"},
                                       {":scheme", "http"},
                                       {":path", "/t.T/Echo"},
                                       {":authority", "test"},
                                       {"te", "trailers"},
                                       {"content-type", "application/grpc"},
                                       {"x-text", "first"},
                                       {"x-text", "second"}},
                                      Framed("x"), true);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "0");
  EXPECT_EQ(echo_.calls, 1);
}

// ---- Time.

TEST_F(RpcServerTest, CancelsAndAnswersCallPastItsDeadline) {
  Begin();
  const int32_t id = client_->Call("/t.T/Held", Framed(""), {{"grpc-timeout", "50m"}});
  client_->Pump();
  ASSERT_EQ(held_.held.size(), 1u);
  EXPECT_EQ(held_.held[0]->deadline_ns(), server_->clock.NowNs() + 50 * kMs);
  server_->Advance(49 * kMs);
  EXPECT_EQ(held_.cancelled, 0);
  server_->Advance(2 * kMs);
  EXPECT_EQ(held_.cancelled, 1);
  EXPECT_TRUE(held_.last_deadline_passed);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "4");
}

TEST_F(RpcServerTest, DoesNotStartCallWhoseDeadlinePassedInTheQueue) {
  Begin();
  const int32_t id = client_->Call("/t.T/Echo", Framed(""), {{"grpc-timeout", "5m"}});
  client_->connection.stream.ready_since = server_->clock.NowNs() - 6 * kMs;
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "4");
  EXPECT_EQ(echo_.calls, 0);
}

TEST_F(RpcServerTest, DoesNotStartCallCancelledInTheSameRead) {
  Begin();
  const int32_t before = client_->Call("/t.T/Echo", Framed("a"));
  const int32_t cancelled = client_->Call("/t.T/Echo", Framed("b"));
  const int32_t after = client_->Call("/t.T/Echo", Framed("c"));
  std::string read = client_->TakeOutput();
  client_->Reset(cancelled);
  read += client_->TakeOutput();
  client_->connection.Feed(read);
  client_->Pump();
  EXPECT_EQ(echo_.calls, 2);
  EXPECT_EQ(client_->calls[before].status(), "0");
  EXPECT_EQ(client_->calls[after].status(), "0");
  EXPECT_EQ(client_->calls[cancelled].status(), "");
}

TEST_F(RpcServerTest, DoesNotDeliverMessagesOfStreamCancelledInTheSameRead) {
  Begin();
  const int32_t id = client_->Call("/t.T/Stream", "", {}, false);
  client_->Pump();
  client_->Continue(id, Framed("a") + Framed("b"), true);
  std::string read = client_->TakeOutput();
  client_->Reset(id);
  read += client_->TakeOutput();
  client_->connection.Feed(read);
  EXPECT_EQ(stream_.messages, 0);
}

TEST_F(RpcServerTest, StartsCallsOfOneReadInOrderOfArrival) {
  Begin();
  for (const char* text : {"a", "b", "c"}) client_->Call("/t.T/Held", Framed(text));
  client_->Pump();
  std::string order;
  for (const auto& request : held_.requests) order.append(request.begin(), request.end());
  EXPECT_EQ(order, "abc");
}

TEST_F(RpcServerTest, DoesNotStartCallsBeforeAFloodInTheSameRead) {
  Begin();
  client_->Call("/t.T/Echo", Framed("a"));
  std::string read = client_->TakeOutput();
  const std::string ping("\0\0\x8\x6\0\0\0\0\0--------", 17);
  for (int i = 0; i < 3000; ++i) read += ping;
  client_->connection.Feed(read);
  EXPECT_TRUE(client_->connection.ended());
  EXPECT_EQ(echo_.calls, 0);
}

TEST_F(RpcServerTest, AnswersInvalidTimeoutWithInternal) {
  Begin();
  EXPECT_EQ(Do("/t.T/Echo", Framed(""), {{"grpc-timeout", "soon"}}).status(), "13");
}

TEST_F(RpcServerTest, AnswersUnfinishedRequestWithDeadlineExceeded) {
  Begin();
  const int32_t id = client_->Call("/t.T/Echo", Framed("part").substr(0, 6), {}, false);
  client_->Pump();
  server_->Advance(int64_t{31'000} * kMs);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "4");
  EXPECT_EQ(echo_.calls, 0);
}

TEST_F(RpcServerTest, EndsStreamWhoseMessageDoesNotArriveInTime) {
  const std::string framed = Framed("message");
  // Of the prefix, and of the message.
  for (const size_t part : {size_t{1}, size_t{6}}) {
    Begin();
    stream_ = EchoStream();
    const int32_t id =
        client_->Call("/t.T/Stream", Framed("whole") + framed.substr(0, part), {}, false);
    client_->Pump();
    server_->Advance(29 * kSecond);
    client_->Continue(id, framed.substr(part, 1), false);  // gives it no more time
    client_->Pump();
    EXPECT_EQ(client_->calls[id].status(), "");
    server_->Advance(2 * kSecond);
    client_->Pump();
    EXPECT_EQ(client_->calls[id].status(), "4") << part;
    EXPECT_NE(client_->calls[id].Header("grpc-message").find("rest of a message"),
              std::string::npos);
    EXPECT_EQ(stream_.messages, 1);
    EXPECT_EQ(stream_.cancelled, 1);
  }
}

TEST_F(RpcServerTest, EndedStreamGivesUpItsUnfinishedMessageThoughItsAnswersAreUnread) {
  RpcServerOptions options;
  options.max_loop_buffered_bytes = 200'000;
  Begin(options);
  H2Client slow(*server_, /*auto_window=*/false);
  slow.Pump();
  stream_.times = 8;  // more than its window takes
  const int32_t id = slow.Call("/t.T/Stream", Framed(std::string(10'000, 'x')), {}, false);
  slow.Pump();
  slow.Continue(id, Framed(std::string(150'000, 'x')).substr(0, 150'000), false);
  slow.Pump();
  const std::string large = Framed(std::string(100'000, 'l'));
  EXPECT_EQ(Do("/t.T/Echo", large).status(), "8");
  server_->Advance(20 * kSecond);
  // It takes a byte of the answers, so that they do not stall.
  for (const int32_t window : {0, id}) {
    nghttp2_submit_window_update(slow.session, NGHTTP2_FLAG_NONE, window, 1);
  }
  slow.Pump();
  server_->Advance(11 * kSecond);
  slow.Pump();
  EXPECT_FALSE(slow.calls[id].closed);
  EXPECT_EQ(stream_.cancelled, 1);
  EXPECT_EQ(Do("/t.T/Echo", large).status(), "0");
}

TEST_F(RpcServerTest, StreamMayWaitForItsNextMessageForEver) {
  Begin();
  const int32_t id = client_->Call("/t.T/Stream", Framed("a"), {}, false);
  client_->Pump();
  for (int i = 0; i < 10; ++i) {
    server_->Advance(61 * kSecond);
    client_->Pump();
  }
  EXPECT_EQ(client_->calls[id].status(), "");
  client_->Continue(id, Framed("b"), true);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].messages(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(client_->calls[id].status(), "0");
}

TEST_F(RpcServerTest, EachMessageOfAStreamHasItsOwnTime) {
  Begin();
  const std::string framed = Framed("message");
  const int32_t id = client_->Call("/t.T/Stream", framed.substr(0, 8), {}, false);
  for (int i = 0; i < 10; ++i) {
    client_->Pump();
    server_->Advance(25 * kSecond);
    client_->Continue(id, framed.substr(8) + framed.substr(0, 8), false);
  }
  client_->Pump();
  EXPECT_EQ(stream_.messages, 10);
  EXPECT_EQ(client_->calls[id].status(), "");
}

TEST_F(RpcServerTest, MessageThatIsCompleteMayWaitForItsTurn) {
  Begin();
  const std::string framed = Framed("message");
  const int32_t id = client_->Call("/t.T/Stream", framed.substr(0, 8), {}, false);
  client_->Pump();
  stream_.last->PauseReading();
  client_->Continue(id, framed.substr(8), true);
  client_->Pump();
  server_->Advance(31 * kSecond);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "");
  ASSERT_NE(stream_.last, nullptr);
  stream_.last->ResumeReading();
  server_->loop->RunOnce(0);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].messages(), std::vector<std::string>{"message"});
  EXPECT_EQ(client_->calls[id].status(), "0");
}

TEST_F(RpcServerTest, ShedsCallsThatWaitedTooLongButNotHealthChecks) {
  Begin();
  const int32_t shed = client_->Call("/t.T/Echo", Framed(""));
  const int32_t shed_stream = client_->Call("/t.T/Stream", Framed(""));
  const int32_t health = client_->Call("/t.T/Health", Framed(""));
  client_->connection.stream.ready_since = server_->clock.NowNs() - 101 * kMs;
  client_->Pump();
  EXPECT_EQ(client_->calls[shed].status(), "8");
  EXPECT_NE(client_->calls[shed].Header("grpc-message").find("sheds load"), std::string::npos);
  EXPECT_EQ(client_->calls[shed_stream].status(), "8");
  EXPECT_EQ(client_->calls[shed].Header("sluice-executed"), "no");
  EXPECT_EQ(client_->calls[shed_stream].Header("sluice-executed"), "no");
  EXPECT_EQ(client_->calls[health].status(), "0");
  EXPECT_EQ(echo_.calls, 0);
  EXPECT_EQ(server_->metrics.Snapshot(0).transports[0].sheds, 2u);
}

// Otherwise a server under heavy overload would do nothing but refuse.
TEST_F(RpcServerTest, ShedsOnlyASmallPartOfLastingOverload) {
  Begin();
  constexpr int kAtOnce = 100;
  constexpr int kRounds = 40;
  int refused = 0;
  int refused_later = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < kAtOnce; ++i) ids.push_back(client_->Call("/t.T/Echo", Framed("")));
    client_->connection.stream.ready_since = server_->clock.NowNs() - 101 * kMs;
    client_->Pump();
    for (const int32_t id : ids) {
      const bool shed = client_->calls[id].status() == "8";
      EXPECT_TRUE(shed || client_->calls[id].status() == "0");
      refused += shed ? 1 : 0;
      refused_later += shed && round >= kRounds / 2 ? 1 : 0;
    }
  }
  // A burst is refused as a whole; a lasting overload is served.
  EXPECT_GE(refused, 1000);
  EXPECT_LE(refused_later, kAtOnce * kRounds / 2 / 30);
  EXPECT_EQ(echo_.calls, kAtOnce * kRounds - refused);
}

// ---- Ends.

TEST_F(RpcServerTest, ResetCancelsTheCall) {
  Begin();
  const int32_t unary = client_->Call("/t.T/Held", Framed(""));
  const int32_t stream = client_->Call("/t.T/Stream", Framed(""), {}, false);
  client_->Pump();
  client_->Reset(unary);
  client_->Reset(stream);
  client_->Pump();
  EXPECT_EQ(held_.cancelled, 1);
  EXPECT_FALSE(held_.last_deadline_passed);
  EXPECT_EQ(stream_.cancelled, 1);
}

TEST_F(RpcServerTest, HalfCloseByTheClientCancelsItsCalls) {
  Begin();
  client_->Call("/t.T/Held", Framed(""));
  client_->Call("/t.T/Held", Framed(""));
  client_->Pump();
  client_->connection.PeerEnds();
  EXPECT_EQ(held_.cancelled, 2);
  EXPECT_TRUE(client_->connection.stream.closing);
  EXPECT_EQ(server_->server.connections(), 1u);
  client_->connection.Close();
  EXPECT_EQ(held_.cancelled, 2);
  EXPECT_EQ(server_->server.connections(), 0u);
}

TEST_F(RpcServerTest, BrokenConnectionCancelsItsCalls) {
  Begin();
  client_->Call("/t.T/Held", Framed(""));
  client_->Pump();
  client_->connection.Close();
  EXPECT_EQ(held_.cancelled, 1);
}

TEST_F(RpcServerTest, BrokenFramingNotifiesTheHandlerOfItsStream) {
  Begin();
  const int32_t id = client_->Call("/t.T/Stream", Framed("1") + std::string("\x02\0\0\0\0", 5));
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "13");
  EXPECT_EQ(stream_.messages, 1);
  EXPECT_EQ(stream_.cancelled, 1);
}

// The handler may still work on a message, and must not answer a call that is gone.
TEST_F(RpcServerTest, TooManyHeldBytesNotifyTheHandlerOfItsStream) {
  RpcServerOptions options;
  options.max_connection_buffered_bytes = 100'000;
  Begin(options);
  stream_.pause_after_each = true;
  const int32_t id = client_->Call("/t.T/Stream", Framed("1"), {}, false);
  client_->Pump();
  client_->Continue(id, Framed(std::string(200'000, 'x')), false);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "8");
  EXPECT_EQ(stream_.cancelled, 1);
}

TEST_F(RpcServerTest, SendsResponseAfterSeparateInitialMetadata) {
  Begin();
  const int32_t id = client_->Call("/t.T/Held", Framed(""));
  client_->Pump();
  held_.held[0]->SendInitialMetadata();
  server_->loop->RunOnce(0);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].Header(":status"), "200");
  held_.held[0]->response().Append(std::string_view("late"));
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
  client_->Pump();
  EXPECT_EQ(client_->calls[id].messages(), std::vector<std::string>{"late"});
  EXPECT_EQ(client_->calls[id].status(), "0");
}

TEST_F(RpcServerTest, CountsCallsMessagesAndBytes) {
  Begin();
  Do("/t.T/Echo", Framed("12345"));
  Do("/t.T/Echo", Framed(""));
  Do("/t.T/Small", Framed("12345678901"));
  Do("/t.T/Nothing", Framed(""));
  const common::MetricsSnapshot snapshot = server_->metrics.Snapshot(0);
  ASSERT_EQ(snapshot.methods[0].method, "/t.T/Echo");
  EXPECT_EQ(snapshot.methods[0].codes[0], 2u);
  EXPECT_EQ(snapshot.methods[0].latency.count, 2u);
  EXPECT_EQ(snapshot.methods[0].bytes_received, 5u);
  EXPECT_EQ(snapshot.methods[0].bytes_sent, 5u);
  EXPECT_EQ(snapshot.methods[0].messages_sent, 2u);
  EXPECT_EQ(snapshot.methods[2].codes[8], 1u);
  EXPECT_EQ(snapshot.methods.back().method, "unknown");
  EXPECT_EQ(snapshot.methods.back().codes[12], 1u);
  EXPECT_EQ(snapshot.transports[0].streams_accepted, 4u);
  EXPECT_EQ(snapshot.transports[0].streams_closed, 4u);
}

// ---- Turns

TEST_F(RpcServerTest, ServesOthersBetweenTheTurnsOfALongCall) {
  Begin();
  H2Client busy(*server_);
  busy.Pump();
  const int32_t first = busy.Call("/t.T/Steps", Framed("long"));
  const int32_t behind = busy.Call("/t.T/Echo", Framed("behind"));
  busy.connection.FeedOnce(busy.TakeOutput());
  EXPECT_EQ(steps_.steps_done, 2);

  const int32_t honest = client_->Call("/t.T/Echo", Framed("hi"));
  client_->connection.FeedOnce(client_->TakeOutput());
  client_->Read();
  EXPECT_EQ(client_->calls[honest].messages(), std::vector<std::string>{"hi"});
  EXPECT_LE(steps_.steps_done, 4);

  busy.Pump();
  EXPECT_EQ(steps_.steps_done, 10);
  EXPECT_EQ(busy.calls[first].messages(), std::vector<std::string>{"long"});
  EXPECT_EQ(busy.calls[behind].messages(), std::vector<std::string>{"behind"});
  EXPECT_FALSE(busy.connection.stream.paused);
}

TEST_F(RpcServerTest, ServesManySmallCallsOfOneReadInSeveralTurns) {
  Begin();
  std::vector<int32_t> ids;
  for (int i = 0; i < 1000; ++i) ids.push_back(client_->Call("/t.T/Echo", Framed("x")));
  client_->connection.FeedOnce(client_->TakeOutput());
  EXPECT_LE(echo_.calls, 500);
  EXPECT_TRUE(client_->connection.stream.paused);
  client_->Pump();
  EXPECT_EQ(echo_.calls, 1000);
  for (const int32_t id : ids) EXPECT_EQ(client_->calls[id].status(), "0");
  EXPECT_FALSE(client_->connection.stream.paused);
}

TEST_F(RpcServerTest, EndsTheCallsOfAClosedConnectionInSeveralTurns) {
  Begin();
  for (int i = 0; i < 1000; ++i) client_->Call("/t.T/Held", Framed("x"));
  client_->Pump();
  EXPECT_EQ(held_.started, 1000);
  client_->connection.CloseOnce();
  EXPECT_LE(held_.cancelled, 250);
  EXPECT_EQ(server_->server.connections(), 1u);
  client_->connection.RunTurns();
  EXPECT_EQ(held_.cancelled, 1000);
  EXPECT_EQ(server_->server.connections(), 0u);
}

TEST_F(RpcServerTest, BoundsTheLargeMessagesThatAreBetweenTheirSteps) {
  Begin();
  steps_.steps = 50;
  const std::string large(RpcLoop::kLargePlainMessageBytes + 1, 'l');
  std::vector<std::unique_ptr<H2Client>> clients;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < RpcLoop::kMaxLargeMessages + 3; ++i) {
    clients.push_back(std::make_unique<H2Client>(*server_));
    clients.back()->Pump();
  }
  for (const auto& client : clients) {
    ids.push_back(client->Call("/t.T/Steps", Framed(large)));
    client->connection.FeedOnce(client->TakeOutput());
  }
  EXPECT_EQ(steps_.started, static_cast<int>(RpcLoop::kMaxLargeMessages));
  // A connection that ends gives its place to the one that waits longest; one that waits leaves.
  clients[0]->connection.CloseOnce();
  clients.back()->connection.CloseOnce();
  server_->loop->RunOnce(0);
  server_->loop->RunOnce(0);
  EXPECT_EQ(steps_.started, static_cast<int>(RpcLoop::kMaxLargeMessages) + 1);
  for (size_t i = 1; i + 1 < clients.size(); ++i) {
    clients[i]->Pump();
    EXPECT_EQ(clients[i]->calls[ids[i]].messages(), std::vector<std::string>{large}) << i;
  }
  EXPECT_EQ(steps_.started, static_cast<int>(RpcLoop::kMaxLargeMessages) + 2);
}

// Clients whose large messages take all places.
class LargeMessagesTest : public RpcServerTest {
 protected:
  void BeginBusy(const RpcServerOptions& options = {}) {
    Begin(options);
    steps_.steps = 1000;
    for (size_t i = 0; i < RpcLoop::kMaxLargeMessages; ++i) NewClient(/*peer=*/0);
    for (const auto& client : clients_) SendLarge(*client);
    EXPECT_EQ(steps_.started, static_cast<int>(RpcLoop::kMaxLargeMessages));
  }
  void TearDown() override { clients_.clear(); }  // before their server
  H2Client& NewClient(uint64_t peer) {
    clients_.push_back(std::make_unique<H2Client>(*server_));
    H2Client& client = *clients_.back();
    client.connection.stream.peer_number = peer;
    Exchange(client);
    return client;
  }
  // Without the turns of all others.
  void Exchange(H2Client& client) {
    for (int i = 0; i < 5; ++i) {
      client.connection.FeedOnce(client.TakeOutput());
      client.Read();
    }
  }
  // Compressed, the message has some dozens of bytes.
  int32_t SendLarge(H2Client& client, const std::string& path = "/t.T/Steps") {
    const int32_t id = client.Call(path, Framed(Gzip(large_), true), {{"grpc-encoding", "gzip"}});
    Exchange(client);
    return id;
  }
  std::string Answer(H2Client& client, const std::string& path, const std::string& message) {
    const int32_t id = client.Call(path, Framed(message));
    Exchange(client);
    return client.calls[id].messages().empty() ? "" : client.calls[id].messages()[0];
  }
  // Closes the connection of the next client that has a place.
  void FreePlace() {
    clients_[freed_++]->connection.CloseOnce();
    for (int i = 0; i < 5; ++i) server_->loop->RunOnce(0);
  }

  const std::string large_ = std::string(RpcLoop::kLargeMessageBytes + 1, 'l');
  std::vector<std::unique_ptr<H2Client>> clients_;
  size_t freed_ = 0;
};

TEST_F(LargeMessagesTest, OtherCallsOfAConnectionGoOnWhileItsLargeMessagesWait) {
  BeginBusy();
  H2Client& client = NewClient(0);
  const int32_t first = SendLarge(client, "/t.T/Echo");
  const int32_t reset = SendLarge(client, "/t.T/Echo");
  const int32_t last = SendLarge(client, "/t.T/Stream");
  EXPECT_EQ(Answer(client, "/t.T/Echo", "small"), "small");
  EXPECT_EQ(Answer(client, "/t.T/Stream", "small"), "small");
  client.Reset(reset);
  Exchange(client);
  EXPECT_TRUE(client.calls[first].messages().empty());
  EXPECT_TRUE(client.calls[last].messages().empty());
  EXPECT_FALSE(client.connection.stream.paused);
  FreePlace();
  Exchange(client);
  EXPECT_EQ(client.calls[first].messages(), std::vector<std::string>{large_});
  EXPECT_EQ(client.calls[last].messages(), std::vector<std::string>{large_});
  EXPECT_EQ(echo_.calls, 2);
}

TEST_F(LargeMessagesTest, MessageThatIsNotCompressedNeedsNoPlaceUpToAUsualSize) {
  BeginBusy();
  H2Client& client = NewClient(0);
  const std::string usual(RpcLoop::kLargePlainMessageBytes, 'u');
  EXPECT_EQ(Answer(client, "/t.T/Echo", usual), usual);
  EXPECT_EQ(Answer(client, "/t.T/Stream", usual), usual);
  EXPECT_EQ(Answer(client, "/t.T/Echo", usual + "u"), "");
}

TEST_F(LargeMessagesTest, PeersTakeTurns) {
  BeginBusy();
  for (int i = 0; i < 3; ++i) SendLarge(NewClient(0));
  H2Client& other = NewClient(1);
  const int32_t id = SendLarge(other, "/t.T/Echo");
  FreePlace();
  const int started = static_cast<int>(RpcLoop::kMaxLargeMessages) + 1;
  EXPECT_EQ(steps_.started, started);
  FreePlace();
  Exchange(other);
  EXPECT_EQ(other.calls[id].messages(), std::vector<std::string>{large_});
  EXPECT_EQ(steps_.started, started + 1) << "the place was free again";
}

// The connection waits for its peer, which may take long.
TEST_F(LargeMessagesTest, ConnectionThatHasUsedItsShareGivesThePlaceToTheNext) {
  RpcServerOptions options;
  options.max_connection_unsent_bytes = 1000;
  BeginBusy(options);
  clients_.push_back(std::make_unique<H2Client>(*server_, /*auto_window=*/false));
  H2Client& slow = *clients_.back();
  Exchange(slow);
  const int32_t waits = SendLarge(slow, "/t.T/Echo");
  stream_.times = 8;  // more than its window takes
  slow.Call("/t.T/Stream", Framed(std::string(16'000, 'u')));
  Exchange(slow);
  H2Client& next = NewClient(0);
  const int32_t id = SendLarge(next, "/t.T/Echo");
  FreePlace();
  Exchange(next);
  EXPECT_EQ(next.calls[id].messages(), std::vector<std::string>{large_});
  EXPECT_TRUE(slow.calls[waits].messages().empty());
}

TEST_F(RpcServerTest, ResetEndsACallBetweenItsTurns) {
  Begin();
  const std::string large(RpcLoop::kLargePlainMessageBytes + 1, 'l');
  const int32_t id = client_->Call("/t.T/Steps", Framed(large));
  client_->connection.FeedOnce(client_->TakeOutput());
  const int done = steps_.steps_done;
  EXPECT_LT(done, 10);
  nghttp2_submit_rst_stream(client_->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
  client_->Pump();
  EXPECT_TRUE(steps_.calls.empty());
  // The large message's place is free again.
  for (size_t i = 0; i < RpcLoop::kMaxLargeMessages + 1; ++i) {
    EXPECT_EQ(Do("/t.T/Steps", Framed(large)).status(), "0");
  }
}

}  // namespace
}  // namespace sluice::transport
