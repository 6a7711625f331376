// Connections of the client that die silently, that use up their stream ids, and whose callbacks
// block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "client/src/transport/http2_connection.h"
#include "sluice/client.h"
#include "tests/support/scripted_server.h"

namespace sluice {
namespace {

using client_internal::TransportOptions;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;
using namespace sluice::testing;  // NOLINT(google-build-using-namespace): the script's words

// Without the bounds that Client::Create has.
Client MakeClient(const ScriptedServer& server, const TransportOptions& transport) {
  ClientOptions options;
  options.deadline = minutes(2);
  options.retry.max_attempts = 1;
  return Client(*client_internal::MakeHttp2Connection(server.address(), {}, "", transport),
                options);
}

TransportOptions Keepalive(std::chrono::nanoseconds time, std::chrono::nanoseconds timeout) {
  TransportOptions options;
  options.keepalive = {time, timeout};
  return options;
}

enum class Form { kBlocking, kFuture };

class Http2LifetimeTest : public ::testing::TestWithParam<Form> {
 protected:
  static Decision Ask(Client& client, std::chrono::nanoseconds deadline = minutes(2)) {
    CallOptions options;
    options.deadline = deadline;
    return GetParam() == Form::kBlocking
               ? *client.Acquire("api", "k", 1, options)
               : *client.AcquireFuture(Acquisition("api", "k"), options).get();
  }

  // Its first connection takes requests and answers neither them nor PINGs; later ones serve.
  static void DieAfterTheFirstRequest(Peer& peer, int connection) {
    if (!peer.Greet()) return;
    if (connection > 0) return peer.Serve();
    peer.AwaitRequest();
    peer.AwaitEnd();
  }
};

INSTANTIATE_TEST_SUITE_P(Forms, Http2LifetimeTest,
                         ::testing::Values(Form::kBlocking, Form::kFuture), [](const auto& info) {
                           return info.param == Form::kBlocking ? "Blocking" : "Future";
                         });

// ---- Servers that die

TEST_P(Http2LifetimeTest, PingsAQuietServerWhileACallIsOpen) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet()) return;
    const uint32_t stream = peer.AwaitRequest();
    for (int pings = 0; pings < 3;) {
      const auto frame = peer.Read();
      if (!frame.has_value()) return;
      if (frame->type != kPing) continue;
      ++pings;
      peer.Send(Frame(kPing, kAck, 0, frame->payload));
    }
    peer.Send(Answer(stream, kGranted));
    peer.Serve();
  });
  Client client = MakeClient(server, Keepalive(milliseconds(10), minutes(1)));
  EXPECT_TRUE(Ask(client).granted);
  EXPECT_EQ(server.connections(), 1);
}

TEST_P(Http2LifetimeTest, SendsNoPingsWhileNoCallIsOpen) {
  std::atomic<int> pings{0};
  ScriptedServer server([&](Peer& peer, int) {
    if (!peer.Greet()) return;
    const uint32_t first = peer.AwaitRequest();
    peer.Send(Answer(first, kGranted));
    while (const auto frame = peer.Read()) {
      if (frame->type == kPing) ++pings;
      if (frame->type != kHeaders) continue;
      peer.Send(Answer(peer.AwaitRequest(), kGranted));
      return peer.Serve();
    }
  });
  Client client = MakeClient(server, Keepalive(milliseconds(100), minutes(1)));
  EXPECT_TRUE(Ask(client).granted);
  pings = 0;  // those of a slow machine, before the answer
  std::this_thread::sleep_for(milliseconds(350));
  EXPECT_TRUE(Ask(client).granted);
  EXPECT_EQ(pings, 0);
  EXPECT_EQ(server.connections(), 1);
}

TEST_P(Http2LifetimeTest, EndsCallsOfAServerThatAnswersNoPing) {
  ScriptedServer server(DieAfterTheFirstRequest);
  Client client = MakeClient(server, Keepalive(milliseconds(10), milliseconds(500)));
  const Decision lost = Ask(client);
  EXPECT_EQ(lost.status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(lost.status.may_have_executed());
  EXPECT_THAT(lost.status.message(), HasSubstr("does not answer PINGs"));
  EXPECT_TRUE(Ask(client).granted);
  EXPECT_EQ(server.connections(), 2);
}

TEST_P(Http2LifetimeTest, CallsThatTimeOutFindADeadServerWithoutKeepalive) {
  ScriptedServer server(DieAfterTheFirstRequest);
  Client client = MakeClient(server, Keepalive(seconds(0), milliseconds(200)));
  // The first one sends a PING. One that ends 200 ms later without an answer ends the connection.
  while (!Ask(client, milliseconds(20)).granted) {
  }
  EXPECT_GE(server.connections(), 2);
}

TEST(Http2StreamTest, AcquisitionsThatTimeOutFindADeadServerWithoutKeepalive) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet()) return;
    peer.AwaitEnd();
  });
  Client client = MakeClient(server, Keepalive(seconds(0), milliseconds(200)));
  AcquireStream stream = client.OpenStream({.deadline = milliseconds(20)});
  while (server.connections() < 2) stream.Submit(Acquisition("api", "k")).wait();
}

TEST(Http2WatchTest, EndsWhenTheServerAnswersNoPing) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet()) return;
    peer.AwaitEnd();
  });
  Client client = MakeClient(server, Keepalive(milliseconds(10), milliseconds(200)));
  const std::vector<Bucket> buckets = {{"api", "k"}};
  std::promise<Status> closed;
  auto watch = client.Watch(
      buckets, {}, {.on_change = [](auto) {}, .on_closed = [&](Status s) { closed.set_value(s); }});
  const Status status = closed.get_future().get();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("does not answer PINGs"));
}

// ---- Stream ids

TEST_P(Http2LifetimeTest, ReplacesConnectionsWhoseStreamIdsAreUsedUp) {
  constexpr uint32_t kLastId = 0x7FFFFFFF;
  constexpr int kCallsPerConnection = 5;
  std::atomic<int> executed{0};
  ScriptedServer server([&](Peer& peer, int) {
    if (!peer.Greet()) return;
    while (const uint32_t stream = peer.AwaitRequest()) {
      EXPECT_GE(stream, kLastId - 2 * (kCallsPerConnection - 1));
      EXPECT_LE(stream, kLastId);
      ++executed;
      peer.Send(Answer(stream, kGranted));
    }
  });
  TransportOptions options;
  options.first_stream_id = static_cast<int32_t>(kLastId - 2 * (kCallsPerConnection - 1));
  Client client = MakeClient(server, options);
  constexpr int kThreads = 8;
  constexpr int kCalls = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        const Decision decision = Ask(client);
        EXPECT_TRUE(decision.granted) << decision.status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(executed, kThreads * kCalls);
  EXPECT_EQ(server.connections(), kThreads * kCalls / kCallsPerConnection);
}

// ---- Callbacks that block

TEST(Http2CallbacksTest, WatchWhoseCallbackBlocksHoldsNoMoreThanItsWindow) {
  const std::string message = Message("\x7A\xB0\x6D" + std::string(14'000, 'x'));  // field 15
  std::atomic<bool> released{false};
  std::promise<void> entered;
  ScriptedServer server([&](Peer& peer, int) {
    if (!peer.Greet()) return;
    int64_t window = 256 << 10;  // of the watch's stream
    int sent = 0;
    const uint32_t watch = peer.AwaitRequest();
    const auto change = [&] {
      peer.Send(Frame(kData, 0, watch, message));
      window -= static_cast<int64_t>(message.size());
      ++sent;
    };
    peer.Send(Frame(kHeaders, kEndHeaders, watch, AnswerHead()));
    change();
    const uint32_t acquire = peer.AwaitRequest();
    while (window >= static_cast<int64_t>(message.size())) change();
    peer.Send(Answer(acquire, kGranted));
    // Only callbacks that have returned make room.
    while (const auto frame = peer.Read()) {
      if (frame->type == kWindowUpdate && frame->stream == watch) break;
    }
    EXPECT_TRUE(released);
    peer.Send(Frame(kHeaders, kEndHeaders | kEndStream, watch,
                    Field("grpc-status", "0") + Field("sent", std::to_string(sent))));
    peer.AwaitEnd();
  });
  Client client = MakeClient(server, {});
  const std::vector<Bucket> buckets = {{"api", "k"}};
  std::promise<void> release;
  std::promise<Status> closed;
  int changes = 0;
  auto watch =
      client.Watch(buckets, {},
                   {.on_change =
                        [&](const auto&) {
                          if (++changes > 1) return;
                          entered.set_value();
                          release.get_future().wait();
                        },
                    .on_closed = [&](Status status) { closed.set_value(std::move(status)); }});
  entered.get_future().wait();
  // Reads what the server sends meanwhile.
  EXPECT_TRUE(client.Acquire("api", "k")->granted);
  released = true;
  release.set_value();
  EXPECT_TRUE(closed.get_future().get().ok());
  EXPECT_EQ(changes, (256 << 10) / static_cast<int>(message.size()));
}

TEST(Http2CallbacksTest, CallThatWaitedForAMalformedWatchIsRead) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet(Setting(3, 1))) return;  // one stream at once
    const uint32_t watch = peer.AwaitRequest();
    std::this_thread::sleep_for(milliseconds(50));  // the blocking call waits now
    peer.Send(Frame(kHeaders, kEndHeaders, watch, AnswerHead()) +
              Frame(kData, 0, watch, Message("\x08")));
    peer.Serve();
  });
  Client client = MakeClient(server, {});
  const std::vector<Bucket> buckets = {{"api", "k"}};
  std::promise<Status> closed;
  auto watch = client.Watch(
      buckets, {}, {.on_change = [](auto) {}, .on_closed = [&](Status s) { closed.set_value(s); }});
  EXPECT_TRUE(client.Acquire("api", "k")->granted);
  EXPECT_EQ(closed.get_future().get().code(), StatusCode::kInternal);
}

TEST(Http2CallbacksTest, AnswerThatArrivedWhileACallbackBlockedCounts) {
  std::promise<void> answered;
  ScriptedServer server([&](Peer& peer, int) {
    if (!peer.Greet()) return;
    peer.Send(Answer(peer.AwaitRequest(), kGranted));
    peer.Send(Answer(peer.AwaitRequest(), kGranted));
    answered.set_value();
    peer.AwaitEnd();
  });
  Client client = MakeClient(server, {});
  std::promise<void> entered;
  std::promise<void> release;
  client.AcquireAsync(Acquisition("api"), [&](const Result<Decision>& first) {
    EXPECT_TRUE(first->granted) << first->status;
    entered.set_value();
    release.get_future().wait();
  });
  entered.get_future().wait();
  constexpr milliseconds kDeadline{300};
  auto second = client.AcquireFuture(Acquisition("api"), {.deadline = kDeadline});
  answered.get_future().wait();
  std::this_thread::sleep_for(kDeadline);
  release.set_value();
  const Result<Decision> decision = second.get();
  EXPECT_TRUE(decision->granted) << decision->status;
}

}  // namespace
}  // namespace sluice
